//! Vectors as integers: half the bytes of floats, and a dot product that compilers vectorise.
//!
//! A unit vector's components times [`SCALE`] fit 16 bits. No partial sum of a dot product exceeds `SCALE` squared
//! (Cauchy and Schwarz), so 32 bits suffice; rounding changes a cosine by some 0.00001.

/// Code of 1.
const SCALE: f64 = 32_000.0;
/// Components multiplied together.
const LANES: usize = 32;

/// Reason to refuse a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// Wrong length.
    #[error("a vector has {found} components instead of {expected}")]
    Length {
        /// Components that it has.
        found: usize,
        /// Components that the others have.
        expected: usize,
    },
    /// Component that is infinite or not a number.
    #[error("a vector has a component that is not finite")]
    NotFinite,
}

/// Scales a vector to length 1 and rounds it; `None` if it has no direction.
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

/// Converts a dot product to a cosine.
pub(super) fn cosine(dot: i32) -> f32 {
    let cosine = (f64::from(dot) / (SCALE * SCALE)) as f32;
    cosine.clamp(-1.0, 1.0)
}
