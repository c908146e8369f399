//! Single keys in the user's own configuration. Everything else in the file stays as it is.

use figment::Figment;
use meerkat_service::redact::redact_key_shapes;
use toml_edit::{InlineTable, Item, Key, Table, TableLike, Value};

use super::{
    Config,
    layers::{BUILT_IN, BUILT_IN_ORIGIN, Layer, invalid, takes_text, with_origin, written},
    rules::{UserFile, parse},
    values::Values,
};
use crate::error::{CliError, refused};

impl UserFile {
    /// Sets a key, which may be new, to a value as it is written in a file. What the table of keys does not allow is
    /// refused, and nothing is written.
    pub(crate) fn set(&self, key: &str, text: &str) -> Result<(), CliError> {
        let from = format!("user file {}", self.0.display());
        if redact_key_shapes(text) != text {
            let why = "the value looks like a secret, and keys do not belong into a file; name their variable instead, as in \
                       key_variable = \"MY_KEY\"";
            return Err(refused(key, why, &from).into());
        }
        let path = Key::parse(key).map_err(|error| refused(key, &format!("it is not a key: {error}"), &from))?;
        let path: Vec<&str> = path.iter().map(Key::get).collect();
        let mut refusal = None;
        let done = self.edit(|before| {
            let after = with_key(before, &path, written(text, || takes_text(&path)))?;
            self.check(&after).map(|()| after).map_err(|error| {
                refusal = Some(error);
                String::new()
            })
        });
        match (done, refusal) {
            (_, Some(refusal)) => Err(refusal),
            (done, None) => Ok(done.map_err(|error| refused(key, &format!("it was not written: {error}"), &from))?),
        }
    }

    /// Checks a text against the table of keys.
    fn check(&self, text: &str) -> Result<(), CliError> {
        let own = Layer::file_text("user", &self.0, text)?;
        let whole = Figment::from(Layer::text(BUILT_IN_ORIGIN, BUILT_IN)?).merge(own);
        let values: Values = whole.extract().map_err(|error| invalid(&whole, error))?;
        values.check().map_err(|error| with_origin(&whole, &error))
    }
}

impl Config {
    /// Returns the origin of a value that counts more than the user's own file.
    pub(crate) fn set_after_the_user(&self, key: &str) -> Option<String> {
        let origin = self.figment.find_metadata(key)?.name.to_string();
        (!origin.starts_with("user file ")).then_some(origin)
    }
}

fn with_key(text: &str, path: &[&str], mut new: Value) -> Result<String, String> {
    let mut document = parse(text)?;
    let (key, path) = path.split_last().ok_or("the key is empty")?;
    let table = table(document.as_table_mut(), path)?;
    // A comment behind the value stays.
    if let Some(old) = table.get(key).and_then(Item::as_value) {
        new.decor_mut().clone_from(old.decor());
    }
    table.insert(key, Item::Value(new));
    Ok(document.to_string())
}

/// Finds a table, which is made if it is missing.
fn table<'a>(root: &'a mut dyn TableLike, path: &[&str]) -> Result<&'a mut dyn TableLike, String> {
    let (mut table, mut is_inline) = (root, false);
    for (depth, name) in path.iter().enumerate() {
        let missing = || match is_inline {
            // An inline table holds only such ones.
            true => Item::Value(InlineTable::new().into()),
            false => {
                let mut table = Table::new();
                // Only the last one has a line of its own.
                table.set_implicit(depth + 1 < path.len());
                Item::Table(table)
            }
        };
        let found = table.entry(name).or_insert_with(missing);
        is_inline = found.is_inline_table();
        table =
            found.as_table_like_mut().ok_or_else(|| format!("`{}` is not a table in it", path[..=depth].join(".")))?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_that_can_never_hold_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = UserFile(folder.path().join("meerkat.toml"));
        let row = |model: &str, more: &str| format!("{{ model = {model:?}, input = \"1\", output = \"1\"{more} }}");
        let local = || row("local/qwen3", "");
        file.set("model.prices", &format!("[{}]", local())).ok().unwrap();
        let written = std::fs::read_to_string(&file.0).unwrap();
        for wrong in [local(), row("qwen3", ""), row("v/m", ", since = \"soon\""), row("v/m", ", above_tokens = 9")] {
            let CliError::Refused(body) = file.set("model.prices", &format!("[{}, {wrong}]", local())).unwrap_err()
            else {
                panic!("{wrong}")
            };
            assert!(body.message.contains("row 2 ("), "{}", body.message);
            assert_eq!(std::fs::read_to_string(&file.0).unwrap(), written);
        }
    }

    #[test]
    fn a_key_is_set_and_everything_else_stays() {
        let (name, key) = (&["model", "name"][..], &["model", "compatible", "vllm", "key_variable"][..]);
        for (before, path, after) in [
            ("", name, "[model]\nname = \"a\"\n"),
            ("# mine\n[limits]\npins = 3 # few\n", name, "# mine\n[limits]\npins = 3 # few\n\n[model]\nname = \"a\"\n"),
            ("[model]\nname = \"x\" # good\n", name, "[model]\nname = \"a\" # good\n"),
            (
                "[model]\nname = \"x\"\n",
                key,
                "[model]\nname = \"x\"\n\n[model.compatible.vllm]\nkey_variable = \"a\"\n",
            ),
            ("model.name = \"x\"\n", name, "model.name = \"a\"\n"),
            ("model = { name = \"x\" }\n", name, "model = { name = \"a\" }\n"),
            ("x = 1", &["y"], "x = 1\ny = \"a\"\n"),
        ] {
            assert_eq!(with_key(before, path, "a".into()).unwrap(), after, "{before}");
        }
        let inline = with_key("model = { name = \"x\" }\n", key, "K".into()).unwrap();
        assert_eq!(
            parse(&inline).unwrap()["model"]["compatible"]["vllm"]["key_variable"].as_str(),
            Some("K"),
            "{inline}"
        );
        for unusable in ["model = 3", "[model]\ncompatible = 3", "["] {
            with_key(unusable, key, "K".into()).unwrap_err();
        }
    }
}
