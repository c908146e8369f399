//! The commands of README and docs/ work as they stand: each `sh` block runs in an empty home and an empty project, the
//! blocks of a page one after another in one shell.
//!
//! Whatever is not in the lists below must succeed. It needs bash, git and curl, and says so if one is missing.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::drive::{TOKEN, ran, server::Server};

/// Beginnings of lines that do not run here, whatever the page. Each is used.
const OTHERS: [(&str, &str); 17] = [
    ("cargo ", "builds for minutes"),
    ("pip ", "installs"),
    ("npx ", "downloads"),
    ("docker ", "needs a container engine"),
    ("sudo ", "needs root"),
    ("sudoedit ", "needs root"),
    ("loginctl ", "needs systemd"),
    ("systemctl ", "needs systemd"),
    ("ollama ", "is a model server"),
    ("OLLAMA_", "is for a model server"),
    ("llama-server ", "is a model server"),
    ("lms ", "is a model server"),
    ("vllm ", "is a model server"),
    ("export ANTHROPIC_API_KEY", "needs a vendor's key"),
    ("export OPENROUTER_API_KEY", "needs a vendor's key"),
    ("meerkat run --model ", "needs a vendor's key or a model server"),
    ("meerkat serve", "runs until it is stopped; the tests of serving have it"),
];

