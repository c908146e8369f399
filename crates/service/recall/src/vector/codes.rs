//! Vectors as whole numbers: half the bytes of floats, and a dot product that compilers turn into wide instructions.
//!
//! A unit vector's components times [`SCALE`] fit 16 bits. However long the vectors are, no partial sum of a dot product
//! of two of them exceeds `SCALE` squared (Cauchy and Schwarz), so 32 bits hold it, and rounding costs a cosine some
//! 0.00001.

/// What 1 becomes.
const SCALE: f64 = 32_000.0;
/// Components that are multiplied in one stride.
const LANES: usize = 32;

/// Why a vector is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// It is longer or shorter than the others.
    #[error("a vector has {found} components instead of {expected}")]
    Length {
        /// How many it has.
        found: usize,
        /// How many the others have.
        expected: usize,
    },
    /// A component is infinite or no number.
    #[error("a vector has a component that is not finite")]
    NotFinite,
}

/// The vector at length 1, as whole numbers; `None` where it has no direction.
pub(super) fn encode(vector: &[f32], dimension: usize) -> Result<Option<Vec<i16>>, VectorError> {
    if vector.len() != dimension {
        return Err(VectorError::Length { found: vector.len(), expected: dimension });
    }
    if !vector.iter().all(|component| component.is_finite()) {
        return Err(VectorError::NotFinite);
    }
    let norm = vector.iter().map(|&component| f64::from(component).powi(2)).sum::<f64>().sqrt();
    if norm == 0.0 {
        return Ok(None);
    }
    let code = |&component: &f32| (f64::from(component) / norm * SCALE).round() as i16;
    Ok(Some(vector.iter().map(code).collect()))
}

/// The dot product of two codes.
pub(super) fn dot(one: &[i16], other: &[i16]) -> i32 {
    let (ones, one_rest) = one.as_chunks::<LANES>();
    let (others, other_rest) = other.as_chunks::<LANES>();
    let product = |(&one, &other): (&i16, &i16)| i32::from(one) * i32::from(other);
    let mut sum = 0_i32;
    for (one, other) in ones.iter().zip(others) {
        sum = sum.wrapping_add(one.iter().zip(other).map(product).fold(0, i32::wrapping_add));
    }
    one_rest.iter().zip(other_rest).map(product).fold(sum, i32::wrapping_add)
}

/// The cosine that a dot product means.
pub(super) fn cosine(dot: i32) -> f32 {
    let cosine = (f64::from(dot) / (SCALE * SCALE)) as f32;
    cosine.clamp(-1.0, 1.0)
}
