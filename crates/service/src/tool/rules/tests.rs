//! Rules decide as they say, and no trick of a shell slips past one.

use std::process::Command;

use meerkat_testkit::{Random, campaigns::Part, needs, seed};

use super::*;

fn plan(approval: Approval, subject: Option<&str>) -> Plan {
    planned(approval, subject.map(str::to_owned).into_iter().collect())
}

fn planned(approval: Approval, subjects: Vec<String>) -> Plan {
    Plan { approval, subjects, ..Plan::once() }
}

fn subjects(command: &str) -> Option<Vec<String>> {
    Some(shell_commands(command)?.iter().map(|words| words.join(" ")).collect())
}

fn rules(rules: &[(&str, Approval)]) -> ApprovalRules {
    ApprovalRules::parse(&rules.iter().map(|(rule, approval)| ((*rule).to_owned(), *approval)).collect()).unwrap()
}

#[test]
fn a_rule_allows_what_it_names() {
    for (rule, tool, subject, expected) in [
        ("shell", "shell", None, true),
        ("shell", "shell", Some("rm"), true),
        ("shell", "shell_stop", None, false),
        ("shell: *", "shell", Some("rm -rf x"), true),
        ("shell: *", "shell", None, false),
        ("shell:ls", "shell", Some("ls"), true),
        ("shell: cargo test *", "shell", Some("cargo test"), true),
        ("shell: cargo test *", "shell", Some("cargo test --lib -- a"), true),
        ("shell: cargo test *", "shell", Some("cargo tests"), false),
        ("shell: cargo test *", "shell", Some("cargo"), false),
        ("shell: cargo test", "shell", Some("cargo test --lib"), false),
        ("shell: cargo test *", "other", Some("cargo test"), false),
        ("shell: git * main", "shell", Some("git push main"), true),
        ("shell: git * main", "shell", Some("git push origin main"), false),
        ("shell: git push origin/*", "shell", Some("git push origin/a"), true),
        ("shell: cat a b", "shell", Some("cat a␣b"), false),
        ("shell: ls * ; cargo test", "shell", Some("ls -l"), true),
        ("shell: ls * ; cargo test", "shell", Some("cargo test"), true),
        ("shell: ls * ; cargo test", "shell", Some("cargo"), false),
        ("shell: ls *; cargo test", "shell", Some("cargo test"), false),
        ("edit: src/*.rs", "edit", Some("src/a/b.rs"), true),
        ("edit: src/*.rs", "edit", Some("src/a.rs x"), false),
        ("edit: *a*b*a", "edit", Some("xaybza"), true),
        ("edit: *a*b*a", "edit", Some("aba"), true),
        ("edit: *a*b*a", "edit", Some("ab"), false),
        ("edit: ab*ba", "edit", Some("aba"), false),
        ("github: *", "mcp__github__get", None, true),
        ("github: *", "mcp__github2__get", None, false),
        ("github: *", "mcp__git__hub__get", None, false),
        ("github: get", "mcp__github__get", Some("get"), false),
        ("mcp__github__*", "mcp__github__get", None, true),
        ("mcp__*__get", "mcp__github__get", None, true),
        ("mcp__*__get", "mcp__github__set", None, false),
        ("*", "anything", None, true),
    ] {
        let plan = plan(Approval::Ask, subject);
        assert_eq!(Rule::parse(rule).unwrap().allows(tool, &plan), expected, "{rule:?} {tool} {subject:?}");
    }
}

#[test]
fn what_is_no_rule_is_refused_with_words() {
    for text in [
        "",
        ": x",
        "shell:",
        "shell: ",
        "sh ell",
        "sh*: x",
        "shell;",
        "shell: a ;",
        "shell: ; a",
        "shell: a ; ; b",
        &"a".repeat(2000),
    ] {
        assert!(!Rule::parse(text).unwrap_err().is_empty(), "{text:?}");
    }
}