/// What a line needs to run here.
enum Here {
    /// It does not run, for this reason.
    Not(&'static str),
    /// It runs after these commands.
    After(&'static str),
    /// It asks a person first, and runs with `--yes` instead.
    Yes,
    /// It runs with this in place of a part, for this reason.
    With(&'static str, &'static str, &'static str),
}

/// What further lines need, by their page and beginning. Each is used.
const LINES: &[(&str, &str, Here)] = &[
    ("README.md", "git diff", Here::After("git init -q; echo one > a; git add a; echo two > a")),
    ("README.md", "cd my-project", Here::After("mkdir my-project other")),
    ("README.md", "meerkat sessions delete", Here::Yes),
    ("README.md", "meerkat compact last --preview", Here::After(LONG)),
    ("README.md", "meerkat memory forget", Here::Yes),
    ("README.md", "TOKEN=", Here::With("TOKEN=", "TOKEN=$MEERKAT_TOKEN #", "the test chooses its server's token")),
    ("README.md", "m() {", Here::With("curl -s", "curl -sS --fail-with-body", "a refusal must fail the test")),
    (
        "docs/serving.md",
        "TOKEN=",
        Here::With("TOKEN=", "TOKEN=$MEERKAT_TOKEN #", "the test chooses its server's token"),
    ),
    ("docs/serving.md", "m() {", Here::With("curl -s", "curl -sS --fail-with-body", "a refusal must fail the test")),
    ("docs/openai.md", "TOKEN=", Here::With("TOKEN=", "TOKEN=$MEERKAT_TOKEN #", "the test chooses its server's token")),
    ("docs/openai.md", "m() {", Here::With("curl -s", "curl -sS --fail-with-body", "a refusal must fail the test")),
    ("docs/serving.md", "m -N", Here::With("m -N", "ends_late m -N -m 1", "the stream does not end")),
    ("docs/serving.md", "i() {", Here::Not("npx downloads")),
    ("docs/serving.md", "i --tool-name", Here::Not("npx downloads")),
    ("docs/sessions.md", "meerkat sessions restore-files", Here::Yes),
    ("docs/sessions.md", "meerkat sessions restore-files", Here::After(EDITS)),
    ("docs/sessions.md", "meerkat sessions delete", Here::Yes),
    ("docs/tools.md", "meerkat sessions restore-files", Here::Yes),
    ("docs/tools.md", "meerkat sessions restore-files", Here::After(EDITS)),
    ("docs/agent.md", "", Here::Not("the test of this page runs it and writes what it shows")),
    ("README.md", "meerkat store copy", Here::Not("needs a database; the tests of its store copy into one")),
    ("docs/deploy.md", "install -D", Here::Not("copies a file of the checkout; its own tests read it")),
    ("docs/deploy.md", "cd / && read", Here::Not("asks for a password")),
    ("docs/deploy.md", "cat ", Here::Not("the file is the service's")),
    ("docs/deploy.md", "curl -s", Here::Not("the name is an example's; the test of proxies asks through one")),
    ("docs/conformance.md", "crates/", Here::Not("needs programs of others; .ci/run has it")),
    ("docs/compaction.md", "meerkat compact last --preview", Here::After(LONG)),
    ("docs/rust.md", "chat=", Here::Not("asks the page's program, which its own test starts")),
    ("docs/rust.md", "curl -s", Here::Not("asks the page's program, which its own test starts")),
];

/// Makes three turns in a new session, of which the last one changes a file.
const EDITS: &str = r#"
meerkat run -q --allow write '@call write {"path":"new.txt","content":"one\n"} @say One.'
meerkat resume -q last '@say Two.'
meerkat resume -q last --allow write '@call write {"path":"newer.txt","content":"two\n"} @say Three.'"#;

/// Makes a session so long that a compaction makes it shorter.
const LONG: &str = r#"
meerkat run -q '@long 30000' >/dev/null
for turn in 1 2 3 4 5 6; do meerkat resume -q last "@say Turn $turn." >/dev/null; done"#;

/// Beginning of each script, which ends at the first command that fails, and names it.
const SHELL: &str = r#"
set -eE -o pipefail
shopt -s expand_aliases
trap 'echo "FAILED: $BASH_COMMAND" >&2' ERR
# A followed stream goes on: curl ends it by its time limit.
ends_late() { eval "$@" || [ $? = 28 ]; }
"#;

/// An `sh` block, with the number of its first line.
struct Block {
    line: usize,
    text: String,
}

/// Reads the pages that have a block: README and those of docs/, each with its path.
fn pages(root: &Path) -> Vec<(String, String)> {
    let names = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let docs = names.map(|name| format!("docs/{}", name.to_string_lossy())).filter(|page| page.ends_with(".md"));
    let mut pages: Vec<String> = docs.collect();
    pages.sort_unstable();
    pages.insert(0, "README.md".to_owned());
    let read = |page: String| fs::read_to_string(root.join(&page)).map(|text| (page, text)).unwrap();
    pages.into_iter().map(read).filter(|(_, text)| !blocks(text).is_empty()).collect()
}

/// Finds the blocks of a page. In one that shows commands after `$ `, the other lines are their output.
fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, bool) = (Vec::new(), false);
    for (at, line) in page.lines().enumerate() {
        match (open, line.trim()) {
            (false, "```sh" | "```bash" | "```console") => {
                open = true;
                blocks.push(Block { line: at + 2, text: String::new() });
            }
            (true, "```") => open = false,
            (true, _) => blocks.last_mut().into_iter().for_each(|block| block.text += &format!("{line}\n")),
            (false, _) => {}
        }
    }
    for block in &mut blocks {
        if block.text.starts_with("$ ") {
            let commands = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
            block.text = commands.map(|line| format!("{line}\n")).collect();
        }
    }
    blocks
}

/// Fits a line to this test by its entries in the lists, whose beginnings `used` collects with their pages.
fn fit(page: &str, line: &str, used: &mut BTreeSet<(&'static str, &'static str)>) -> String {
    if let Some((begin, why)) = OTHERS.iter().find(|(begin, _)| line.starts_with(begin)) {
        used.insert(("", *begin));
        return format!("# not run: {why}");
    }
    let mut fit = line.to_owned();
    for (of, begin, here) in LINES.iter().filter(|(of, begin, _)| *of == page && line.starts_with(begin)) {
        used.insert((*of, *begin));
        fit = match here {
            Here::Not(why) => format!("# not run: {why}"),
            Here::After(before) => format!("{before}\n{fit}"),
            Here::Yes => format!("{} --yes", fit.split("  #").next().unwrap_or_default().trim_end()),
            Here::With(part, other, why) => {
                assert!(line.contains(part), "{page}: {line:?} has no {part:?}");
                format!("# {why}\n{}", fit.replacen(part, other, 1))
            }
        };
    }
    fit
}

/// Makes one script of a page.
fn script(page: &str, text: &str, address: &str, used: &mut BTreeSet<(&'static str, &'static str)>) -> String {
    let mut script = SHELL.to_owned();
    for block in blocks(text) {
        script += &format!("echo '== {page}:{}' >&2\n", block.line);
        // A command that goes on behind a backslash is one line.
        for line in block.text.replace("\\\n", "").lines() {
            script += &fit(page, line, used).replace("127.0.0.1:7670", address);
            script.push('\n');
        }
    }
    script
}

#[test]
fn documented_commands_work_as_they_stand() {
    meerkat_testkit::needs!("bash", "git", "curl");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (pages, mut used) = (pages(&root), BTreeSet::new());
    for (page, text) in &pages {
        let home = TempDir::new().unwrap();
        let server = text.contains("127.0.0.1:7670").then(|| Server::start(&[]));
        let address = server.as_ref().map(|server| format!("127.0.0.1:{}", server.port)).unwrap_or_default();
        let (bin, project) = (home.path().join("bin"), home.path().join("project"));
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&project).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_meerkat"), bin.join("meerkat")).unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-c", &script(page, text, &address, &mut used)]);
        bash.env_clear().env("HOME", home.path()).env("MEERKAT_TOKEN", TOKEN);
        bash.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
        let ran = ran(bash.current_dir(&project).stdin(Stdio::null()));
        assert_eq!(ran.code, 0, "{page}: {}\n{}", ran.err, ran.out);
    }
    assert!(pages.len() > 7, "not all pages were found: {}", pages.len());
    let others = OTHERS.iter().map(|(begin, _)| ("", *begin));
    let listed = others.chain(LINES.iter().map(|(page, begin, _)| (*page, *begin)));
    let unused: Vec<_> = listed.filter(|entry| !used.contains(entry)).collect();
    assert!(unused.is_empty(), "no line begins like this any more: {unused:#?}");
}
