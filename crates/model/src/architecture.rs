//! A model family as a table.
//!
//! An [`Architecture`] says everything the decoder needs to know about a model: sizes, switches, and the
//! names of its tensors. It holds no weights. Values that the decoder does not run yet exist here so that
//! later families need no new shape; loading one is an error that says so.

use std::ops::Range;

use kernels::rope::RopeStyle;

/// A model, described.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// The family's name, as in `general.architecture`.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// The longest context the model was trained for, in positions.
    pub context: usize,
    /// The embedding table: `vocabulary × hidden`.
    pub embedding: String,
    /// What an embedding row is multiplied by.
    pub embedding_scale: f32,
    /// Rotary embeddings, referred to by index.
    pub ropes: Vec<RopeSpec>,
    /// The layers, first to last.
    pub blocks: Vec<Block>,
    /// The norm after the last block.
    pub final_norm: NormSpec,
    /// The output head.
    pub head: HeadSpec,
}

/// Root-mean-square norm: `x / sqrt(mean(x²) + epsilon) · weight`.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Name of the weight.
    pub weight: String,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The output head: logits = cap(scale · W x).
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// The weight, `vocabulary × hidden`; the embedding's own name where they are tied.
    pub linear: LinearSpec,
    /// Multiplies the logits.
    pub scale: f32,
    /// `cap · tanh(x / cap)`, where there is one.
    pub softcap: Option<f32>,
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Which pairs of dimensions turn together.
    pub style: RopeStyle,
    /// The base of the geometric series of frequencies.
    pub base: f32,
    /// Dimensions of a head that turn.
    pub dims: usize,
    /// How the frequencies are stretched.
    pub scaling: RopeScaling,
}

/// How the frequencies of a rotary embedding are stretched beyond the context of pre-training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by one factor.
    Linear(f32),
    /// Each divided by its own factor, from a tensor of `dims / 2` values (Llama 3).
    Factors(String),
}

/// One layer: branches that read the residual stream and add to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// In order.
    pub branches: Vec<Branch>,
}

/// A branch of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// What it reads.
    pub input: BranchInput,
    /// Norm before the operation.
    pub pre_norm: Option<NormSpec>,
    /// The operation.
    pub operation: Operation,
    /// Norm after the operation, before it is added to the stream.
    pub post_norm: Option<NormSpec>,
    /// Multiplies the result before it is added.
    pub scale: f32,
    /// How the result joins the stream.
    pub residual: Residual,
}

/// What a branch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchInput {
    /// The stream as the branch before left it.
    Stream,
    /// The stream as it was when the block began (parallel branches). Not run yet.
    BlockStart,
}

/// How a branch's result joins the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// Added.
    Add,
    /// Takes its place. Not run yet.
    Replace,
}

/// What a branch computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Moves information between positions.
    Mixer(Mixer),
    /// Works on each position alone.
    Ffn(Ffn),
}

/// The part of a block that moves information between positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Grouped-query attention.
    Attention(AttentionSpec),
}

/// The part of a block that works on each position alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    /// `down(act(gate x) · up x)`.
    Gated(GatedSpec),
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap · tanh(x / cap)` on the scores, where there is one.
    pub softcap: Option<f32>,
    /// Positions visible to a query, itself included; all where there is none.
    pub window: Option<usize>,
    /// Index into [`Architecture::ropes`].
    pub rope: usize,
    /// Norm of each query head.
    pub q_norm: Option<NormSpec>,
    /// Norm of each key head.
    pub k_norm: Option<NormSpec>,
    /// Projections.
    pub q: LinearSpec,
    /// Keys.
    pub k: LinearSpec,
    /// Values.
    pub v: LinearSpec,
    /// Output.
    pub o: LinearSpec,
}

/// A gated multi-layer perceptron.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedSpec {
    /// Applied to the gate.
    pub activation: Activation,
    /// `inner × hidden`.
    pub gate: LinearSpec,
    /// `inner × hidden`.
    pub up: LinearSpec,
    /// `hidden × inner`.
    pub down: LinearSpec,
}

/// The activation of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// A linear map `y = W x + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// Name of W.
    pub weight: String,
    /// Name of b, where the family has one.
    pub bias: Option<String>,
    /// Whether a file without that tensor is refused; otherwise it has no b.
    pub bias_required: bool,
    /// Width of y.
    pub rows: usize,
    /// Width of x.
    pub cols: usize,
}

impl LinearSpec {
    /// The map named `prefix.weight`, without a bias.
    #[must_use]
    pub fn new(prefix: &str, rows: usize, cols: usize) -> Self {
        Self {
            weight: format!("{prefix}.weight"),
            bias: None,
            bias_required: false,
            rows,
            cols,
        }
    }

    /// The same with the bias `prefix.bias`, where the file has it.
    #[must_use]
    pub fn with_bias(prefix: &str, rows: usize, cols: usize) -> Self {
        Self {
            bias: Some(format!("{prefix}.bias")),
            ..Self::new(prefix, rows, cols)
        }
    }
}

impl Branch {
    /// A branch as most families have it: reads the stream through `pre_norm` and adds to it.
    #[must_use]
    pub fn sequential(
        pre_norm: NormSpec,
        operation: Operation,
        post_norm: Option<NormSpec>,
    ) -> Self {
        Self {
            input: BranchInput::Stream,
            pre_norm: Some(pre_norm),
            operation,
            post_norm,
            scale: 1.0,
            residual: Residual::Add,
        }
    }
}

impl Architecture {
    /// The attention of each layer, first to last.
    pub fn attentions(&self) -> impl Iterator<Item = (usize, &AttentionSpec)> {
        self.blocks.iter().enumerate().flat_map(|(layer, block)| {
            block
                .branches
                .iter()
                .filter_map(move |branch| match &branch.operation {
                    Operation::Mixer(Mixer::Attention(attention)) => Some((layer, attention)),
                    Operation::Ffn(_) => None,
                })
        })
    }

    /// All layers.
    #[must_use]
    pub fn layers(&self) -> Range<usize> {
        0..self.blocks.len()
    }
}
