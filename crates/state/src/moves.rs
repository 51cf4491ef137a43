//! What has to be done with bytes.

use kernels::pages::PageId;

use crate::sequence::SequenceId;

/// A move of bytes. Moves must be done in order, before the next forward pass writes to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// All of a page over another.
    Copy {
        /// The store.
        store: usize,
        /// The page to read.
        from: PageId,
        /// The page to write.
        to: PageId,
    },
    /// Zeros over all of a page: the first state of a recurrent layer.
    Clear {
        /// The store.
        store: usize,
        /// The page.
        page: PageId,
    },
    /// A page to the host's memory.
    Save {
        /// The store.
        store: usize,
        /// The page.
        page: PageId,
        /// Whose memory it goes to.
        sequence: SequenceId,
        /// Where it begins there, in bytes.
        offset: u64,
    },
    /// A page back from the host's memory.
    Load {
        /// The store.
        store: usize,
        /// The page.
        page: PageId,
        /// Whose memory it comes from.
        sequence: SequenceId,
        /// Where it begins there, in bytes.
        offset: u64,
    },
}
