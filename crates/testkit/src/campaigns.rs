//! Length of the tests that try chances, places or combinations in great numbers.
//!
//! They are short in `cargo test`. `MEERKAT_CAMPAIGNS` names parts, separated by commas, whose tests run at full length, or
//! is `all`. `.ci/run` names the parts that have changed.

/// Part whose tests have two lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The store of sessions: places at which the program is killed.
    Store,
    /// The journal: crashes of a simulated disk, damaged bytes, lives of a session.
    Journal,
    /// Memory: places at which the program is killed.
    Memory,
    /// Scenarios over a database, on one node and on two.
    Nodes,
    /// Scenarios on every surface in every build.
    Parity,
    /// Properties, which are tried by chance.
    Properties,
}

impl Part {
    const ALL: [(&str, Self); 6] = [
        ("store", Self::Store),
        ("journal", Self::Journal),
        ("memory", Self::Memory),
        ("nodes", Self::Nodes),
        ("parity", Self::Parity),
        ("properties", Self::Properties),
    ];

    /// Returns true if tests of this part run at full length.
    ///
    /// # Panics
    ///
    /// If `MEERKAT_CAMPAIGNS` names no part.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.is_in(&std::env::var("MEERKAT_CAMPAIGNS").unwrap_or_default())
    }

    /// Returns the count of a test that tries `whole` at full length: all of them, or a tenth.
    #[must_use]
    pub fn share(self, whole: u64) -> u64 {
        if self.is_whole() { whole } else { whole.div_ceil(10) }
    }

    /// Returns true if a list of parts names this one. It looks at all of them, so that it finds a wrong one.
    fn is_in(self, asked: &str) -> bool {
        let find = |name: &str| Self::ALL.iter().find(|(part, _)| *part == name).map(|(_, part)| *part);
        asked.split(',').filter(|name| !name.is_empty()).fold(false, |is_in, name| {
            let part = find(name);
            assert!(part.is_some() || name == "all", "MEERKAT_CAMPAIGNS names {name:?}, which is not a part");
            is_in | part.is_none_or(|part| part == self)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_parts() {
        assert!(!Part::Store.is_in(""));
        assert!(Part::Store.is_in("journal,store"));
        assert!(!Part::Store.is_in("journal,"));
        assert!(Part::ALL.iter().all(|(name, part)| part.is_in("all") && part.is_in(name)));
    }

    #[test]
    #[should_panic(expected = "which is not a part")]
    fn a_wrong_name_is_found() {
        Part::Store.is_in("store,storre");
    }
}
