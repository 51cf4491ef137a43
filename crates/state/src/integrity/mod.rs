//! The books, checked against what they are about.

use kernels::pages::{PAGE_POSITIONS, PageId};

use crate::sequence::{Sequence, SequenceId, first};
use crate::table::Table;
use crate::tree::{Node, NodeId};

/// The books do not add up: a bug in this crate.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum IntegrityError {
    /// A page's holders are not those that are counted, or it is both free and held, or neither.
    #[error(
        "page {page} of store {store} has {held} holders, {counted} are counted, and is {free} times in the free list"
    )]
    Page {
        /// The store.
        store: usize,
        /// The page.
        page: u32,
        /// Holders found.
        held: u32,
        /// Holders counted.
        counted: u32,
        /// Times it is in the free list.
        free: u32,
    },
    /// The tree's hold on a page is not what is noted, or more than one.
    #[error(
        "page {page} of store {store} is held {times} times by the tree, not by the node that is noted"
    )]
    TreePage {
        /// The store.
        store: usize,
        /// The page.
        page: u32,
        /// Times the tree holds it.
        times: u32,
    },
    /// The number of pages that only the tree holds is wrong.
    #[error("{found} pages of store {store} are held by the tree alone, {counted} are counted")]
    Cached {
        /// The store.
        store: usize,
        /// Pages found.
        found: usize,
        /// Pages counted.
        counted: usize,
    },
    /// A sequence's own books are wrong.
    #[error("sequence {sequence}: {what}")]
    Sequence {
        /// The sequence.
        sequence: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The tree is out of shape.
    #[error("node {node} of the prefix tree: {what}")]
    Tree {
        /// The node.
        node: u32,
        /// What is wrong.
        what: &'static str,
    },
}

/// What is found about the pages of a store.
#[derive(Clone, Debug)]
struct Census {
    held: Vec<u32>,
    in_tree: Vec<u32>,
    node: Vec<NodeId>,
    free: Vec<u32>,
}

