//! Preemption: a sequence's pages go to the host's memory and come back.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::error::StateError;
use crate::evict::Need;
use crate::moves::Move;
use crate::sequence::SequenceId;
use crate::table::Table;

impl Table {
    /// Bytes that [`swap_out`](Self::swap_out) would copy, or has copied.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn swap_bytes_of(&self, id: SequenceId) -> Result<u64, StateError> {
        if let Some(bytes) = self.sequence(id)?.swapped {
            return Ok(bytes);
        }
        let stores = self.pools.iter().enumerate();
        let bytes = stores.map(|(s, pool)| (self.pages_to_return(id, s) * pool.page_bytes) as u64);
        Ok(bytes.sum())
    }

    /// Whether `id` is swapped out.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn is_swapped(&self, id: SequenceId) -> Result<bool, StateError> {
        Ok(self.sequence(id)?.swapped.is_some())
    }

    /// Takes all pages of `id`; moves save what it can still see. Gives the number of bytes saved.
    ///
    /// # Errors
    /// When there is no such sequence, it is swapped out already, or the host's memory for that is full.
    pub fn swap_out(&mut self, id: SequenceId) -> Result<u64, StateError> {
        self.resident(id)?;
        let bytes = self.swap_bytes_of(id)?;
        let (used, limit) = (self.swapped_bytes, self.swap_limit);
        if bytes > limit.saturating_sub(used) {
            return Err(StateError::SwapFull {
                sequence: id,
                bytes,
                used,
                limit,
            });
        }
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return Err(StateError::NoSuchSequence(id));
        };
        let (len, mut offset) = (sequence.len, 0);
        let mut save = |store: usize, page: PageId| {
            self.moves.push(Move::Save {
                store,
                page,
                sequence: id,
                offset,
            });
            offset += self.pools[store].page_bytes as u64;
        };
        for (layer, pages) in self.layout.paged.iter().zip(&sequence.pages) {
            let written = pages.iter().take(len.div_ceil(PAGE_POSITIONS)).enumerate();
            written
                .filter(|&(b, _)| !layer.is_behind(b, len))
                .for_each(|(_, &page)| save(layer.store, page));
        }
        for (layer, &slot) in self.layout.fixed.iter().zip(&sequence.slots) {
            if len > 0 {
                save(layer.store, slot);
            }
        }
        self.empty(&mut sequence);
        sequence.swapped = Some(bytes);
        self.sequences[id.0 as usize] = Some(sequence);
        self.swapped_bytes += bytes;
        self.totals.swap_outs += 1;
        Ok(bytes)
    }

    /// Gives `id` pages again; moves load what was saved.
    ///
    /// # Errors
    /// When there is no such sequence, it is not swapped out, or there is no room now.
    pub fn swap_in(&mut self, id: SequenceId) -> Result<(), StateError> {
        let len = self.sequence(id)?.len;
        if self.sequence(id)?.swapped.is_none() {
            return Err(StateError::NotSwapped(id));
        }
        (0..self.pools.len())
            .try_for_each(|store| self.find_pages(Need::Return(id), store, len))?;
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return Err(StateError::NoSuchSequence(id));
        };
        let mut offset = 0;
        let mut load = |store: usize| {
            // There is one: room was made.
            let page = self.pools[store].take().unwrap_or(PageId::NONE);
            self.moves.push(Move::Load {
                store,
                page,
                sequence: id,
                offset,
            });
            offset += self.pools[store].page_bytes as u64;
            page
        };
        for (layer, pages) in self.layout.paged.iter().zip(&mut sequence.pages) {
            pages.extend((0..len.div_ceil(PAGE_POSITIONS)).map(|b| {
                let is_behind = layer.is_behind(b, len);
                if is_behind {
                    PageId::NONE
                } else {
                    load(layer.store)
                }
            }));
        }
        for (layer, slot) in self.layout.fixed.iter().zip(&mut sequence.slots) {
            if len > 0 {
                *slot = load(layer.store);
            }
        }
        self.swapped_bytes -= sequence.swapped.take().unwrap_or(0);
        self.sequences[id.0 as usize] = Some(sequence);
        self.totals.swap_ins += 1;
        Ok(())
    }
}
