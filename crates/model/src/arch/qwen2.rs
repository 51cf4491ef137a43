//! Qwen2 and Qwen2.5: llama's shape, with biases on queries, keys and values.

use kernels::rope::RopeStyle;

use super::facts::Facts;
use super::llama;
use crate::architecture::{Architecture, Mixer, Operation};
use crate::error::ModelError;

/// Reads the hyper-parameters of a qwen2 model.
///
/// # Errors
/// When a key is missing, malformed, or has a value that is not supported.
pub(super) fn read(facts: &Facts<'_>) -> Result<Architecture, ModelError> {
    let mut architecture = llama::read(facts)?;
    architecture.family = "qwen2";
    architecture.ropes[0].style = RopeStyle::Neox;
    for branch in architecture
        .blocks
        .iter_mut()
        .flat_map(|block| &mut block.branches)
    {
        if let Operation::Mixer(Mixer::Attention(attention)) = &mut branch.operation {
            for linear in [&mut attention.q, &mut attention.k, &mut attention.v] {
                linear.bias_required = true;
            }
        }
    }
    Ok(architecture)
}
