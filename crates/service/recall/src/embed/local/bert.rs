//! The encoder: turns tokens into one vector. It reads no file.

use super::matrix::Matrix;

/// Reads a tensor by its name; the directory has checked its existence and shape.
type Tensors<'a> = &'a dyn Fn(&str) -> Result<Vec<f32>, String>;

/// Sizes and variant of an encoder.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) words: usize,
    pub(super) positions: usize,
    pub(super) types: usize,
    pub(super) hidden: usize,
    pub(super) wide: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) pooling: Pooling,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
}

/// Way of making one vector of all tokens' states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    Mean,
    First,
}

#[derive(Debug)]
pub(super) struct Bert {
    shape: Shape,
    words: Vec<f32>,
    /// By position; the single segment type's values are added already.
    positions: Vec<f32>,
    norm: Norm,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: Norm,
    wide: Linear,
    narrow: Linear,
    norm: Norm,
}

#[derive(Debug)]
struct Linear {
    weights: Matrix,
    bias: Vec<f32>,
}

#[derive(Debug)]
struct Norm {
    scale: Vec<f32>,
    shift: Vec<f32>,
    epsilon: f32,
}

/// Lists the tensors of an encoder, each with its sizes.
pub(super) fn tensors(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let Shape { hidden, wide, .. } = *shape;
    let mut tensors = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![shape.words, hidden]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![shape.positions, hidden]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![shape.types, hidden]),
    ];
    let mut part = |name: String, sizes: Vec<usize>| {
        tensors.push((format!("{name}.bias"), sizes[..1].to_vec()));
        tensors.push((format!("{name}.weight"), sizes));
    };
    part("embeddings.LayerNorm".to_owned(), vec![hidden]);
    for layer in 0..shape.layers {
        for name in ["query", "key", "value"] {
            part(format!("encoder.layer.{layer}.attention.self.{name}"), vec![hidden, hidden]);
        }
        part(format!("encoder.layer.{layer}.attention.output.dense"), vec![hidden, hidden]);
        part(format!("encoder.layer.{layer}.attention.output.LayerNorm"), vec![hidden]);
        part(format!("encoder.layer.{layer}.intermediate.dense"), vec![wide, hidden]);
        part(format!("encoder.layer.{layer}.output.dense"), vec![hidden, wide]);
        part(format!("encoder.layer.{layer}.output.LayerNorm"), vec![hidden]);
    }
    tensors
}

impl Bert {
    /// Makes an encoder of this shape with the weights in `tensors`.
    pub(super) fn new(shape: Shape, tensors: Tensors<'_>) -> Result<Self, String> {
        let kinds = tensors("embeddings.token_type_embeddings.weight")?;
        let mut positions = tensors("embeddings.position_embeddings.weight")?;
        for position in positions.chunks_exact_mut(shape.hidden) {
            add(position, &kinds[..shape.hidden]);
        }
        let words = tensors("embeddings.word_embeddings.weight")?;
        let norm = Norm::new(&shape, tensors, "embeddings.LayerNorm")?;
        let layers = (0..shape.layers).map(|layer| Layer::new(&shape, tensors, layer)).collect::<Result<_, _>>()?;
        Ok(Self { words, positions, norm, layers, shape })
    }

    pub(super) fn vector(&self, tokens: &[u32]) -> Vec<f32> {
        let width = self.shape.hidden;
        let mut states = Vec::with_capacity(tokens.len() * width);
        for (token, position) in tokens.iter().zip(self.positions.chunks_exact(width)) {
            let at = states.len();
            states.extend_from_slice(&self.words[*token as usize * width..][..width]);
            add(&mut states[at..], position);
        }
        self.norm.apply(&mut states);
        for layer in &self.layers {
            layer.apply(&mut states, &self.shape);
        }
        let mut pooled = states[..width].to_vec();
        if self.shape.pooling == Pooling::Mean {
            for state in states.chunks_exact(width).skip(1) {
                add(&mut pooled, state);
            }
            let count = tokens.len() as f32;
            pooled.iter_mut().for_each(|value| *value /= count);
        }
        pooled
    }
}

