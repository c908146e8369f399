//! Which sessions a folder has, and what a user reads whose sessions are elsewhere.

use std::fs;

use meerkat_errors::ErrorCode;
use meerkat_testkit::until;

use crate::drive::{
    Ran, meerkat,
    server::{SERVE, Server},
    terminal::{Cli, cli},
};

/// Folders of one user, whose data directories are beside them.
struct User(Cli);

impl User {
    fn new() -> Self {
        Self(cli(&[]))
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
        // The files follow the turn, and the process waits two seconds for them at most.
        let shown = self.run(project, &["sessions", "show", "last", "--json", "-q"]).json();
        let [id, seq] = ["session_id", "last_seq"].map(|field| shown[field].to_string().replace('"', ""));
        let (id, seq) = (format!("session_id={id}"), format!("seq={seq}"));
        let wait = ["call", "reader/wait", "reader=projection", &id, &seq, "wait_ms=60000", "-q"];
        let waited = self.run(project, &wait);
        // Where a folder may hold none, nothing writes them.
        let has_none = waited.err.contains(r#"There is no reader "projection"."#);
        assert!(waited.code == 0 || has_none, "{}", waited.err);
    }

    /// The names of a project's sessions, and what was said beside them.
    #[track_caller]
    fn sessions(&self, project: &str) -> (Vec<String>, String) {
        self.list(project, &[])
    }

    #[track_caller]
    fn list(&self, project: &str, flags: &[&str]) -> (Vec<String>, String) {
        let ran = self.run(project, &[&["sessions", "list", "--json"], flags].concat());
        let list = ran.json();
        let name = |item: &serde_json::Value| item["labels"]["name"].as_str().unwrap_or_default().to_owned();
        let mut names: Vec<String> = list["items"].as_array().unwrap().iter().map(name).collect();
        names.sort();
        (names, ran.err)
    }

    /// The one data directory.
    fn data_dir(&self) -> std::path::PathBuf {
        fs::read_dir(self.path(".local/share/meerkat")).unwrap().next().unwrap().unwrap().path()
    }

    fn mark(&self, project: &str) -> std::path::PathBuf {
        self.path(project).join(".rkat/store")
    }
}

/// The sessions were gone, and every command warned of another data directory.
#[test]
fn the_first_command_in_a_moved_project_prints_where_its_sessions_are() {
    let user = User::new();
    user.make("one");
    user.say("one", "First");
    let data_dir = user.data_dir().display().to_string();
    let at = ["--data-dir", &data_dir];
    fs::rename(user.path("one"), user.path("two")).unwrap();
    let (names, said) = user.sessions("two");
    assert!(names.is_empty() && said.contains(&format!("`--data-dir {data_dir}`")), "{names:?} {said}");
    assert_eq!(user.sessions("two"), (Vec::new(), String::new()));
    let last = user.run("two", &["resume", "last", "x"]);
    last.refused(
        ErrorCode::InvalidRequest,
        "--all-projects` lists those of other folders, and of this one before it was moved",
    );
    let all = user.run("two", &["sessions", "list", "--all-projects"]);
    let former = format!("{} no longer exists; `--data-dir {data_dir}`", user.path("one").display());
    assert!(all.out.contains("@say First") && all.err.contains(&former), "{}{}", all.out, all.err);
    // With the flag all goes on in the new folder, its files too.
    let ran = user.run("two", &[&at[..], &["resume", "last", "-q", "@say Second"]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(user.list("two", &at), (vec!["First".to_owned()], String::new()));
    user.run("two", &[&at[..], &["call", "projection/rebuild"]].concat());
    let sessions: Vec<_> = fs::read_dir(user.path("two/.rkat/sessions")).unwrap().collect();
    let transcript = fs::read_to_string(sessions[0].as_ref().unwrap().path().join("transcript.md")).unwrap();
    assert!(sessions.len() == 1 && transcript.contains("Second"), "{transcript}");
    // A command in another folder does not make them that one's.
    user.make("three");
    assert_eq!(user.list("three", &at), (vec!["First".to_owned()], String::new()));
    assert!(user.run("three", &["sessions", "list", "--all-projects"]).err.contains(&former));
    user.run("two", &[&at[..], &["resume", "last", "-q", "@say Third"]].concat());
    user.run("two", &[&at[..], &["call", "projection/rebuild"]].concat());
    let transcript = fs::read_to_string(sessions[0].as_ref().unwrap().path().join("transcript.md")).unwrap();
    assert!(transcript.contains("Third"), "{transcript}");
    // The sessions of a path are those of the folder there.
    user.make("one");
    assert_eq!(user.sessions("one"), (vec!["First".to_owned()], String::new()));
}

#[test]
fn a_mark_leads_to_nothing_but_a_store_of_ones_own() {
    let user = User::new();
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
        let (names, told) = user.sessions(&project);
        assert!(names.is_empty() && told.contains("a data directory that is not in") == (at == 0), "{mark} {told}");
        assert_eq!(user.sessions(&project), (Vec::new(), String::new()), "{mark}");
    }
    user.make("endless");
    fs::create_dir(user.path("endless").join(".rkat")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", user.mark("endless")).unwrap();
    assert_eq!(user.sessions("endless").0, [""; 0]);
}

/// A mark is in every archive of a project, so it gives nobody its sessions.
#[test]
fn a_copy_has_sessions_of_its_own() {
    let user = User::new();
    user.make("one");
    user.say("one", "First");
    let data_dir = user.data_dir().display().to_string();
    user.make("copy");
    fs::create_dir(user.path("copy").join(".rkat")).unwrap();
    fs::copy(user.mark("one"), user.mark("copy")).unwrap();
    let (names, said) = user.sessions("copy");
    assert!(names.is_empty() && said.contains(&format!("the sessions in {data_dir}, ")), "{names:?} {said}");
    assert_eq!(user.sessions("copy"), (Vec::new(), String::new()));
    user.run("copy", &["run", "-q", "--label", "name=Mine", "@say Mine"]);
    assert!(!user.path("copy/.rkat/sessions").exists());
    assert_eq!(user.sessions("one"), (vec!["First".to_owned()], String::new()));
    // Without the mark the files are the copy's.
    fs::remove_file(user.mark("copy")).unwrap();
    user.say("copy", "More");
    user.run("copy", &["call", "projection/rebuild"]);
    assert_eq!(fs::read_dir(user.path("copy/.rkat/sessions")).unwrap().count(), 2);
    assert_eq!(user.sessions("copy"), (vec!["Mine".to_owned(), "More".to_owned()], String::new()));
}

/// As after a power cut.
#[test]
fn a_record_of_the_project_that_cannot_be_read_is_written_again() {
    let user = User::new();
    user.make("one");
    user.say("one", "First");
    let project = user.data_dir().join("project.json");
    let whole = fs::read(&project).unwrap();
    for broken in ["", "{", "{}"] {
        fs::write(&project, broken).unwrap();
        assert_eq!(user.sessions("one"), (vec!["First".to_owned()], String::new()));
        assert_eq!(fs::read(&project).unwrap(), whole);
    }
    // A link is replaced, and what it leads to is left.
    let other = user.path("other");
    fs::write(&other, "precious").unwrap();
    fs::remove_file(&project).unwrap();
    std::os::unix::fs::symlink(&other, &project).unwrap();
    assert_eq!(user.sessions("one").0, ["First"]);
    assert_eq!((fs::read(&project).unwrap(), fs::read(&other).unwrap()), (whole, b"precious".to_vec()));
}

/// Its owner could put links in the place of what is written there.
#[test]
fn nothing_is_written_into_a_folder_of_another_user() {
    meerkat_testkit::needs!("root, who can give a folder away" => rustix::process::geteuid().is_root());
    for given in ["one", "one/.rkat"] {
        // Nothing above is a project, so this folder is one, whoever it belongs to.
        let user = User::new();
        fs::create_dir_all(user.path("one/.rkat")).unwrap();
        std::os::unix::fs::chown(user.path(given), Some(1), None).unwrap();
        let notes = [(); 2].map(|()| user.sessions("one").1.contains("belongs to another user"));
        user.say("one", "Quiet");
        assert_eq!((notes, fs::read_dir(user.path("one/.rkat")).unwrap().count()), ([true, false], 0));
        std::os::unix::fs::chown(user.path(given), Some(0), None).unwrap();
    }
}

/// Broken once: one run in the home folder, or another user's `.rkat` in a shared one, made one project of all folders
/// below it that have no repository.
#[test]
fn a_folder_without_a_repository_is_a_project_of_its_own() {
    // The home folder of these tests has a `.git`, like that of a person who keeps dotfiles.
    let user = User::new();
    for folder in ["foo/below", "bar", "shared/.rkat", "shared/mine"] {
        fs::create_dir_all(user.path(folder)).unwrap();
    }
    let all = ["", "foo", "foo/below", "bar", "shared", "shared/mine"];
    for folder in all {
        assert_eq!(user.sessions(folder), (Vec::new(), String::new()), "{folder}");
        let last = user.run(folder, &["resume", "last", "x"]);
        last.refused(ErrorCode::InvalidRequest, "this project has no session yet");
        assert!(last.err.contains("--all-projects"), "{}", last.err);
        user.say(folder, &format!("in {folder}"));
    }
    for folder in all {
        assert_eq!(user.sessions(folder), (vec![format!("in {folder}")], String::new()), "{folder}");
        assert_eq!(user.path(folder).join(".rkat/store").exists(), !folder.is_empty(), "{folder}");
    }
    // A repository is one project from its root down.
    user.make("foo");
    assert_eq!(user.sessions("foo/below").0, ["in foo"]);
}

/// Broken once, for servers too: somebody's files in a folder above made all below it their project.
#[test]
fn a_server_takes_no_files_of_a_folder_above_for_those_of_its_project() {
    let user = User::new();
    fs::create_dir_all(user.path("shared/.rkat")).unwrap();
    fs::create_dir(user.path("shared/mine")).unwrap();
    let theirs = "00000000-0000-7000-8000-000000000001\n";
    fs::write(user.mark("shared"), theirs).unwrap();
    let mut command = meerkat(user.0.dir(), &SERVE);
    command.current_dir(user.path("shared/mine"));
    let server = Server::run(command, &[], None);
    let session = server.session();
    let files = user.path("shared/mine/.rkat/sessions");
    until("the session has its files", || files.join(&session).exists());
    drop(server);
    assert_ne!(fs::read_to_string(user.mark("shared/mine")).unwrap(), theirs);
    assert_eq!(fs::read_to_string(user.mark("shared")).unwrap(), theirs);
    assert_eq!(fs::read_dir(user.path("shared/.rkat")).unwrap().count(), 1);
}

#[test]
fn somebody_elses_files_are_told_of_once() {
    let user = User::new();
    user.make("one");
    fs::create_dir(user.path("one/.rkat")).unwrap();
    fs::write(user.mark("one"), "00000000-0000-7000-8000-000000000001\n").unwrap();
    let (_, told) = user.sessions("one");
    assert!(told.contains("a data directory that is not in") && told.contains("projection.dir"), "{told}");
    assert_eq!(user.run("one", &["run", "-q", "--label", "name=First", "@say First"]).code, 0);
    assert_eq!(user.sessions("one"), (vec!["First".to_owned()], String::new()));
}

/// A folder that was moved to a larger disk.
#[test]
fn a_link_in_the_place_of_a_data_directory_is_followed() {
    let user = User::new();
    user.make("one");
    user.say("one", "First");
    let data_dir = user.data_dir();
    fs::rename(&data_dir, user.path("larger")).unwrap();
    std::os::unix::fs::symlink(user.path("larger"), &data_dir).unwrap();
    assert_eq!(user.sessions("one").0, ["First"]);
}

#[test]
fn worktrees_share_the_sessions_of_their_repository_and_a_stranger_does_not() {
    let user = User::new();
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
    // As git 2.48 and later write it if it is asked to: relative to the folder that the link is in.
    fs::write(git_dir.join("gitdir"), "../../../../tree/.git\n").unwrap();
    fs::write(user.path("tree/.git"), "gitdir: ../repository/.git/worktrees/tree\n").unwrap();
    assert_eq!(user.sessions("tree").0, ["Shared", "There"]);
}

/// Their files stood in the git directory.
#[test]
fn worktrees_without_a_main_folder_are_projects_of_their_own() {
    let user = User::new();
    for (git_dir, tree) in [("bare.git/worktrees/tree", "tree"), ("super/.git/modules/sub/worktrees/sub", "sub")] {
        let git_dir = user.path(git_dir);
        fs::create_dir_all(&git_dir).unwrap();
        fs::create_dir(user.path(tree)).unwrap();
        fs::write(git_dir.join("gitdir"), format!("{}\n", user.path(tree).join(".git").display())).unwrap();
        fs::write(user.path(tree).join(".git"), format!("gitdir: {}\n", git_dir.display())).unwrap();
        user.say(tree, "There");
        assert!(user.path(tree).join(".rkat").exists() && !git_dir.join("../../.rkat").exists());
    }
}

/// The files of one project's sessions appeared in the repository in which somebody looked at them.
#[test]
fn a_data_directory_that_is_named_elsewhere_leaves_that_project_alone() {
    let user = User::new();
    user.make("one");
    user.make("two");
    user.say("one", "First");
    let data_dir = user.data_dir();
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
    user.run("two", &[&named[..], &["call", "projection/rebuild"]].concat());
    assert_eq!(transcripts("two"), 2);
}

/// What other projects have is shown without a lock, a write or a word to their owners.
#[test]
fn all_projects_are_listed_and_none_is_touched() {
    let user = User::new();
    for project in ["one", "two", "three"] {
        user.make(project);
        user.say(project, &format!("Said in {project}"));
    }
    let ran = user.run("two", &["run", "-q", "--title", "Second", "@say More."]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let home = user.path(".local/share/meerkat");
    let dir = |project: &str| {
        let of = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path();
        let is_its = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(project);
        fs::read_dir(&home).unwrap().map(of).find(is_its).unwrap()
    };
    fs::write(dir("three").join("index.redb"), "no index").unwrap();
    std::os::unix::fs::symlink(dir("one"), home.join("by-an-old-link")).unwrap();
    // Another process owns one of them.
    let lock = fs::File::options().read(true).write(true).open(dir("two").join("lock")).unwrap();
    lock.try_lock().unwrap();
    let index = || ["one", "two", "three"].map(|project| fs::read(dir(project).join("index.redb")).unwrap());
    let before = index();
    let ran = user.run("one", &["sessions", "list", "--all-projects", "--json"]);
    let list = ran.json();
    let mut rows: Vec<(String, String)> = Vec::new();
    for item in list["items"].as_array().unwrap() {
        rows.push((item["project"].as_str().unwrap().to_owned(), item["title"].as_str().unwrap().to_owned()));
    }
    let path = |project: &str| user.path(project).canonicalize().unwrap().display().to_string();
    let row = |project: &str, title: &str| (path(project), title.to_owned());
    assert_eq!(rows, [row("two", "Second"), row("two", "@say Said in two"), row("one", "@say Said in one")]);
    assert!(ran.err.contains("three") && ran.err.lines().count() == 1, "{}", ran.err);
    assert!(index() == before, "an index was written");
    let ran = user.run("one", &["sessions", "list", "--all-projects", "--limit", "1"]);
    assert!(ran.out.starts_with("PROJECT") && ran.out.lines().count() == 3, "{}", ran.out);
    assert!(ran.err.contains("has more sessions"), "{}", ran.err);
}
