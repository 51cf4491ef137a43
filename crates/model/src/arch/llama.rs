//! Llama (1, 2, 3) and what shares its shape: SmolLM2, TinyLlama, Mistral without a window.

use kernels::rope::RopeStyle;

use super::facts::Facts;
use super::{
    attention_sizes, head, inverse_sqrt, refuse_other_switches, refuse_window, rope_base,
    rope_dims, rope_scaling,
};
use crate::architecture::{
    Activation, Architecture, AttentionSpec, Block, Branch, Ffn, GatedSpec, LinearSpec, Mixer,
    NormSpec, Operation, RopeSpec,
};
use crate::error::ModelError;

/// Reads the hyper-parameters of a llama model.
///
/// # Errors
/// When a key is missing, malformed, or has a value that is not supported.
pub(super) fn read(facts: &Facts<'_>) -> Result<Architecture, ModelError> {
    facts.refuse_above("expert_count", 0, "mixtures of experts")?;
    refuse_other_switches(facts)?;
    refuse_window(facts)?;
    let sizes = attention_sizes(facts)?;
    let hidden = facts.size("embedding_length")?;
    let inner = facts.size("feed_forward_length")?;
    let epsilon = facts.float("attention.layer_norm_rms_epsilon")?;
    let rope = RopeSpec {
        // Files of this family have query and key rows permuted so that neighbours turn together.
        style: RopeStyle::Normal,
        base: rope_base(facts, "rope.freq_base", 10_000.0)?,
        dims: rope_dims(facts, sizes.head_dim)?,
        scaling: rope_scaling(facts)?,
    };
    let blocks = (0..facts.size("block_count")?)
        .map(|layer| {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let norm = |part: &str| NormSpec {
                weight: name(part) + ".weight",
                epsilon,
            };
            let linear = |part: &str, rows, cols| LinearSpec::with_bias(&name(part), rows, cols);
            let attention = AttentionSpec {
                heads: sizes.heads,
                kv_heads: sizes.kv_heads,
                head_dim: sizes.head_dim,
                value_dim: sizes.value_dim,
                scale: inverse_sqrt(sizes.head_dim),
                softcap: None,
                window: None,
                rope: 0,
                q_norm: None,
                k_norm: None,
                q: linear("attn_q", sizes.heads * sizes.head_dim, hidden),
                k: linear("attn_k", sizes.kv_heads * sizes.head_dim, hidden),
                v: linear("attn_v", sizes.kv_heads * sizes.value_dim, hidden),
                o: linear("attn_output", hidden, sizes.heads * sizes.value_dim),
            };
            let gated = GatedSpec {
                activation: Activation::Silu,
                gate: linear("ffn_gate", inner, hidden),
                up: linear("ffn_up", inner, hidden),
                down: linear("ffn_down", hidden, inner),
            };
            Block {
                branches: vec![
                    Branch::sequential(
                        norm("attn_norm"),
                        Operation::Mixer(Mixer::Attention(attention)),
                        None,
                    ),
                    Branch::sequential(norm("ffn_norm"), Operation::Ffn(Ffn::Gated(gated)), None),
                ],
            }
        })
        .collect();
    Ok(Architecture {
        family: "llama",
        hidden,
        vocabulary: facts.vocabulary()?,
        context: facts.size("context_length")?,
        embedding: "token_embd.weight".into(),
        embedding_scale: 1.0,
        ropes: vec![rope],
        blocks,
        final_norm: NormSpec {
            weight: "output_norm.weight".into(),
            epsilon,
        },
        head: head(facts, hidden)?,
    })
}
