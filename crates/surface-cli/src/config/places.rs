//! Places of a project's data and files, and the notes about them.

use std::{
    fs::{self, File, TryLockError},
    path::PathBuf,
};

use super::{
    Config,
    folders::{PROJECTION, Project, earlier_dir, home, id_of, is_foreign, marked, own_dir, refuse, shared_root},
    project::is_too_wide,
};
use crate::{error::CliError, output::Environment};

impl Config {
    /// Returns the data directory: the configured one, else one per project in the user's data folder.
    pub(crate) fn data_dir(&self, env: &Environment) -> Result<PathBuf, CliError> {
        match &self.values.store.data_dir {
            Some(dir) => Ok(env.dir.join(dir)),
            None => own_dir(&home(env)?, &shared_root(env)),
        }
    }

    /// Returns the folder of the projection, if any: the configured one, else one at the project's root. The home folder
    /// and `/` get none.
    pub(crate) fn projection_dir(&self, env: &Environment) -> Option<PathBuf> {
        let has_files = |root: &PathBuf| !is_foreign(root) && !is_too_wide(root, env);
        let root = || Some(self.root(env)).filter(has_files).map(|root| root.join(PROJECTION));
        let dir = self.values.projection.dir.as_ref().map(|dir| env.dir.join(dir));
        self.projects().then(|| dir.or_else(root)).flatten()
    }

    /// Returns the root of the project; for a named data directory, of the project that it was made for.
    fn root(&self, env: &Environment) -> PathBuf {
        let known = self.values.store.data_dir.as_ref().and_then(|dir| {
            Project::known(&env.dir.join(dir)).filter(Project::is_in_place).map(|known| known.root.into())
        });
        known.unwrap_or_else(|| shared_root(env))
    }

    /// Returns the project as its data directory records it. A quiet command leaves its note, and the root of the note,
    /// to the next command.
    pub(crate) fn project(&self, env: &Environment, is_quiet: bool) -> Project {
        let here = Project::at(&self.root(env));
        if !is_quiet {
            return Project { noted: self.note(env), ..here };
        }
        match self.data_dir(env).ok().and_then(|dir| Project::known(&dir)) {
            Some(known) if known.is_same_folder(&here) => known,
            known => Project { noted: known.and_then(|known| known.noted), ..here },
        }
    }

    /// Returns a note about where the project's sessions are, if the user should know.
    fn note(&self, env: &Environment) -> Option<String> {
        let root = self.root(env);
        let folder = root.join(PROJECTION);
        let is_here = self.projects() && self.values.projection.dir.is_none() && !is_too_wide(&root, env);
        if is_here && is_foreign(&root) {
            let root = root.display();
            return Some(format!(
                "{root} or its {PROJECTION} belongs to another user, so no session is written there as files."
            ));
        }
        if self.values.store.data_dir.is_some() {
            return None;
        }
        let (home, own) = (home(env).ok()?, self.data_dir(env).ok()?);
        if let Some(known) = Project::known(&own).filter(|known| *known.root != *root.to_string_lossy()) {
            return Some(format!("This project was at {}; its sessions are in {}.", known.root, own.display()));
        }
        if let Some(found) = earlier_dir(&home, &root, &own) {
            let known = Project::known(&found).filter(|known| !known.root.is_empty());
            let whose = known
                .as_ref()
                .map_or("of an unknown folder".to_owned(), |known| format!("of the project at {}", known.root));
            let advice = match known.is_some_and(|known| known.is_in_place()) {
                true => "",
                false => "; `meerkat project adopt` continues with them",
            };
            return Some(format!("Other sessions, {whose}, are in {}{advice}.", found.display()));
        }
        let mark = marked(&root).filter(|mark| is_here && Some(*mark) != id_of(&own))?;
        Some(format!(
            "{} was written by another data directory ({mark}), of another HOME or user, so nothing is written there; set \
             `projection.dir` to another folder, or delete {}.",
            folder.display(),
            folder.join("store").display()
        ))
    }

    /// Returns the note the first time it applies to the project.
    pub(crate) fn new_note(&self, env: &Environment) -> Option<String> {
        let (note, dir) = (self.note(env).filter(|_| self.opens_data_dir())?, self.data_dir(env).ok()?);
        if Project::known(&dir).is_some_and(|known| known.noted.as_ref() == Some(&note)) {
            return None;
        }
        if dir.is_dir() {
            self.project(env, false).keep(&dir);
        }
        Some(note)
    }

    /// Continues with sessions of the project that are outside its data directory. Returns their directory, and the
    /// data directory that the project had.
    pub(crate) fn adopt(&self, env: &Environment) -> Result<(PathBuf, Option<PathBuf>), CliError> {
        if let Some(dir) = &self.values.store.data_dir {
            return Err(refuse(format!("store.data_dir names the data directory: {}", dir.display())));
        }
        let (home, root) = (home(env)?, shared_root(env));
        let own = own_dir(&home, &root)?;
        let Some(found) = earlier_dir(&home, &root, &own) else {
            let mark = root.join(PROJECTION).join("store");
            return match marked(&root) {
                Some(store) if id_of(&own) == Some(store) => Ok((own, None)),
                Some(_) => {
                    let (home, mark) = (home.display(), mark.display());
                    Err(refuse(format!("none of your data directories in {home} is the one that {mark} names")))
                }
                None => Err(refuse(format!("{} names no store", mark.display()))),
            };
        };
        if let Some(known) = Project::of(&found)?.filter(Project::is_in_place) {
            let (found, root) = (found.display(), known.root);
            return Err(refuse(format!(
                "the sessions in {found} are those of the project at {root}, which is still there"
            )));
        }
        // Both must be free meanwhile.
        let mut locks = Vec::new();
        for dir in [&own, &found] {
            let lock = File::options().read(true).write(true).open(dir.join("lock"));
            if lock.as_ref().is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) {
                return Err(refuse(format!(
                    "another process works with the sessions in {}; end it first",
                    dir.display()
                )));
            }
            locks.push(lock);
        }
        let aside = own.is_dir().then_some(own);
        if let Some(own) = &aside {
            Project::default().keep(own);
            if marked(&root) == id_of(own) {
                // Without its mark and its list the folder is rebuilt from the other sessions.
                for name in ["store", "index.json"] {
                    drop(fs::remove_file(root.join(PROJECTION).join(name)));
                }
            }
        }
        Project::at(&root).keep(&found);
        Ok((found, aside))
    }
}
