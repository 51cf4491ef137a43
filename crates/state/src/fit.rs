//! Whether something fits, before it is tried.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::error::StateError;
use crate::evict::{Need, Shared};
use crate::sequence::SequenceId;
use crate::table::Table;

impl Table {
    /// Whether one sequence alone in the memory can reach `len` positions, growing by at most `chunk` at a
    /// time.
    ///
    /// # Errors
    /// With the numbers, where it never can.
    pub fn fits(&self, len: usize, chunk: usize) -> Result<(), StateError> {
        let context = self.context;
        if len > context {
            return Err(StateError::TooLong { len, context });
        }
        for (store, pool) in self.pools.iter().enumerate() {
            let paged = self
                .layout
                .paged
                .iter()
                .filter(|layer| layer.store == store);
            let paged = paged.map(|layer| layer.policy.pages_most(len, chunk));
            let fixed = self
                .layout
                .fixed
                .iter()
                .filter(|layer| layer.store == store);
            let (needed, total) = (paged.sum::<usize>() + fixed.count(), pool.total());
            if needed > total {
                return Err(StateError::NeverFits { len, needed, total });
            }
        }
        Ok(())
    }

    /// Whether [`reserve`](Self::reserve) would succeed now.
    ///
    /// # Errors
    /// When there is no such sequence, or it is swapped out.
    pub fn can_reserve(&self, id: SequenceId, len: usize) -> Result<bool, StateError> {
        self.resident(id)?;
        Ok(len <= self.context && self.can_find(Need::Grow(id, len)))
    }

    /// Whether [`swap_in`](Self::swap_in) would succeed now.
    ///
    /// # Errors
    /// When there is no such sequence, or it is not swapped out.
    pub fn can_swap_in(&self, id: SequenceId) -> Result<bool, StateError> {
        match self.sequence(id)?.swapped {
            Some(_) => Ok(self.can_find(Need::Return(id))),
            None => Err(StateError::NotSwapped(id)),
        }
    }

    /// Pages that [`reserve`](Self::reserve) would take now, of all stores together.
    ///
    /// # Errors
    /// When there is no such sequence, or it is swapped out.
    pub fn pages_needed(&self, id: SequenceId, len: usize) -> Result<usize, StateError> {
        self.resident(id)?;
        let stores = 0..self.pools.len();
        let pages = stores.map(|s| self.pages_for(Need::Grow(id, len), s, Shared::Copied));
        Ok(pages.sum())
    }

    fn can_find(&self, need: Need) -> bool {
        self.pools.iter().enumerate().all(|(store, pool)| {
            let at_hand = pool.free() + pool.cached();
            if self.pages_for(need, store, Shared::LetGo(&[])) <= at_hand {
                return true;
            }
            let behind = self.behind(store);
            let pages = behind.iter().zip(0..);
            let pages = pages.filter(|&(&n, page)| n > 0 && n == pool.sharers(PageId(page)));
            self.pages_for(need, store, Shared::LetGo(&behind)) <= at_hand + pages.count()
        })
    }

    /// For each page of `store`, the sequences that hold it behind a window.
    fn behind(&self, store: usize) -> Vec<u32> {
        let mut holders = vec![0; self.pools[store].total()];
        for sequence in self.sequences.iter().flatten() {
            for (layer, pages) in self.layout.paged.iter().zip(&sequence.pages) {
                if layer.store != store || !layer.policy.forgets() {
                    continue;
                }
                for (b, &page) in pages.iter().enumerate() {
                    let is_behind = layer.is_behind(b, sequence.len);
                    if page != PageId::NONE && is_behind {
                        holders[page.0 as usize] += 1;
                    }
                }
            }
        }
        holders
    }

    /// Pages of `store` that a sequence which is swapped out takes when it returns.
    pub(crate) fn pages_to_return(&self, id: SequenceId, store: usize) -> usize {
        let Ok(sequence) = self.sequence(id) else {
            return 0;
        };
        let len = sequence.len;
        let paged = self
            .layout
            .paged
            .iter()
            .filter(|layer| layer.store == store);
        let paged = paged.map(|layer| {
            let blocks = 0..len.div_ceil(PAGE_POSITIONS);
            blocks.filter(|&b| !layer.is_behind(b, len)).count()
        });
        let fixed = self
            .layout
            .fixed
            .iter()
            .filter(|layer| len > 0 && layer.store == store);
        paged.sum::<usize>() + fixed.count()
    }
}
