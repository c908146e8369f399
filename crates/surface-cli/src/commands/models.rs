//! `models`: every source of models with its state, the models that can be used, and the next command.
//!
//! Only servers on this machine are asked, all at the same time.

use futures::future::join_all;
use meerkat_service::model::{
    ModelResolver as _,
    vendors::{Listed, Source, VendorModels},
};
use serde_json::{Value, json};

use super::local::print;
use crate::{
    config::Config,
    error::CliError,
    output::{Environment, Output},
    render,
};

/// Source of models, as it was found.
pub(crate) struct Found {
    pub(crate) source: Source,
    /// Models that a server on this machine lists, or the reason that it lists none.
    listed: Option<Result<Listed, String>>,
    /// Reason that the configuration does not allow it.
    refused: Option<String>,
}

impl Found {
    /// Returns true if its models can be used.
    pub(crate) fn is_usable(&self) -> bool {
        self.refused.is_none() && self.listed.as_ref().is_none_or(Result::is_ok)
    }

    /// Returns the models that it lists.
    pub(crate) fn listed(&self) -> Listed {
        self.listed.clone().and_then(Result::ok).unwrap_or_default()
    }

    /// Describes what was found.
    pub(crate) fn state(&self) -> String {
        let address = || self.source.server.as_ref().map_or("", |server| server.base_url.as_str());
        match (&self.refused, &self.listed, &self.source.variable) {
            (Some(why), ..) | (None, Some(Err(why)), _) => why.clone(),
            (None, Some(Ok(listed)), _) => match listed.models.len() + listed.left_out {
                1 => format!("answers at {} with 1 model", address()),
                count => format!("answers at {} with {count} models", address()),
            },
            (None, None, Some(variable)) => format!("has its key, from {variable}"),
            (None, None, None) => format!("at {}, not asked: it is not on this machine", address()),
        }
    }

    /// Returns the reason that its models cannot be used.
    fn lacks(&self) -> Option<String> {
        (!self.is_usable()).then(|| self.state())
    }
}

/// Looks at every source.
pub(crate) fn look(env: &Environment, config: &Config) -> Result<Vec<Found>, CliError> {
    let models = config.models(env)?;
    let found = config.vendors(env).sources().into_iter().map(|source| {
        let local = source.server.clone().filter(|server| server.is_local());
        let refused = match &source.variable {
            // A server on this machine may do without, or say so itself.
            Some(variable) if source.lacks_key() && local.is_none() => Some(format!("no key: set {variable}")),
            _ => models.resolve(&format!("{}/x", source.name)).err().map(|error| error.to_string()),
        };
        async move {
            let listed = match local.filter(|_| refused.is_none()) {
                Some(server) => Some(server.list().await),
                None => None,
            };
            Found { source, listed, refused }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(join_all(found)))
}

/// Lists every source and every model.
pub(crate) fn models(out: &Output, env: &Environment, config: &Config) -> Result<u8, CliError> {
    let found = look(env, config)?;
    let models = config.models(env)?;
    let rows = rows(&models, &found);
    let next = next(&rows);
    if out.is_json {
        let sources = found.iter().map(|it| {
            // One that is refused may hold a password.
            let address = it.source.server.as_ref().filter(|_| it.refused.is_none()).map(|server| &server.base_url);
            json!({ "source": it.source.name, "usable": it.is_usable(), "state": it.state(), "address": address })
        });
        let items = rows.iter().map(Row::json);
        return print(
            out,
            &json!({ "items": items.collect::<Vec<_>>(), "sources": sources.collect::<Vec<_>>(), "next": next }),
        );
    }
    let sources = found.iter().map(|it| [it.source.name.clone(), it.state()]);
    let mut text = render::table(["SOURCE", "STATE"], sources, out.width);
    text.push('\n');
    let shown = rows.iter().filter(|row| row.is_default || row.lacks.is_none());
    text += &render::table(["MODEL", "WINDOW", "STATE"], shown.map(Row::cells), out.width);
    for it in &found {
        let left_out = it.listed().left_out;
        if left_out > 0 {
            text += &format!("{left_out} more of {} are not listed.\n", it.source.name);
        }
    }
    text += &format!("\nNext: {next}\n");
    out.readable(&text)?;
    Ok(0)
}

/// Model with what is known of it.
struct Row {
    name: String,
    is_default: bool,
    /// Reason that it cannot be used.
    lacks: Option<String>,
    window_tokens: Option<u64>,
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "model": self.name, "default": self.is_default, "usable": self.lacks.is_none(), "lacks": self.lacks,
            "window_tokens": self.window_tokens,
        })
    }

    fn cells(&self) -> [String; 3] {
        let state = match (&self.lacks, self.is_default, self.is_scripted()) {
            (Some(lacks), ..) => format!("the default, but: {lacks}"),
            (None, true, true) => "answers until you choose a model; not a real one".to_owned(),
            (None, true, false) => "the default".to_owned(),
            (None, false, true) => "built in, not a real model".to_owned(),
            (None, false, false) => String::new(),
        };
        let window = self.window_tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
        [self.name.clone(), window, state]
    }

    fn is_scripted(&self) -> bool {
        self.name == "scripted"
    }
}

/// Lists the configured models, the default first, and those that servers list.
fn rows(models: &VendorModels, found: &[Found]) -> Vec<Row> {
    let mut rows = Vec::new();
    for model in models.list() {
        let source = found.iter().find(|it| model.name.split_once('/').is_some_and(|(name, _)| name == it.source.name));
        // The models themselves are listed.
        if model.name.ends_with("/<model>") && source.is_some_and(|it| !it.listed().models.is_empty()) {
            continue;
        }
        rows.push(Row {
            lacks: model.missing.or_else(|| source?.lacks()),
            window_tokens: models.resolve(&model.name).ok().map(|model| model.window_tokens),
            is_default: model.is_default,
            name: model.name,
        });
    }
    for it in found {
        for model in it.listed().models {
            let name = format!("{}/{}", it.source.name, model.name);
            let configured = it.source.server.as_ref().and_then(|server| server.window_tokens);
            let window_tokens = configured.or(model.window_tokens);
            if let Some(row) = rows.iter_mut().find(|row| row.name == name) {
                row.window_tokens = window_tokens.or(row.window_tokens);
                continue;
            }
            rows.push(Row { name, is_default: false, lacks: None, window_tokens });
        }
    }
    rows
}

/// Returns the command to type next.
fn next(rows: &[Row]) -> String {
    let is_real = |row: &&Row| row.lacks.is_none() && !row.is_scripted() && !row.name.ends_with("/<model>");
    match rows.iter().find(is_real) {
        Some(row) if row.is_default => "meerkat run 'hello'".to_owned(),
        Some(row) => {
            let name = &row.name;
            format!(
                "meerkat config set model.name {name} makes it the default; meerkat run --model {name} 'hello' tries it"
            )
        }
        None => {
            "set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or start a server of the list; then type meerkat \
                 models again"
                .to_owned()
        }
    }
}
