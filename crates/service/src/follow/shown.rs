//! What was shown of a step's text as it came, so that its whole message shows the rest and no piece twice.

/// Part of a text that was shown: of a step's answer, or of its reasoning.
#[derive(Debug, Default)]
pub struct Shown {
    bytes: usize,
    /// Place of the next delta: the block, and the bytes of it that were shown.
    place: Option<(u32, u64)>,
    is_gapped: bool,
}

impl Shown {
    /// Returns whether a delta goes on where the shown part ends, and counts it as shown if so.
    ///
    /// Runs of text and of reasoning alternate. No delta says if the text before a later run was complete, so that run
    /// waits for the whole message.
    pub fn takes(&mut self, block: u32, offset: u64, text: &str) -> bool {
        let goes_on = match self.place {
            Some(place) => place == (block, offset),
            None => block <= 1 && offset == 0,
        };
        self.is_gapped |= !goes_on;
        if self.is_gapped {
            return false;
        }
        self.place = Some((block, offset + text.len() as u64));
        self.bytes += text.len();
        true
    }

    /// Takes the rest of the whole text; `None` if that differs from what was shown.
    pub fn rest<'a>(&mut self, whole: &'a str) -> Option<&'a str> {
        let rest = whole.get(self.bytes..)?;
        self.bytes = whole.len();
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_shown_once_however_deltas_come() {
        for (deltas, whole, rest) in [
            (&[(0, 0, "One "), (0, 4, "two")][..], "One two.", "."),
            // The piece between was lost: what comes after it waits.
            (&[(0, 0, "One "), (0, 8, "three"), (0, 4, "two ")], "One two three", "two three"),
            // A later run of text waits, because the first may have lost its end.
            (&[(0, 0, "One "), (2, 0, "two")], "One two", "two"),
            (&[(1, 0, "One")], "One", ""),
            (&[(2, 0, "Two")], "One Two", "One Two"),
            (&[(0, 3, "late")], "On late", "On late"),
        ] {
            let mut shown = Shown::default();
            let taken: String = deltas
                .iter()
                .filter(|(block, offset, text)| shown.takes(*block, *offset, text))
                .map(|(_, _, text)| *text)
                .collect();
            let last = shown.rest(whole);
            assert_eq!(last, Some(rest), "{deltas:?}");
            assert_eq!(taken + rest, whole);
            assert_eq!(shown.rest(whole), Some(""));
        }
        let mut shown = Shown::default();
        assert!(shown.takes(0, 0, "Another answer"));
        assert_eq!(shown.rest("Short"), None);
    }
}
