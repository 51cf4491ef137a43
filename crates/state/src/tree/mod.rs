//! The prefix tree: which pages hold which tokens' state.
//!
//! A node stands for up to 64 tokens that follow those of its parent, and holds a page for each paged layer
//! and checkpoints of the recurrent ones. Its key is the token ids themselves; each tenant has a root of
//! its own, so nothing is ever shared between tenants. Only a node without children has fewer than 64
//! tokens. Siblings are kept in the order of their tokens, and none is the beginning of another: so the
//! longest match is next to where the tokens would be inserted.
//!
//! Nodes are in one list by last use. A path is touched from its end to its root, so a parent is always more
//! recent than its children, and the oldest node has none.

mod order;

use std::collections::HashMap;

use kernels::pages::{PAGE_POSITIONS, PageId};

use order::Order;

/// Who a sequence belongs to. Cached prefixes are shared between sequences of equal tenants only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u64);

impl TenantId {
    /// The one tenant of a program that serves nobody else.
    pub const LOCAL: Self = Self(0);
}

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    pub(crate) const NONE: Self = Self(u32::MAX);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The states of all recurrent layers after a number of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Positions, counted from the start of the sequence.
    pub(crate) len: usize,
    /// For each recurrent layer.
    pub(crate) slots: Vec<PageId>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) tenant: TenantId,
    /// [`NodeId::NONE`] for a root.
    pub(crate) parent: NodeId,
    /// Which page of the sequence it stands for, from 0.
    pub(crate) block: usize,
    pub(crate) tokens: Vec<u32>,
    /// In the order of their tokens.
    pub(crate) children: Vec<NodeId>,
    /// For each paged layer; [`PageId::NONE`] where evicted.
    pub(crate) pages: Vec<PageId>,
    /// By ascending length.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Whether it waits for its pages behind a window to be evicted.
    pub(crate) queued: bool,
    pub(crate) is_live: bool,
}

impl Node {
    /// Positions up to and including its own.
    pub(crate) fn end(&self) -> usize {
        self.block * PAGE_POSITIONS + self.tokens.len()
    }

    /// Whether it holds nothing that a sequence could use.
    pub(crate) fn is_bare(&self) -> bool {
        self.checkpoints.is_empty() && self.pages.iter().all(|&page| page == PageId::NONE)
    }
}

/// Where tokens belong among the children of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A child has these very tokens.
    Same(NodeId),
    /// A child has these tokens and more.
    Within(NodeId),
    /// A child has some of these tokens, and no others.
    Beginning(NodeId),
    /// They go at this place.
    Nowhere(usize),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) roots: HashMap<TenantId, NodeId>,
    pub(crate) nodes: Vec<Node>,
    spare: Vec<NodeId>,
    order: Order,
    /// Paged layers.
    layers: usize,
    /// Nodes that aren't roots.
    len: usize,
}

impl Tree {
    pub(crate) fn new(layers: usize) -> Self {
        Self {
            layers,
            ..Self::default()
        }
    }

