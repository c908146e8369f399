//! The model in the user's own configuration, as `init` writes it. Everything else in the file stays as it is.

use meerkat_service::SessionError;
use toml_edit::{InlineTable, Item, Table, TableLike, Value};

use super::{
    Config,
    rules::{UserFile, parse},
};

/// Model that the user chose.
pub(crate) struct ModelChoice {
    /// Its name, with its source's.
    pub(crate) name: String,
    /// Name of its source.
    pub(crate) server: String,
    /// Variable of the key, if it is not the usual one.
    pub(crate) key_variable: Option<String>,
}

impl ModelChoice {
    /// Lists the tables and keys to set.
    fn keys(&self) -> impl Iterator<Item = (Vec<&str>, &str, &str)> {
        let name = (vec!["model"], "name", self.name.as_str());
        let variable = self.key_variable.as_deref();
        let variable =
            variable.map(|variable| (vec!["model", "compatible", self.server.as_str()], "key_variable", variable));
        std::iter::once(name).chain(variable)
    }
}

impl UserFile {
    /// Returns the file's text; it is empty if there is no file.
    pub(crate) fn text(&self) -> Result<String, SessionError> {
        match std::fs::read_to_string(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            text => text.map_err(|error| self.unwritten(&error)),
        }
    }

    /// Lists the keys of a text that a choice would replace, with their values.
    pub(crate) fn replaced(&self, text: &str, choice: &ModelChoice) -> Result<Vec<(String, String)>, SessionError> {
        let mut document = parse(text).map_err(|error| self.unwritten(&error))?;
        let mut replaced = Vec::new();
        for (path, key, value) in choice.keys() {
            let table = table(document.as_table_mut(), &path).map_err(|error| self.unwritten(&error))?;
            if let Some(old) = table.get(key).filter(|old| old.as_str() != Some(value)) {
                replaced.push((format!("{}.{key}", path.join(".")), old.to_string().trim().to_owned()));
            }
        }
        Ok(replaced)
    }

    /// Returns a text with a choice in it.
    pub(crate) fn chosen(&self, text: &str, choice: &ModelChoice) -> Result<String, SessionError> {
        with_choice(text, choice).map_err(|error| self.unwritten(&error))
    }

    /// Replaces the file's text, if it is still the one that was read.
    pub(crate) fn replace(&self, before: &str, after: &str) -> Result<(), SessionError> {
        let edited = |text: &str| match text == before {
            true => Ok(after.to_owned()),
            false => Err("another program has changed it, so nothing was written; run the command again".to_owned()),
        };
        self.edit(edited).map_err(|error| self.unwritten(&error))
    }

    fn unwritten(&self, why: &dyn std::fmt::Display) -> SessionError {
        SessionError::invalid("file", format!("{}: {why}", self.0.display()))
    }
}

impl Config {
    /// Returns the origin of the default model if it comes after the user's own file.
    pub(crate) fn name_set_after_the_user(&self) -> Option<String> {
        let origin = self.figment.find_metadata("model.name")?.name.to_string();
        let is_before = ["built-in", "system file ", "user file "].iter().any(|begin| origin.starts_with(begin));
        (!is_before).then_some(origin)
    }
}

fn with_choice(text: &str, choice: &ModelChoice) -> Result<String, String> {
    let mut document = parse(text)?;
    for (path, key, text) in choice.keys() {
        let table = table(document.as_table_mut(), &path)?;
        let mut new = Value::from(text);
        // A comment behind the value stays.
        if let Some(old) = table.get(key).and_then(Item::as_value) {
            new.decor_mut().clone_from(old.decor());
        }
        table.insert(key, Item::Value(new));
    }
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
    fn a_choice_is_set_and_everything_else_stays() {
        let choice = |key_variable: Option<&str>| ModelChoice {
            name: "vllm/a".to_owned(),
            server: "vllm".to_owned(),
            key_variable: key_variable.map(str::to_owned),
        };
        let key = "key_variable = \"K\"\n";
        for (before, without, with) in [
            ("", "[model]\nname = \"vllm/a\"\n", format!("\n[model.compatible.vllm]\n{key}")),
            (
                "# mine\n[limits]\npins = 3 # few\n",
                "# mine\n[limits]\npins = 3 # few\n\n[model]\nname = \"vllm/a\"\n",
                format!("\n[model.compatible.vllm]\n{key}"),
            ),
            (
                "[model]\nname = \"x\" # good\n",
                "[model]\nname = \"vllm/a\" # good\n",
                format!("\n[model.compatible.vllm]\n{key}"),
            ),
            (
                "model.compatible.vllm.window_tokens = 5\n",
                "model.compatible.vllm.window_tokens = 5\nmodel.name = \"vllm/a\"\n",
                String::new(),
            ),
        ] {
            assert_eq!(with_choice(before, &choice(None)).unwrap(), without, "{before}");
            let both = with_choice(before, &choice(Some("K"))).unwrap();
            if with.is_empty() {
                assert!(both.contains("model.compatible.vllm.key_variable = \"K\"\n"), "{both}");
            } else {
                assert_eq!(both, format!("{without}{with}"), "{before}");
            }
        }
        let inline = with_choice("model = { name = \"x\" }\n", &choice(Some("K"))).unwrap();
        let read = parse(&inline).unwrap();
        assert_eq!(read["model"]["name"].as_str(), Some("vllm/a"), "{inline}");
        assert_eq!(read["model"]["compatible"]["vllm"]["key_variable"].as_str(), Some("K"), "{inline}");
        for unusable in ["model = 3", "[model]\ncompatible = 3", "["] {
            with_choice(unusable, &choice(Some("K"))).unwrap_err();
        }
    }

    #[test]
    fn a_file_that_changed_after_it_was_shown_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = UserFile(folder.path().join("meerkat.toml"));
        std::fs::write(&file.0, "# another\n").unwrap();
        file.replace("", "x = 1\n").unwrap_err();
        assert_eq!(file.text().unwrap(), "# another\n");
        file.replace("# another\n", "x = 1\n").unwrap();
        assert_eq!(file.text().unwrap(), "x = 1\n");
    }
}
