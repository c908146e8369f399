//! Splits a text into the tokens of a model.

use std::collections::HashMap;

use tokenizers::{
    Tokenizer,
    models::{bpe::Vocab, wordpiece::WordPiece},
    normalizers::BertNormalizer,
    pre_tokenizers::bert::BertPreTokenizer,
};

/// Token for a word that a vocabulary lacks.
const UNKNOWN: &str = "[UNK]";
/// Longest known word of an encoder.
const WORD_CHARS_MAX: usize = 100;

/// Preparation of a text before its words are looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// True if letters become lower case.
    pub(super) lowers: bool,
    /// True if marks are removed from letters.
    pub(super) strips_marks: bool,
    /// True if each Chinese character is a word.
    pub(super) parts_chinese: bool,
}

#[derive(Debug)]
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    /// First and last token of every text, for an encoder.
    ends: Option<(u32, u32)>,
    /// Token that is left out of every text, for a table.
    left_out: Option<u32>,
    /// Most tokens of a text.
    tokens_max: usize,
    /// Characters of a text that are read.
    chars_max: usize,
}

impl Vocabulary {
    /// Makes an encoder's vocabulary of BERT's WordPiece, or returns what is wrong with it. No text has a special token:
    /// `[SEP]` in a text is three words.
    pub(super) fn of_pieces(ids: HashMap<String, u32>, reading: Reading, tokens_max: usize) -> Result<Self, String> {
        let id = |token: &str| ids.get(token).copied().ok_or_else(|| format!("its vocabulary has no {token}"));
        let ends = (id("[CLS]")?, id("[SEP]")?);
        id(UNKNOWN)?;
        let pieces = WordPiece::builder().max_input_chars_per_word(WORD_CHARS_MAX).unk_token(UNKNOWN.to_owned());
        let pieces = pieces.vocab(ids.into_iter().collect::<Vocab>()).build().map_err(|error| error.to_string())?;
        let mut tokenizer = Tokenizer::new(pieces);
        let plain = BertNormalizer::new(true, reading.parts_chinese, Some(reading.strips_marks), reading.lowers);
        tokenizer.with_normalizer(Some(plain)).map_err(|error| error.to_string())?;
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        let chars_max = tokens_max.saturating_mul(WORD_CHARS_MAX);
        Ok(Self { tokenizer, ends: Some(ends), left_out: None, tokens_max, chars_max })
    }

    /// Makes a table's vocabulary of its `tokenizer.json`. `unknown` is the token for what it does not know.
    pub(super) fn of_file(bytes: &[u8], unknown: Option<u32>, tokens_max: usize) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None).with_truncation(None).map_err(|error| error.to_string())?;
        let mut lengths: Vec<usize> = tokenizer.get_vocab(true).keys().map(|token| token.chars().count()).collect();
        lengths.sort_unstable();
        let middle = lengths.len() / 2;
        let median = match lengths.len() {
            0 => return Err("it has no tokens".to_owned()),
            count if count.is_multiple_of(2) => usize::midpoint(lengths[middle - 1], lengths[middle]),
            _ => lengths[middle],
        };
        let chars_max = tokens_max.saturating_mul(median);
        Ok(Self { tokenizer, ends: None, left_out: unknown, tokens_max, chars_max })
    }

    /// Returns the rows that a table needs for these tokens.
    pub(super) fn rows(&self) -> usize {
        self.tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1)
    }

    /// Splits a text into tokens.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let end = text.char_indices().nth(self.chars_max).map_or(text.len(), |(at, _)| at);
        let encoding = self.tokenizer.encode_fast(&text[..end], false).map_err(|error| error.to_string())?;
        let ids = encoding.get_ids().iter().copied();
        let Some((first, last)) = self.ends else {
            return Ok(ids.take(self.tokens_max).filter(|id| Some(*id) != self.left_out).collect());
        };
        let within = ids.take(self.tokens_max - 2);
        Ok(std::iter::once(first).chain(within).chain(std::iter::once(last)).collect())
    }
}
