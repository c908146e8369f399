//! Matrix multiplication, which is nearly all that a model does.
//!
//! The layout lets the compiler use vector instructions.

/// Columns of one block.
const LANES: usize = 8;
/// Rows of one block.
const ROWS: usize = 4;
/// Rows of the matrix of one block, so that they stay in the nearest cache.
const DEPTH: usize = 256;

/// Right-hand matrix, in panels of columns.
#[derive(Debug)]
pub(super) struct Matrix {
    depth: usize,
    columns: usize,
    panels: Vec<[f32; LANES]>,
}

impl Matrix {
    /// Makes a matrix of `depth` rows and `columns` columns from a function of row and column.
    pub(super) fn new(depth: usize, columns: usize, at: impl Fn(usize, usize) -> f32) -> Self {
        let value = |row, column| if column < columns { at(row, column) } else { 0.0 };
        let panel = |first| (0..depth).map(move |row| std::array::from_fn(|lane| value(row, first + lane)));
        Self { depth, columns, panels: (0..columns).step_by(LANES).flat_map(panel).collect() }
    }

    /// Multiplies rows of `depth` numbers by this matrix; returns `columns` numbers per row.
    pub(super) fn times(&self, rows: &[f32]) -> Vec<f32> {
        let count = rows.len() / self.depth;
        let mut product = vec![0.0; count * self.columns];
        let mut block = [[0.0; ROWS]; DEPTH];
        for top in (0..self.depth).step_by(DEPTH) {
            let depth = DEPTH.min(self.depth - top);
            for first in (0..count).step_by(ROWS) {
                let height = ROWS.min(count - first);
                for row in 0..height {
                    let values = &rows[(first + row) * self.depth + top..][..depth];
                    for (together, value) in block.iter_mut().zip(values) {
                        together[row] = *value;
                    }
                }
                for (at, panel) in self.panels.chunks_exact(self.depth).enumerate() {
                    let sums = sums(&block[..depth], &panel[top..top + depth]);
                    let column = at * LANES;
                    let width = LANES.min(self.columns - column);
                    for (row, sums) in sums.iter().enumerate().take(height) {
                        let into = &mut product[(first + row) * self.columns + column..][..width];
                        into.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
                    }
                }
            }
        }
        product
    }
}

fn sums(block: &[[f32; ROWS]], panel: &[[f32; LANES]]) -> [[f32; LANES]; ROWS] {
    let mut sums = [[0.0; LANES]; ROWS];
    for (values, weights) in block.iter().zip(panel) {
        for (sums, value) in sums.iter_mut().zip(values) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += value * weight;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_the_sums_of_products_at_every_size() {
        for (count, depth, columns) in [(1, 1, 1), (3, 5, 7), (4, 8, 8), (5, 3, 9), (9, 2, 17), (2, 259, 3)] {
            let rows: Vec<f32> = (0..count * depth).map(|at| at as f32 % 7.0 - 3.0).collect();
            let at = |row: usize, column: usize| (row % 5) as f32 - column as f32;
            let product = Matrix::new(depth, columns, at).times(&rows);
            for (place, value) in product.iter().enumerate() {
                let (row, column) = (place / columns, place % columns);
                let expected: f32 = (0..depth).map(|each| rows[row * depth + each] * at(each, column)).sum();
                assert!((value - expected).abs() < 1e-3, "{count}x{depth}x{columns} at {place}");
            }
            assert_eq!(product.len(), count * columns);
        }
    }
}
