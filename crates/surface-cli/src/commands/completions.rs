//! Completions of shells: clap's scripts, extended by the ids of sessions, which the binary lists.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{args::Cli, error::CliError, output::Output};

/// Bash: clap's function first, then sessions if the command before the cursor takes one.
const BASH: &str = r#"
_meerkat_with_sessions() {
    _meerkat "$@"
    local word path="" cur="${COMP_WORDS[COMP_CWORD]}" is_value=""
    [[ "$cur" == -* ]] && return 0
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$word" in
            --data-dir|--config) is_value=1 ;;
            -*) ;;
            *) [[ -n "$is_value" ]] || path+="$word "; is_value="" ;;
        esac
    done
    case "$3,$path" in
        --session,*|PATHS)
            COMPREPLY=($(compgen -W "$("$1" __complete-sessions "$cur" 2>/dev/null | cut -f1)" -- "$cur")) ;;
    esac
}

complete -F _meerkat_with_sessions -o bashdefault -o default meerkat
"#;

/// Zsh: the function that clap's script then calls for a session.
const ZSH: &str = r#"
_meerkat_session_ids() {
    local -a ids
    ids=(${${(f)"$(_call_program sessions meerkat __complete-sessions "${(q)PREFIX}" 2>/dev/null)"}/$'\t'/:})
    _describe -t sessions session ids
}
"#;

/// Beginning of the part of zsh's script that runs.
const ZSH_START: &str = "\nif [ \"$funcstack[1]\"";

/// Prints the script of a shell.
pub(crate) fn completions(out: &Output, shell: Shell) -> Result<u8, CliError> {
    out.text(&script(shell))?;
    Ok(0)
}

/// Makes the script of a shell.
pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "meerkat", &mut script);
    let script = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => script.into_owned() + &bash(),
        Shell::Zsh => zsh(&script),
        Shell::Fish => script.into_owned() + &fish(),
        _ => script.into_owned(),
    }
}

/// Lists the commands whose first argument is a session, each as its words.
fn commands_of_a_session() -> Vec<Vec<String>> {
    fn walk(command: &clap::Command, path: &[String], found: &mut Vec<Vec<String>>) {
        if command.get_positionals().next().is_some_and(|arg| arg.get_id() == "session") {
            found.push(path.to_vec());
        }
        for command in command.get_subcommands() {
            walk(command, &[path, &[command.get_name().to_owned()]].concat(), found);
        }
    }
    let mut found = Vec::new();
    walk(&Cli::command(), &[], &mut found);
    found
}

fn bash() -> String {
    let paths: Vec<String> = commands_of_a_session().iter().map(|path| format!("*,\"{} \"", path.join(" "))).collect();
    BASH.replace("PATHS", &paths.join("|"))
}

fn zsh(script: &str) -> String {
    let line = |line: &str| {
        let takes_session = line.contains("session -- ") || line.contains("--session=[");
        let line = if takes_session { line.replace(":_default'", ":_meerkat_session_ids'") } else { line.to_owned() };
        line + "\n"
    };
    let script: String = script.lines().map(line).collect();
    script.replacen(ZSH_START, &format!("{ZSH}{ZSH_START}"), 1)
}

fn fish() -> String {
    let ids = "-x -a '(meerkat __complete-sessions (commandline -ct) 2>/dev/null)'";
    let mut script = String::new();
    for path in commands_of_a_session() {
        let seen: Vec<String> = path.iter().map(|word| format!("__fish_seen_subcommand_from {word}")).collect();
        script += &format!("complete -c meerkat -n \"{}\" {ids}\n", seen.join("; and "));
    }
    script + &format!("complete -c meerkat -n \"__fish_seen_subcommand_from run search forget\" -l session {ids}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_the_ids_of_sessions() {
        let paths: Vec<String> = commands_of_a_session().iter().map(|path| path.join(" ")).collect();
        let some = ["chat", "resume", "events", "compact", "sessions show", "sessions export", "journal compact"];
        for path in some {
            assert!(paths.iter().any(|found| found == path), "{path}");
            assert!(bash().contains(&format!("*,\"{path} \"")), "{path}");
        }
        assert!(!paths.iter().any(|found| ["run", "sessions list", "memory search"].contains(&found.as_str())));
        assert_eq!(fish().lines().count(), paths.len() + 1);
        let mut script = Vec::new();
        clap_complete::generate(Shell::Zsh, &mut Cli::command(), "meerkat", &mut script);
        let script = zsh(&String::from_utf8(script).unwrap());
        // Three more take one by `--session`, and two after a reader; the function is there once.
        assert_eq!(script.matches(":_meerkat_session_ids'").count(), paths.len() + 3 + 2);
        assert_eq!(script.matches("_meerkat_session_ids() {").count(), 1);
    }
}
