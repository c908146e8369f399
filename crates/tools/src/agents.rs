//! Agents that people describe in files, in the format of `.claude/agents`: settings between two lines `---`, and below
//! them the system prompt.
//!
//! The settings are read line by line, as the programs do that people write such files for: most descriptions have colons
//! that YAML would refuse.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use meerkat_service::{
    session::event::Agent,
    tool::{AgentFile, is_unseen},
};

use crate::{
    files::shown,
    notes::{RuleFile, folders, read},
};

/// Folder of a project's agents, in its root or in a folder below.
const FOLDER: [&str; 2] = [".claude", "agents"];

/// Most bytes of a file, most files of a folder, and most bytes of a name.
const FILE_BYTES_MAX: u64 = 64 * 1024;
const FILES_MAX: usize = 100;
const NAME_BYTES_MAX: usize = 64;

/// Tools as such files name them, and ours.
const TOOLS: [(&str, &str); 10] = [
    ("Agent", "delegate"),
    ("Bash", "shell"),
    ("Edit", "edit"),
    ("Glob", "glob"),
    ("Grep", "grep"),
    ("LS", "glob"),
    ("MultiEdit", "edit"),
    ("Read", "read"),
    ("Task", "delegate"),
    ("Write", "write"),
];

/// Agents of a user and of a project.
#[derive(Debug, Default)]
pub struct Agents {
    /// They that can be called, by name. A project's counts before the user's, and the nearest to the workspace first.
    pub agents: Vec<AgentFile>,
    /// What is wrong with a file, for people.
    pub faults: Vec<String>,
}

/// Reads the user's agents and those of the project's files that are trusted as they are.
pub fn agents(user: Option<&Path>, workspace: Option<&Path>, trusts: impl Fn(&RuleFile) -> bool) -> Agents {
    let mut faults = Vec::new();
    let mut files = user.map(|user| files(user, &mut faults)).unwrap_or_default();
    let theirs = workspace.map(|workspace| project_files(workspace, &mut faults)).unwrap_or_default();
    files.extend(theirs.into_iter().filter(trusts));
    let mut agents = BTreeMap::new();
    for RuleFile { path, bytes, .. } in files {
        let parsed = std::str::from_utf8(&bytes).map_err(|_| "it is not text in UTF-8".to_owned()).and_then(parse);
        match parsed {
            Ok((file, unknown)) => {
                let name = &file.agent.name;
                faults.extend(unknown.into_iter().map(|tool| {
                    format!("{}: the agent {name} works without the tool {tool}, which is none of ours", shown(&path))
                }));
                agents.insert(name.clone(), file);
            }
            Err(fault) => faults.push(format!("{}: {fault}", shown(&path))),
        }
    }
    Agents { agents: agents.into_values().collect(), faults }
}

/// Finds the files of a workspace's agents, from the repository's root down to it.
#[must_use]
pub fn agent_files(workspace: &Path) -> Vec<RuleFile> {
    project_files(workspace, &mut Vec::new())
}

fn project_files(workspace: &Path, faults: &mut Vec<String>) -> Vec<RuleFile> {
    let mut found = Vec::new();
    for folder in folders(workspace) {
        let [outer, inner] = FOLDER;
        let outer = folder.join(outer);
        // A link would lead out of the project.
        if is_folder(&outer) {
            found.extend(files(&outer.join(inner), faults));
        }
    }
    found
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_dir())
}

/// Reads the files of a folder, by name.
fn files(folder: &Path, faults: &mut Vec<String>) -> Vec<RuleFile> {
    if !is_folder(folder) {
        return Vec::new();
    }
    let paths = fs::read_dir(folder).and_then(|entries| {
        let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<PathBuf>>>();
        paths.map(|paths| paths.into_iter().filter(|path| path.extension().is_some_and(|it| it == "md")))
    });
    let mut paths: Vec<PathBuf> = match paths {
        Ok(paths) => paths.collect(),
        Err(error) => {
            faults.push(format!("{}: {error}", shown(folder)));
            return Vec::new();
        }
    };
    paths.sort();
    if paths.len() > FILES_MAX {
        faults.push(format!("{}: of {} files the first {FILES_MAX} are read", shown(folder), paths.len()));
        paths.truncate(FILES_MAX);
    }
    let read = paths.into_iter().filter_map(|path| {
        let fault = match read(&path, FILE_BYTES_MAX + 1) {
            Some(file) if file.bytes.len() as u64 <= FILE_BYTES_MAX => return Some(file),
            Some(_) => format!("it has more than {FILE_BYTES_MAX} bytes"),
            None => "it is a link, no file, or may not be read".to_owned(),
        };
        faults.push(format!("{}: {fault}", shown(&path)));
        None
    });
    read.collect()
}

