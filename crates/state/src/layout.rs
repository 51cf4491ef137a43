//! Which layer remembers what, and where.

use std::sync::Arc;

use crate::error::StateError;
use crate::policy::Policy;
use crate::sequence::{first, last};
use crate::spec::{LayerState, StateSpec};

/// A layer that remembers something for each position.
#[derive(Clone, Debug)]
pub(crate) struct PagedLayer {
    pub(crate) layer: usize,
    pub(crate) store: usize,
    pub(crate) policy: Arc<dyn Policy>,
}

impl PagedLayer {
    /// Whether no query from position `len` on sees anything of page `block` of a sequence.
    pub(crate) fn is_behind(&self, block: usize, len: usize) -> bool {
        self.policy.evictable(first(block), last(block), len)
    }
}

/// A layer that remembers something of one size.
#[derive(Clone, Debug)]
pub(crate) struct FixedLayer {
    pub(crate) layer: usize,
    pub(crate) store: usize,
}

/// Where a layer finds what it remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Paged(usize),
    Fixed(usize),
    None,
}

/// The layers by kind.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) paged: Vec<PagedLayer>,
    pub(crate) fixed: Vec<FixedLayer>,
    pub(crate) places: Vec<Place>,
}

impl Layout {
    pub(crate) fn new(layers: &[LayerState], stores: usize) -> Result<Self, StateError> {
        let (mut paged, mut fixed) = (Vec::new(), Vec::new());
        let mut places: Vec<Place> = Vec::with_capacity(layers.len());
        for (layer, state) in layers.iter().enumerate() {
            let wrong = |what| StateError::Layer { layer, what };
            let held = matches!(
                state.spec,
                StateSpec::Paged { .. } | StateSpec::Fixed { .. }
            );
            if held && state.store >= stores {
                return Err(wrong("a store that does not exist"));
            }
            let store = state.store;
            let place = match state.spec {
                StateSpec::Paged { .. } => {
                    let policy = Arc::clone(&state.policy);
                    paged.push(PagedLayer {
                        layer,
                        store,
                        policy,
                    });
                    Place::Paged(paged.len() - 1)
                }
                StateSpec::Fixed { .. } => {
                    fixed.push(FixedLayer { layer, store });
                    Place::Fixed(fixed.len() - 1)
                }
                StateSpec::Shared { layer } => *places
                    .get(layer)
                    .ok_or(wrong("the state of a layer that does not come before it"))?,
                StateSpec::None => Place::None,
            };
            places.push(place);
        }
        Ok(Self {
            paged,
            fixed,
            places,
        })
    }

    /// Whether a layer remembers something of one size, which can't be cut.
    pub(crate) fn is_recurrent(&self) -> bool {
        !self.fixed.is_empty()
    }
}
