//! What one sequence remembers.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::error::StateError;
use crate::layout::Layout;
use crate::tree::TenantId;

/// A sequence: the tokens of one generation and what is remembered of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

/// A sequence that begins with what was remembered already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The sequence.
    pub sequence: SequenceId,
    /// Positions that need not be run.
    pub cached: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) tenant: TenantId,
    /// Positions written.
    pub(crate) len: usize,
    /// Their tokens, as far as they are known.
    pub(crate) tokens: Vec<u32>,
    /// Whether positions from the end of `tokens` on were not made from tokens alone.
    pub(crate) opaque: bool,
    /// For each paged layer, the pages in order of position; [`PageId::NONE`] where forgotten.
    pub(crate) pages: Vec<Vec<PageId>>,
    /// For each recurrent layer its state; [`PageId::NONE`] before the first position.
    pub(crate) slots: Vec<PageId>,
    /// Bytes it takes in the host's memory, where it is swapped out. It holds no page then.
    pub(crate) swapped: Option<u64>,
}

impl Sequence {
    /// An empty one with room for `context` positions, so that growing allocates nothing.
    pub(crate) fn new(layout: &Layout, context: usize) -> Result<Self, StateError> {
        let per_layer = context.div_ceil(PAGE_POSITIONS);
        let mut pages = Vec::with_capacity(layout.paged.len());
        for _ in &layout.paged {
            pages.push(with_capacity(per_layer)?);
        }
        Ok(Self {
            tenant: TenantId::LOCAL,
            len: 0,
            tokens: with_capacity(context)?,
            opaque: false,
            pages,
            slots: vec![PageId::NONE; layout.fixed.len()],
            swapped: None,
        })
    }

    /// The page that the next position goes to, where it already has some.
    pub(crate) fn partial(&self) -> Option<usize> {
        let is_partial = !self.len.is_multiple_of(PAGE_POSITIONS);
        is_partial.then_some(self.len / PAGE_POSITIONS)
    }
}

fn with_capacity<T>(len: usize) -> Result<Vec<T>, StateError> {
    let mut items = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    let reserved = items.try_reserve_exact(len);
    reserved.map_err(|_| StateError::OutOfMemory { bytes })?;
    Ok(items)
}

/// The first position of a page.
pub(crate) fn first(page: usize) -> usize {
    page * PAGE_POSITIONS
}

/// The last position of a page.
pub(crate) fn last(page: usize) -> usize {
    first(page) + PAGE_POSITIONS - 1
}
