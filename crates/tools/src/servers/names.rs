//! Names under which the model sees the tools of servers: `mcp__server__tool`.
//!
//! A name depends on the server and the tool alone, so it stays when other tools come and go.

use meerkat_service::tool::{NAME_BYTES_MAX, is_name_char};
use sha2::{Digest as _, Sha256};

use super::config::hex;

/// Characters of the hash that ends a name that had to be changed.
const HASH_CHARS: usize = 8;

/// Makes the name of a server's tool: 1 to 64 letters, digits, `_` or `-`.
pub(super) fn public_name(server: &str, tool: &str) -> String {
    let clean: String = tool.chars().map(|character| if is_name_char(character) { character } else { '_' }).collect();
    let name = format!("mcp__{server}__{clean}");
    if clean == tool && name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let mut hash = hex(&Sha256::digest(format!("{server}\0{tool}")));
    hash.truncate(HASH_CHARS);
    // Only bytes of one letter are left.
    let kept = &name[..name.len().min(NAME_BYTES_MAX - HASH_CHARS - 1)];
    format!("{kept}_{hash}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_legal_and_differ() {
        assert_eq!(public_name("github", "create_issue"), "mcp__github__create_issue");
        let long = "x".repeat(100);
        let tools = ["a.b", "a/b", "a_b", "a b", "é", "", &long, &long[..99], &"é".repeat(60)];
        let names: BTreeSet<String> = tools.iter().map(|tool| public_name(&"s".repeat(32), tool)).collect();
        assert_eq!(names.len(), tools.len());
        for name in &names {
            assert!(name.len() <= NAME_BYTES_MAX && name.chars().all(is_name_char), "{name}");
        }
    }
}
