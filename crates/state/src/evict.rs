//! Making room: what goes first when pages are needed.
//!
//! In this order, each only as far as needed: pages of running sequences behind a window; pages of the tree
//! behind a window; the least recently used ends of the tree's paths, and checkpoints; whatever else only
//! the tree holds; and at last the tree's hold on pages that the asking sequence would otherwise copy.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::error::StateError;
use crate::sequence::SequenceId;
use crate::table::Table;
use crate::tree::NodeId;

/// What pages are needed for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// A sequence grows to that many positions.
    Grow(SequenceId, usize),
    /// A sequence is swapped in.
    Return(SequenceId),
}

/// How a page that is shared is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared<'a> {
    /// It has to be copied.
    Copied,
    /// It has to be copied unless all with which it is shared can let it go: the tree, and sequences that
    /// hold it behind a window. How many of those there are is given by page, and none beyond its end.
    LetGo(&'a [u32]),
}

impl Table {
    /// Makes room for a sequence to grow.
    pub(crate) fn make_room(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        (0..self.pools.len()).try_for_each(|store| self.find_pages(Need::Grow(id, len), store, len))
    }

    /// Evicts until `store` has the pages that are needed.
    pub(crate) fn find_pages(
        &mut self,
        need: Need,
        store: usize,
        len: usize,
    ) -> Result<(), StateError> {
        let is_enough = |table: &Self| {
            table.pages_for(need, store, Shared::Copied) <= table.pools[store].free()
        };
        if is_enough(self) {
            return Ok(());
        }
        self.forget_behind(need, store, &is_enough);
        self.trim(store, &is_enough);
        self.evict_oldest(store, &is_enough);
        self.evict_stuck(store, &is_enough);
        if !is_enough(self) {
            self.let_go(need, store);
        }
        if is_enough(self) {
            return Ok(());
        }
        let (free, total) = (self.pools[store].free(), self.pools[store].total());
        let needed = self.pages_for(need, store, Shared::Copied) - free;
        Err(StateError::OutOfPages {
            len,
            needed,
            free,
            total,
        })
    }

    /// Pages of `store` that are needed. None for a sequence that isn't there.
    pub(crate) fn pages_for(&self, need: Need, store: usize, shared: Shared<'_>) -> usize {
        match need {
            Need::Grow(id, len) => self.pages_to_grow(id, len, store, shared),
            Need::Return(id) => self.pages_to_return(id, store),
        }
    }

    fn pages_to_grow(&self, id: SequenceId, len: usize, store: usize, shared: Shared<'_>) -> usize {
        let Ok(sequence) = self.sequence(id) else {
            return 0;
        };
        if len <= sequence.len {
            return 0;
        }
        let pool = &self.pools[store];
        let is_copied = |page: PageId| match shared {
            Shared::Copied => !pool.is_writable(page),
            Shared::LetGo(behind) => {
                let behind = behind.get(page.0 as usize).copied().unwrap_or(0);
                pool.sharers(page) - behind > 1
            }
        };
        let wanted = len.div_ceil(PAGE_POSITIONS);
        let partial = sequence.partial();
        let paged = self.layout.paged.iter().zip(&sequence.pages);
        let paged = paged
            .filter(|(layer, _)| layer.store == store)
            .map(|(_, pages)| {
                let copies = partial.is_some_and(|block| is_copied(pages[block]));
                wanted.saturating_sub(pages.len()) + usize::from(copies)
            });
        let fixed = self.layout.fixed.iter().zip(&sequence.slots);
        let fixed = fixed.filter(|&(layer, &slot)| {
            layer.store == store && (slot == PageId::NONE || is_copied(slot))
        });
        paged.sum::<usize>() + fixed.count()
    }

    /// Takes pages behind a window from running sequences, the asking one first.
    fn forget_behind(&mut self, need: Need, store: usize, is_enough: &dyn Fn(&Self) -> bool) {
        let (Need::Grow(id, _) | Need::Return(id)) = need;
        let own = id.0 as usize;
        let others = (0..self.sequences.len()).filter(|&place| place != own);
        for place in std::iter::once(own).chain(others) {
            if is_enough(self) {
                return;
            }
            self.forget_behind_one(place, store);
        }
    }

