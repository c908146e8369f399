//! Commands that need no session and no service: errors, configuration, completions.

use std::io::{BufRead as _, Read as _};

use clap::CommandFactory as _;
use meerkat_errors::ErrorCode;
use meerkat_service::{SessionError, service::ErrorList, wire::encode};
use meerkat_tools::notes::RuleFile;
use serde_json::{Value, json};

use super::confirm::{ANSWER_BYTES_MAX, is_yes};
use crate::{
    app::Streams,
    args::{Cli, ErrorsArgs, Globals},
    config::{Config, WantedServer},
    error::{CliError, refused},
    input::throw_away_typed,
    output::{Environment, Output, printable},
    wire::read,
};

/// Prints a document, unchanged or for people.
pub(crate) fn print(out: &Output, document: &Value) -> Result<u8, CliError> {
    if out.is_json {
        out.document(document.to_string().as_bytes())?;
    } else {
        out.answer(document)?;
    }
    Ok(0)
}

/// `capabilities`: needs no session and no data directory.
pub(crate) fn capabilities(out: &Output, config: &Config) -> Result<u8, CliError> {
    let view = encode(&config.capabilities().view())?;
    if out.is_json {
        out.document(&view)?;
    } else {
        out.answer(&read(&view)?)?;
    }
    Ok(0)
}

/// `errors`: the table, or the page of one code.
pub(crate) fn errors(out: &Output, args: &ErrorsArgs) -> Result<u8, CliError> {
    let code = args.code.as_deref().map(error_code).transpose()?;
    if let Some(code) = code.filter(|_| !out.is_json) {
        out.text(code.page())?;
        return Ok(0);
    }
    let list = serde_json::to_value(ErrorList::of(code));
    print(out, &list.map_err(|error| SessionError::Internal(error.to_string()))?)
}

fn error_code(name: &str) -> Result<ErrorCode, SessionError> {
    let refused = || SessionError::invalid("code", format!("{name:?} is not a code; `meerkat errors` lists the codes"));
    ErrorCode::from_wire(&name.to_ascii_uppercase()).ok_or_else(refused)
}

/// `config show`.
pub(crate) fn show_config(out: &Output, env: &Environment, config: &Config) -> Result<u8, CliError> {
    print(out, &json!({ "items": config.entries(env) }))
}

/// `config set`: changes the user's own configuration, and says if another value counts more.
pub(crate) fn set_config(
    out: &Output,
    env: &Environment,
    globals: &Globals,
    key: &str,
    value: &str,
) -> Result<u8, CliError> {
    let file = Config::user_file(env).ok_or_else(|| refused("HOME", "set it", "the environment"))?;
    file.set(key, value)?;
    let after = Config::load(env, globals).ok();
    if let Some(origin) = after.and_then(|config| config.set_after_the_user(key)) {
        out.note(&format!("{key} is also set by the {origin}, which counts more."));
    }
    print(out, &json!({ "file": file.0.display().to_string(), "set": key }))
}

/// `config trust`: shows what the project's files want, asks, and records the answer.
pub(crate) fn trust_config(
    out: &Output,
    env: &Environment,
    config: &Config,
    mut streams: Streams,
    is_sure: bool,
) -> Result<u8, CliError> {
    let (files, rules) = (config.untrusted_files(), Config::untrusted_rules(env));
    config.left_out().iter().chain(config.notes()).for_each(|line| out.note(line));
    if files.is_empty() && rules.is_empty() {
        out.note(
            "There is nothing to trust: nothing in the project's meerkat.toml, .mcp.json, AGENTS.md or .claude/agents is \
             ignored.",
        );
        return print(out, &json!({ "trusted": false, "keys": {} }));
    }
    let (wanted, servers) = match files.is_empty() {
        true => (Vec::new(), Vec::new()),
        false => (config.wanted_keys(), config.wanted_servers()),
    };
    let keys: serde_json::Map<_, _> = wanted.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let names: Vec<String> = rules.iter().map(|file| printable(&file.path.display().to_string())).collect();
    let mut answer = json!({ "file": files.first(), "trusted": true, "keys": keys });
    if !servers.is_empty() {
        answer["servers"] = servers.iter().map(WantedServer::json).collect();
    }
    if !names.is_empty() {
        answer["rules"] = json!(names);
    }
    if !is_sure {
        if !wanted.is_empty() {
            let listed: String = wanted.iter().map(|(key, value)| format!("  {key} = {value}\n")).collect();
            out.notice(&format!("{} wants to set\n{listed}", files.first().map_or("The project", String::as_str)));
        }
        if !servers.is_empty() {
            let listed: String = servers.iter().map(|server| format!("  {}\n", server.line())).collect();
            out.notice(&format!(
                "{} wants to start servers, which may do whatever you may do; a change of a program that they run does \
                 not ask again\n{listed}",
                files.join(" and ")
            ));
        }
        for (name, RuleFile { bytes, .. }) in names.iter().zip(&rules) {
            out.notice(&format!("{name} gives the model {} bytes of instructions; read it first.\n", bytes.len()));
        }
        if !out.can_ask {
            let message = "such a file may send your keys elsewhere or mislead the model, and there is no terminal to \
                           ask in; add --yes";
            return Err(SessionError::invalid("--yes", message).into());
        }
        out.notice("Trust all this until it changes? [y/N]");
        throw_away_typed(streams.has_keyboard);
        out.notice(" ");
        let mut line = String::new();
        streams.take_stdin().take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        if !is_yes(&line) {
            out.note("Nothing was trusted.");
            return Ok(0);
        }
    }
    config.trust(env)?;
    Config::trust_rules(env, &rules)?;
    print(out, &answer)
}

/// Prints the completion script of a shell.
pub(crate) fn completions(out: &Output, shell: clap_complete::Shell) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "meerkat", &mut script);
    out.text(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
