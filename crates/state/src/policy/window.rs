use kernels::pages::PAGE_POSITIONS;

use super::Policy;

/// A query at position p sees the positions p − positions + 1 ..= p.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Positions visible to a query, itself included.
    pub positions: usize,
}

impl Policy for Window {
    fn evictable(&self, _first: usize, last: usize, len: usize) -> bool {
        // The next query is at `len`; it sees nothing at or before len − positions.
        last.saturating_add(self.positions) <= len
    }

    fn forgets(&self) -> bool {
        true
    }

    fn pages_most(&self, len: usize, chunk: usize) -> usize {
        // The chunk, and what its first query sees before it; the first of them may be the last of a page.
        let held = self.positions.saturating_sub(1).saturating_add(chunk.max(1));
        let pages = (held - 1).div_ceil(PAGE_POSITIONS) + 1;
        pages.min(len.div_ceil(PAGE_POSITIONS))
    }
}
