//! Model families. One file a family, one line in [`FAMILIES`].

pub mod facts;
mod gemma3;
mod llama;
mod qwen2;

use facts::Facts;

use crate::architecture::{Architecture, HeadSpec, LinearSpec, RopeScaling};
use crate::error::ModelError;

/// Reads a family's table from a file's metadata.
type Read = fn(&Facts<'_>) -> Result<Architecture, ModelError>;

/// Every family, by its name in `general.architecture`.
pub const FAMILIES: &[(&str, Read)] = &[
    ("llama", llama::read),
    ("qwen2", qwen2::read),
    ("gemma3", gemma3::read),
];

/// The architecture of the model in `file`.
///
/// # Errors
/// When the family is not supported, or its metadata is missing, malformed or not supported.
pub fn read(file: &weights::gguf::Gguf) -> Result<Architecture, ModelError> {
    let name = file.metadata().get_str("general.architecture")?;
    let family = FAMILIES.iter().find(|(known, _)| *known == name);
    let (_, read) = family.ok_or_else(|| ModelError::UnsupportedArchitecture {
        name: name.to_owned(),
        supported: FAMILIES
            .iter()
            .map(|(known, _)| *known)
            .collect::<Vec<_>>()
            .join(", "),
    })?;
    read(&Facts::new(file, name))
}

/// The head counts and widths of a model whose layers all have the same.
struct AttentionSizes {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
}

fn attention_sizes(facts: &Facts<'_>) -> Result<AttentionSizes, ModelError> {
    let heads = facts.size("attention.head_count")?;
    let kv_heads = facts.size_or("attention.head_count_kv", heads)?;
    if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
        let value = format!("{heads} query heads for {kv_heads} key heads");
        return Err(facts.unsupported(
            "attention.head_count",
            value,
            "a multiple of the key heads",
        ));
    }
    let head_dim = facts.size_or(
        "attention.key_length",
        facts.size("embedding_length")? / heads,
    )?;
    let value_dim = facts.size_or("attention.value_length", head_dim)?;
    Ok(AttentionSizes {
        heads,
        kv_heads,
        head_dim,
        value_dim,
    })
}

/// The output head: its own tensor, or the embedding where the file has none.
fn head(facts: &Facts<'_>, hidden: usize) -> Result<HeadSpec, ModelError> {
    let name = if facts.has_tensor("output.weight") {
        "output"
    } else {
        "token_embd"
    };
    let linear = LinearSpec::with_bias(name, facts.vocabulary()?, hidden);
    Ok(HeadSpec {
        linear,
        scale: 1.0,
        softcap: None,
    })
}

fn rope_scaling(facts: &Facts<'_>) -> Result<RopeScaling, ModelError> {
    if facts.has_tensor("rope_freqs.weight") {
        return Ok(RopeScaling::Factors("rope_freqs.weight".into()));
    }
    match facts.text_or("rope.scaling.type", "none")? {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(facts.float("rope.scaling.factor")?)),
        other => Err(facts.unsupported("rope.scaling.type", other.to_owned(), "none or linear")),
    }
}

fn inverse_sqrt(n: usize) -> f32 {
    1.0 / libm::sqrtf(n as f32)
}
