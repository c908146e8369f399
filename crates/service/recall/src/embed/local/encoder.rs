//! Turns tokens into one vector: by an encoder of the BERT family, or by a table with a vector for each token.

use std::fmt;

use candle_core::{DType, Device, IndexOp as _, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};

/// Way of making one vector of all tokens' states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    Mean,
    First,
}

/// What a directory has, and how its weights are read.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Encoder(Config, Pooling),
    /// Table of this many rows and columns, as model2vec makes it.
    Table(usize, usize),
}

pub(super) enum Encoder {
    Bert(Box<BertModel>, Pooling),
    Table(Tensor),
}

impl fmt::Debug for Encoder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bert(..) => "Bert",
            Self::Table(_) => "Table",
        })
    }
}

/// Name of a table's one tensor.
const TABLE: &str = "embeddings";

impl Kind {
    /// Returns the number of tokens that it has vectors for.
    pub(super) const fn rows(&self) -> usize {
        match self {
            Self::Encoder(config, _) => config.vocab_size,
            Self::Table(rows, _) => *rows,
        }
    }

    /// Lists the tensors, each with its sizes.
    pub(super) fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let config = match self {
            Self::Encoder(config, _) => config,
            Self::Table(rows, columns) => return vec![(TABLE.to_owned(), vec![*rows, *columns])],
        };
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let mut tensors = vec![
            ("embeddings.word_embeddings.weight".to_owned(), vec![config.vocab_size, hidden]),
            ("embeddings.position_embeddings.weight".to_owned(), vec![config.max_position_embeddings, hidden]),
            ("embeddings.token_type_embeddings.weight".to_owned(), vec![config.type_vocab_size, hidden]),
        ];
        let mut part = |name: String, sizes: Vec<usize>| {
            tensors.push((format!("{name}.bias"), sizes[..1].to_vec()));
            tensors.push((format!("{name}.weight"), sizes));
        };
        part("embeddings.LayerNorm".to_owned(), vec![hidden]);
        for layer in 0..config.num_hidden_layers {
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

    /// Reads the weights.
    pub(super) fn read(&self, weights: Vec<u8>) -> Result<Encoder> {
        let tensors = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?;
        Ok(match self {
            Self::Encoder(config, pooling) => Encoder::Bert(Box::new(BertModel::load(tensors, config)?), *pooling),
            Self::Table(rows, columns) => Encoder::Table(tensors.get((*rows, *columns), TABLE)?),
        })
    }
}

impl Encoder {
    pub(super) fn vector(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        match self {
            Self::Bert(bert, pooling) => {
                let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
                let states = bert.forward(&tokens, &tokens.zeros_like()?, None)?.i(0)?;
                match pooling {
                    Pooling::Mean => states.mean(0)?.to_vec1(),
                    Pooling::First => states.i(0)?.to_vec1(),
                }
            }
            // A text without a known token has no direction.
            Self::Table(table) if tokens.is_empty() => Ok(vec![0.0; table.dim(1)?]),
            Self::Table(table) => table.index_select(&Tensor::new(tokens, &Device::Cpu)?, 0)?.mean(0)?.to_vec1(),
        }
    }
}