/// Reads an agent, and the names of its tools that are none of ours.
fn parse(text: &str) -> Result<(AgentFile, Vec<String>), String> {
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let parts = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---"));
    let (settings, prompt) = parts.ok_or("it does not begin with settings between two lines `---`")?;
    let settings = values(settings);
    let setting = |name: &str| settings.get(name).map(|lines| line(&lines.join(" "))).filter(|it| !it.is_empty());
    let name = setting("name").ok_or("it has no `name`")?;
    if name.len() > NAME_BYTES_MAX || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return Err(format!("`name` has other characters than letters, digits, `-` and `_`, or over {NAME_BYTES_MAX}"));
    }
    let description = setting("description").ok_or("it has no `description`")?;
    let is_shown = |c: char| !is_unseen(c) || matches!(c, '\n' | '\t');
    let prompt: String = prompt.trim_start_matches('-').trim().chars().filter(|c| is_shown(*c)).collect();
    if prompt.is_empty() {
        return Err("it has no prompt below its settings".to_owned());
    }
    let (tools, unknown) = settings.get("tools").and_then(|lines| tools(lines)).unzip();
    let model = setting("model").filter(|model| model != "inherit");
    Ok((AgentFile { description, agent: Agent { name, tools, model, prompt } }, unknown.unwrap_or_default()))
}

/// Splits settings into their lines, the first of which is beside the name.
fn values(settings: &str) -> BTreeMap<&str, Vec<&str>> {
    let (mut values, mut last) = (BTreeMap::<&str, Vec<&str>>::new(), None);
    for line in settings.lines() {
        let is_more = line.starts_with([' ', '\t', '-', '#']);
        match line.split_once(':').filter(|_| !is_more) {
            Some((name, value)) => {
                let value = value.trim();
                // A sign of YAML for a text of more lines.
                let is_sign = matches!(value, "|" | ">" | "|-" | ">-" | "|+" | ">+");
                values.insert(name.trim(), if is_sign { Vec::new() } else { vec![value] });
                last = Some(name.trim());
            }
            None => values.get_mut(last.unwrap_or_default()).into_iter().for_each(|lines| lines.push(line.trim())),
        }
    }
    values
}

/// Joins a text to one line that a person sees whole, without the quotes around it.
fn line(text: &str) -> String {
    let text = text.trim();
    let quoted = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    let words = quoted.unwrap_or(text).split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().filter(|c| !is_unseen(*c)).collect()
}

