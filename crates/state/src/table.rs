//! Who holds which pages.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::spec::{LayerState, StateSpec};

/// A sequence: the tokens of one generation and what is remembered of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

/// The state of a sequence could not be made, grown or cut.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    /// No page is left.
    #[error(
        "out of memory for keys and values: {needed} more pages of {PAGE_POSITIONS} positions are \
         needed for {len} positions, {free} of {total} are free; use a smaller context or fewer sequences"
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
    /// The layer's mixer asks for a kind of state that this version does not hold.
    #[error("layer {layer} asks for {spec:?}, which is not supported yet")]
    Unsupported {
        /// The layer.
        layer: usize,
        /// What it asks for.
        spec: StateSpec,
    },
    /// A cut would need positions that were already forgotten.
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

/// The books do not add up: a bug in this crate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("page {page} of store {store} is held {held} times and free {free} times")]
pub struct IntegrityError {
    /// The store.
    pub store: usize,
    /// The page.
    pub page: u32,
    /// Times it is in a sequence.
    pub held: usize,
    /// Times it is in the free list.
    pub free: usize,
}

#[derive(Debug)]
struct Sequence {
    len: usize,
    /// For each layer, the pages in order of position; [`PageId::NONE`] where forgotten.
    pages: Vec<Vec<PageId>>,
}

/// The pages of all sequences.
#[derive(Debug)]
pub struct Table {
    layers: Vec<LayerState>,
    context: usize,
    free: Vec<Vec<PageId>>,
    total: Vec<usize>,
    sequences: Vec<Option<Sequence>>,
    /// Emptied sequences, kept so that a new one allocates nothing.
    spare: Vec<Sequence>,
}

impl Table {
    /// A table for at most `sequences` sequences of at most `context` positions;
    /// `pages[s]` is the number of pages in store `s`.
    ///
    /// # Errors
    /// When a layer asks for a kind of state that is not supported.
    pub fn new(
        layers: Vec<LayerState>,
        pages: &[usize],
        sequences: usize,
        context: usize,
    ) -> Result<Self, StateError> {
        for (layer, state) in layers.iter().enumerate() {
            if !matches!(state.spec, StateSpec::Paged { .. }) {
                return Err(StateError::Unsupported {
                    layer,
                    spec: state.spec,
                });
            }
        }
        let free = pages
            .iter()
            .map(|&n| (0..n as u32).rev().map(PageId).collect())
            .collect();
        let per_layer = context.div_ceil(PAGE_POSITIONS);
        let spare = (0..sequences)
            .map(|_| Sequence {
                len: 0,
                pages: layers
                    .iter()
                    .map(|_| Vec::with_capacity(per_layer))
                    .collect(),
            })
            .collect();
        Ok(Self {
            layers,
            context,
            free,
            total: pages.to_vec(),
            sequences: (0..sequences).map(|_| None).collect(),
            spare,
        })
    }

    /// Pages that one sequence of `len` positions takes in each of `stores` stores.
    #[must_use]
    pub fn pages_needed(layers: &[LayerState], stores: usize, len: usize) -> Vec<usize> {
        let mut needed = vec![0; stores];
        for layer in layers {
            if matches!(layer.spec, StateSpec::Paged { .. }) {
                needed[layer.store] += len.div_ceil(PAGE_POSITIONS);
            }
        }
        needed
    }

    /// The longest a sequence may grow, in positions.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// When all places are taken.
    pub fn create(&mut self) -> Result<SequenceId, StateError> {
        let full = StateError::TooManySequences(self.sequences.len());
        let place = self
            .sequences
            .iter()
            .position(Option::is_none)
            .ok_or(full)?;
        let sequence = self
            .spare
            .pop()
            .ok_or(StateError::TooManySequences(self.sequences.len()))?;
        self.sequences[place] = Some(sequence);
        Ok(SequenceId(place as u32))
    }

