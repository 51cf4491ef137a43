//! Qwen2 and Qwen2.5: llama's shape, with biases on queries, keys and values.

use kernels::rope::RopeStyle;

use super::facts::Facts;
use super::llama;
use crate::architecture::Architecture;
use crate::error::ModelError;

/// Reads the hyper-parameters of a qwen2 model.
///
/// # Errors
/// When a key is missing, malformed, or has a value that is not supported.
pub(super) fn read(facts: &Facts<'_>) -> Result<Architecture, ModelError> {
    let mut architecture = llama::read(facts)?;
    architecture.family = "qwen2";
    architecture.ropes[0].style = RopeStyle::Neox;
    Ok(architecture)
}