/// Reads names of tools, and those that are none of ours; `None` if all are meant.
fn tools(lines: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let is_list = lines.concat().trim_start().starts_with('[');
    let names = lines.iter().flat_map(|line| line.trim_start_matches("- ").split(','));
    let names = names.map(|name| line(name.trim_matches(['[', ']', ' ']))).filter(|name| !name.is_empty());
    let (mut ours, mut unknown) = (Vec::<String>::new(), Vec::new());
    for name in names {
        if name == "*" {
            return None;
        }
        let known = TOOLS.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| (*ours).to_owned());
        match known {
            None if name.starts_with(|c: char| c.is_ascii_uppercase()) => unknown.push(name),
            known => ours.push(known.unwrap_or(name)),
        }
    }
    ours.sort();
    ours.dedup();
    (is_list || !ours.is_empty() || !unknown.is_empty()).then_some((ours, unknown))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn read_one(text: &str) -> (AgentFile, Vec<String>) {
        parse(text).unwrap()
    }

    /// The forms that published files have.
    #[test]
    fn settings_are_read_as_people_write_them() {
        let (file, unknown) = read_one(
            "---\r\nname: code-reviewer\r\ndescription: Use it after a change. Examples: user: \"done\"\r\ntools: Read, Grep, \
             Bash, WebFetch\r\nmodel: sonnet\r\ncolor: red\r\n---\r\n\r\nYou review.\r\n---\r\nBe short.\r\n",
        );
        let agent = Agent {
            name: "code-reviewer".to_owned(),
            tools: Some(vec!["grep".to_owned(), "read".to_owned(), "shell".to_owned()]),
            model: Some("sonnet".to_owned()),
            prompt: "You review.\n---\nBe short.".to_owned(),
        };
        let description = "Use it after a change. Examples: user: \"done\"".to_owned();
        assert_eq!((file, unknown), (AgentFile { description, agent }, vec!["WebFetch".to_owned()]));
        for (tools, expected) in [
            ("", None),
            ("tools:\n", None),
            ("tools: '*'\n", None),
            ("tools: []\n", Some(vec![])),
            ("tools: [Edit, \"Write\", mcp__hub__find]\n", Some(vec!["edit", "mcp__hub__find", "write"])),
            ("tools:\n  - Glob\n  - LS\n  - MultiEdit\n", Some(vec!["edit", "glob"])),
            ("tools:\n- Task\n", Some(vec!["delegate"])),
            ("tools: WebSearch\n", Some(vec![])),
            // A part of a tool is not the whole.
            ("tools: Bash(git diff:*), Read\n", Some(vec!["read"])),
        ] {
            let (file, _) = read_one(&format!("---\nname: a\ndescription: >\n  One\n  and two.\n{tools}---\nBe."));
            let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
            assert_eq!((file.agent.tools, file.description.as_str()), (expected, "One and two."), "{tools}");
        }
        let (file, _) =
            read_one("---\nname: 'a'\ndescription: \"x: y\"\nmodel: inherit\n---\nBe.\u{202e}\n\tso\u{1b}[2J");
        assert_eq!(
            (file.agent.model, file.description.as_str(), file.agent.prompt.as_str()),
            (None, "x: y", "Be.\n\tso[2J")
        );
    }

    #[test]
    fn a_broken_file_is_a_fault_and_the_others_count() {
        let user = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(user.path().join(name), text).unwrap();
        write("a.md", b"---\nname: good\ndescription: d\n---\nBe good.");
        write("b.md", b"# No settings");
        write("c.md", b"---\nname: ../x\ndescription: d\n---\nBe.");
        write("d.md", b"---\nname: d\n---\nBe.");
        write("e.md", b"---\nname: e\ndescription: d\n---\n \n");
        write("f.md", b"---\nname: \xff\ndescription: d\n---\nBe.");
        write("g.md", &vec![b'x'; 64 * 1024 + 1]);
        write("readme.txt", b"not read");
        let secret = tempfile::NamedTempFile::new().unwrap();
        symlink(secret.path(), user.path().join("h.md")).unwrap();
        let found = agents(Some(user.path()), None, |_| true);
        assert_eq!(found.agents.iter().map(|file| file.agent.name.as_str()).collect::<Vec<_>>(), ["good"]);
        let begin = user.path().display().to_string();
        let faults: Vec<&str> = found.faults.iter().map(|fault| fault.strip_prefix(&begin).unwrap()).collect();
        assert_eq!(
            faults,
            [
                "/g.md: it has more than 65536 bytes",
                "/h.md: it is a link, no file, or may not be read",
                "/b.md: it does not begin with settings between two lines `---`",
                "/c.md: `name` has other characters than letters, digits, `-` and `_`, or over 64",
                "/d.md: it has no `description`",
                "/e.md: it has no prompt below its settings",
                "/f.md: it is not text in UTF-8",
            ]
        );
    }

    /// Nothing of a project counts before it is trusted, and nothing outside it is read.
    #[test]
    fn trusted_agents_of_a_project_count_before_the_users() {
        let (outside, user) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = outside.path().join("repository");
        let file = |name: &str, prompt: &str| format!("---\nname: {name}\ndescription: d\n---\n{prompt}");
        for (folder, prompt) in [(&root, "Root."), (&root.join("below"), "Below.")] {
            let folder = folder.join(".claude/agents");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("a.md"), file("both", prompt)).unwrap();
        }
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::create_dir_all(outside.path().join(".claude/agents")).unwrap();
        fs::write(outside.path().join(".claude/agents/o.md"), file("outside", "Out.")).unwrap();
        let linked = root.join("linked");
        fs::create_dir_all(&linked).unwrap();
        symlink(outside.path().join(".claude"), linked.join(".claude")).unwrap();
        fs::write(user.path().join("u.md"), file("both", "User.")).unwrap();
        let read = |workspace: &Path, is_trusted: bool| {
            let found = agents(Some(user.path()), Some(workspace), |_| is_trusted).agents;
            found.into_iter().map(|file| (file.agent.name, file.agent.prompt)).collect::<Vec<_>>()
        };
        let both = |prompt: &str| [("both".to_owned(), prompt.to_owned())];
        assert_eq!(read(&root, false), both("User."));
        assert_eq!(read(&root, true), both("Root."));
        assert_eq!(read(&root.join("below"), true), both("Below."));
        assert_eq!(read(&linked, true), both("Root."));
        assert_eq!(agent_files(&root.join("below")).len(), 2);
    }
}