    /// Nodes, roots not counted.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.index()]
    }

    /// The least recently used node, or [`NodeId::NONE`].
    pub(crate) fn oldest(&self) -> NodeId {
        self.order.oldest()
    }

    /// The node used next after that one, or [`NodeId::NONE`].
    pub(crate) fn newer(&self, node: NodeId) -> NodeId {
        self.order.newer(node)
    }

    /// Adds to `path` the nodes that agree with the first tokens, and gives the number of tokens that do.
    pub(crate) fn find(&self, tenant: TenantId, tokens: &[u32], path: &mut Vec<NodeId>) -> usize {
        let Some(&root) = self.roots.get(&tenant) else {
            return 0;
        };
        let (mut at, mut matched) = (root, 0);
        loop {
            let rest = &tokens[matched..];
            let Some((child, common)) = self.nearest(at, rest) else {
                return matched;
            };
            path.push(child);
            matched += common;
            if common < PAGE_POSITIONS {
                return matched;
            }
            at = child;
        }
    }

    /// The child with the longest common beginning, where there is any.
    fn nearest(&self, at: NodeId, rest: &[u32]) -> Option<(NodeId, usize)> {
        let children = &self.node(at).children;
        let place = self.place_of(at, rest);
        let candidates = [place.checked_sub(1), Some(place)];
        let common = candidates.into_iter().flatten().filter_map(|i| {
            let &child = children.get(i)?;
            Some((child, common(&self.node(child).tokens, rest)))
        });
        common
            .filter(|&(_, common)| common > 0)
            .max_by_key(|&(_, common)| common)
    }

    /// The number of children whose tokens come before those.
    fn place_of(&self, at: NodeId, key: &[u32]) -> usize {
        let key = &key[..key.len().min(PAGE_POSITIONS)];
        let children = &self.node(at).children;
        children.partition_point(|&child| self.node(child).tokens.as_slice() < key)
    }

    /// The children of `at` whose first token is that of `rest`.
    pub(crate) fn alike(&self, at: NodeId, rest: &[u32]) -> &[NodeId] {
        let (children, Some(first)) = (&self.node(at).children, rest.first()) else {
            return &[];
        };
        let start = children.partition_point(|&c| self.node(c).tokens.first() < Some(first));
        let count = children[start..].partition_point(|&c| self.node(c).tokens.first() == Some(first));
        &children[start..start + count]
    }

    /// The number of first tokens on which a node and `rest` agree.
    pub(crate) fn common(&self, node: NodeId, rest: &[u32]) -> usize {
        common(&self.node(node).tokens, rest)
    }

    /// Where `key`, at most a page of tokens, belongs below `at`.
    pub(crate) fn lookup(&self, at: NodeId, key: &[u32]) -> Found {
        let place = self.place_of(at, key);
        let children = &self.node(at).children;
        if let Some(&next) = children.get(place) {
            let tokens = &self.node(next).tokens;
            if tokens == key {
                return Found::Same(next);
            }
            if tokens.starts_with(key) {
                return Found::Within(next);
            }
        }
        match place.checked_sub(1).map(|before| children[before]) {
            Some(before) if key.starts_with(&self.node(before).tokens) => Found::Beginning(before),
            _ => Found::Nowhere(place),
        }
    }

    /// The root of a tenant, made where it is missing.
    pub(crate) fn root(&mut self, tenant: TenantId) -> NodeId {
        if let Some(&root) = self.roots.get(&tenant) {
            return root;
        }
        let root = self.make(tenant, NodeId::NONE, 0, &[]);
        self.roots.insert(tenant, root);
        root
    }

    /// A new child of `parent` at the place that [`lookup`](Self::lookup) gave.
    pub(crate) fn insert(&mut self, parent: NodeId, place: usize, key: &[u32]) -> NodeId {
        let above = self.node(parent);
        let block = if above.parent == NodeId::NONE {
            0
        } else {
            above.block + 1
        };
        let node = self.make(above.tenant, parent, block, key);
        self.node_mut(parent).children.insert(place, node);
        self.order.push(node);
        self.len += 1;
        node
    }

    fn make(&mut self, tenant: TenantId, parent: NodeId, block: usize, key: &[u32]) -> NodeId {
        let id = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(Node {
                tenant,
                parent,
                block,
                tokens: Vec::new(),
                children: Vec::new(),
                pages: vec![PageId::NONE; self.layers],
                checkpoints: Vec::new(),
                queued: false,
                is_live: false,
            });
            self.order.grow();
            NodeId(self.nodes.len() as u32 - 1)
        });
        let node = self.node_mut(id);
        node.tenant = tenant;
        node.parent = parent;
        node.block = block;
        node.tokens.extend_from_slice(key);
        node.is_live = true;
        id
    }

    /// Takes out a node that has no children and holds nothing. A root without children goes too.
    pub(crate) fn remove(&mut self, node: NodeId) {
        let Node { parent, tenant, .. } = *self.node(node);
        self.order.remove(node);
        self.len -= 1;
        self.node_mut(parent).children.retain(|&c| c != node);
        self.recycle(node);
        let is_root = self.node(parent).parent == NodeId::NONE;
        if is_root && self.node(parent).children.is_empty() {
            self.roots.remove(&tenant);
            self.recycle(parent);
        }
    }

    fn recycle(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.tokens.clear();
        node.queued = false;
        node.is_live = false;
        self.spare.push(id);
    }

    /// Makes a path, given from its root to its end, the most recently used.
    pub(crate) fn touch(&mut self, path: &[NodeId]) {
        for &node in path.iter().rev() {
            self.order.remove(node);
            self.order.push(node);
        }
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
