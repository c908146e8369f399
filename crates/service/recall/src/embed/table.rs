//! Table with a vector for each piece of a word. A text's vector is their mean, scaled to length 1.

use std::borrow::Cow;

use super::{normalise, pieces::Pieces};

/// Rows of one byte per component, each with its scale.
#[derive(Debug)]
pub(super) struct Table {
    pieces: Pieces,
    scales: Vec<f32>,
    /// Components as signed bytes, row after row.
    codes: Cow<'static, [u8]>,
    dimension: usize,
    /// Most pieces of a text.
    most: usize,
}

impl Table {
    /// Makes a table whose rows have the pieces' numbers.
    pub(super) const fn new(
        pieces: Pieces,
        scales: Vec<f32>,
        codes: Cow<'static, [u8]>,
        dimension: usize,
        most: usize,
    ) -> Self {
        Self { pieces, scales, codes, dimension, most }
    }

    /// Returns a text's vector; all zeros if no piece of it is known.
    pub(super) fn vector(&self, text: &str) -> Vec<f32> {
        let mut sum = vec![0.0_f32; self.dimension];
        for row in self.pieces.of(text, self.most).into_iter().map(|id| id as usize) {
            let codes = self.codes.get(row * self.dimension..(row + 1) * self.dimension).unwrap_or_default();
            let scale = self.scales.get(row).copied().unwrap_or_default();
            for (component, code) in sum.iter_mut().zip(codes) {
                *component += scale * f32::from(code.cast_signed());
            }
        }
        normalise(&mut sum);
        sum
    }
}
