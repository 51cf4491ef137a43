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
        last + self.positions <= len
    }
}