/// Deny wins, then ask, then allow, then the tool's own; a grant outweighs what asks, and nothing that denies.
#[test]
fn the_strongest_rule_decides() {
    use Approval::{Allow, Ask, Deny};
    const RM: Option<&str> = Some("rm x");
    let nothing: &[(&str, Approval)] = &[];
    for (configured, granted, own, subject, expected) in [
        (nothing, None, Allow, RM, Allow),
        (nothing, None, Ask, RM, Ask),
        (nothing, None, Deny, RM, Deny),
        (nothing, Some("shell"), Ask, RM, Allow),
        (nothing, Some("shell: rm *"), Ask, RM, Allow),
        (nothing, Some("shell: rm *"), Ask, None, Ask),
        (nothing, Some("shell: ls *"), Ask, RM, Ask),
        (nothing, Some("shell"), Deny, RM, Deny),
        (nothing, Some("no rule"), Ask, RM, Ask),
        (&[("shell", Allow)], None, Ask, None, Allow),
        (&[("shell", Allow)], None, Deny, RM, Allow),
        (&[("shell: *", Allow)], None, Ask, RM, Allow),
        (&[("shell: *", Allow)], None, Ask, None, Ask),
        (&[("shell", Ask)], None, Allow, RM, Ask),
        (&[("shell", Allow), ("shell: rm *", Ask)], None, Allow, RM, Ask),
        (&[("shell", Allow), ("shell: rm *", Ask)], None, Allow, Some("ls"), Allow),
        (&[("shell", Allow), ("shell: rm *", Ask)], None, Allow, None, Ask),
        (&[("shell: rm *", Ask)], Some("shell: rm x"), Ask, RM, Allow),
        (&[("shell", Allow), ("shell: rm *", Deny)], None, Allow, RM, Deny),
        (&[("shell", Allow), ("shell: rm *", Deny)], None, Allow, Some("ls"), Allow),
        (&[("shell: rm *", Deny)], Some("shell"), Ask, RM, Deny),
        (&[("sh*", Deny)], Some("shell"), Allow, RM, Deny),
        // It may be what the pattern denies: a person sees it, whatever else allows it.
        (&[("shell", Allow), ("shell: rm *", Deny)], None, Allow, None, Ask),
        (&[("shell: rm *", Deny)], Some("shell"), Ask, None, Ask),
        // A rule that keeps back does not depend on where words end.
        (&[("shell: rm x/*", Deny)], None, Allow, Some("rm x/a b"), Deny),
        (&[("shell: rm x/*", Ask)], None, Allow, Some("rm x/a b"), Ask),
    ] {
        let decided = rules(configured).decide("shell", &plan(own, subject), granted);
        assert_eq!(decided, expected, "{configured:?} {granted:?} {own:?} {subject:?}");
    }
    assert!(rules(&[("sh*", Deny)]).deny_all("shell"));
    assert!(!rules(&[("shell: *", Deny), ("shell", Ask)]).deny_all("shell"), "a pattern is about some calls");
}

#[test]
fn a_plain_command_is_its_words() {
    for (command, expected) in [
        ("cargo test", "cargo test"),
        ("  cargo\t test  ", "cargo test"),
        ("cargo 'test' \"--lib\"", "cargo test --lib"),
        ("car'go' te\\st", "cargo test"),
        ("git commit -m 'fix; done' ", "git commit -m fix;␣done"),
        ("git commit -m \"a & b\"", "git commit -m a␣&␣b"),
        ("printf \"a\\\"b\\\\c\\d\"", "printf a\"b\\c\\d"),
        ("rg --type=rust x", "rg --type=rust x"),
        ("git diff HEAD~1", "git diff HEAD~1"),
        ("cat ''", "cat "),
        ("a\\ b c", "a␣b c"),
        ("'if' x", "if x"),
    ] {
        assert_eq!(subjects(command), Some(vec![expected.to_owned()]), "{command:?}");
    }
}

