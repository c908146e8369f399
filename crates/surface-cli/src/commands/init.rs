//! `init`: asks where models come from, which one, and which variable holds its key, and writes the answers to the user's
//! configuration. No key is ever read or written, and nothing is written before the file was shown.

use std::io::{BufRead, Read as _};

use meerkat_service::{SessionError, model::vendors::Preset, redact::redact_key_shapes};
use serde_json::json;

use super::{
    confirm::{ANSWER_BYTES_MAX, is_yes},
    local::print,
    models::{Found, look},
};
use crate::{
    app::Streams,
    config::{Config, ModelChoice},
    error::{CliError, refused},
    output::{Environment, Output},
};

/// Most models that are offered by number.
const OFFERED_MAX: usize = 20;

/// Asks the questions and writes the file.
pub(crate) fn init(out: &Output, env: &Environment, config: &Config, mut streams: Streams) -> Result<u8, CliError> {
    if !out.can_ask {
        let message = "it asks questions, so it needs a terminal; without one, name a model (`--model ollama/llama3.2`), \
                       set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or write model.name to the file that \
                       docs/models.md describes";
        return Err(SessionError::invalid("init", message).into());
    }
    let file = Config::user_file(env).ok_or_else(|| refused("HOME", "set it", "the environment"))?;
    let before = file.text()?;
    let mut found = look(env, config)?;
    found.sort_by_key(|it| !it.is_usable());
    let mut questions = Questions { out, input: streams.take_stdin() };
    let Some((choice, drops_key, source)) = questions.choice(&found) else { return Ok(stays(out)) };
    for (key, value) in file.replaced(&before, &choice)? {
        if !questions.is_confirmed(&format!("{key} is {value} now. Replace it?")) {
            return Ok(stays(out));
        }
    }
    let mut after = file.chosen(&before, &choice)?;
    if let Some((old, without)) = without_key(&after, &choice.server).filter(|_| drops_key) {
        let key = format!("model.compatible.{}.key_variable", choice.server);
        if !questions.is_confirmed(&format!("{key} is {old} now. Remove it?")) {
            return Ok(stays(out));
        }
        after = without;
    }
    out.notice(&format!("\n{} will be:\n\n{}\n", file.0.display(), redact_key_shapes(&after)));
    if !questions.is_confirmed("Write it?") {
        return Ok(stays(out));
    }
    file.replace(&before, &after)?;
    if let Some(origin) = config.name_set_after_the_user() {
        out.note(&format!("model.name is also set by the {origin}, which counts more."));
    }
    let is_unset = |variable: &&String| env.variable(variable).is_none_or(|key| key.trim().is_empty());
    let unset = match &choice.key_variable {
        Some(variable) => Some(variable).filter(is_unset),
        None => source.source.variable.as_ref().filter(|_| !source.source.has_key && !drops_key),
    };
    let next = match unset {
        Some(variable) => format!("set {variable} to your key, then type: meerkat run 'hello'"),
        None if source.is_usable() => "meerkat run 'hello'".to_owned(),
        None => format!("start {}, then type: meerkat run 'hello'", source.source.name),
    };
    if out.is_json {
        return print(out, &json!({ "file": file.0.display().to_string(), "model": choice.name, "next": next }));
    }
    out.readable(&format!("Next: {next}\n"))?;
    Ok(0)
}

fn stays(out: &Output) -> u8 {
    out.note("Nothing is written.");
    0
}

/// Removes the variable of a server's key from a text; `None` if there is none. Returns its value, too.
fn without_key(text: &str, server: &str) -> Option<(String, String)> {
    let mut document: toml_edit::DocumentMut = text.parse().ok()?;
    let servers = document.get_mut("model")?.as_table_like_mut()?.get_mut("compatible")?.as_table_like_mut()?;
    let old = servers.get_mut(server)?.as_table_like_mut()?.remove("key_variable")?;
    Some((old.to_string().trim().to_owned(), document.to_string()))
}

/// Where a server's key comes from.
enum Key {
    Usual,
    None,
    From(String),
}

/// Questions at a terminal.
struct Questions<'a> {
    out: &'a Output,
    input: Box<dyn BufRead + Send>,
}

