//! What the scheduler and the loop need of a model and its memory, and nothing more.

use std::time::Duration;

use model::{Logits, Step};
use state::{SequenceId, Started, Stats, TenantId};

use crate::error::EngineError;

/// Pages, of all kinds together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) total: usize,
    pub(crate) free: usize,
    pub(crate) cached: usize,
    pub(crate) held: usize,
    pub(crate) swapped_bytes: u64,
}

/// Runs steps over sequences whose state it keeps. Where a method gives a `bool`, `false` is that there is no
/// room now and nothing changed.
pub(crate) trait Runner {
    /// Time since some beginning.
    fn now(&self) -> Duration;

    /// A sequence that begins with what is cached of `tokens`; with nothing, where `shares` is not set.
    fn start(
        &mut self,
        tenant: TenantId,
        tokens: &[u32],
        shares: bool,
    ) -> Result<Started, EngineError>;

    /// Makes room for the first `len` positions.
    ///
    /// # Errors
    /// [`OutOfPages`](state::StateError::OutOfPages) where there is none now; nothing changed then.
    fn reserve(&mut self, sequence: SequenceId, len: usize) -> Result<(), EngineError>;

    /// Runs a step for which room was made. Nothing is remembered of one that fails.
    fn forward(
        &mut self,
        step: Step<'_>,
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<(), EngineError>;

    /// Lets others begin with what was computed so far, in whole pages.
    fn publish(&mut self, sequence: SequenceId) -> Result<(), EngineError>;

    /// Ends a sequence; what it computed stays for others while there is room, where `shares` is set.
    fn end(&mut self, sequence: SequenceId, shares: bool) -> Result<(), EngineError>;

    /// Moves a sequence's pages elsewhere.
    fn swap_out(&mut self, sequence: SequenceId) -> Result<bool, EngineError>;

    /// Moves them back.
    fn swap_in(&mut self, sequence: SequenceId) -> Result<bool, EngineError>;

    /// Bytes that [`swap_out`](Self::swap_out) would move or has moved.
    fn swap_bytes_of(&self, sequence: SequenceId) -> Result<u64, EngineError>;

    /// Pages that [`reserve`](Self::reserve) would take.
    fn pages_needed(&self, sequence: SequenceId, len: usize) -> Result<usize, EngineError>;

    /// Whether one sequence alone can reach `len` positions, `chunk` at a time.
    fn fits(&self, len: usize, chunk: usize) -> Result<(), EngineError>;

    /// Where a span from `position` that would end at `end` should end.
    fn chunk_end(&self, position: usize, end: usize) -> usize;

    /// How the pages are used.
    fn pages(&self) -> Pages;

    /// Bytes of a page, about.
    fn page_bytes(&self) -> u64;

    /// Checks the books.
    fn check(&self) -> Result<(), String>;
}

impl From<Stats> for Pages {
    fn from(stats: Stats) -> Self {
        Self {
            total: stats.pages_total,
            free: stats.pages_free,
            cached: stats.pages_cached,
            held: stats.pages_owned,
            swapped_bytes: stats.swapped_bytes,
        }
    }
}
