//! Servers in the user's own configuration: adding one, removing one. Everything else in the file stays as it is.

use meerkat_service::SessionError;
use meerkat_tools::servers::ServerConfig;
use toml_edit::{Array, InlineTable, Item, Table, TableLike, value};

use super::rules::{UserFile, parse};

impl UserFile {
    /// Adds a server whose name is free.
    pub(crate) fn add_server(&self, name: &str, server: &ServerConfig) -> Result<(), SessionError> {
        self.edit(|text| with_server(text, name, server)).map_err(|error| self.refused(name, &error))
    }

    /// Removes a server that the file names.
    pub(crate) fn remove_server(&self, name: &str) -> Result<(), SessionError> {
        self.edit(|text| without_server(text, name)).map_err(|error| self.refused(name, &error))
    }

    fn refused(&self, name: &str, error: &std::io::Error) -> SessionError {
        SessionError::invalid("server", format!("{name} in {}: {error}", self.0.display()))
    }
}

fn with_server(text: &str, name: &str, server: &ServerConfig) -> Result<String, String> {
    let mut document = parse(text)?;
    let servers = document.entry("servers").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let is_inline = servers.is_inline_table();
    let servers = servers.as_table_like_mut().ok_or("`servers` is not a table in it")?;
    if servers.contains_key(name) {
        return Err("it exists already; remove it first, or choose another name".to_owned());
    }
    let mut table = Table::new();
    fill(&mut table, server);
    // An inline table holds only such ones.
    servers.insert(name, if is_inline { value(table.into_inline_table()) } else { Item::Table(table) });
    Ok(document.to_string())
}

fn fill(table: &mut dyn TableLike, server: &ServerConfig) {
    if let Some(command) = &server.command {
        table.insert("command", value(command));
    }
    if !server.args.is_empty() {
        table.insert("args", value(server.args.iter().collect::<Array>()));
    }
    if !server.env.is_empty() {
        let env: InlineTable = server.env.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        table.insert("env", value(env));
    }
    if let Some(folder) = &server.folder {
        table.insert("folder", value(folder.display().to_string()));
    }
    if let Some(url) = &server.url {
        table.insert("url", value(url));
    }
}

fn without_server(text: &str, name: &str) -> Result<String, String> {
    let mut document = parse(text)?;
    let servers = document.get_mut("servers").and_then(Item::as_table_like_mut);
    match servers.and_then(|servers| servers.remove(name)) {
        Some(_) => Ok(document.to_string()),
        None => {
            Err("there is no such server in it; `meerkat servers` lists all servers, `meerkat config show` their files"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_comes_and_goes_and_everything_else_stays() {
        let program = serde_json::json!({ "command": "npx", "args": ["-y", "a b"], "env": { "T": "${T}" } });
        let program: ServerConfig = serde_json::from_value(program).unwrap();
        let keys = "command = \"npx\"\nargs = [\"-y\", \"a b\"]\nenv = { T = \"${T}\" }\n";
        for before in ["", "# mine\n[limits]\npins = 3 # few\n", "[servers]\n# one\nx = { command = \"x\" }\n"] {
            let after = with_server(before, "t", &program).unwrap();
            let gap = if before.is_empty() { "" } else { "\n" };
            assert_eq!(after, format!("{before}{gap}[servers.t]\n{keys}"));
            with_server(&after, "t", &program).unwrap_err();
            assert_eq!(without_server(&after, "t").unwrap(), before);
        }
        let address = ServerConfig { url: Some("https://a/mcp".to_owned()), ..ServerConfig::default() };
        let inline = with_server("servers = { x = { command = \"x\" } }\n", "t", &address).unwrap();
        assert_eq!(inline, "servers = { x = { command = \"x\" } , t = { url = \"https://a/mcp\" } }\n");
        for unusable in ["servers = 3", "["] {
            with_server(unusable, "t", &address).unwrap_err();
            without_server(unusable, "t").unwrap_err();
        }
        without_server("", "t").unwrap_err();
    }
}
