//! Pages of the tree behind a sliding window: of use only to a sequence that would leave the path there.

use std::collections::VecDeque;

use kernels::pages::PageId;

use crate::table::Table;
use crate::tree::NodeId;

/// Nodes looked at in vain, at most, before memory is sought elsewhere.
const TRIES_MAX: usize = 64;

/// Nodes whose pages behind a window were not evicted yet, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trim {
    queue: VecDeque<NodeId>,
}

impl Table {
    /// Remembers that a node has new pages.
    pub(crate) fn queue_trim(&mut self, node: NodeId) {
        let forgets = self.layout.paged.iter().any(|layer| layer.policy.forgets());
        let queued = &mut self.tree.node_mut(node).queued;
        if forgets && !*queued {
            *queued = true;
            self.trim.queue.push_back(node);
        }
    }

    /// Evicts pages of `store` that lie behind the window of all places where paths end or part, until
    /// `is_enough`.
    pub(crate) fn trim(&mut self, store: usize, is_enough: &dyn Fn(&Self) -> bool) {
        let mut tries = 0;
        for _ in 0..self.trim.queue.len() {
            if tries == TRIES_MAX || is_enough(self) {
                return;
            }
            let Some(node) = self.trim.queue.pop_front() else {
                return;
            };
            // Entries of nodes that went are left behind, and found out here.
            if !std::mem::take(&mut self.tree.node_mut(node).queued) {
                continue;
            }
            let gained = self.trim_node(node, store);
            tries += usize::from(!gained);
            if self.can_forget(node) {
                self.tree.node_mut(node).queued = true;
                self.trim.queue.push_back(node);
            }
        }
    }

    /// Whether a node has pages that may lie behind a window one day.
    fn can_forget(&self, node: NodeId) -> bool {
        let pages = self.layout.paged.iter().zip(&self.tree.node(node).pages);
        let mut held = pages.filter(|&(_, &page)| page != PageId::NONE);
        held.any(|(layer, _)| layer.policy.forgets())
    }

    fn trim_node(&mut self, node: NodeId, store: usize) -> bool {
        let (block, len) = (self.tree.node(node).block, self.next_end(node));
        let mut gained = false;
        for (i, layer) in self.layout.paged.iter().enumerate() {
            let page = self.tree.node(node).pages[i];
            let is_behind = layer.is_behind(block, len);
            if layer.store == store && page != PageId::NONE && is_behind {
                let pool = &mut self.pools[store];
                if pool.is_cached(page) {
                    pool.leave(page);
                    self.tree.node_mut(node).pages[i] = PageId::NONE;
                    self.totals.evictions += 1;
                    gained = true;
                }
            }
        }
        gained
    }

    /// The position at which the paths through a node first part or end, or one far enough.
    fn next_end(&self, node: NodeId) -> usize {
        let mut at = self.tree.node(node);
        while let [child] = at.children[..] {
            at = self.tree.node(child);
        }
        at.end()
    }
}
