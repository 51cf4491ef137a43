//! What one layer asks to remember.

use std::sync::Arc;

use crate::policy::Policy;

/// What a layer's mixer remembers about a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpec {
    /// Something for each position, in pages.
    Paged {
        /// Bytes per position (keys and values of all heads).
        bytes_per_position: usize,
    },
    /// Something of one size, whatever the length.
    Fixed {
        /// Bytes per sequence.
        bytes: usize,
    },
    /// What another layer remembers.
    Shared {
        /// That layer.
        layer: usize,
    },
    /// Nothing.
    None,
}

/// One layer's state: what it remembers, in which store, and what may be forgotten.
#[derive(Clone, Debug)]
pub struct LayerState {
    /// What it remembers.
    pub spec: StateSpec,
    /// The page store that holds it (layers of one shape share a store).
    pub store: usize,
    /// Which of its pages may go.
    pub policy: Arc<dyn Policy>,
}