    /// Positions remembered of `id`.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn len(&self, id: SequenceId) -> Result<usize, StateError> {
        Ok(self.sequence(id)?.len)
    }

    /// The pages of `id` at `layer`.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn pages(&self, id: SequenceId, layer: usize) -> Result<&[PageId], StateError> {
        Ok(&self.sequence(id)?.pages[layer])
    }

    /// Takes the pages that `id` needs to grow to `len` positions. All or nothing.
    ///
    /// # Errors
    /// When the context or the memory is too small, or there is no such sequence.
    pub fn reserve(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        if len > self.context {
            return Err(StateError::TooLong {
                len,
                context: self.context,
            });
        }
        let wanted = len.div_ceil(PAGE_POSITIONS);
        for store in 0..self.free.len() {
            let mut needed = self.needed(id, store, wanted)?;
            if needed > self.free[store].len() {
                self.evict(id, store);
                needed = self.needed(id, store, wanted)?;
            }
            if needed > self.free[store].len() {
                let (free, total) = (self.free[store].len(), self.total[store]);
                return Err(StateError::OutOfPages {
                    len,
                    needed: needed - free,
                    free,
                    total,
                });
            }
        }
        let sequence = self.sequences[id.0 as usize]
            .as_mut()
            .ok_or(StateError::NoSuchSequence(id))?;
        for (layer, pages) in self.layers.iter().zip(&mut sequence.pages) {
            while pages.len() < wanted {
                // There is one: the loop above counted them.
                pages.extend(self.free[layer.store].pop());
            }
        }
        Ok(())
    }

    /// Says that positions up to `len` are now written.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn commit(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        self.sequence_mut(id)?.len = len;
        Ok(())
    }

    /// Forgets all positions from `len` on.
    ///
    /// # Errors
    /// When a policy has already forgotten positions that stay visible at that length.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let sequence = self.sequence(id)?;
        let keep = len.div_ceil(PAGE_POSITIONS);
        for (layer, (state, pages)) in self.layers.iter().zip(&sequence.pages).enumerate() {
            let lost = pages.iter().take(keep).enumerate().any(|(b, &page)| {
                page == PageId::NONE && !state.policy.evictable(first(b), last(b), len)
            });
            if lost {
                return Err(StateError::Forgotten {
                    sequence: id,
                    len,
                    layer,
                });
            }
        }
        let sequence = self.sequences[id.0 as usize]
            .as_mut()
            .ok_or(StateError::NoSuchSequence(id))?;
        sequence.len = sequence.len.min(len);
        for (layer, pages) in self.layers.iter().zip(&mut sequence.pages) {
            while pages.len() > keep {
                self.free[layer.store].extend(pages.pop().filter(|&page| page != PageId::NONE));
            }
        }
        Ok(())
    }

    /// Ends `id` and takes all its pages back.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn release(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.sequence(id)?;
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return Err(StateError::NoSuchSequence(id));
        };
        sequence.len = 0;
        for (layer, pages) in self.layers.iter().zip(&mut sequence.pages) {
            self.free[layer.store].extend(pages.drain(..).filter(|&page| page != PageId::NONE));
        }
        self.spare.push(sequence);
        Ok(())
    }

    /// Pages free in `store`.
    #[must_use]
    pub fn free_pages(&self, store: usize) -> usize {
        self.free[store].len()
    }

    /// Checks that every page is either free or held by one sequence, once.
    ///
    /// # Errors
    /// The first page for which that does not hold.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        for (store, &total) in self.total.iter().enumerate() {
            let mut held = vec![0; total];
            let mut free = vec![0; total];
            for page in &self.free[store] {
                free[page.0 as usize] += 1;
            }
            for sequence in self.sequences.iter().flatten() {
                let of_store = self
                    .layers
                    .iter()
                    .zip(&sequence.pages)
                    .filter(|(l, _)| l.store == store);
                for page in of_store
                    .flat_map(|(_, pages)| pages)
                    .filter(|&&p| p != PageId::NONE)
                {
                    held[page.0 as usize] += 1;
                }
            }
            if let Some(page) = (0..total).find(|&page| held[page] + free[page] != 1) {
                let (held, free) = (held[page], free[page]);
                return Err(IntegrityError {
                    store,
                    page: page as u32,
                    held,
                    free,
                });
            }
        }
        Ok(())
    }

    fn needed(&self, id: SequenceId, store: usize, wanted: usize) -> Result<usize, StateError> {
        let sequence = self.sequence(id)?;
        let of_store = self
            .layers
            .iter()
            .zip(&sequence.pages)
            .filter(|(l, _)| l.store == store);
        Ok(of_store
            .map(|(_, pages)| wanted.saturating_sub(pages.len()))
            .sum())
    }

    fn evict(&mut self, id: SequenceId, store: usize) {
        let Some(sequence) = self.sequences[id.0 as usize].as_mut() else {
            return;
        };
        let len = sequence.len;
        for (layer, pages) in self.layers.iter().zip(&mut sequence.pages) {
            if layer.store != store {
                continue;
            }
            for (b, page) in pages.iter_mut().enumerate() {
                if *page != PageId::NONE && layer.policy.evictable(first(b), last(b), len) {
                    self.free[store].push(*page);
                    *page = PageId::NONE;
                }
            }
        }
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, StateError> {
        let place = self.sequences.get(id.0 as usize).and_then(Option::as_ref);
        place.ok_or(StateError::NoSuchSequence(id))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, StateError> {
        let place = self
            .sequences
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut);
        place.ok_or(StateError::NoSuchSequence(id))
    }
}

fn first(page: usize) -> usize {
    page * PAGE_POSITIONS
}

fn last(page: usize) -> usize {
    first(page) + PAGE_POSITIONS - 1
}
