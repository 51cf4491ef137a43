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
    let per_head = facts.size("embedding_length")? / heads;
    let head_dim = facts.size_or("attention.key_length", per_head.max(1))?;
    let value_dim = facts.size_or("attention.value_length", head_dim)?;
    Ok(AttentionSizes {
        heads,
        kv_heads,
        head_dim,
        value_dim,
    })
}

/// Refuses files with a switch set that changes the result and that no family here acts on.
fn refuse_other_switches(facts: &Facts<'_>) -> Result<(), ModelError> {
    for (name, neutral) in [
        ("logit_scale", 1.0),
        ("embedding_scale", 1.0),
        ("residual_scale", 1.0),
        ("attention.scale", 0.0),
        ("rope.scale_linear", 1.0),
    ] {
        let value = facts.float_or(name, neutral)?;
        if value != neutral {
            let expected = format!("{neutral} (other values are not supported yet)");
            return Err(facts.unsupported(name, value.to_string(), &expected));
        }
    }
    if !facts.flag_or("attention.causal", true)? {
        return Err(facts.unsupported("attention.causal", "false".into(), "true"));
    }
    Ok(())
}

/// Refuses a sliding window that is shorter than the context, in families that have none.
fn refuse_window(facts: &Facts<'_>) -> Result<(), ModelError> {
    let context = facts.size("context_length")?;
    let window = facts.size_or("attention.sliding_window", context)?;
    if window < context {
        let expected =
            format!("at least the context of {context} (windows are not supported here)");
        return Err(facts.unsupported("attention.sliding_window", window.to_string(), &expected));
    }
    Ok(())
}

/// A cap on logits or scores, where the key is there and not 0.
fn softcap(facts: &Facts<'_>, name: &str) -> Result<Option<f32>, ModelError> {
    let cap = facts.float_or(name, 0.0)?;
    Ok((cap > 0.0).then_some(cap))
}

/// The number of dimensions of a head that turn: even, and no more than the head has.
fn rope_dims(facts: &Facts<'_>, head_dim: usize) -> Result<usize, ModelError> {
    let dims = facts.size_or("rope.dimension_count", head_dim)?;
    if dims % 2 == 1 || dims > head_dim {
        let expected = format!("an even number up to the head's {head_dim}");
        return Err(facts.unsupported("rope.dimension_count", dims.to_string(), &expected));
    }
    Ok(dims)
}

/// The base of a rotary embedding: at least 1.
fn rope_base(facts: &Facts<'_>, name: &str, default: f32) -> Result<f32, ModelError> {
    let base = facts.float_or(name, default)?;
    if base < 1.0 {
        return Err(facts.unsupported(name, base.to_string(), "a number from 1 up"));
    }
    Ok(base)
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
        softcap: softcap(facts, "final_logit_softcapping")?,
    })
}

fn rope_scaling(facts: &Facts<'_>) -> Result<RopeScaling, ModelError> {
    let kind = facts.text_or("rope.scaling.type", "")?;
    let factor = facts.float_or("rope.scaling.factor", 1.0)?;
    let has_factors = facts.has_tensor("rope_freqs.weight");
    match kind {
        // Llama 3's stretching is in the tensor; files name no type with it.
        "" | "none" if has_factors => Ok(RopeScaling::Factors("rope_freqs.weight".into())),
        "" if factor != 1.0 => {
            let expected = "named by rope.scaling.type where it isn't 1";
            Err(facts.unsupported("rope.scaling.factor", factor.to_string(), expected))
        }
        "" | "none" => Ok(RopeScaling::None),
        "linear" if !has_factors && factor > 0.0 => Ok(RopeScaling::Linear(factor)),
        "linear" if !has_factors => {
            let expected = "a number above 0";
            Err(facts.unsupported("rope.scaling.factor", factor.to_string(), expected))
        }
        other => {
            let expected = "none or linear, or the tensor rope_freqs.weight alone";
            Err(facts.unsupported("rope.scaling.type", other.to_owned(), expected))
        }
    }
}

fn inverse_sqrt(n: usize) -> f32 {
    1.0 / libm::sqrtf(n as f32)
}