#[test]
fn a_compound_command_is_the_words_of_its_commands() {
    for (command, expected) in [
        ("cd src && cargo test", &["cd src", "cargo test"][..]),
        ("cargo test;rm -rf /", &["cargo test", "rm -rf /"]),
        ("cargo test || rm x", &["cargo test", "rm x"]),
        ("cargo test 2>&1 | tail -20", &["cargo test", "tail -20"]),
        ("a|b||c&&d;e", &["a", "b", "c", "d", "e"]),
        ("a\nb\n\nc;\n", &["a", "b", "c"]),
        ("a &&\n b |\n\n c", &["a", "b", "c"]),
        ("echo 'a; b' \\; && echo \"a && b\"", &["echo a;␣b ;", "echo a␣&&␣b"]),
        ("a >/dev/null 2>&1 </dev/null && b &> /dev/null;c 1>&2", &["a", "b", "c"]),
        ("a>/dev/null b", &["a b"]),
        ("a b2>&1 c", &["a b2 c"]),
        ("a '2'>&1", &["a 2"]),
        ("a 2>/dev/null|b", &["a", "b"]),
        ("export A", &["export A"]),
        ("printf x && ls", &["printf x", "ls"]),
    ] {
        let expected = expected.iter().map(|words| (*words).to_owned()).collect();
        assert_eq!(subjects(command), Some(expected), "{command:?}");
    }
}

/// What bash runs of a text is what was read of it, whatever a model writes.
#[test]
fn bash_runs_no_command_that_was_not_read() {
    const PIECES: [&str; 45] = [
        "a",
        "b",
        "c",
        " ",
        " ",
        "\t",
        "\n",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "&>",
        ">",
        ">>",
        "<",
        "/dev/null",
        ">/dev/null",
        "2>&1",
        ">&2",
        "1",
        "2",
        "3",
        "&1",
        "'",
        "\"",
        "\\",
        "'a b'",
        "\"b;c\"",
        "'2'",
        "#",
        "!",
        "~",
        "=",
        "-v",
        "if",
        "then",
        "fi",
        "{",
        "}",
        "(",
        ")",
        "*",
        ":",
        "␣",
    ];
    // One write for each command: those of a pipe run at the same time.
    const RECORD: &str = "PATH=/nowhere; command_not_found_handle() { local IFS=$'\\x1f'; printf '%s\\n' \"$*\" >&9; }; \
        exec 9>&1 >&2\n";
    needs!("bash");
    let mut random = Random::new(seed());
    let (wanted, mut read, mut ran) = (Part::Properties.share(1500), 0, 0);
    while read < wanted {
        let count = 1 + random.below(12);
        let at = |random: &mut Random| usize::try_from(random.below(PIECES.len() as u64)).unwrap();
        let text: String = (0..count).map(|_| PIECES[at(&mut random)]).collect();
        let Some(expected) = subjects(&text) else { continue };
        read += 1;
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-c", &format!("{RECORD}{text}")]);
        let said = String::from_utf8(bash.output().unwrap().stdout).unwrap();
        for line in said.lines() {
            let words: Vec<String> = line.split('\x1f').map(|word| word.replace([' ', '\t'], "␣")).collect();
            assert!(expected.contains(&words.join(" ")), "{text:?} ran {words:?}, and {expected:?} was read");
            ran += 1;
        }
    }
    assert!(ran > read / 2, "{ran} commands of {read} texts: too few to see anything");
}

/// Each command must be allowed, by whichever rule; one that is denied denies all of them.
#[test]
fn the_strictest_command_decides_for_all() {
    use Approval::{Allow, Ask, Deny};
    let nothing: &[(&str, Approval)] = &[];
    for (configured, granted, command, expected) in [
        (&[("shell: ls *", Allow)][..], &[][..], "ls -l | wc -l", Ask),
        (&[("shell: ls *", Allow), ("shell: wc *", Allow)], &[], "ls -l | wc -l", Allow),
        (&[("shell: ls *", Allow)], &["shell: wc *"], "ls -l | wc -l && ls", Allow),
        (nothing, &["shell: ls * ; wc *"], "ls -l | wc -l", Allow),
        (nothing, &["shell: ls * ; wc *"], "ls -l | wc -l; rm x", Ask),
        (nothing, &["shell: *"], "ls && rm x", Allow),
        (&[("shell: rm *", Deny)], &["shell: *"], "ls && rm x", Deny),
        (&[("shell: rm *", Deny)], &["shell"], "ls && rm x", Deny),
        (&[("shell: rm *", Ask), ("shell: *", Allow)], &[], "ls && rm x", Ask),
        (&[("shell: rm *", Ask)], &["shell: rm *"], "ls && rm x", Ask),
    ] {
        let plan = planned(Ask, subjects(command).unwrap());
        let decided = rules(configured).decide("shell", &plan, granted.iter().copied());
        assert_eq!(decided, expected, "{configured:?} {granted:?} {command}");
    }
}

