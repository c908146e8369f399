//! A project's sessions are found again where the project has moved to, and by nobody else.

use std::{fs, path::Path};

use meerkat_errors::ErrorCode;
use meerkat_service::{Capabilities, capability::Capability};

use super::{Cli, Ran, cli};

/// Folders of one user, whose data directories are beside them.
struct User(Cli);

impl User {
    /// A user, in a build that keeps sessions.
    fn new() -> Option<Self> {
        Capabilities::compiled().require(Capability::SessionStore).is_ok().then(|| Self(cli(&[])))
    }

    fn path(&self, project: &str) -> std::path::PathBuf {
        self.0.dir().join(project)
    }

    fn make(&self, project: &str) {
        fs::create_dir_all(self.path(project).join(".git")).unwrap();
    }

    #[track_caller]
    fn run(&self, project: &str, args: &[&str]) -> Ran {
        let mut command = cli(args).in_dir(&self.0.dir);
        command.below = Some(self.path(project));
        command.run()
    }

    #[track_caller]
    fn say(&self, project: &str, text: &str) {
        let ran = self.run(project, &["run", "-q", "--label", &format!("name={text}"), &format!("@say {text}")]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }

    /// The names of a project's sessions, and what was told beside them.
    #[track_caller]
    fn sessions(&self, project: &str) -> (Vec<String>, String) {
        let ran = self.run(project, &["sessions", "list", "--json"]);
        let list = ran.json();
        let name = |item: &serde_json::Value| item["labels"]["name"].as_str().unwrap_or_default().to_owned();
        let mut names: Vec<String> = list["items"].as_array().unwrap().iter().map(name).collect();
        names.sort();
        (names, ran.err)
    }

    fn mark(&self, project: &str) -> std::path::PathBuf {
        self.path(project).join(".rkat/store")
    }
}

/// The sessions were gone, and every command warned of another data directory.
#[test]
fn a_project_that_moved_finds_its_sessions_and_says_so_once() {
    let Some(user) = User::new() else { return };
    user.make("one");
    user.say("one", "First");
    fs::rename(user.path("one"), user.path("two")).unwrap();
    let (names, told) = user.sessions("two");
    assert!(names == ["First"] && told.contains("found by its mark"), "{names:?} {told}");
    assert_eq!(user.sessions("two"), (vec!["First".to_owned()], String::new()));
    user.say("two", "Second");
    assert_eq!(user.sessions("two").0, ["First", "Second"]);
}

#[test]
fn a_mark_leads_to_nothing_but_a_store_of_ones_own() {
    let Some(user) = User::new() else { return };
    user.make("mine");
    user.say("mine", "Mine");
    let home = user.path(".local/share/meerkat");
    let known = fs::read_dir(&home).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    fs::rename(home.join(&known), user.path("elsewhere")).unwrap();
    let marks = [
        fs::read_to_string(user.mark("mine")).unwrap(),
        user.path("elsewhere").display().to_string(),
        format!("../../../{}", user.path("elsewhere").display()),
        format!("../{known}"),
        String::new(),
    ];
    for (at, mark) in marks.iter().enumerate() {
        let project = format!("planted-{at}");
        user.make(&project);
        fs::create_dir(user.path(&project).join(".rkat")).unwrap();
        fs::write(user.mark(&project), mark).unwrap();
        user.run(&project, &["project", "adopt"]).refused(ErrorCode::InvalidRequest, "project");
        assert_eq!(user.sessions(&project), (Vec::new(), String::new()), "{mark}");
    }
    user.make("endless");
    fs::create_dir(user.path("endless").join(".rkat")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", user.mark("endless")).unwrap();
    user.run("endless", &["project", "adopt"]).refused(ErrorCode::InvalidRequest, "names no store");
}

/// Its files lead to sessions that are another project's as long as that one is there.
#[test]
fn a_copy_has_the_sessions_of_its_original_only_if_it_is_told_to() {
    let Some(user) = User::new() else { return };
    user.make("one");
    user.say("one", "First");
    user.make("copy");
    fs::create_dir(user.path("copy").join(".rkat")).unwrap();
    fs::copy(user.mark("one"), user.mark("copy")).unwrap();
    let (names, told) = user.sessions("copy");
    assert!(names.is_empty() && told.contains("meerkat project adopt"), "{names:?} {told}");
    assert_eq!(user.run("copy", &["project", "adopt"]).code, 0);
    assert_eq!(user.sessions("copy").0, ["First"]);
}

/// A folder that was moved to a larger disk.
#[test]
fn a_link_in_the_place_of_a_data_directory_is_followed() {
    let Some(user) = User::new() else { return };
    user.make("one");
    user.say("one", "First");
    let data_dir = fs::read_dir(user.path(".local/share/meerkat")).unwrap().next().unwrap().unwrap().path();
    fs::rename(&data_dir, user.path("larger")).unwrap();
    std::os::unix::fs::symlink(user.path("larger"), &data_dir).unwrap();
    assert_eq!(user.sessions("one").0, ["First"]);
}

#[test]
fn a_project_with_sessions_of_its_own_takes_the_earlier_ones_when_it_is_told_to() {
    let Some(user) = User::new() else { return };
    user.make("two");
    user.say("two", "Other");
    fs::remove_dir_all(user.path("two")).unwrap();
    user.make("one");
    user.say("one", "First");
    fs::rename(user.path("one"), user.path("two")).unwrap();
    let (names, told) = user.sessions("two");
    assert!(names == ["Other"] && told.contains("meerkat project adopt"), "{names:?} {told}");
    assert_eq!(user.sessions("two"), (vec!["Other".to_owned()], String::new()));
    let adopted = user.run("two", &["project", "adopt", "--json"]);
    let aside = adopted.json()["set_aside"].as_str().unwrap().to_owned();
    assert!(Path::new(&aside).join("journal").exists(), "{aside}");
    assert_eq!(user.sessions("two"), (vec!["First".to_owned()], String::new()));
    assert!(user.run("two", &["project", "adopt", "--json"]).json()["set_aside"].is_null());
}

#[test]
fn worktrees_share_the_sessions_of_their_repository_and_a_stranger_does_not() {
    let Some(user) = User::new() else { return };
    user.make("repository");
    user.say("repository", "Shared");
    let git_dir = user.path("repository/.git/worktrees/tree");
    fs::create_dir_all(&git_dir).unwrap();
    fs::write(git_dir.join("gitdir"), format!("{}\n", user.path("tree/.git").display())).unwrap();
    for folder in ["tree", "stranger"] {
        fs::create_dir(user.path(folder)).unwrap();
        fs::write(user.path(folder).join(".git"), format!("gitdir: {}\n", git_dir.display())).unwrap();
    }
    assert_eq!(user.sessions("tree").0, ["Shared"]);
    user.say("tree", "There");
    assert_eq!(user.sessions("repository").0, ["Shared", "There"]);
    assert_eq!(user.sessions("stranger").0, [""; 0]);
}

/// The files of one project's sessions appeared in the repository in which somebody looked at them.
#[test]
fn a_data_directory_that_is_named_elsewhere_leaves_that_project_alone() {
    let Some(user) = User::new() else { return };
    user.make("one");
    user.make("two");
    user.say("one", "First");
    let home = user.path(".local/share/meerkat");
    let data_dir = fs::read_dir(&home).unwrap().next().unwrap().unwrap().path();
    let transcripts = |project: &str| {
        fs::read_dir(user.path(project).join(".rkat/sessions")).map_or(0, |sessions| {
            sessions.filter(|session| session.as_ref().unwrap().path().join("transcript.md").exists()).count()
        })
    };
    let named = ["--data-dir", data_dir.to_str().unwrap()];
    let ran = user.run("two", &[&named[..], &["run", "-q", "@say Second"]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let files = (transcripts("one"), user.path("two").join(".rkat").exists());
    assert_eq!(files, (2, false));
    // Without the files of its project it belongs to the one that it is used in.
    fs::remove_dir_all(user.path("one")).unwrap();
    user.run("two", &[&named[..], &["project", "rebuild"]].concat());
    assert_eq!(transcripts("two"), 2);
}
