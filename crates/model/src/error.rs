//! What can go wrong when a model is loaded or run.

use kernels::attention::AttentionError;
use kernels::buffer::OutOfMemory;
use kernels::pages::PageError;
use state::StateError;
use weights::gguf::GgufError;
use weights::load::LoadError;

use crate::step::SPANS_MAX;

/// A model can't be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file is malformed or lacks something.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A tensor can't be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No table for that family.
    #[error("architecture {name:?} is not supported; supported are {supported}")]
    UnsupportedArchitecture {
        /// The family.
        name: String,
        /// Those supported.
        supported: String,
    },
    /// A well-formed value that this version doesn't support.
    #[error("{key} is {value}; supported: {expected}")]
    UnsupportedValue {
        /// Where it was found.
        key: String,
        /// The value.
        value: String,
        /// What is supported.
        expected: String,
    },
    /// The file has a tensor that the architecture has no place for.
    #[error(
        "tensor {name:?} has no place in the {family} architecture; the model would compute something else without it"
    )]
    UnexpectedTensor {
        /// The tensor.
        name: String,
        /// The family.
        family: &'static str,
    },
    /// The table uses a shape that the decoder doesn't run yet.
    #[error("layer {layer} of {family} uses {feature}, which is not supported yet")]
    UnsupportedShape {
        /// The layer.
        layer: usize,
        /// The family.
        family: &'static str,
        /// What it uses.
        feature: &'static str,
    },
    /// A span asks for something that the decoder doesn't run yet.
    #[error("a span asks for {0}, which is not supported yet")]
    UnsupportedSpan(&'static str),
    /// A span doesn't begin where the sequence ends.
    #[error("a span begins at position {position}, but sequence {sequence} has {len} positions")]
    WrongPosition {
        /// The sequence.
        sequence: u32,
        /// Where the span begins.
        position: usize,
        /// Where it should.
        len: usize,
    },
    /// Two spans of one sequence in a step.
    #[error("sequence {0} has more than one span in a step")]
    SequenceTwice(u32),
    /// A span without positions.
    #[error("sequence {0} has an empty span")]
    EmptySpan(u32),
    /// More rows than room was made for.
    #[error("a step of {rows} rows is larger than the {capacity} that room was made for")]
    StepTooLarge {
        /// Rows of the step.
        rows: usize,
        /// Rows at most.
        capacity: usize,
    },
    /// Input vectors that are no whole number of rows.
    #[error("{values} input values are no whole number of rows of {hidden}")]
    VectorLength {
        /// Values given.
        values: usize,
        /// Values of a row.
        hidden: usize,
    },
    /// Wanted rows that don't exist or are out of order.
    #[error("the wanted rows of a span must ascend and lie below its {len} positions")]
    WantedRows {
        /// Positions of the span.
        len: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The token.
        token: u32,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// State can't be had.
    #[error(transparent)]
    State(#[from] StateError),
    /// Memory for activations can't be had.
    #[error(transparent)]
    Activations(#[from] OutOfMemory),
    /// Memory for pages can't be had.
    #[error(transparent)]
    Page(#[from] PageError),
    /// Keys or values can't be kept.
    #[error("layer {layer}{}: {source}", .position.map(|p| format!(", position {p}")).unwrap_or_default())]
    Pages {
        /// The layer.
        layer: usize,
        /// The position in its sequence, where one is at fault.
        position: Option<usize>,
        /// Why not.
        source: PageError,
    },
    /// Attention can't be computed.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// More spans than a step may have.
    #[error("a step of {spans} spans; at most {SPANS_MAX} are allowed")]
    TooManySpans {
        /// Spans of the step.
        spans: usize,
    },
    /// The arithmetic gave an infinity or NaN.
    #[error(
        "the hidden state after layer {layer} is {value} at position {position}, index {index}; the weights are \
         damaged or out of range"
    )]
    NonFinite {
        /// The layer.
        layer: usize,
        /// The position in its sequence.
        position: usize,
        /// The index within the hidden state.
        index: usize,
        /// The value there.
        value: f32,
    },
    /// A logit is an infinity or NaN.
    #[error(
        "the logit of token {token} at position {position} is {value}, behind all layers; the weights of the \
         output head are damaged or out of range"
    )]
    NonFiniteLogit {
        /// The token.
        token: usize,
        /// The position in its sequence.
        position: usize,
        /// The logit.
        value: f32,
    },
}
