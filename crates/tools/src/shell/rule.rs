//! Rules for commands that a person may allow from then on, and what their output says of a refusal.

use std::path::PathBuf;

/// Programs that run whatever their arguments say.
const RUNNERS: &[&str] = &[
    "ash",
    "awk",
    "bash",
    "bind",
    "builtin",
    "bun",
    "bunx",
    "busybox",
    "chroot",
    "command",
    "compgen",
    "csh",
    "dash",
    "deno",
    "doas",
    "enable",
    "env",
    "eval",
    "exec",
    "fc",
    "find",
    "fish",
    "gawk",
    "ionice",
    "jobs",
    "ksh",
    "lua",
    "mapfile",
    "nice",
    "node",
    "nohup",
    "npx",
    "nsenter",
    "flock",
    "mawk",
    "nawk",
    "nodejs",
    "parallel",
    "perl",
    "php",
    "pipx",
    "pwsh",
    "readarray",
    "ruby",
    "script",
    "sed",
    "setpriv",
    "setsid",
    "sh",
    "source",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "tclsh",
    "time",
    "timeout",
    "trap",
    "tsx",
    "unshare",
    "uvx",
    "watch",
    "xargs",
    "zsh",
    ".",
];
/// Second words that run what follows them.
const RUNNING: &[&str] = &["bisect", "dlx", "exec", "run", "submodule", "x"];
/// Programs whose second word says what they do.
const WITH_SUBCOMMANDS: &[&str] = &[
    "apt",
    "brew",
    "bundle",
    "cargo",
    "dotnet",
    "gem",
    "gh",
    "git",
    "go",
    "gradle",
    "helm",
    "just",
    "kubectl",
    "make",
    "mvn",
    "npm",
    "pip",
    "pip3",
    "pnpm",
    "poetry",
    "rustup",
    "swift",
    "terraform",
    "uv",
    "yarn",
    "zig",
];
/// Bytes of a rule that the engine takes.
const RULE_BYTES_MAX: usize = 1024;

/// Proposes the rule that allows further calls like one of these commands; none for none.
pub(super) fn propose(commands: &[Vec<String>]) -> Option<String> {
    let mut patterns: Vec<String> = Vec::new();
    for words in commands {
        let pattern = pattern(words)?;
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    let rule = format!("shell: {}", patterns.join(" ; "));
    (!patterns.is_empty() && rule.len() <= RULE_BYTES_MAX).then_some(rule)
}

/// Returns the pattern of further commands like this one.
fn pattern(words: &[String]) -> Option<String> {
    let (first, rest) = words.split_first()?;
    let program = first.rsplit('/').next().unwrap_or(first);
    let is_runner = RUNNERS.contains(&program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'))
        || program.starts_with("python");
    let exact = || {
        // A pattern could match more than these words.
        let is_plain = words
            .iter()
            .all(|word| !word.is_empty() && word != ";" && !word.contains(|c: char| "*?[]{}\\!\n \t".contains(c)));
        is_plain.then(|| words.join(" "))
    };
    let is_name = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:+".contains(c))
    };
    if is_runner || !is_name(first) {
        return exact();
    }
    if !WITH_SUBCOMMANDS.contains(&program) {
        return Some(format!("{first} *"));
    }
    match rest.first() {
        Some(second) if is_name(second) && !RUNNING.contains(&second.as_str()) => Some(format!("{first} {second} *")),
        Some(_) | None => exact(),
    }
}

/// Returns true if a failed command says what programs say without a network.
pub(super) fn wants_network(tail: &str) -> bool {
    const SIGNS: &[&str] = &[
        "could not resolve",
        "couldn't resolve",
        "failed to resolve",
        "name resolution",
        "name or service not known",
        "nodename nor servname",
        "getaddrinfo",
        "eai_again",
        "network is unreachable",
        "connection refused",
        "econnrefused",
        "unable to connect",
        "could not connect",
        "couldn't connect",
        "failed to connect",
        "failed to download",
        "socket: operation not permitted",
        "newconnectionerror",
        "dns error",
        "dial tcp",
        "dial udp",
        "download of config.json failed",
    ];
    let tail = tail.to_lowercase();
    SIGNS.iter().any(|sign| tail.contains(sign))
        || (tail.contains("socket") && (tail.contains("not permitted") || tail.contains("eperm")))
}

/// Returns true if a failed command says that it could not change what git obeys.
pub(super) fn wants_git(tail: &str, obeyed: &[PathBuf]) -> bool {
    let refused = tail.lines().filter(|line| line.to_lowercase().contains("read-only file system"));
    let names =
        |line: &str, path: &PathBuf| path.file_name().is_some_and(|name| line.contains(&*name.to_string_lossy()));
    refused.into_iter().any(|line| line.contains(".git") || obeyed.iter().any(|path| names(line, path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_covers_a_program_or_its_subcommand_and_never_a_runner() {
        let check = |command: &str, rule: Option<&str>| {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(propose(&[words]).as_deref(), rule, "{command}");
        };
        check("ls -la", Some("shell: ls *"));
        check("cargo test --lib", Some("shell: cargo test *"));
        check("git commit -m x", Some("shell: git commit *"));
        check("git -c core.pager=x log", Some("shell: git -c core.pager=x log"));
        check("cargo", Some("shell: cargo"));
        check("npm exec thing", Some("shell: npm exec thing"));
        check("./run.sh now", Some("shell: ./run.sh now"));
        for runner in ["sh", "bash", "sudo", "env", "xargs", "find", "python", "python3.12", "node", "perl", "ssh"] {
            check(&format!("{runner} a b"), Some(&format!("shell: {runner} a b")));
            check(&format!("/usr/bin/{runner} a b"), Some(&format!("shell: /usr/bin/{runner} a b")));
            check(&format!("{runner} a*"), None);
        }
    }

    #[test]
    fn a_rule_for_a_compound_command_covers_each_of_its_commands_once() {
        let rule = |commands: &[&str]| {
            let words = |command: &&str| command.split(' ').map(str::to_owned).collect();
            propose(&commands.iter().map(words).collect::<Vec<_>>())
        };
        assert_eq!(rule(&["cd src", "cargo test -q", "cargo test"]).unwrap(), "shell: cd * ; cargo test *");
        assert_eq!(rule(&["ls", "sh x"]).unwrap(), "shell: ls * ; sh x");
        // One of them alone is not what was asked about.
        assert_eq!(rule(&["ls", "sh x*"]), None);
        assert_eq!(rule(&["find . ;"]), None, "it would be read as two patterns");
        assert_eq!(rule(&[]), None);
        assert_eq!(rule(&[&format!("sh {}", "x".repeat(RULE_BYTES_MAX))]), None);
    }
}
