//! Length of the tests that try chances or places in great numbers.
//!
//! They are short in `cargo test`. `MEERKAT_CAMPAIGNS` names parts, separated by commas, whose tests run at full
//! length: `store`, `journal`, `memory`, `nodes`, or `all`. `.ci/run` names the parts that have changed.

/// Part of the program whose tests have two lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Store,
    Journal,
    Memory,
}

impl Part {
    /// Returns true if tests of this part run at full length.
    pub(crate) fn is_whole(self) -> bool {
        let asked = std::env::var("MEERKAT_CAMPAIGNS").unwrap_or_default();
        asked.split(',').filter(|name| !name.is_empty()).fold(false, |is_whole, name| {
            is_whole
                | match name {
                    "all" => true,
                    "store" => self == Self::Store,
                    "journal" => self == Self::Journal,
                    "memory" => self == Self::Memory,
                    // The trials over a database.
                    "nodes" => false,
                    other => panic!("MEERKAT_CAMPAIGNS names {other:?}, which is no part"),
                }
        })
    }

    /// Returns the count of a test that tries `whole` at full length: all of them, or a tenth.
    pub(crate) fn share(self, whole: u64) -> u64 {
        if self.is_whole() { whole } else { whole.div_ceil(10) }
    }
}
