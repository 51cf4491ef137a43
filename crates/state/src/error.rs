//! What can go wrong with the state of sequences.

use kernels::pages::PAGE_POSITIONS;

use crate::sequence::SequenceId;

/// The state of a sequence could not be made, grown or cut.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// No page is left, now.
    #[error(
        "out of memory for the state of sequences: {needed} more pages of {PAGE_POSITIONS} positions are \
         needed for {len} positions, {free} of {total} are free and the others are in use; use a smaller \
         context, fewer sequences or more state bytes"
    )]
    OutOfPages {
        /// Positions asked for.
        len: usize,
        /// Pages still needed.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Pages there are.
        total: usize,
    },
    /// The memory is too small for that length even with nothing else in it.
    #[error(
        "{len} positions can never fit: they take {needed} pages of {PAGE_POSITIONS} positions and there \
         are {total}; ask for fewer tokens or give more state bytes"
    )]
    NeverFits {
        /// Positions asked for.
        len: usize,
        /// Pages they take in the store that is too small.
        needed: usize,
        /// Pages of that store.
        total: usize,
    },
    /// The budget is too small for anything.
    #[error("a budget of {bytes} bytes for state is too small; {PAGE_POSITIONS} positions of one sequence take {least}")]
    Budget {
        /// The budget.
        bytes: u64,
        /// The least that is of any use, in bytes.
        least: u64,
    },
    /// The books themselves can't be had.
    #[error("cannot reserve {bytes} bytes for the books of sequences; use a smaller context or fewer sequences")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The sequence would be longer than the context.
    #[error("{len} positions do not fit the context of {context}")]
    TooLong {
        /// Positions asked for.
        len: usize,
        /// The context.
        context: usize,
    },
    /// All places for sequences are taken.
    #[error("all {0} places for sequences are taken")]
    TooManySequences(usize),
    /// There is no such sequence.
    #[error("sequence {} does not exist", .0.0)]
    NoSuchSequence(SequenceId),
    /// The sequence is swapped out.
    #[error("sequence {} is swapped out; swap it in first", .0.0)]
    Swapped(SequenceId),
    /// The sequence is not swapped out.
    #[error("sequence {} is not swapped out", .0.0)]
    NotSwapped(SequenceId),
    /// No room to swap to.
    #[error(
        "swapping out sequence {} takes {bytes} bytes; {used} of the {limit} bytes for that are in use", .sequence.0
    )]
    SwapFull {
        /// The sequence.
        sequence: SequenceId,
        /// Bytes it takes.
        bytes: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes there are.
        limit: u64,
    },
    /// More positions were written than there is room for.
    #[error("sequence {} cannot have {len} positions written: room was made for {reserved}", .sequence.0)]
    NotReserved {
        /// The sequence.
        sequence: SequenceId,
        /// Positions it would have.
        len: usize,
        /// Positions there is room for.
        reserved: usize,
    },
    /// A layer's description is wrong.
    #[error("layer {layer} asks for {what}")]
    Layer {
        /// The layer.
        layer: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Checkpoints lie at the ends of pages.
    #[error("checkpoints every {every} positions; it must be a multiple of {PAGE_POSITIONS}, 1 or more times it")]
    CheckpointEvery {
        /// The distance asked for.
        every: usize,
    },
    /// A cut would need what was already forgotten.
    #[error("sequence {} cannot be cut to {len} positions: layer {layer} has forgotten some of them", .sequence.0)]
    Forgotten {
        /// The sequence.
        sequence: SequenceId,
        /// Positions asked for.
        len: usize,
        /// The layer.
        layer: usize,
    },
}
