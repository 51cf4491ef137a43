#![allow(clippy::unwrap_used)]
use super::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn insert(tree: &mut Tree, at: NodeId, key: &[u32]) -> NodeId {
    match tree.lookup(at, key) {
        Found::Nowhere(place) => tree.insert(at, place, key),
        other => panic!("{other:?}"),
    }
}

fn find(tree: &Tree, tenant: TenantId, tokens: &[u32]) -> (Vec<NodeId>, usize) {
    let mut path = Vec::new();
    let matched = tree.find(tenant, tokens, &mut path);
    (path, matched)
}

fn page(first: u32) -> Vec<u32> {
    (first..first + PAGE_POSITIONS as u32).collect()
}

#[test]
fn the_longest_match_is_found_among_siblings() {
    let mut tree = Tree::new(0);
    let root = tree.root(A);
    let keys: [&[u32]; 5] = [&[1, 2, 3, 9], &[1, 2, 4], &[1, 2, 3, 5, 7], &[0, 2], &[5]];
    let nodes = keys.map(|key| insert(&mut tree, root, key));
    assert_eq!(find(&tree, A, &[1, 2, 3, 5, 8, 1]), (vec![nodes[2]], 4));
    assert_eq!(find(&tree, A, &[1, 2, 3, 8]), (vec![nodes[0]], 3));
    assert_eq!(find(&tree, A, &[1, 2, 4]), (vec![nodes[1]], 3));
    assert_eq!(find(&tree, A, &[2]), (vec![], 0));
    assert_eq!(find(&tree, A, &[]), (vec![], 0));
}

#[test]
fn tenants_share_nothing() {
    let mut tree = Tree::new(0);
    let root = tree.root(A);
    let node = insert(&mut tree, root, &[1, 2]);
    assert_eq!(find(&tree, B, &[1, 2]), (vec![], 0));
    tree.root(B);
    assert_eq!(find(&tree, B, &[1, 2]), (vec![], 0));
    tree.remove(node);
    assert_eq!(tree.roots.len(), 1, "a root goes with its last child");
}

#[test]
fn a_path_goes_on_through_whole_pages_only() {
    let mut tree = Tree::new(0);
    let root = tree.root(A);
    let first = insert(&mut tree, root, &page(0));
    let second = insert(&mut tree, first, &page(100));
    let mut tokens = page(0);
    tokens.extend(page(100));
    tokens.push(1);
    assert_eq!(find(&tree, A, &tokens), (vec![first, second], 128));
    tokens[70] = 5;
    assert_eq!(find(&tree, A, &tokens), (vec![first, second], 70));
    assert_eq!((tree.node(second).block, tree.node(second).end()), (1, 128));
}

#[test]
fn beginnings_are_told_from_wholes() {
    let mut tree = Tree::new(0);
    let root = tree.root(A);
    let node = insert(&mut tree, root, &[3, 4]);
    assert_eq!(tree.lookup(root, &[3, 4]), Found::Same(node));
    assert_eq!(tree.lookup(root, &[3]), Found::Within(node));
    assert_eq!(tree.lookup(root, &[3, 4, 0]), Found::Beginning(node));
    assert_eq!(tree.lookup(root, &[3, 5]), Found::Nowhere(1));
    assert_eq!(tree.lookup(root, &[3, 3, 9]), Found::Nowhere(0));
}

#[test]
fn parents_are_more_recent_than_children() {
    let mut tree = Tree::new(0);
    let root = tree.root(A);
    let first = insert(&mut tree, root, &page(0));
    let second = insert(&mut tree, first, &page(100));
    tree.touch(&[first, second]);
    let other = insert(&mut tree, root, &[9]);
    let order = |tree: &Tree| {
        let mut nodes = vec![tree.oldest()];
        while tree.newer(*nodes.last().unwrap()) != NodeId::NONE {
            nodes.push(tree.newer(*nodes.last().unwrap()));
        }
        nodes
    };
    assert_eq!(order(&tree), [second, first, other]);
    tree.touch(&[first]);
    assert_eq!(order(&tree), [second, other, first]);
    tree.remove(second);
    assert_eq!((order(&tree), tree.len()), (vec![other, first], 2));
}
