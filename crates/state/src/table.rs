//! Who holds which pages: the life of a sequence.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::error::StateError;
use crate::layout::{Layout, Place};
use crate::moves::Move;
use crate::pool::Pool;
use crate::sequence::{Sequence, SequenceId, Started};
use crate::spec::LayerState;
use crate::stats::{Stats, Totals};
use crate::tree::{NodeId, TenantId, Tree};
use crate::trim::Trim;

/// A store of pages, or of states of recurrent layers, of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// Pages in it.
    pub pages: usize,
    /// The size of one, in bytes.
    pub page_bytes: usize,
}

/// How a table is set up.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// What each layer remembers.
    pub layers: Vec<LayerState>,
    /// The stores that the layers name.
    pub stores: Vec<StoreSpec>,
    /// Sequences at most.
    pub sequences: usize,
    /// Positions per sequence at most.
    pub context: usize,
    /// Bytes of the host's memory for sequences that are swapped out.
    pub swap_bytes: u64,
    /// Positions from one checkpoint of recurrent layers to the next; a multiple of 64.
    pub checkpoint_every: usize,
}

/// The pages of all sequences and of the prefix tree.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) layout: Layout,
    pub(crate) context: usize,
    pub(crate) checkpoint_every: usize,
    pub(crate) pools: Vec<Pool>,
    pub(crate) tree: Tree,
    pub(crate) trim: Trim,
    pub(crate) sequences: Vec<Option<Sequence>>,
    /// Emptied sequences, kept so that a new one allocates nothing.
    spare: Vec<Sequence>,
    pub(crate) moves: Vec<Move>,
    /// What a walk down the tree passed.
    pub(crate) path: Vec<NodeId>,
    pub(crate) swap_limit: u64,
    pub(crate) swapped_bytes: u64,
    pub(crate) totals: Totals,
    model_key: [u8; 32],
    #[cfg(test)]
    pub(crate) fault: Option<crate::simulation::Fault>,
}

impl Table {
    /// A table with nothing in it.
    ///
    /// # Errors
    /// When a layer's description is wrong, or memory for the books can't be had.
    pub fn new(options: TableOptions) -> Result<Self, StateError> {
        let layout = Layout::new(&options.layers, options.stores.len())?;
        let every = options.checkpoint_every;
        if every == 0 || !every.is_multiple_of(PAGE_POSITIONS) {
            return Err(StateError::CheckpointEvery { every });
        }
        let pools = options.stores.iter();
        let pools = pools.map(|s| Pool::new(s.pages, s.page_bytes)).collect();
        let spare = (0..options.sequences).map(|_| Sequence::new(&layout, options.context));
        let spare = spare.collect::<Result<_, _>>()?;
        // One step makes at most a copy for each layer of each sequence.
        let moves = options.layers.len() * options.sequences;
        Ok(Self {
            tree: Tree::new(layout.paged.len()),
            trim: Trim::default(),
            layout,
            context: options.context,
            checkpoint_every: every,
            pools,
            sequences: (0..options.sequences).map(|_| None).collect(),
            spare,
            moves: Vec::with_capacity(moves),
            path: Vec::new(),
            swap_limit: options.swap_bytes,
            swapped_bytes: 0,
            totals: Totals::default(),
            model_key: [0; 32],
            #[cfg(test)]
            fault: None,
        })
    }

    /// The longest a sequence may grow, in positions.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// A new, empty sequence, whatever is cached.
    ///
    /// # Errors
    /// When all places are taken.
    pub fn create(&mut self, tenant: TenantId) -> Result<SequenceId, StateError> {
        let full = StateError::TooManySequences(self.sequences.len());
        let place = self.sequences.iter().position(Option::is_none);
        let (Some(place), Some(mut sequence)) = (place, self.spare.pop()) else {
            return Err(full);
        };
        sequence.tenant = tenant;
        self.sequences[place] = Some(sequence);
        Ok(SequenceId(place as u32))
    }

