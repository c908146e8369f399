//! Choice of a session's workspace: the folder that its tools may touch.

use std::{
    io,
    path::{Path, PathBuf},
};

use meerkat_service::SessionError;

/// Checks that a folder may be a workspace, and returns its path without links.
///
/// `data_dir` is the service's data directory, `home` the user's home folder; neither has to exist.
///
/// # Errors
/// `INVALID_REQUEST` if it is not a folder, is `/`, is or holds the home folder, or holds the data directory or lies in
/// it.
pub fn check(root: &Path, data_dir: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, SessionError> {
    let refused = |why: String| SessionError::invalid("workspace", why);
    let shown = root.display();
    let root = root.canonicalize().map_err(|error| refused(format!("{shown} cannot be the workspace: {error}")))?;
    if !root.is_dir() {
        return Err(refused(format!("{shown} cannot be the workspace: it is not a folder")));
    }
    let advice = "choose the folder of one project";
    if root.parent().is_none() {
        return Err(refused(format!("{shown} cannot be the workspace: it holds the whole system; {advice}")));
    }
    let real = |path: &Path| real(path).map_err(|error| refused(format!("{}: {error}", path.display())));
    if let Some(home) = home
        && real(home)?.starts_with(&root)
    {
        return Err(refused(format!("{shown} cannot be the workspace: it holds the home folder; {advice}")));
    }
    if let Some(data_dir) = data_dir {
        let data_dir = real(data_dir)?;
        if data_dir.starts_with(&root) || root.starts_with(&data_dir) {
            let message = format!(
                "{shown} cannot be the workspace: the program's own folder {} must neither lie in it nor hold it; {advice}",
                data_dir.display()
            );
            return Err(refused(message));
        }
    }
    Ok(root)
}

/// Returns the path without links; the end that does not exist yet stays as it is.
fn real(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for known in path.ancestors() {
        match known.canonicalize() {
            Ok(real) => return Ok(path.strip_prefix(known).map_or_else(|_| real.clone(), |rest| real.join(rest))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn folders_that_hold_too_much_are_no_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().canonicalize().unwrap().join(path);
        fs::create_dir_all(at("home/project/src")).unwrap();
        fs::create_dir_all(at("home/data")).unwrap();
        fs::write(at("home/file"), "").unwrap();
        symlink(at("home"), at("link")).unwrap();
        let (home, data) = (at("home"), at("home/data/not/yet"));
        let check = |root: &Path| check(root, Some(&data), Some(&home)).map_err(|error| error.to_string());

        assert_eq!(check(&at("home/project")), Ok(at("home/project")));
        assert_eq!(check(&at("link/project/src/..")), Ok(at("home/project")));
        for (root, why) in [
            (PathBuf::from("/"), "the whole system"),
            (at("home"), "the home folder"),
            (at(""), "the home folder"),
            (at("link"), "the home folder"),
            (at("home/project/.."), "the home folder"),
            (at("home/data"), "the program's own folder"),
            (at("home/file"), "it is not a folder"),
            (at("home/missing"), "No such file"),
        ] {
            let refusal = check(&root).unwrap_err();
            assert!(refusal.contains(why), "{root:?}: {refusal}");
        }
        fs::create_dir_all(at("home/data/not/yet/journal")).unwrap();
        assert!(check(&at("home/data/not/yet/journal")).unwrap_err().contains("the program's own folder"));
        // The home folder may be below nothing but folders that hold it.
        assert!(super::check(&at("home/project"), None, Some(&at("home/project/src"))).is_err());
    }
}