    fn forget_behind_one(&mut self, place: usize, store: usize) {
        let Some(sequence) = self.sequences.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        let len = sequence.len;
        for (layer, pages) in self.layout.paged.iter().zip(&mut sequence.pages) {
            if layer.store != store || !layer.policy.forgets() {
                continue;
            }
            for (b, page) in pages.iter_mut().enumerate() {
                if *page != PageId::NONE && layer.is_behind(b, len) {
                    self.pools[store].release(std::mem::replace(page, PageId::NONE));
                    self.totals.forgotten += 1;
                }
            }
        }
    }

    /// Takes out the ends of paths, and checkpoints, that only the tree holds, the oldest first.
    fn evict_oldest(&mut self, store: usize, is_enough: &dyn Fn(&Self) -> bool) {
        let mut at = self.tree.oldest();
        let mut parent = NodeId::NONE;
        while at != NodeId::NONE && !is_enough(self) {
            let next = self.tree.newer(at);
            self.drop_checkpoints(at, store);
            let node = self.tree.node(at);
            if node.children.is_empty() && (node.is_bare() || self.has_cached(at, store)) {
                parent = node.parent;
                self.totals.evictions += self.drop_pages(at);
                self.drop_all_checkpoints(at);
                self.tree.remove(at);
            }
            at = next;
        }
        self.prune(parent);
    }

    /// Takes what only the tree holds of paths that go on with pages in use.
    fn evict_stuck(&mut self, store: usize, is_enough: &dyn Fn(&Self) -> bool) {
        while !is_enough(self) {
            let mut at = self.tree.oldest();
            while at != NodeId::NONE && !self.has_cached(at, store) {
                at = self.tree.newer(at);
            }
            if at == NodeId::NONE {
                return;
            }
            if !self.forget_cached(at, store) {
                self.remove_subtree(at);
            }
        }
    }

    /// Takes the pages of layers that may forget. Says whether there was any.
    fn forget_cached(&mut self, node: NodeId, store: usize) -> bool {
        let mut any = false;
        for (i, layer) in self.layout.paged.iter().enumerate() {
            let page = self.tree.node(node).pages[i];
            let is_held = layer.store == store && page != PageId::NONE;
            if is_held && layer.policy.forgets() && self.pools[store].is_cached(page) {
                self.pools[store].leave(page);
                self.tree.node_mut(node).pages[i] = PageId::NONE;
                self.totals.evictions += 1;
                any = true;
            }
        }
        any
    }

    /// Makes the tree let go of pages that the asking sequence alone shares with it, so that it may write
    /// to them.
    fn let_go(&mut self, need: Need, store: usize) {
        let Need::Grow(id, _) = need else { return };
        let Ok(sequence) = self.sequence(id) else {
            return;
        };
        let partial = sequence.partial();
        let paged = self.layout.paged.iter().zip(&sequence.pages);
        let paged = paged.filter_map(|(layer, pages)| Some((layer.store, pages[partial?])));
        let fixed = self.layout.fixed.iter().zip(&sequence.slots);
        let fixed = fixed.filter(|&(_, &slot)| slot != PageId::NONE);
        let held = paged.chain(fixed.map(|(layer, &slot)| (layer.store, slot)));
        let held: Vec<_> = held.filter(|&(s, _)| s == store).collect();
        for (_, page) in held {
            let node = self.pools[store].node(page);
            if node == NodeId::NONE || self.pools[store].sharers(page) > 1 {
                continue;
            }
            let is_state = self.tree.node(node).pages.iter().zip(&self.layout.paged);
            let is_page = is_state
                .clone()
                .any(|(&p, layer)| p == page && layer.store == store);
            if is_page {
                self.remove_subtree(node);
            } else {
                self.drop_checkpoint_with(node, store, page);
            }
        }
    }

