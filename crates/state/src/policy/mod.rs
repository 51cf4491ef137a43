//! Which pages of a layer may be forgotten. One file a policy.

mod full;
mod window;

use std::fmt::Debug;

pub use full::Full;
pub use window::Window;

/// Decides which pages a layer no longer needs.
pub trait Policy: Debug + Send + Sync {
    /// Whether, once `len` positions are in, no later query can see any position of the page that
    /// covers `first ..= last`.
    fn evictable(&self, first: usize, last: usize, len: usize) -> bool;
}
