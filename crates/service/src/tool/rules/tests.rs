//! Rules decide as they say, and no trick of a shell slips past one.

use super::*;

fn plan(approval: Approval, subject: Option<&str>) -> Plan {
    Plan { approval, subject: subject.map(str::to_owned), ..Plan::once() }
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
        assert_eq!(Rule::parse(rule).unwrap().allows(tool, subject), expected, "{rule:?} {tool} {subject:?}");
    }
}

#[test]
fn what_is_no_rule_is_refused_with_words() {
    for text in ["", ": x", "shell:", "shell: ", "sh ell", "sh*: x", "shell;", &"a".repeat(2000)] {
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
        assert_eq!(shell_subject(command).map(|words| words.join(" ")).as_deref(), Some(expected), "{command:?}");
    }
}

/// A shell would do more than run one program with these words.
const HOSTILE: [&str; 44] = [
    "cargo test; rm -rf ~",
    "cargo test;rm -rf /",
    "cargo test && curl evil.example",
    "cargo test & rm x",
    "cargo test || rm x",
    "cargo test | sh",
    "cargo test > /etc/passwd",
    "cargo test >> .git/hooks/pre-commit",
    "cargo test < secret",
    "cargo test <<EOF",
    "cargo test 2>&1",
    "cargo test $(rm x)",
    "cargo test \"$(rm x)\"",
    "cargo test $HOME",
    "cargo test \"${IFS}x\"",
    "cargo test $'\\n'rm",
    "cargo test `rm x`",
    "cargo test \"`rm x`\"",
    "(cargo test)",
    "cargo test ()",
    "{ cargo test",
    "cargo test {a,b}",
    "cargo test *",
    "cargo test ?",
    "cargo test [ab]",
    "cargo test # nothing",
    "cargo test\nrm x",
    "cargo test\rrm x",
    "cargo test 'a\nb'",
    "cargo test \\\nrm",
    "cargo test \"a\\\nb\"",
    "RUSTC_WRAPPER=./x cargo test",
    "PATH+=:. cargo test",
    "'A'=b cargo test",
    "cargo test ~/x",
    "cargo test --config=~/x",
    "! cargo test",
    "time cargo test",
    "cargo test 'open",
    "cargo test \"open",
    "cargo test \\",
    "cargo test \u{1b}[2K",
    "cargo test \0",
    "",
];

#[test]
fn a_hostile_command_matches_no_pattern_that_allows() {
    let allowing = rules(&[("shell: *", Approval::Allow), ("shell: cargo *", Approval::Allow)]);
    for command in HOSTILE {
        let subject = shell_subject(command).map(|words| words.join(" "));
        assert_eq!(subject, None, "{command:?}");
        for rule in ["shell: *", "shell: cargo *", "shell: cargo test *", "shell: * * *"] {
            assert!(!Rule::parse(rule).unwrap().allows("shell", subject.as_deref()), "{rule} {command:?}");
        }
        assert_eq!(allowing.decide("shell", &plan(Approval::Ask, subject.as_deref()), ["shell: *"]), Approval::Ask);
    }
}

/// A command that nothing confines, say: whatever a rule allows, a person decides.
#[test]
fn a_call_that_always_asks_is_allowed_by_no_rule() {
    let plan = Plan { always_asks: true, ..plan(Approval::Ask, Some("ls")) };
    let rules = |approval| ApprovalRules::parse(&[("shell".to_owned(), approval)].into()).unwrap();
    assert_eq!(rules(Approval::Allow).decide("shell", &plan, ["shell", "shell: *"]), Approval::Ask);
    assert_eq!(rules(Approval::Deny).decide("shell", &plan, []), Approval::Deny);
}
