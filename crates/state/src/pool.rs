//! The pages of one store, and how often each is held.

use kernels::pages::PageId;

use crate::tree::NodeId;

/// Pages with reference counts. A page is held by sequences and, at most once, by the tree.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// Holders, the tree included.
    pub(crate) refs: Vec<u32>,
    /// The node of the tree that holds the page.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) free: Vec<PageId>,
    /// Pages that the tree alone holds.
    cached: usize,
    /// The size of a page, in bytes.
    pub(crate) page_bytes: usize,
}

impl Pool {
    /// `pages` free pages.
    pub(crate) fn new(pages: usize, page_bytes: usize) -> Self {
        Self {
            refs: vec![0; pages],
            nodes: vec![NodeId::NONE; pages],
            free: (0..pages as u32).rev().map(PageId).collect(),
            cached: 0,
            page_bytes,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.refs.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that the tree alone holds: all of them can be had.
    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    /// The tree's node that holds the page, or [`NodeId::NONE`].
    pub(crate) fn node(&self, page: PageId) -> NodeId {
        self.nodes[page.0 as usize]
    }

    /// Sequences that hold the page.
    pub(crate) fn sharers(&self, page: PageId) -> u32 {
        self.refs[page.0 as usize] - u32::from(self.node(page) != NodeId::NONE)
    }

    /// Whether the tree alone holds the page.
    pub(crate) fn is_cached(&self, page: PageId) -> bool {
        self.refs[page.0 as usize] == 1 && self.node(page) != NodeId::NONE
    }

    /// Whether its one holder may write to the page.
    pub(crate) fn is_writable(&self, page: PageId) -> bool {
        self.refs[page.0 as usize] == 1 && self.node(page) == NodeId::NONE
    }

    /// A page for one holder.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.refs[page.0 as usize] = 1;
        Some(page)
    }

    /// One more sequence holds the page.
    pub(crate) fn share(&mut self, page: PageId) {
        self.cached -= usize::from(self.is_cached(page));
        self.refs[page.0 as usize] += 1;
    }

    /// A sequence no longer holds the page. Does nothing for [`PageId::NONE`].
    pub(crate) fn release(&mut self, page: PageId) {
        if page == PageId::NONE {
            return;
        }
        let refs = &mut self.refs[page.0 as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(page);
        }
        self.cached += usize::from(self.is_cached(page));
    }

    /// A node of the tree holds the page too.
    pub(crate) fn enter(&mut self, page: PageId, node: NodeId) {
        self.refs[page.0 as usize] += 1;
        self.nodes[page.0 as usize] = node;
    }

    /// The tree no longer holds the page. Does nothing for [`PageId::NONE`].
    pub(crate) fn leave(&mut self, page: PageId) {
        if page == PageId::NONE {
            return;
        }
        self.cached -= usize::from(self.is_cached(page));
        self.nodes[page.0 as usize] = NodeId::NONE;
        let refs = &mut self.refs[page.0 as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_page_is_free_when_its_last_holder_lets_go() {
        let mut pool = Pool::new(1, 64);
        let page = pool.take().unwrap();
        assert_eq!((pool.take(), pool.is_writable(page)), (None, true));
        pool.share(page);
        assert!(!pool.is_writable(page));
        pool.release(page);
        pool.enter(page, NodeId(3));
        assert_eq!((pool.cached(), pool.is_writable(page)), (0, false));
        pool.release(page);
        assert_eq!((pool.cached(), pool.free()), (1, 0));
        pool.share(page);
        assert_eq!((pool.cached(), pool.sharers(page)), (0, 1));
        pool.leave(page);
        assert!(pool.is_writable(page));
        pool.release(page);
        assert_eq!((pool.cached(), pool.free(), pool.total()), (0, 1, 1));
    }
}
