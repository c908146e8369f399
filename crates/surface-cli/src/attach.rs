//! Files of this machine that a prompt shows. They are read here; the service checks them.

use std::path::{Path, PathBuf};

use meerkat_service::{
    SessionError,
    service::{Prompt, PromptBlock},
    tool::Picture,
};

/// Types of files whose names end so. All others are plain text; images are known by their first bytes.
const TYPES: [(&str, &str); 14] = [
    ("csv", "text/csv"),
    ("css", "text/css"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("js", "application/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/x-ndjson"),
    ("md", "text/markdown"),
    ("sql", "application/sql"),
    ("toml", "application/toml"),
    ("ts", "application/typescript"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
];

/// Makes the prompt of a text and files, which come before it.
pub(crate) fn attached<P: AsRef<Path>>(files: &[P], text: String) -> Result<Prompt, SessionError> {
    if files.is_empty() {
        return Ok(text.into());
    }
    let mut blocks = files.iter().map(|path| block(path.as_ref())).collect::<Result<Vec<_>, _>>()?;
    blocks.push(PromptBlock::text(text));
    Ok(blocks.into())
}

/// Finds the files that a line names: by `@` before a path, or by a whole path, such as a terminal pastes for a file that
/// is dropped on it. A path with blanks is in quotes. Words that name no file are words.
pub(crate) fn named(line: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find(|c: char| !c.is_whitespace()) {
        rest = &rest[at..];
        let (path, is_marked) = rest.strip_prefix('@').map_or((rest, false), |path| (path, true));
        let quote = path.chars().next().filter(|c| matches!(c, '"' | '\''));
        let quoted = quote.and_then(|quote| path[1..].split_once(quote));
        let (word, after) =
            quoted.unwrap_or_else(|| path.split_at(path.find(char::is_whitespace).unwrap_or(path.len())));
        let path = Path::new(word);
        if (is_marked || path.is_absolute()) && path.is_file() && !files.iter().any(|known| known == path) {
            files.push(path.to_owned());
        }
        rest = after;
    }
    files
}

/// Returns true if a line begins with the whole path of a file, and so with no command.
pub(crate) fn begins_with_file(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|word| !named(word).is_empty())
}

/// Reads one file.
fn block(path: &Path) -> Result<PromptBlock, SessionError> {
    let refused = |why: String| SessionError::invalid("file", format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
    if let Some(media_type) = Picture::media_type(&bytes) {
        return Ok(PromptBlock::image(media_type, bytes));
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| refused("its name is not valid UTF-8".to_owned()))?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let known = TYPES.iter().find(|(known, _)| *known == ending).map_or("text/plain", |(_, media_type)| media_type);
    let media_type = if bytes.starts_with(b"%PDF-") { "application/pdf" } else { known };
    Ok(PromptBlock::file(name, media_type, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_files_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a.png", "b c.txt"] {
            std::fs::write(path(name), "x").unwrap();
        }
        let (plain, blank) = (path("a.png"), path("b c.txt"));
        let [shown, quoted] = [&plain, &blank].map(|path| path.display().to_string());
        for (line, expected) in [
            (format!("What is @{shown} ?"), vec![&plain]),
            (format!("{shown}\tand '{quoted}'"), vec![&plain, &blank]),
            (format!("@\"{quoted}\" @{shown} @{shown}"), vec![&blank, &plain]),
            (format!("@{shown}.jpg, @say hello @ '{quoted} \"@"), vec![]),
            (format!("in{shown}"), vec![]),
            (format!("@{}", folder.path().display()), vec![]),
            (String::new(), vec![]),
        ] {
            assert_eq!(named(&line).iter().collect::<Vec<_>>(), expected, "{line}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_bytes_or_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let is = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            block(&path).unwrap()
        };
        assert_eq!(is("a.txt", b"\x89PNG\r\n\x1a\nx"), PromptBlock::image("image/png", &b"\x89PNG\r\n\x1a\nx"[..]));
        assert_eq!(is("b", b"%PDF-1.7"), PromptBlock::file("b", "application/pdf", &b"%PDF-1.7"[..]));
        assert_eq!(is("c.JSON", b"{}"), PromptBlock::file("c.JSON", "application/json", &b"{}"[..]));
        assert_eq!(is("d.rs", b"fn"), PromptBlock::file("d.rs", "text/plain", &b"fn"[..]));
        assert!(
            begins_with_file(&format!("{} What?", folder.path().join("b").display())) && !begins_with_file("/help")
        );
        let refusal = attached(&[folder.path().join("none")], "x".to_owned()).unwrap_err();
        assert!(refusal.to_string().contains("none: No such file"), "{refusal}");
    }
}
