#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use super::*;
use crate::{Full, LayerState, StateSpec, StoreSpec, TableOptions, TenantId, Window};

/// Two sequences that share a prefix, one that is swapped out, and a tree of two tenants.
fn table() -> Table {
    let paged = StateSpec::Paged {
        bytes_per_position: 8,
    };
    let fixed = StateSpec::Fixed { bytes: 8 };
    let layer = |spec, store| LayerState {
        spec,
        store,
        policy: Arc::new(Full),
    };
    let window = LayerState {
        policy: Arc::new(Window { positions: 70 }),
        ..layer(paged, 0)
    };
    let mut table = Table::new(TableOptions {
        layers: vec![layer(paged, 0), window, layer(fixed, 1)],
        stores: [60, 20]
            .map(|pages| StoreSpec {
                pages,
                page_bytes: 64,
            })
            .to_vec(),
        sequences: 4,
        context: 512,
        swap_bytes: 1 << 20,
        checkpoint_every: 64,
    })
    .unwrap();
    for (tenant, first) in [(1, 0), (1, 500), (2, 0)] {
        let id = table.create(TenantId(tenant)).unwrap();
        grow(&mut table, id, first, 150);
        table.finish(id).unwrap();
    }
    let tokens: Vec<u32> = (0..151).collect();
    for _ in 0..2 {
        let started = table.start(TenantId(1), &tokens).unwrap();
        assert_eq!(started.cached, 150);
        grow(&mut table, started.sequence, 150, 1);
    }
    let swapped = table.create(TenantId(1)).unwrap();
    grow(&mut table, swapped, 900, 100);
    table.swap_out(swapped).unwrap();
    table.clear_moves();
    table
}

fn grow(table: &mut Table, id: SequenceId, first: u32, n: u32) {
    for token in first..first + n {
        let len = table.len(id).unwrap();
        table.reserve(id, len + 1).unwrap();
        table.commit(id, &[token]).unwrap();
    }
}

/// What the check says of a copy with something broken.
fn found(damage: impl FnOnce(&mut Table)) -> IntegrityError {
    let mut table = table();
    table.check_integrity().unwrap();
    damage(&mut table);
    table.check_integrity().unwrap_err()
}

fn first_page(table: &Table) -> PageId {
    table.sequences[0].as_ref().unwrap().pages[0][0]
}

fn some_leaf(table: &Table) -> NodeId {
    let nodes = table.tree.nodes.iter().zip(0..);
    let mut leaves = nodes.filter(|(n, _)| n.is_live && n.children.is_empty());
    NodeId(leaves.next().unwrap().1)
}

#[test]
fn wrong_books_of_pages_are_found() {
    let is_page = |error| matches!(error, IntegrityError::Page { .. });
    let leaked = found(|t| {
        t.pools[0].free.pop();
    });
    assert!(is_page(leaked), "a page was leaked");
    assert!(is_page(found(|t| {
        let free = t.pools[0].free[0];
        t.pools[0].free.push(free);
    })));
    assert!(is_page(found(|t| {
        let page = first_page(t);
        t.pools[0].release(page);
    })));
    assert!(is_page(found(|t| {
        let page = first_page(t);
        t.pools[0].free.push(page);
    })));
    assert!(is_page(found(|t| {
        let page = first_page(t);
        t.pools[0].share(page);
    })));
    let noted = found(|t| {
        let page = first_page(t);
        t.pools[0].nodes[page.0 as usize] = NodeId::NONE;
    });
    assert!(matches!(noted, IntegrityError::TreePage { times: 1, .. }));
    let twice = found(|t| {
        let (page, leaf) = (first_page(t), some_leaf(t));
        let old = std::mem::replace(&mut t.tree.node_mut(leaf).pages[0], page);
        t.pools[0].leave(old);
        t.pools[0].share(page);
    });
    assert!(
        matches!(twice, IntegrityError::TreePage { times: 2, .. }),
        "{twice:?}"
    );
}

#[test]
fn wrong_books_of_sequences_are_found() {
    let is_sequence = |error| matches!(error, IntegrityError::Sequence { .. });
    assert!(is_sequence(found(|t| {
        t.sequences[0].as_mut().unwrap().tokens.push(1);
    })));
    assert!(is_sequence(found(|t| {
        let page = t.sequences[0].as_mut().unwrap().pages[0].pop().unwrap();
        t.pools[0].release(page);
    })));
    assert!(is_sequence(found(|t| {
        let pages = &mut t.sequences[0].as_mut().unwrap().pages[1];
        let page = std::mem::replace(pages.last_mut().unwrap(), PageId::NONE);
        t.pools[0].release(page);
    })));
    assert!(is_sequence(found(|t| {
        let slots = &mut t.sequences[0].as_mut().unwrap().slots;
        t.pools[1].release(std::mem::replace(&mut slots[0], PageId::NONE));
    })));
    assert!(is_sequence(found(|t| t.swapped_bytes += 1)));
    assert!(is_sequence(found(|t| {
        let page = t.pools[0].take().unwrap();
        let mut swapped = t
            .sequences
            .iter_mut()
            .flatten()
            .filter(|s| s.swapped.is_some());
        swapped.next().unwrap().pages[0].push(page);
    })));
}

#[test]
fn a_tree_out_of_shape_is_found() {
    let is_tree = |error| matches!(error, IntegrityError::Tree { .. });
    assert!(is_tree(found(|t| {
        let root = t.tree.roots[&TenantId(1)];
        t.tree.node_mut(root).children.reverse();
    })));
    assert!(is_tree(found(|t| {
        let (one, two) = (t.tree.roots[&TenantId(1)], t.tree.roots[&TenantId(2)]);
        t.tree.roots.insert(TenantId(1), two);
        t.tree.roots.insert(TenantId(2), one);
    })));
    assert!(is_tree(found(|t| {
        let leaf = some_leaf(t);
        t.tree.node_mut(leaf).tenant = TenantId(9);
    })));
    assert!(is_tree(found(|t| {
        let leaf = some_leaf(t);
        t.tree.touch(&[leaf]);
    })));
    assert!(is_tree(found(|t| {
        let leaf = some_leaf(t);
        t.tree.node_mut(leaf).checkpoints[0].len = 1;
    })));
    assert!(is_tree(found(|t| {
        let leaf = some_leaf(t);
        t.tree.node_mut(leaf).is_live = false;
    })));
    assert!(is_tree(found(|t| {
        let leaf = some_leaf(t);
        t.tree.node_mut(leaf).tokens.clear();
    })));
}