impl Table {
    /// Checks that every page is free, in the tree or held by sequences; that all counts are right; and
    /// that sequences and tree are in shape. Takes time in proportion to the memory: for after each step in
    /// debug builds, and when idle.
    ///
    /// # Errors
    /// The first thing found wrong.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        self.check_tree()?;
        for (place, sequence) in self.sequences.iter().enumerate() {
            if let Some(sequence) = sequence {
                self.check_sequence(SequenceId(place as u32), sequence)?;
            }
        }
        let swapped = self.sequences.iter().flatten().filter_map(|s| s.swapped);
        if swapped.sum::<u64>() != self.swapped_bytes {
            return Err(IntegrityError::Sequence {
                sequence: u32::MAX,
                what: "the bytes swapped out do not add up",
            });
        }
        let census = self.census()?;
        (0..self.pools.len()).try_for_each(|store| self.check_pages(store, &census[store]))
    }

    fn census(&self) -> Result<Vec<Census>, IntegrityError> {
        let empty = self.pools.iter().map(|pool| Census {
            held: vec![0; pool.total()],
            in_tree: vec![0; pool.total()],
            node: vec![NodeId::NONE; pool.total()],
            free: vec![0; pool.total()],
        });
        let mut census: Vec<Census> = empty.collect();
        for (census, pool) in census.iter_mut().zip(&self.pools) {
            for page in &pool.free {
                census.free[page.0 as usize] += 1;
            }
        }
        for sequence in self.sequences.iter().flatten() {
            let paged = self.layout.paged.iter().zip(&sequence.pages);
            let paged = paged.flat_map(|(l, pages)| pages.iter().map(|&page| (l.store, page)));
            let fixed = self.layout.fixed.iter().zip(&sequence.slots);
            let held = paged.chain(fixed.map(|(l, &slot)| (l.store, slot)));
            for (store, page) in held.filter(|&(_, page)| page != PageId::NONE) {
                census[store].held[page.0 as usize] += 1;
            }
        }
        for (node, id) in self.tree.nodes.iter().zip(0..) {
            if !node.is_live && !node.is_bare() {
                return Err(IntegrityError::Tree {
                    node: id,
                    what: "it is gone and still holds pages",
                });
            }
            for (store, page) in self.held_by(node) {
                let census = &mut census[store];
                census.held[page.0 as usize] += 1;
                census.in_tree[page.0 as usize] += 1;
                census.node[page.0 as usize] = NodeId(id);
            }
        }
        Ok(census)
    }

    fn held_by<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (usize, PageId)> + 'a {
        let paged = self.layout.paged.iter().map(|l| l.store).zip(&node.pages);
        let states = node.checkpoints.iter().flat_map(|checkpoint| {
            let stores = self.layout.fixed.iter().map(|l| l.store);
            stores.zip(&checkpoint.slots)
        });
        let held = paged.chain(states).map(|(store, &page)| (store, page));
        held.filter(|&(_, page)| page != PageId::NONE)
    }

    fn check_pages(&self, store: usize, census: &Census) -> Result<(), IntegrityError> {
        let pool = &self.pools[store];
        for page in 0..pool.total() {
            let (held, counted, free) = (census.held[page], pool.refs[page], census.free[page]);
            if held != counted || free != u32::from(held == 0) {
                return Err(IntegrityError::Page {
                    store,
                    page: page as u32,
                    held,
                    counted,
                    free,
                });
            }
            let times = census.in_tree[page];
            if times > 1 || census.node[page] != pool.nodes[page] {
                return Err(IntegrityError::TreePage {
                    store,
                    page: page as u32,
                    times,
                });
            }
        }
        let found = (0..pool.total())
            .filter(|&page| census.held[page] == 1 && census.in_tree[page] == 1)
            .count();
        if found == pool.cached() {
            Ok(())
        } else {
            Err(IntegrityError::Cached {
                store,
                found,
                counted: pool.cached(),
            })
        }
    }

    fn check_sequence(&self, id: SequenceId, sequence: &Sequence) -> Result<(), IntegrityError> {
        let wrong = |what| {
            Err(IntegrityError::Sequence {
                sequence: id.0,
                what,
            })
        };
        let (len, known) = (sequence.len, sequence.tokens.len());
        if known > len || (known < len) != sequence.opaque {
            return wrong("its tokens are not those of its positions");
        }
        let mut slots = sequence.slots.iter();
        if sequence.swapped.is_some() {
            let holds = slots.any(|&slot| slot != PageId::NONE)
                || sequence.pages.iter().any(|pages| !pages.is_empty());
            return if holds {
                wrong("it is swapped out and still holds pages")
            } else {
                Ok(())
            };
        }
        if len > 0 && slots.any(|&slot| slot == PageId::NONE) {
            return wrong("it lacks the state of a recurrent layer");
        }
        for (layer, pages) in self.layout.paged.iter().zip(&sequence.pages) {
            if pages.len() < len.div_ceil(PAGE_POSITIONS) {
                return wrong("it lacks pages");
            }
            let lost = pages
                .iter()
                .enumerate()
                .any(|(b, &page)| page == PageId::NONE && !layer.is_behind(b, len));
            if lost {
                return wrong("a page that it can still see is gone");
            }
        }
        Ok(())
    }

    fn check_tree(&self) -> Result<(), IntegrityError> {
        let wrong = |node: NodeId, what| Err(IntegrityError::Tree { node: node.0, what });
        let mut seen = 0;
        let mut waiting: Vec<NodeId> = Vec::new();
        for (&tenant, &root) in &self.tree.roots {
            let node = self.tree.node(root);
            if node.tenant != tenant || node.parent != NodeId::NONE || !node.is_live {
                return wrong(root, "it is not its tenant's root");
            }
            waiting.push(root);
        }
        while let Some(id) = waiting.pop() {
            let node = self.tree.node(id);
            for pair in node.children.windows(2) {
                let [a, b] = [pair[0], pair[1]].map(|n| self.tree.node(n).tokens.as_slice());
                if a >= b || b.starts_with(a) {
                    return wrong(id, "its children are out of order");
                }
            }
            for &child in &node.children {
                let below = self.tree.node(child);
                let is_root = node.parent == NodeId::NONE;
                let block = if is_root { 0 } else { node.block + 1 };
                if below.parent != id || below.tenant != node.tenant || below.block != block {
                    return wrong(child, "it is not its parent's child");
                }
                let full = below.tokens.len() == PAGE_POSITIONS;
                if below.tokens.is_empty() || !(full || below.children.is_empty()) {
                    return wrong(child, "it has too few tokens");
                }
                if !below.is_live {
                    return wrong(child, "it is gone and still in the tree");
                }
                let at = first(block)..=below.end();
                if below
                    .checkpoints
                    .iter()
                    .any(|c| c.len == first(block) || !at.contains(&c.len))
                {
                    return wrong(child, "it has a checkpoint of another node");
                }
                waiting.push(child);
                seen += 1;
            }
        }
        if seen != self.tree.len() {
            return wrong(
                NodeId::NONE,
                "there are more or fewer nodes than are counted",
            );
        }
        self.check_order(seen)
    }

    /// Every node is in the list by last use once, after its children.
    fn check_order(&self, nodes: usize) -> Result<(), IntegrityError> {
        let wrong = |node: NodeId, what| Err(IntegrityError::Tree { node: node.0, what });
        let mut place = vec![usize::MAX; self.tree.nodes.len()];
        let (mut at, mut count) = (self.tree.oldest(), 0);
        while at != NodeId::NONE && count < nodes {
            place[at.0 as usize] = count;
            count += 1;
            let parent = self.tree.node(at).parent;
            let is_root = parent != NodeId::NONE && self.tree.node(parent).parent == NodeId::NONE;
            if !is_root && parent != NodeId::NONE && place[parent.0 as usize] != usize::MAX {
                return wrong(at, "it was used after its parent");
            }
            at = self.tree.newer(at);
        }
        if count == nodes && at == NodeId::NONE {
            Ok(())
        } else {
            wrong(at, "the list by last use does not have all nodes once")
        }
    }
}

#[cfg(test)]
mod tests;
