//! What one forward pass is asked to do.
//!
//! A [`Step`] is a list of [`Span`]s; a span is the positions of one sequence to run now. The fields that
//! the decoder does not act on yet (tree masks, scratch writes, taps…) exist so that encoders, draft trees,
//! early exit, steering and adapters need no new path; using one is an error that names it.

use std::ops::Range;

use state::SequenceId;

/// Spans in a step at most.
pub const SPANS_MAX: usize = 64;

/// The spans of one forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// At most one span per sequence.
    pub spans: &'a [Span<'a>],
}

/// The positions of one sequence to run now.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// What enters at the bottom.
    pub input: Input<'a>,
    /// Absolute position of the first input; must be the number of positions remembered.
    pub position: usize,
    /// Which keys a row sees.
    pub mask: Mask<'a>,
    /// What happens to the keys and values.
    pub write: Write,
    /// The layers to run; all where there is none.
    pub layers: Option<LayerRange>,
    /// What to give back.
    pub want: Want<'a>,
    /// Vectors added to the stream after a layer: (layer, `hidden` values).
    pub added: &'a [(usize, &'a [f32])],
    /// An adapter to apply, by name.
    pub adapter: Option<&'a str>,
}

/// A range of layers, `Copy` so that spans are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRange {
    /// First layer.
    pub start: usize,
    /// One past the last layer.
    pub end: usize,
}

impl From<Range<usize>> for LayerRange {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

/// What enters a span at the bottom.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Rows of `hidden` values each.
    Vectors(&'a [f32]),
}

/// Which keys a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask<'a> {
    /// Those at its own position and before.
    Causal,
    /// All of the span.
    Full,
    /// Its ancestors: `parents[i]` is the row that row i follows.
    Tree(&'a [u32]),
}

/// What happens to the keys and values of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// They are remembered.
    Commit,
    /// They are seen in this step only.
    Scratch,
    /// They take the place of what was at these positions.
    Overwrite,
}

/// What a span gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want<'a> {
    /// Which rows' logits.
    pub logits: Rows<'a>,
    /// Layers whose hidden state is given back.
    pub taps: &'a [usize],
    /// Whether the mean of the last hidden states is given back.
    pub pooled: bool,
}

/// Rows of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows<'a> {
    /// None.
    #[default]
    None,
    /// The last.
    Last,
    /// All.
    All,
    /// Some, ascending, counted from the span's first.
    Some(&'a [usize]),
}

impl<'a> Span<'a> {
    /// The usual span: causal tokens whose keys and values are remembered.
    #[must_use]
    pub fn tokens(
        sequence: SequenceId,
        position: usize,
        tokens: &'a [u32],
        logits: Rows<'a>,
    ) -> Self {
        Self {
            sequence,
            input: Input::Tokens(tokens),
            position,
            mask: Mask::Causal,
            write: Write::Commit,
            layers: None,
            want: Want {
                logits,
                taps: &[],
                pooled: false,
            },
            added: &[],
            adapter: None,
        }
    }

    /// Positions in the span, for a stream of `hidden` values.
    #[must_use]
    pub fn rows_of(&self, hidden: usize) -> usize {
        match self.input {
            Input::Tokens(tokens) => tokens.len(),
            Input::Vectors(vectors) => vectors.len() / hidden,
        }
    }

    /// Whether the logits of row `i` of `n` are wanted.
    #[must_use]
    pub fn wants(&self, i: usize, n: usize) -> bool {
        match self.want.logits {
            Rows::None => false,
            Rows::Last => i + 1 == n,
            Rows::All => true,
            Rows::Some(rows) => rows.binary_search(&i).is_ok(),
        }
    }

    /// The first feature of this span that the decoder does not run yet.
    #[must_use]
    pub fn unsupported(&self) -> Option<&'static str> {
        let checks = [
            (self.mask != Mask::Causal, "a mask other than causal"),
            (self.write != Write::Commit, "a write other than commit"),
            (self.layers.is_some(), "a part of the layers"),
            (!self.want.taps.is_empty(), "hidden-state taps"),
            (self.want.pooled, "pooled hidden states"),
            (!self.added.is_empty(), "added vectors"),
            (self.adapter.is_some(), "an adapter"),
        ];
        checks
            .into_iter()
            .find(|(used, _)| *used)
            .map(|(_, what)| what)
    }
}
