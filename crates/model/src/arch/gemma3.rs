//! Gemma 3, the text part: sliding windows, norms before and after, norms of query and key heads.

use kernels::rope::RopeStyle;

use super::facts::Facts;
use super::{
    attention_sizes, head, inverse_sqrt, refuse_other_switches, rope_base, rope_dims, rope_scaling,
    softcap,
};
use crate::architecture::{
    Activation, Architecture, AttentionSpec, Block, Branch, Ffn, GatedSpec, LinearSpec, Mixer,
    NormSpec, Operation, RopeScaling, RopeSpec,
};
use crate::error::ModelError;

/// Every sixth layer sees everything; the others see a window (Gemma 3 report, section 2).
const GLOBAL_EVERY: usize = 6;
/// The rope base of layers with a window.
const LOCAL_ROPE_BASE: f32 = 10_000.0;
/// The one size whose scores are scaled by the width of the stream per head instead of the head's.
const LAYERS_OF_27B: usize = 62;

/// Which layers see a window only: the file names each, or says that every n-th sees everything.
fn windowed_layers(facts: &Facts<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "attention.sliding_window_pattern";
    if let Some(windowed) = facts.flags(KEY, layers)? {
        return Ok(windowed);
    }
    let global_every = facts.size_or(KEY, GLOBAL_EVERY)?;
    Ok((1..=layers).map(|n| n % global_every != 0).collect())
}

/// Reads the hyper-parameters of a gemma3 model.
///
/// # Errors
/// When a key is missing, malformed, or has a value that is not supported.
pub(super) fn read(facts: &Facts<'_>) -> Result<Architecture, ModelError> {
    refuse_other_switches(facts)?;
    let sizes = attention_sizes(facts)?;
    let dims = rope_dims(facts, sizes.head_dim)?;
    let score_cap = softcap(facts, "attn_logit_softcapping")?;
    let hidden = facts.size("embedding_length")?;
    let inner = facts.size("feed_forward_length")?;
    let layers = facts.size("block_count")?;
    let epsilon = facts.float("attention.layer_norm_rms_epsilon")?;
    let window = facts.size("attention.sliding_window")?;
    let windowed = windowed_layers(facts, layers)?;
    let rope = |base, scaling| RopeSpec {
        style: RopeStyle::Neox,
        base,
        dims,
        scaling,
    };
    let scale_of = if layers == LAYERS_OF_27B {
        hidden / sizes.heads.max(1)
    } else {
        sizes.head_dim
    };
    let blocks = (0..layers)
        .map(|layer| {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let norm = |part: &str| NormSpec {
                weight: name(part) + ".weight",
                epsilon,
            };
            let linear = |part: &str, rows, cols| LinearSpec::new(&name(part), rows, cols);
            let global = !windowed[layer];
            let attention = AttentionSpec {
                heads: sizes.heads,
                kv_heads: sizes.kv_heads,
                head_dim: sizes.head_dim,
                value_dim: sizes.value_dim,
                scale: inverse_sqrt(scale_of),
                softcap: score_cap,
                window: (!global).then_some(window),
                rope: usize::from(!global),
                q_norm: Some(norm("attn_q_norm")),
                k_norm: Some(norm("attn_k_norm")),
                q: linear("attn_q", sizes.heads * sizes.head_dim, hidden),
                k: linear("attn_k", sizes.kv_heads * sizes.head_dim, hidden),
                v: linear("attn_v", sizes.kv_heads * sizes.value_dim, hidden),
                o: linear("attn_output", hidden, sizes.heads * sizes.value_dim),
            };
            let gated = GatedSpec {
                activation: Activation::GeluTanh,
                gate: linear("ffn_gate", inner, hidden),
                up: linear("ffn_up", inner, hidden),
                down: linear("ffn_down", hidden, inner),
            };
            Block {
                branches: vec![
                    Branch::sequential(
                        norm("attn_norm"),
                        Operation::Mixer(Mixer::Attention(attention)),
                        Some(norm("post_attention_norm")),
                    ),
                    Branch::sequential(
                        norm("ffn_norm"),
                        Operation::Ffn(Ffn::Gated(gated)),
                        Some(norm("post_ffw_norm")),
                    ),
                ],
            }
        })
        .collect();
    Ok(Architecture {
        family: "gemma3",
        hidden,
        vocabulary: facts.vocabulary()?,
        context: facts.size("context_length")?,
        embedding: "token_embd.weight".into(),
        embedding_scale: libm::sqrtf(hidden as f32),
        ropes: vec![
            rope(
                rope_base(facts, "rope.freq_base", 1_000_000.0)?,
                rope_scaling(facts)?,
            ),
            rope(
                rope_base(facts, "rope.freq_base_swa", LOCAL_ROPE_BASE)?,
                RopeScaling::None,
            ),
        ],
        blocks,
        final_norm: NormSpec {
            weight: "output_norm.weight".into(),
            epsilon,
        },
        head: head(facts, hidden)?,
    })
}
