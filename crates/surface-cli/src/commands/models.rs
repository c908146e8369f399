//! `models`: every source of models with its state, the models that can be used, and the next command.
//!
//! Only servers on this machine are asked, all at the same time.

use futures::future::join_all;
use meerkat_service::model::{
    ModelResolver as _,
    vendors::{Listed, VendorModels},
};
use serde_json::{Value, json};

use super::local::print;
use crate::{
    config::Config,
    error::CliError,
    output::{Environment, Output, count},
    render::table,
};

const SCRIPTED: &str = "scripted";
/// End of a name that says that any model of a server may be named.
const ANY_MODEL: &str = "/<model>";

/// Source of models, as it was found.
struct Found {
    name: String,
    /// What it is, or the reason that its models cannot be used.
    state: Result<String, String>,
    /// Models that it lists, if it is a server on this machine.
    listed: Listed,
    /// Address, if the configuration allows it; another one may hold a password.
    address: Option<String>,
    /// Configured window of its models.
    window_tokens: Option<u64>,
}

/// Looks at every source.
fn look(env: &Environment, config: &Config, models: &VendorModels) -> Result<Vec<Found>, CliError> {
    let found = config.vendors(env).sources().into_iter().map(|source| {
        let local = source.server.clone().filter(|server| server.is_local());
        let refused = match &source.variable {
            // A server on this machine may do without, or say so itself.
            Some(variable) if source.lacks_key() && local.is_none() => Some(format!("no key: set {variable}")),
            _ => models.resolve(&format!("{}/x", source.name)).err().map(|error| error.to_string()),
        };
        async move {
            let address = source.server.as_ref().filter(|_| refused.is_none()).map(|server| server.base_url.clone());
            let (mut listed, at) = (Listed::default(), address.as_deref().unwrap_or_default());
            let state = match (refused, local, source.variable) {
                (Some(why), ..) => Err(why),
                (None, Some(server), _) => server.list().await.map(|found| {
                    listed = found;
                    let models = count((listed.models.len() + listed.left_out) as u64, "model");
                    format!("answers at {at} with {models}")
                }),
                (None, None, Some(variable)) => Ok(format!("has its key, from {variable}")),
                (None, None, None) => Ok(format!("at {at}, not asked: it is not on this machine")),
            };
            let window_tokens = source.server.and_then(|server| server.window_tokens);
            Found { name: source.name, state, listed, address, window_tokens }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(join_all(found)))
}

/// Names the configured models that can be used, the default first. No server is asked.
pub(crate) fn usable(models: &VendorModels) -> Vec<String> {
    let usable = models.list().into_iter().filter(|model| model.missing.is_none() && !model.name.ends_with(ANY_MODEL));
    usable.map(|model| model.name).collect()
}

/// Lists every source and every model.
pub(crate) fn models(out: &Output, env: &Environment, config: &Config) -> Result<u8, CliError> {
    let models = config.models(env)?;
    let found = look(env, config, &models)?;
    let rows = rows(&models, &found);
    let next = next(&rows);
    let words = |it: &Found| match &it.state {
        Ok(state) | Err(state) => state.clone(),
    };
    if out.is_json {
        let source = |it: &Found| json!({ "source": it.name, "usable": it.state.is_ok(), "state": words(it), "address": it.address });
        let sources: Vec<_> = found.iter().map(source).collect();
        let items: Vec<_> = rows.iter().map(Row::json).collect();
        return print(out, &json!({ "items": items, "sources": sources, "next": next }));
    }
    let mut text = table(["SOURCE", "STATE"], found.iter().map(|it| [it.name.clone(), words(it)]), out.width);
    let shown = rows.iter().filter(|row| row.is_default || row.lacks.is_none());
    text += &format!("\n{}", table(["MODEL", "WINDOW", "STATE"], shown.map(Row::cells), out.width));
    for Found { name, listed, .. } in found.iter().filter(|it| it.listed.left_out > 0) {
        text += &format!("{} more of {name} are not listed.\n", listed.left_out);
    }
    out.readable(&format!("{text}\nNext: {next}\n"))?;
    Ok(0)
}

/// Model with what is known of it.
struct Row {
    model: String,
    is_default: bool,
    /// Reason that it cannot be used.
    lacks: Option<String>,
    window_tokens: Option<u64>,
}

impl Row {
    fn json(&self) -> Value {
        let Self { model, is_default, lacks, window_tokens } = self;
        let usable = lacks.is_none();
        json!({ "model": model, "default": is_default, "usable": usable, "lacks": lacks, "window_tokens": window_tokens })
    }

    fn cells(&self) -> [String; 3] {
        let state = match (&self.lacks, self.is_default, self.model == SCRIPTED) {
            (Some(lacks), ..) => format!("the default, but: {lacks}"),
            (None, true, true) => "answers until you choose a model; not a real one".to_owned(),
            (None, true, false) => "the default".to_owned(),
            (None, false, true) => "built in, not a real model".to_owned(),
            (None, false, false) => String::new(),
        };
        let window = self.window_tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
        [self.model.clone(), window, state]
    }
}

/// Lists the configured models, the default first, and those that servers list.
fn rows(models: &VendorModels, found: &[Found]) -> Vec<Row> {
    let mut rows = Vec::new();
    for model in models.list() {
        let source = found.iter().find(|it| model.name.split_once('/').is_some_and(|(name, _)| name == it.name));
        // The models themselves are listed.
        if model.name.ends_with(ANY_MODEL) && source.is_some_and(|it| !it.listed.models.is_empty()) {
            continue;
        }
        let lacks = model.missing.or_else(|| source?.state.clone().err());
        let window_tokens = models.resolve(&model.name).ok().map(|model| model.window_tokens);
        rows.push(Row { model: model.name, is_default: model.is_default, lacks, window_tokens });
    }
    for it in found {
        for model in &it.listed.models {
            let name = format!("{}/{}", it.name, model.name);
            let window_tokens = it.window_tokens.or(model.window_tokens);
            match rows.iter_mut().find(|row| row.model == name) {
                Some(row) => row.window_tokens = window_tokens.or(row.window_tokens),
                None => rows.push(Row { model: name, is_default: false, lacks: None, window_tokens }),
            }
        }
    }
    rows
}

/// Returns the command to type next.
fn next(rows: &[Row]) -> String {
    let is_real = |row: &&Row| row.lacks.is_none() && row.model != SCRIPTED && !row.model.ends_with(ANY_MODEL);
    match rows.iter().find(is_real) {
        Some(row) if row.is_default => "meerkat run 'hello'".to_owned(),
        Some(row) => {
            let name = &row.model;
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