/// A shell would do more than run programs with these words.
const HOSTILE: &[&str] = &[
    "cargo test; rm -rf ~",
    "cargo test & rm x",
    "cargo test &",
    "cargo test |& sh",
    "cargo test > /etc/passwd",
    "cargo test >> .git/hooks/pre-commit",
    "cargo test >/dev/nullx",
    "cargo test >/dev/null/../x",
    "cargo test >| x",
    "cargo test >&x",
    "cargo test >&12",
    "cargo test >&1-",
    "cargo test 3>/dev/null",
    "git push 3>&1",
    "cargo test 0</dev/null",
    "cargo test <&1",
    "cargo test <> x",
    "cargo test < secret",
    "cargo test <<EOF",
    "cargo test <<< x",
    "cargo test $(rm x)",
    "cargo test \"$(rm x)\"",
    "cargo test $HOME",
    "cargo test \"${IFS}x\"",
    "cargo test $'\\n'rm",
    "cargo test `rm x`",
    "cargo test \"`rm x`\"",
    "(cargo test)",
    "cargo test; (rm x)",
    "cargo test ()",
    "{ cargo test",
    "cargo test; { rm x; }",
    "cargo test {a,b}",
    "cargo test *",
    "cargo test ?",
    "cargo test [ab]",
    "cargo test # nothing",
    "cargo test\n# nothing",
    "cargo test\rrm x",
    "cargo test 'a\nb'",
    "cargo test \\\nrm",
    "cargo test \"a\\\nb\"",
    "RUSTC_WRAPPER=./x cargo test",
    "cargo test && A=b cargo test",
    "PATH+=:. cargo test",
    "'A'=b cargo test",
    ">/dev/null A=b cargo test",
    "cargo test ~/x",
    "cargo test --config=~/x",
    "! cargo test",
    "time cargo test",
    "cargo test && time cargo test",
    "if cargo test; then cargo test; fi",
    "cargo test | while read x; do cargo test; done",
    "for x in a; do cargo test; done",
    "cargo test; ; cargo test",
    "cargo test ;; cargo test",
    "cargo test && && cargo test",
    "cargo test &&",
    "cargo test |",
    "; cargo test",
    "export PATH=. && cargo test",
    "'export' PATH=. && cargo test",
    "ex\\port PATH=. && cargo test",
    "alias cargo=x\ncargo test",
    "cargo test || trap x EXIT",
    "set -a; cargo test",
    "printf -v PATH . && cargo test",
    "printf -vPATH . && cargo test",
    "read PATH </dev/null; cargo test",
    ". ./x && cargo test",
    "cargo test 'open",
    "cargo test \"open",
    "cargo test \\",
    "cargo test \u{1b}[2K",
    "cargo test \0",
    " \n",
    ">/dev/null",
    "",
];

#[test]
fn a_hostile_command_matches_no_pattern_that_allows() {
    let allowing = rules(&[("shell: *", Approval::Allow), ("shell: cargo *", Approval::Allow)]);
    for command in HOSTILE {
        assert_eq!(shell_commands(command), None, "{command:?}");
    }
    let unknown = planned(Approval::Ask, Vec::new());
    for rule in ["shell: *", "shell: cargo *", "shell: cargo test *", "shell: * * *", "shell: * ; *"] {
        assert!(!Rule::parse(rule).unwrap().allows("shell", &unknown), "{rule}");
    }
    assert_eq!(allowing.decide("shell", &unknown, ["shell: *"]), Approval::Ask);
}

/// A command that nothing confines, say: whatever a rule allows, a person decides.
#[test]
fn a_call_that_always_asks_is_allowed_by_no_rule() {
    let plan = Plan { always_asks: true, ..plan(Approval::Ask, Some("ls")) };
    let rules = |approval| ApprovalRules::parse(&[("shell".to_owned(), approval)].into()).unwrap();
    assert_eq!(rules(Approval::Allow).decide("shell", &plan, ["shell", "shell: *"]), Approval::Ask);
    assert_eq!(rules(Approval::Deny).decide("shell", &plan, []), Approval::Deny);
}
