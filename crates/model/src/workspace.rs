//! The buffers of a forward pass, made once.

use kernels::attention::{AttentionScratch, RowRef};
use kernels::buffer::{Buffer, OutOfMemory};
use kernels::pages::KvSlot;
use kernels::rope::RopeStyle;

use crate::architecture::{Architecture, Ffn, Mixer, Operation};
use crate::linear::LinearScratch;
use crate::model::Model;
use crate::ops::Angles;

/// Logit rows computed at once; more are done in turns, so that a long prompt's logits need no more
/// memory than this many rows.
pub(crate) const HEAD_ROWS: usize = 32;

/// Buffers for steps of at most `capacity` rows. Shapes are in rows × values; a step uses a prefix.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) capacity: usize,
    pub(crate) hidden: usize,
    /// rows × hidden: the residual stream.
    pub(crate) stream: Buffer<f32>,
    /// rows × hidden: what a branch gives.
    pub(crate) branch: Buffer<f32>,
    /// rows × (heads · head_dim).
    pub(crate) q: Buffer<f32>,
    /// rows × (kv_heads · head_dim).
    pub(crate) k: Buffer<f32>,
    /// rows × (kv_heads · value_dim).
    pub(crate) v: Buffer<f32>,
    /// rows × (heads · value_dim).
    pub(crate) mixed: Buffer<f32>,
    /// rows × inner.
    pub(crate) gate: Buffer<f32>,
    /// rows × inner.
    pub(crate) up: Buffer<f32>,
    /// HEAD_ROWS × vocabulary.
    pub(crate) logits: Buffer<f32>,
    /// HEAD_ROWS × hidden: the rows whose logits are wanted.
    pub(crate) wanted: Buffer<f32>,
    pub(crate) linear: LinearScratch,
    pub(crate) attention: AttentionScratch,
    /// For each rotary embedding of the architecture, the angles of the rows and which pairs turn.
    pub(crate) angles: Vec<Angles>,
    pub(crate) rope_styles: Vec<RopeStyle>,
    /// The absolute position of each row.
    pub(crate) positions: Vec<u32>,
    /// What each row sees, in the layer at hand.
    pub(crate) row_refs: Vec<RowRef>,
    /// Where each row's keys and values go, in the layer at hand.
    pub(crate) slots: Vec<KvSlot>,
}

/// The widest of each buffer over all layers.
struct Widths {
    q: usize,
    k: usize,
    v: usize,
    mixed: usize,
    inner: usize,
}

impl Workspace {
    pub(crate) fn new(
        model: &Model,
        capacity: usize,
        threads: usize,
        attention: AttentionScratch,
    ) -> Result<Self, OutOfMemory> {
        let architecture = &model.architecture;
        let widths = widths(architecture);
        let rows = |width: usize| Buffer::zeroed(capacity.saturating_mul(width));
        let head_rows = HEAD_ROWS.min(capacity);
        Ok(Self {
            capacity,
            hidden: architecture.hidden,
            stream: rows(architecture.hidden)?,
            branch: rows(architecture.hidden)?,
            q: rows(widths.q)?,
            k: rows(widths.k)?,
            v: rows(widths.v)?,
            mixed: rows(widths.mixed)?,
            gate: rows(widths.inner)?,
            up: rows(widths.inner)?,
            logits: Buffer::zeroed(head_rows * architecture.vocabulary)?,
            wanted: Buffer::zeroed(head_rows * architecture.hidden)?,
            linear: LinearScratch::new(model, capacity, threads)?,
            attention,
            angles: architecture
                .ropes
                .iter()
                .map(|r| Angles::new(r.dims, capacity))
                .collect::<Result<_, _>>()?,
            rope_styles: architecture.ropes.iter().map(|r| r.style).collect(),
            positions: room(capacity)?,
            row_refs: room(capacity)?,
            slots: room(capacity)?,
        })
    }
}

/// An empty list with room for `capacity` items.
fn room<T>(capacity: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut items = Vec::new();
    let bytes = capacity.saturating_mul(size_of::<T>());
    items
        .try_reserve_exact(capacity)
        .map_err(|_| OutOfMemory { bytes })?;
    Ok(items)
}

fn widths(architecture: &Architecture) -> Widths {
    let mut widths = Widths {
        q: 0,
        k: 0,
        v: 0,
        mixed: 0,
        inner: 0,
    };
    for branch in architecture.blocks.iter().flat_map(|block| &block.branches) {
        match &branch.operation {
            Operation::Mixer(Mixer::Attention(a)) => {
                widths.q = widths.q.max(a.q.rows);
                widths.k = widths.k.max(a.k.rows);
                widths.v = widths.v.max(a.v.rows);
                widths.mixed = widths.mixed.max(a.o.cols);
            }
            Operation::Ffn(Ffn::Gated(g)) => widths.inner = widths.inner.max(g.up.rows),
        }
    }
    widths
}
