//! The built-in embedder: a table in the program. No server, no file, and no text leaves the process.
//!
//! `table/distil.py` made the table, and `table/README.md` says of what.

use std::sync::OnceLock;

use async_trait::async_trait;

use super::{pieces::Pieces, table::Table};
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

/// Rows and components as four bytes each, each row's scale, all components, and the pieces in lines.
static BYTES: &[u8] = include_bytes!("../../table/builtin.bin");

/// Begins the name of each release's table; its checksum follows.
pub(crate) const BUILTIN: &str = "builtin-";

/// Embedder over the built-in table, which is read when it is first needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinEmbedder;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let (numbers, _) = BYTES.as_chunks::<4>();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
        let (rows, dimension) = (number(0), number(1));
        let scales = numbers.iter().skip(2).take(rows).map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let rest = BYTES.get(4 * (2 + rows)..).unwrap_or_default();
        let (codes, words) = rest.split_at_checked(rows * dimension).unwrap_or_default();
        let words = str::from_utf8(words).unwrap_or_default();
        let pieces = Pieces::new(words.lines().map(std::borrow::Cow::Borrowed).zip(0..).collect());
        Table::new(pieces, scales, codes.into(), dimension, usize::MAX)
    })
}

#[async_trait]
impl Embedder for BuiltinEmbedder {
    fn id(&self) -> String {
        format!("{BUILTIN}{:08x}", crc32c::crc32c(BYTES))
    }

    fn is_table(&self) -> bool {
        true
    }

    async fn embed(&self, texts: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        Ok(texts.iter().map(|text| table().vector(text)).collect())
    }
}
