//! Which pages of a layer may be forgotten. One file a policy.

mod full;
mod window;

use std::fmt::Debug;

use kernels::pages::PAGE_POSITIONS;

pub use full::Full;
pub use window::Window;

/// Decides which pages a layer no longer needs.
pub trait Policy: Debug + Send + Sync {
    /// Whether, once `len` positions are in, no later query can see any position of the page that
    /// covers `first ..= last`.
    fn evictable(&self, first: usize, last: usize, len: usize) -> bool;

    /// Whether there are pages that become evictable.
    fn forgets(&self) -> bool;

    /// Pages that a sequence holds at most on its way to `len` positions, when it grows by at most `chunk`
    /// at a time and what is evictable goes.
    fn pages_most(&self, len: usize, chunk: usize) -> usize {
        let _ = chunk;
        len.div_ceil(PAGE_POSITIONS)
    }
}
