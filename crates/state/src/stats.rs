//! Numbers to watch.

/// How the memory is used, and what became of it so far. Pages of all stores together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages there are.
    pub pages_total: usize,
    /// Pages that nobody holds.
    pub pages_free: usize,
    /// Pages that only the prefix tree holds: they go when memory is short.
    pub pages_cached: usize,
    /// Pages that sequences hold, those shared with the tree included.
    pub pages_owned: usize,
    /// Nodes of the prefix tree.
    pub nodes: usize,
    /// Sequences, those swapped out included.
    pub sequences: usize,
    /// Sequences swapped out.
    pub sequences_swapped: usize,
    /// Bytes of the host's memory that those take.
    pub swapped_bytes: u64,
    /// What happened so far.
    pub totals: Totals,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prefixes looked up.
    pub lookups: u64,
    /// Tokens of those that were looked up.
    pub lookup_tokens: u64,
    /// Lookups that found something.
    pub hits: u64,
    /// Positions they found.
    pub hit_tokens: u64,
    /// Pages and states that the tree let go of.
    pub evictions: u64,
    /// Pages behind a window taken from sequences.
    pub forgotten: u64,
    /// Pages copied before they were written to.
    pub copies: u64,
    /// Checkpoints of recurrent states put in the tree.
    pub checkpoints: u64,
    /// Sequences swapped out.
    pub swap_outs: u64,
    /// Sequences swapped in.
    pub swap_ins: u64,
}
