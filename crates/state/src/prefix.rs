//! What goes from sequences to the tree, and back.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::error::StateError;
use crate::sequence::{Sequence, SequenceId, first};
use crate::table::Table;
use crate::tree::{Checkpoint, Found, NodeId, TenantId};

impl Table {
    /// Puts the whole pages that `id` has written so far in the tree. With recurrent layers also what is
    /// behind them, and a checkpoint, since such a state is of use only where it was taken.
    ///
    /// # Errors
    /// When there is no such sequence, or it is swapped out.
    pub fn publish(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.put(id, self.layout.is_recurrent())
    }

    /// Puts all that `id` has written so far in the tree, the last page included, of which the sequence
    /// gets a copy when it goes on.
    ///
    /// # Errors
    /// When there is no such sequence, or it is swapped out.
    pub fn publish_all(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.put(id, true)
    }

    /// Ends `id`, and puts all that it wrote in the tree, unless it is swapped out.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn finish(&mut self, id: SequenceId) -> Result<(), StateError> {
        if self.sequence(id)?.swapped.is_none() {
            self.put(id, true)?;
        }
        self.release(id)
    }

    /// Lets a new sequence begin with what the tree has of `tokens`, and gives the number of positions.
    pub(crate) fn attach(&mut self, id: SequenceId, tokens: &[u32]) -> usize {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return 0;
        };
        let tenant = self.tenant(sequence.tenant);
        let matched = self.tree.find(tenant, tokens, &mut path);
        self.tree.touch(&path);
        let most = matched.min(tokens.len().saturating_sub(1));
        let len = if self.layout.is_recurrent() {
            self.usable_checkpoint(&mut path, &tokens[..most])
        } else {
            self.usable(&path, most)
        };
        if len > 0 {
            self.hand_out(&path, len, &mut sequence);
            sequence.tokens.extend_from_slice(&tokens[..len]);
            sequence.len = len;
        }
        self.sequences[id.0 as usize] = Some(sequence);
        self.path = path;
        len
    }

    /// The most positions, at most `matched`, of which all is present that a later query can see.
    fn usable(&self, path: &[NodeId], matched: usize) -> usize {
        // Within a page more positions need fewer pages, so only its end is worth a try.
        let mut len = matched;
        while len > 0 && !self.is_present(path, len) {
            len = (len - 1) / PAGE_POSITIONS * PAGE_POSITIONS;
        }
        len
    }

    /// The length of the newest checkpoint within `tokens` of which all else is present too. `path`, the way
    /// down along them, ends with the checkpoint's node then: of two siblings that agree with the last tokens,
    /// only one may have it.
    fn usable_checkpoint(&self, path: &mut Vec<NodeId>, tokens: &[u32]) -> usize {
        while let Some(last) = path.pop() {
            let node = self.tree.node(last);
            let rest = tokens.get(first(node.block)..).unwrap_or(&[]);
            let mut best = 0;
            for &sibling in self.tree.alike(node.parent, rest) {
                let matched = first(node.block) + self.tree.common(sibling, rest);
                path.push(sibling);
                let checkpoints = self.tree.node(sibling).checkpoints.iter().map(|c| c.len);
                let mut usable = checkpoints
                    .filter(|&len| len <= matched && len > best)
                    .rev();
                if let Some(len) = usable.find(|&len| self.is_present(path, len)) {
                    best = len;
                }
                path.pop();
            }
            if best > 0 {
                let has_it =
                    |&&n: &&NodeId| self.tree.node(n).checkpoints.iter().any(|c| c.len == best);
                let siblings = self.tree.alike(node.parent, rest).iter();
                path.extend(
                    siblings
                        .filter(has_it)
                        .find(|&&n| first(node.block) + self.tree.common(n, rest) >= best),
                );
                return best;
            }
        }
        0
    }

    /// Whether the tree has all pages that a query at `len` can see.
    fn is_present(&self, path: &[NodeId], len: usize) -> bool {
        let blocks = len.div_ceil(PAGE_POSITIONS);
        self.layout.paged.iter().enumerate().all(|(i, layer)| {
            path[..blocks].iter().enumerate().rev().all(|(b, &node)| {
                self.tree.node(node).pages[i] != PageId::NONE || layer.is_behind(b, len)
            })
        })
    }

    fn hand_out(&mut self, path: &[NodeId], len: usize, sequence: &mut Sequence) {
        let blocks = len.div_ceil(PAGE_POSITIONS);
        for (i, layer) in self.layout.paged.iter().enumerate() {
            for (b, &node) in path[..blocks].iter().enumerate() {
                let page = self.tree.node(node).pages[i];
                let is_needed = !layer.is_behind(b, len);
                let page = if is_needed { page } else { PageId::NONE };
                if page != PageId::NONE {
                    self.pools[layer.store].share(page);
                }
                sequence.pages[i].push(page);
            }
        }
        self.restore(path[blocks - 1], len, sequence);
    }

    /// Gives the sequence the states of recurrent layers that `node` has for `len` positions.
    fn restore(&mut self, node: NodeId, len: usize, sequence: &mut Sequence) -> bool {
        let checkpoints = &self.tree.node(node).checkpoints;
        let Some(checkpoint) = checkpoints.iter().find(|c| c.len == len) else {
            return false;
        };
        let slots = checkpoint.slots.iter().zip(&mut sequence.slots);
        for (layer, (&from, to)) in self.layout.fixed.iter().zip(slots) {
            let pool = &mut self.pools[layer.store];
            pool.share(from);
            pool.release(std::mem::replace(to, from));
        }
        true
    }

    /// Sets the states of recurrent layers back to what they were after `len` positions.
    pub(crate) fn rewind(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let Some(fixed) = self.layout.fixed.first() else {
            return Ok(());
        };
        let forgotten = StateError::Forgotten {
            sequence: id,
            len,
            layer: fixed.layer,
        };
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return Err(StateError::NoSuchSequence(id));
        };
        let is_restored = if len == 0 {
            for (layer, slot) in self.layout.fixed.iter().zip(&mut sequence.slots) {
                self.pools[layer.store].release(std::mem::replace(slot, PageId::NONE));
            }
            true
        } else {
            let known = sequence.tokens.get(..len);
            let node = known.and_then(|tokens| self.node_at(sequence.tenant, tokens));
            node.is_some_and(|node| self.restore(node, len, &mut sequence))
        };
        self.sequences[id.0 as usize] = Some(sequence);
        if is_restored { Ok(()) } else { Err(forgotten) }
    }

    /// The node that holds the last of `tokens`, where all of them are in the tree.
    fn node_at(&mut self, tenant: TenantId, tokens: &[u32]) -> Option<NodeId> {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let matched = self.tree.find(tenant, tokens, &mut path);
        let node = path.last().copied().filter(|_| matched == tokens.len());
        self.path = path;
        node
    }

    fn put(&mut self, id: SequenceId, with_partial: bool) -> Result<(), StateError> {
        self.resident(id)?;
        let Some(mut sequence) = self.sequences[id.0 as usize].take() else {
            return Err(StateError::NoSuchSequence(id));
        };
        let known = sequence.tokens.len();
        let end = if with_partial {
            known
        } else {
            known / PAGE_POSITIONS * PAGE_POSITIONS
        };
        if end > 0 {
            let mut path = std::mem::take(&mut self.path);
            path.clear();
            self.put_path(&mut sequence, end, &mut path);
            self.tree.touch(&path);
            self.path = path;
        }
        self.sequences[id.0 as usize] = Some(sequence);
        Ok(())
    }

    fn put_path(&mut self, sequence: &mut Sequence, end: usize, path: &mut Vec<NodeId>) {
        let tenant = self.tenant(sequence.tenant);
        let mut at = self.tree.root(tenant);
        for block in 0..end.div_ceil(PAGE_POSITIONS) {
            let key = first(block)..end.min(first(block + 1));
            let key = &sequence.tokens[key];
            let node = match self.tree.lookup(at, key) {
                Found::Same(node) => node,
                Found::Within(node) => {
                    path.push(node);
                    break;
                }
                Found::Beginning(node) => {
                    self.drop_pages(node);
                    let missing = &key[self.tree.node(node).tokens.len()..];
                    self.tree.node_mut(node).tokens.extend_from_slice(missing);
                    node
                }
                Found::Nowhere(place) => self.tree.insert(at, place, key),
            };
            self.give(node, block, sequence);
            path.push(node);
            at = node;
        }
        let is_now = end == sequence.len && !sequence.opaque;
        if let Some(&node) = path.last().filter(|_| is_now) {
            self.checkpoint(node, sequence);
        }
    }

    /// Gives a node the pages that it lacks; the sequence takes the node's where both have one.
    fn give(&mut self, node: NodeId, block: usize, sequence: &mut Sequence) {
        let is_whole = self.tree.node(node).tokens.len() == PAGE_POSITIONS;
        let mut is_new = false;
        for (i, layer) in self.layout.paged.iter().enumerate() {
            let pool = &mut self.pools[layer.store];
            let (theirs, ours) = (
                &mut self.tree.node_mut(node).pages[i],
                &mut sequence.pages[i][block],
            );
            if *ours == PageId::NONE || theirs == ours {
                continue;
            }
            if *theirs == PageId::NONE {
                if pool.node(*ours) != NodeId::NONE {
                    // A page is in the tree once.
                    continue;
                }
                pool.enter(*ours, node);
                *theirs = *ours;
                is_new = true;
            } else if is_whole {
                // The same bits: one of the two is enough.
                pool.share(*theirs);
                pool.release(std::mem::replace(ours, *theirs));
            }
        }
        if is_new {
            self.queue_trim(node);
        }
    }

    /// Puts the states of recurrent layers as they are now in the tree.
    fn checkpoint(&mut self, node: NodeId, sequence: &Sequence) {
        let (len, slots) = (sequence.len, &sequence.slots);
        let checkpoints = &mut self.tree.node_mut(node).checkpoints;
        let place = checkpoints.partition_point(|c| c.len < len);
        let is_there = checkpoints.get(place).is_some_and(|c| c.len == len);
        let has_all = !slots.is_empty() && !slots.contains(&PageId::NONE);
        // A state is in the tree once: the one that the sequence began with may be at a sibling.
        let mut held = self.layout.fixed.iter().zip(slots);
        if is_there || !has_all || held.any(|(l, &s)| self.pools[l.store].node(s) != NodeId::NONE) {
            return;
        }
        let slots = slots.clone();
        for (layer, &slot) in self.layout.fixed.iter().zip(&slots) {
            self.pools[layer.store].enter(slot, node);
        }
        checkpoints.insert(place, Checkpoint { len, slots });
        self.totals.checkpoints += 1;
    }

    /// The tenant whose prefixes are looked at: a planted fault takes another.
    fn tenant(&self, tenant: TenantId) -> TenantId {
        #[cfg(test)]
        if self.fault == Some(crate::simulation::Fault::TenantsMixed) {
            return TenantId::LOCAL;
        }
        tenant
    }
}