    /// Whether the tree alone holds a page or a state of the node in `store`.
    fn has_cached(&self, node: NodeId, store: usize) -> bool {
        let node = self.tree.node(node);
        let pool = &self.pools[store];
        let mut pages = self.layout.paged.iter().zip(&node.pages);
        let states = node.checkpoints.iter();
        let mut states = states.flat_map(|c| self.layout.fixed.iter().zip(&c.slots));
        pages.any(|(l, &p)| l.store == store && p != PageId::NONE && pool.is_cached(p))
            || states.any(|(l, &slot)| l.store == store && pool.is_cached(slot))
    }

    /// Takes a node out with all below it, whoever else holds its pages.
    fn remove_subtree(&mut self, top: NodeId) {
        let parent = self.tree.node(top).parent;
        let mut at = top;
        loop {
            if let Some(&child) = self.tree.node(at).children.last() {
                at = child;
                continue;
            }
            let above = self.tree.node(at).parent;
            self.totals.evictions += self.drop_pages(at);
            self.drop_all_checkpoints(at);
            self.tree.remove(at);
            if at == top {
                break;
            }
            at = above;
        }
        self.prune(parent);
    }

    /// Takes out a node that has nothing and leads nowhere, and so on upwards.
    fn prune(&mut self, mut at: NodeId) {
        while at != NodeId::NONE && self.tree.node(at).is_live {
            let node = self.tree.node(at);
            let parent = node.parent;
            if parent == NodeId::NONE || !node.children.is_empty() || !node.is_bare() {
                return;
            }
            self.tree.remove(at);
            at = parent;
        }
    }

    /// Makes a node let go of its pages, and says how many it had.
    pub(crate) fn drop_pages(&mut self, node: NodeId) -> u64 {
        let mut dropped = 0;
        for (i, layer) in self.layout.paged.iter().enumerate() {
            let page = std::mem::replace(&mut self.tree.node_mut(node).pages[i], PageId::NONE);
            self.pools[layer.store].leave(page);
            dropped += u64::from(page != PageId::NONE);
        }
        dropped
    }

    /// Drops the checkpoints of which the tree alone holds a state in `store`.
    fn drop_checkpoints(&mut self, node: NodeId, store: usize) {
        let mut at = 0;
        while let Some(checkpoint) = self.tree.node(node).checkpoints.get(at) {
            let mut states = self.layout.fixed.iter().zip(&checkpoint.slots);
            if states.any(|(l, &slot)| l.store == store && self.pools[store].is_cached(slot)) {
                self.drop_checkpoint(node, at);
            } else {
                at += 1;
            }
        }
    }

    fn drop_all_checkpoints(&mut self, node: NodeId) {
        while !self.tree.node(node).checkpoints.is_empty() {
            self.drop_checkpoint(node, 0);
        }
    }

    fn drop_checkpoint_with(&mut self, node: NodeId, store: usize, slot: PageId) {
        let held =
            |(layer, &s): (&crate::layout::FixedLayer, &PageId)| layer.store == store && s == slot;
        let mut checkpoints = self.tree.node(node).checkpoints.iter();
        let at = checkpoints.position(|c| self.layout.fixed.iter().zip(&c.slots).any(held));
        if let Some(at) = at {
            self.drop_checkpoint(node, at);
            self.prune(node);
        }
    }

    fn drop_checkpoint(&mut self, node: NodeId, at: usize) {
        let checkpoint = self.tree.node_mut(node).checkpoints.remove(at);
        for (layer, slot) in self.layout.fixed.iter().zip(checkpoint.slots) {
            self.pools[layer.store].leave(slot);
            self.totals.evictions += 1;
        }
    }

    /// Drops every cached prefix. Sequences keep what they hold.
    pub fn clear_cache(&mut self) {
        while self.tree.oldest() != NodeId::NONE {
            self.remove_subtree(self.tree.oldest());
        }
    }
}
