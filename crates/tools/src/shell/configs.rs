//! Configurations in the home folder without what may be a secret: commands may read them.

use toml_edit::{DocumentMut, Item, TableLike};

/// Keys of git's configuration that commands see: who commits, what git trusts, and how text is stored. Signing stays, so
/// that no commit is made without a signature that the user wants.
const GIT_KEYS: &[&str] = &[
    "commit.gpgsign",
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "gpg.format",
    "init.defaultbranch",
    "merge.conflictstyle",
    "pull.rebase",
    "push.default",
    "tag.gpgsign",
];
/// Sections of it that commands see as a whole.
const GIT_SECTIONS: &[&str] = &["safe.", "user."];
/// Ends of the names of values that are secrets, in small letters.
const SECRETS: &[&str] = &["token", "secret", "password", "passwd", "secret-key", "_key"];

/// Writes a configuration of git with the harmless values of a list, as `git config --list -z` prints it.
pub(super) fn harmless_git(list: &str) -> String {
    let mut text = String::new();
    for entry in list.split('\0') {
        let (key, value) = entry.split_once('\n').unwrap_or((entry, "true"));
        let is_harmless = GIT_KEYS.contains(&key) || GIT_SECTIONS.iter().any(|section| key.starts_with(section));
        // A subsection, as in `user.x.y`, is none of theirs.
        let Some((section, name)) = key.split_once('.').filter(|(_, name)| is_harmless && !name.contains('.')) else {
            continue;
        };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text.extend(["[", section, "]\n\t", name, " = \"", &value, "\"\n"]);
    }
    text
}

/// Returns a configuration of cargo without its secrets, or nothing if it has none.
pub(super) fn without_secrets(text: &str) -> Option<String> {
    // What cargo cannot read either is left out whole.
    let Ok(mut document) = text.parse::<DocumentMut>() else { return Some(String::new()) };
    strip(document.as_table_mut()).then(|| document.to_string())
}

/// Removes secrets from a table, and returns true if there were any.
fn strip(table: &mut dyn TableLike) -> bool {
    let secret = table.iter().filter(|(key, item)| is_secret(key, item)).map(|(key, _)| key.to_owned());
    let secret: Vec<String> = secret.collect();
    for key in &secret {
        table.remove(key);
    }
    let mut found = !secret.is_empty();
    for (_, item) in table.iter_mut() {
        if let Some(inner) = item.as_table_like_mut() {
            found |= strip(inner);
        }
    }
    found
}

fn is_secret(key: &str, item: &Item) -> bool {
    let key = key.to_ascii_lowercase();
    // An address with a name and a password.
    let has_password = |text: &str| {
        let host = text.split_once("://").map_or(text, |(_, rest)| rest).split('/').next();
        host.is_some_and(|host| host.contains('@'))
    };
    SECRETS.iter().any(|end| key.ends_with(end)) || item.as_str().is_some_and(has_password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_values_of_git_are_left() {
        let list = "user.name\nA \"B\" \\ C\0user.email\na@b\0http.https://x/.extraheader\nAuthorization: t0ken\0\
                    url.https://t0ken@x/.insteadof\nhttps://x/\0alias.x\n!evil\0safe.directory\n/a\0safe.directory\n/b\0\
                    credential.helper\nstore\0user.useconfigonly\0commit.gpgsign\ntrue\0";
        let expected = "[user]\n\tname = \"A \\\"B\\\" \\\\ C\"\n[user]\n\temail = \"a@b\"\n[safe]\n\tdirectory = \"/a\"\n\
                        [safe]\n\tdirectory = \"/b\"\n[user]\n\tuseconfigonly = \"true\"\n[commit]\n\tgpgsign = \"true\"\n";
        assert_eq!(harmless_git(list), expected);
        assert_eq!(harmless_git(""), "");
    }

    #[test]
    fn a_configuration_of_cargo_loses_its_secrets_alone() {
        let text = "[build]\njobs = 2 # few\n[registries.own]\nindex = \"sparse+https://own/\"\ntoken = \"t0ken\"\n\
                    [registry]\ntoken = \"t0ken\"\n[http]\nproxy = \"http://me:t0ken@proxy:1\"\n\
                    [env]\nAPI_TOKEN = { value = \"t0ken\" }\nMODE = \"x@y/z\"\n[source]\nown.secret-key = \"t0ken\"\n";
        let left = without_secrets(text).unwrap();
        assert!(!left.contains("t0ken"), "{left}");
        for kept in ["jobs = 2 # few", "index = \"sparse+https://own/\"", "[http]", "[env]"] {
            assert!(left.contains(kept), "{left}");
        }
        assert_eq!(without_secrets("[build]\njobs = 2\n"), None);
        assert_eq!(without_secrets(""), None);
        assert_eq!(without_secrets("[registry\ntoken = \"t0ken\""), Some(String::new()));
    }
}