impl Layer {
    fn new(shape: &Shape, tensors: Tensors<'_>, layer: usize) -> Result<Self, String> {
        let linear = |name: &str| Linear::new(tensors, &format!("encoder.layer.{layer}.{name}"));
        let norm = |name: &str| Norm::new(shape, tensors, &format!("encoder.layer.{layer}.{name}"));
        Ok(Self {
            query: linear("attention.self.query")?,
            key: linear("attention.self.key")?,
            value: linear("attention.self.value")?,
            attended: linear("attention.output.dense")?,
            attended_norm: norm("attention.output.LayerNorm")?,
            wide: linear("intermediate.dense")?,
            narrow: linear("output.dense")?,
            norm: norm("output.LayerNorm")?,
        })
    }

    fn apply(&self, states: &mut [f32], shape: &Shape) {
        add(states, &self.attended.apply(&self.attention(states, shape)));
        self.attended_norm.apply(states);
        let mut wide = self.wide.apply(states);
        wide.iter_mut().for_each(|value| *value = shape.activation.of(*value));
        add(states, &self.narrow.apply(&wide));
        self.norm.apply(states);
    }

    /// Computes the attention of each token to all others.
    fn attention(&self, states: &[f32], shape: &Shape) -> Vec<f32> {
        let (width, count) = (shape.hidden, states.len() / shape.hidden);
        let head_width = width / shape.heads;
        let scale = (head_width as f32).sqrt().recip();
        let (queries, keys, values) = (self.query.apply(states), self.key.apply(states), self.value.apply(states));
        let mut attended = vec![0.0; states.len()];
        for start in (0..width).step_by(head_width) {
            let rows = queries.chunks_exact(width).flat_map(|row| &row[start..start + head_width]);
            let rows: Vec<f32> = rows.map(|value| value * scale).collect();
            let mut shares = Matrix::new(head_width, count, |at, token| keys[token * width + start + at]).times(&rows);
            shares.chunks_exact_mut(count).for_each(softmax);
            let taken = Matrix::new(count, head_width, |token, at| values[token * width + start + at]).times(&shares);
            for (row, taken) in attended.chunks_exact_mut(width).zip(taken.chunks_exact(head_width)) {
                row[start..start + head_width].copy_from_slice(taken);
            }
        }
        attended
    }
}

impl Linear {
    fn new(tensors: Tensors<'_>, name: &str) -> Result<Self, String> {
        let (weights, bias) = (tensors(&format!("{name}.weight"))?, tensors(&format!("{name}.bias"))?);
        let depth = weights.len() / bias.len();
        Ok(Self { weights: Matrix::new(depth, bias.len(), |row, column| weights[column * depth + row]), bias })
    }

    fn apply(&self, states: &[f32]) -> Vec<f32> {
        let mut product = self.weights.times(states);
        product.chunks_exact_mut(self.bias.len()).for_each(|row| add(row, &self.bias));
        product
    }
}

impl Norm {
    fn new(shape: &Shape, tensors: Tensors<'_>, name: &str) -> Result<Self, String> {
        let (scale, shift) = (tensors(&format!("{name}.weight"))?, tensors(&format!("{name}.bias"))?);
        Ok(Self { scale, shift, epsilon: shape.epsilon })
    }

    fn apply(&self, states: &mut [f32]) {
        let width = self.scale.len() as f32;
        for state in states.chunks_exact_mut(self.scale.len()) {
            let mean = state.iter().sum::<f32>() / width;
            let variance = state.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / width;
            let scale = (variance + self.epsilon).sqrt().recip();
            for ((value, by), to) in state.iter_mut().zip(&self.scale).zip(&self.shift) {
                *value = (*value - mean) * scale * by + to;
            }
        }
    }
}

impl Activation {
    fn of(self, value: f32) -> f32 {
        match self {
            Self::Gelu => 0.5 * value * (1.0 + error_function(value * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (value + 0.044_715 * value.powi(3));
                0.5 * value * (1.0 + inner.tanh())
            }
            Self::Relu => value.max(0.0),
        }
    }
}

/// Computes the error function by Abramowitz and Stegun 7.1.26, to 1.5e-7.
fn error_function(value: f32) -> f32 {
    let t = (1.0 + 0.327_591_1 * value.abs()).recip();
    let series = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let sum = series.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    (1.0 - sum * (-value * value).exp()).copysign(value)
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = (*value - most).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
}

fn add(to: &mut [f32], what: &[f32]) {
    for (to, what) in to.iter_mut().zip(what) {
        *to += what;
    }
}