    /// A new sequence that begins with the longest cached prefix of `tokens`, at most all but the last of
    /// them, so that there is a row to run. Takes no page; what it begins with stays until it ends.
    ///
    /// # Errors
    /// When all places are taken, or `tokens` do not fit the context.
    pub fn start(&mut self, tenant: TenantId, tokens: &[u32]) -> Result<Started, StateError> {
        let (len, context) = (tokens.len(), self.context);
        if len > context {
            return Err(StateError::TooLong { len, context });
        }
        let id = self.create(tenant)?;
        let cached = self.attach(id, tokens);
        self.totals.lookups += 1;
        self.totals.lookup_tokens += len as u64;
        self.totals.hits += u64::from(cached > 0);
        self.totals.hit_tokens += cached as u64;
        Ok(Started {
            sequence: id,
            cached,
        })
    }

    /// Positions remembered of `id`.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn len(&self, id: SequenceId) -> Result<usize, StateError> {
        Ok(self.sequence(id)?.len)
    }

    /// The pages of `id` at `layer`, by position; of a recurrent layer, its state's place.
    ///
    /// # Errors
    /// When there is no such sequence or layer, or it is swapped out.
    pub fn pages(&self, id: SequenceId, layer: usize) -> Result<&[PageId], StateError> {
        let sequence = self.resident(id)?;
        match self.layout.places.get(layer) {
            Some(&Place::Paged(i)) => Ok(&sequence.pages[i]),
            Some(&Place::Fixed(i)) => Ok(&sequence.slots[i..=i]),
            Some(Place::None) => Ok(&[]),
            None => Err(StateError::Layer {
                layer,
                what: "pages, and there is no such layer",
            }),
        }
    }

    /// Makes room for `id` to be written up to `len` positions: takes pages, and copies of those that it
    /// shares and would write to. Evicts what is cached where memory is short. All or nothing.
    ///
    /// # Errors
    /// When the context or the memory is too small, there is no such sequence, or it is swapped out.
    pub fn reserve(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let context = self.context;
        if len > context {
            return Err(StateError::TooLong { len, context });
        }
        self.resident(id)?;
        self.make_room(id, len)?;
        let sequence = self.sequences[id.0 as usize]
            .as_mut()
            .ok_or(StateError::NoSuchSequence(id))?;
        if len <= sequence.len {
            return Ok(());
        }
        #[cfg(test)]
        let copy = self.fault != Some(crate::simulation::Fault::CopySkipped);
        #[cfg(not(test))]
        let copy = true;
        let partial = sequence.partial().filter(|_| copy);
        let wanted = len.div_ceil(PAGE_POSITIONS);
        for (layer, pages) in self.layout.paged.iter().zip(&mut sequence.pages) {
            let pool = &mut self.pools[layer.store];
            if let Some(page) = partial.map(|block| &mut pages[block])
                && !pool.is_writable(*page)
            {
                own(pool, page, layer.store, &mut self.moves);
                self.totals.copies += 1;
            }
            while pages.len() < wanted {
                // There is one: room was made.
                pages.extend(pool.take());
            }
        }
        for (layer, slot) in self.layout.fixed.iter().zip(&mut sequence.slots) {
            let (pool, store) = (&mut self.pools[layer.store], layer.store);
            if *slot == PageId::NONE {
                if let Some(page) = pool.take() {
                    *slot = page;
                    self.moves.push(Move::Clear { store, page });
                }
            } else if copy && !pool.is_writable(*slot) {
                own(pool, slot, store, &mut self.moves);
                self.totals.copies += 1;
            }
        }
        Ok(())
    }

    /// Says that `tokens` are now written behind what `id` had. Room must have been reserved. Where a layer
    /// is recurrent, puts a checkpoint in the tree every so many positions.
    ///
    /// # Errors
    /// When there is no such sequence, or no room was reserved.
    pub fn commit(&mut self, id: SequenceId, tokens: &[u32]) -> Result<(), StateError> {
        let len = self.check_commit(id, tokens.len())?;
        let sequence = self.sequence_mut(id)?;
        if !sequence.opaque {
            sequence.tokens.extend_from_slice(tokens);
        }
        sequence.len = len;
        if self.layout.is_recurrent() && len.is_multiple_of(self.checkpoint_every) {
            self.publish(id)?;
        }
        Ok(())
    }

    /// Says that `positions` are now written that were not made from tokens alone. Nothing from there on
    /// goes in the tree.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_vectors(&mut self, id: SequenceId, positions: usize) -> Result<(), StateError> {
        let len = self.check_commit(id, positions)?;
        let sequence = self.sequence_mut(id)?;
        sequence.opaque |= positions > 0;
        sequence.len = len;
        Ok(())
    }

    fn check_commit(&self, id: SequenceId, positions: usize) -> Result<usize, StateError> {
        let sequence = self.resident(id)?;
        let len = sequence.len.saturating_add(positions);
        let pages = sequence.pages.iter().map(Vec::len).min();
        let mut reserved = pages.map_or(self.context, |pages| pages * PAGE_POSITIONS);
        if sequence.slots.contains(&PageId::NONE) {
            reserved = 0;
        }
        if len > reserved.min(self.context) {
            return Err(StateError::NotReserved {
                sequence: id,
                len,
                reserved,
            });
        }
        Ok(len)
    }

    /// Where a span that begins at `position` and would end at `end` must end, so that a checkpoint of
    /// recurrent layers can be made on the way.
    #[must_use]
    pub fn chunk_end(&self, position: usize, end: usize) -> usize {
        if !self.layout.is_recurrent() {
            return end;
        }
        let next = (position / self.checkpoint_every + 1) * self.checkpoint_every;
        end.min(next)
    }

    /// Forgets all positions from `len` on, and gives back room reserved behind it.
    ///
    /// # Errors
    /// When a policy has already forgotten positions that stay visible at that length, or a recurrent
    /// layer has no checkpoint there.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let sequence = self.resident(id)?;
        let len = len.min(sequence.len);
        let keep = len.div_ceil(PAGE_POSITIONS);
        for (state, pages) in self.layout.paged.iter().zip(&sequence.pages) {
            let lost = pages
                .iter()
                .take(keep)
                .enumerate()
                .any(|(b, &page)| page == PageId::NONE && !state.is_behind(b, len));
            if lost {
                return Err(StateError::Forgotten {
                    sequence: id,
                    len,
                    layer: state.layer,
                });
            }
        }
        if len < sequence.len {
            self.rewind(id, len)?;
        }
        let sequence = self.sequences[id.0 as usize]
            .as_mut()
            .ok_or(StateError::NoSuchSequence(id))?;
        sequence.len = len;
        sequence.tokens.truncate(len);
        sequence.opaque &= len > sequence.tokens.len();
        for (layer, pages) in self.layout.paged.iter().zip(&mut sequence.pages) {
            let pool = &mut self.pools[layer.store];
            pages
                .drain(keep.min(pages.len())..)
                .for_each(|page| pool.release(page));
        }
        Ok(())
    }

    /// A new sequence that remembers the same as `id`. Shares all pages; copies are made as either goes on.
    ///
    /// # Errors
    /// When there is no such sequence, it is swapped out, or all places are taken.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StateError> {
        let tenant = self.resident(id)?.tenant;
        let new = self.create(tenant)?;
        let (Some(mut copy), Some(sequence)) = (
            self.sequences[new.0 as usize].take(),
            self.sequences[id.0 as usize].as_ref(),
        ) else {
            return Err(StateError::NoSuchSequence(id));
        };
        copy.len = sequence.len;
        copy.opaque = sequence.opaque;
        copy.tokens.extend_from_slice(&sequence.tokens);
        // What is reserved but not written stays with the one that reserved it.
        let written = sequence.len.div_ceil(PAGE_POSITIONS);
        let lists = sequence.pages.iter().zip(&mut copy.pages);
        for (layer, (from, to)) in self.layout.paged.iter().zip(lists) {
            to.extend_from_slice(&from[..written]);
            let held = to.iter().filter(|&&page| page != PageId::NONE);
            held.for_each(|&page| self.pools[layer.store].share(page));
        }
        let slots = sequence.slots.iter().zip(&mut copy.slots);
        for (layer, (&from, to)) in self.layout.fixed.iter().zip(slots) {
            if from != PageId::NONE && sequence.len > 0 {
                self.pools[layer.store].share(from);
                *to = from;
            }
        }
        self.sequences[new.0 as usize] = Some(copy);
        Ok(new)
    }

    /// Ends `id` and takes all its pages back. What it published stays in the tree.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn release(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.sequence(id)?;
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return Err(StateError::NoSuchSequence(id));
        };
        self.empty(&mut sequence);
        self.swapped_bytes -= sequence.swapped.take().unwrap_or(0);
        sequence.len = 0;
        sequence.tokens.clear();
        sequence.opaque = false;
        self.spare.push(sequence);
        Ok(())
    }

    /// Takes back all pages of a sequence.
    pub(crate) fn empty(&mut self, sequence: &mut Sequence) {
        for (layer, pages) in self.layout.paged.iter().zip(&mut sequence.pages) {
            let pool = &mut self.pools[layer.store];
            pages.drain(..).for_each(|page| pool.release(page));
        }
        for (layer, slot) in self.layout.fixed.iter().zip(&mut sequence.slots) {
            self.pools[layer.store].release(std::mem::replace(slot, PageId::NONE));
        }
    }

    /// Moves of bytes that wait to be done, in order, before the next forward pass writes to a page.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Says that all [`moves`](Self::moves) are done.
    pub fn clear_moves(&mut self) {
        self.moves.clear();
    }

    /// Says what keys and values depend on beside the tokens: the model, its numbers, an adapter. Another
    /// key than before drops all cached prefixes.
    pub fn set_model_key(&mut self, key: [u8; 32]) {
        if self.model_key != key {
            self.model_key = key;
            self.clear_cache();
        }
    }

    /// Pages free in `store`.
    #[must_use]
    pub fn free_pages(&self, store: usize) -> usize {
        self.pools.get(store).map_or(0, Pool::free)
    }

    /// Numbers to watch.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let sum = |count: fn(&Pool) -> usize| self.pools.iter().map(count).sum();
        let live = || self.sequences.iter().flatten();
        Stats {
            pages_total: sum(Pool::total),
            pages_free: sum(Pool::free),
            pages_cached: sum(Pool::cached),
            pages_owned: sum(|pool| pool.total() - pool.free() - pool.cached()),
            nodes: self.tree.len(),
            sequences: live().count(),
            sequences_swapped: live().filter(|s| s.swapped.is_some()).count(),
            swapped_bytes: self.swapped_bytes,
            totals: self.totals,
        }
    }

    pub(crate) fn sequence(&self, id: SequenceId) -> Result<&Sequence, StateError> {
        let place = self.sequences.get(id.0 as usize).and_then(Option::as_ref);
        place.ok_or(StateError::NoSuchSequence(id))
    }

    /// A sequence that isn't swapped out.
    pub(crate) fn resident(&self, id: SequenceId) -> Result<&Sequence, StateError> {
        let sequence = self.sequence(id)?;
        match sequence.swapped {
            Some(_) => Err(StateError::Swapped(id)),
            None => Ok(sequence),
        }
    }

    pub(crate) fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, StateError> {
        let place = self
            .sequences
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut);
        place.ok_or(StateError::NoSuchSequence(id))
    }
}

/// Puts a copy in the place of a page that is shared.
fn own(pool: &mut Pool, page: &mut PageId, store: usize, moves: &mut Vec<Move>) {
    // There is one: room was made.
    let Some(to) = pool.take() else { return };
    let from = *page;
    moves.push(Move::Copy { store, from, to });
    pool.release(from);
    *page = to;
}