impl Questions<'_> {
    /// Asks the three questions; `None` if the user leaves. The flag is true if the server shall have no key.
    fn choice<'a>(&mut self, found: &'a [Found]) -> Option<(ModelChoice, bool, &'a Found)> {
        let name = |it: &Found| it.source.name.clone();
        let sources: Vec<(String, String)> = found.iter().map(|it| (name(it), it.state())).collect();
        let first = sources.first().map(|(name, _)| name.as_str());
        let chosen = self.one_of("Where do your models come from?", &sources, first, |_| false)?;
        let source = found.iter().find(|it| it.source.name == chosen)?;
        let window = |tokens: Option<u64>| tokens.map_or_else(String::new, |tokens| format!("window {tokens}"));
        let models: Vec<(String, String)> = match &source.source.model {
            Some(model) if source.listed().models.is_empty() => vec![(model.clone(), String::new())],
            _ => source.listed().models.into_iter().map(|model| (model.name, window(model.window_tokens))).collect(),
        };
        let usual = source.source.model.clone().or_else(|| Some(models.first()?.0.clone()));
        let offered = &models[..models.len().min(OFFERED_MAX)];
        let model = self.one_of("Which model?", offered, usual.as_deref(), is_model)?;
        let (key_variable, drops_key) = match self.key(source)? {
            Key::Usual => (None, false),
            Key::None => (None, true),
            Key::From(variable) => (Some(variable), false),
        };
        let choice = ModelChoice { name: format!("{chosen}/{model}"), server: chosen, key_variable };
        Some((choice, drops_key, source))
    }

    /// Asks which variable holds the key of a server. That of a vendor is its own.
    fn key(&mut self, found: &Found) -> Option<Key> {
        let (source, usual) = (&found.source, found.source.variable.as_deref());
        let Some(server) = &source.server else {
            let is_set = if source.has_key { "is set" } else { "is not set yet" };
            self.out.notice(&format!("\nThe key comes from {}, which {is_set}.\n", usual.unwrap_or_default()));
            return Some(Key::Usual);
        };
        let question =
            format!("\nWhich variable holds its key? The key itself is not written. [{}] ", usual.unwrap_or("none"));
        loop {
            let answer = self.ask(&question)?;
            match answer.as_str() {
                "none" => match server.preset.and_then(Preset::key_variable) {
                    None => return Some(Key::None),
                    Some(variable) => {
                        let name = &source.name;
                        self.out.notice(&format!("{name} needs a key; name its variable, such as {variable}.\n"));
                    }
                },
                "" => return Some(Key::Usual),
                name if usual == Some(name) => return Some(Key::Usual),
                name if is_variable(name) => return Some(Key::From(answer)),
                // It may be the key, so it is not repeated.
                _ => self.out.notice("That is not the name of a variable, such as OPENROUTER_API_KEY.\n"),
            }
        }
    }

    /// Asks for one of a list, by its number or its name, or for another name that is allowed.
    fn one_of(
        &mut self,
        question: &str,
        list: &[(String, String)],
        usual: Option<&str>,
        is_allowed: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let width = list.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines: String = (1..)
            .zip(list)
            .map(|(number, (name, state))| {
                let line = format!("  {number:>2}. {name:width$}  {state}");
                format!("{}\n", line.trim_end())
            })
            .collect();
        self.out.notice(&format!("\n{question}\n{lines}"));
        let hint = if list.is_empty() { "Its name" } else { "A number or a name" };
        let prompt = usual.map_or_else(|| format!("{hint}: "), |usual| format!("{hint} [{usual}]: "));
        loop {
            let answer = self.ask(&prompt)?;
            let by_number = || answer.parse::<usize>().ok().and_then(|number| list.get(number.checked_sub(1)?));
            let by_name = list.iter().find(|(name, _)| *name == answer);
            match (usual, by_name.or_else(by_number)) {
                (Some(usual), _) if answer.is_empty() => return Some(usual.to_owned()),
                (_, Some((name, _))) => return Some(name.clone()),
                _ if is_allowed(&answer) => return Some(answer),
                _ => self.out.notice("That is not a possible answer.\n"),
            }
        }
    }

    fn is_confirmed(&mut self, question: &str) -> bool {
        self.ask(&format!("{question} [y/N] ")).is_some_and(|answer| is_yes(&answer))
    }

    /// Asks for a line; `None` at the end of the input.
    fn ask(&mut self, prompt: &str) -> Option<String> {
        self.out.notice(prompt);
        let mut line = String::new();
        let read = self.input.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line);
        (read.is_ok() && line.ends_with('\n')).then(|| line.trim().to_owned())
    }
}

/// Returns true for a model's name at its source, which is not a key.
fn is_model(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@+~-".contains(&byte);
    !name.is_empty() && name.len() <= 200 && name.bytes().all(is_allowed) && redact_key_shapes(name) == name
}

/// Returns true for a variable's name that is not a key, or for none.
fn is_variable(name: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.starts_with(|char: char| char.is_ascii_digit())
        && name.len() <= 64
        && name.bytes().all(is_name)
        && redact_key_shapes(name) == name
}
