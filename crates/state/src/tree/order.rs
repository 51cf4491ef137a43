//! Nodes by last use: a list that is linked both ways.

use super::NodeId;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: NodeId,
    newer: NodeId,
}

const LOOSE: Link = Link {
    older: NodeId::NONE,
    newer: NodeId::NONE,
};

#[derive(Clone, Debug)]
pub(crate) struct Order {
    links: Vec<Link>,
    oldest: NodeId,
    newest: NodeId,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            oldest: NodeId::NONE,
            newest: NodeId::NONE,
        }
    }
}

impl Order {
    /// Room for one more node.
    pub(crate) fn grow(&mut self) {
        self.links.push(LOOSE);
    }

    pub(crate) fn oldest(&self) -> NodeId {
        self.oldest
    }

    pub(crate) fn newer(&self, node: NodeId) -> NodeId {
        self.links[node.index()].newer
    }

    /// Adds a node as the most recently used.
    pub(crate) fn push(&mut self, node: NodeId) {
        let newest = self.newest;
        self.links[node.index()] = Link {
            older: newest,
            newer: NodeId::NONE,
        };
        if newest == NodeId::NONE {
            self.oldest = node;
        } else {
            self.links[newest.index()].newer = node;
        }
        self.newest = node;
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        let Link { older, newer } = self.links[node.index()];
        if older == NodeId::NONE {
            self.oldest = newer;
        } else {
            self.links[older.index()].newer = newer;
        }
        if newer == NodeId::NONE {
            self.newest = older;
        } else {
            self.links[newer.index()].older = older;
        }
        self.links[node.index()] = LOOSE;
    }
}
