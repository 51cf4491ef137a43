//! The books of pages add up, whatever happens to sequences.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;
use state::{Full, LayerState, SequenceId, StateError, StateSpec, Table, Window};

const SPEC: StateSpec = StateSpec::Paged {
    bytes_per_position: 8,
};

fn layers(window: usize) -> Vec<LayerState> {
    vec![
        LayerState {
            spec: SPEC,
            store: 0,
            policy: Arc::new(Full),
        },
        LayerState {
            spec: SPEC,
            store: 0,
            policy: Arc::new(Window { positions: window }),
        },
        LayerState {
            spec: SPEC,
            store: 1,
            policy: Arc::new(Full),
        },
    ]
}

#[test]
fn a_sequence_grows_shrinks_and_gives_everything_back() {
    let mut table = Table::new(layers(100), &[8, 4], 2, 256).unwrap();
    let id = table.create().unwrap();
    table.reserve(id, 65).unwrap();
    table.commit(id, 65).unwrap();
    assert_eq!((table.free_pages(0), table.free_pages(1)), (4, 2));
    assert_eq!(table.pages(id, 0).unwrap().len(), 2);
    table.truncate(id, 64).unwrap();
    assert_eq!((table.free_pages(0), table.len(id)), (6, Ok(64)));
    table.release(id).unwrap();
    assert_eq!((table.free_pages(0), table.free_pages(1)), (8, 4));
    assert_eq!(table.release(id), Err(StateError::NoSuchSequence(id)));
    table.check_integrity().unwrap();
}

#[test]
fn limits_are_errors_with_both_numbers() {
    let mut table = Table::new(layers(100), &[8, 1], 2, 256).unwrap();
    let id = table.create().unwrap();
    assert_eq!(
        table.reserve(id, 257),
        Err(StateError::TooLong {
            len: 257,
            context: 256
        })
    );
    let out = StateError::OutOfPages {
        len: 128,
        needed: 1,
        free: 1,
        total: 1,
    };
    assert_eq!(table.reserve(id, 128), Err(out));
    assert_eq!(table.free_pages(0), 8, "a failed reservation takes nothing");
    table.create().unwrap();
    assert_eq!(table.create(), Err(StateError::TooManySequences(2)));
}

#[test]
fn pages_behind_a_window_go_only_when_memory_is_short() {
    let mut table = Table::new(layers(64), &[7, 4], 1, 256).unwrap();
    let id = table.create().unwrap();
    table.reserve(id, 192).unwrap();
    table.commit(id, 192).unwrap();
    assert_eq!(table.free_pages(0), 1);
    table.reserve(id, 256).unwrap();
    assert_eq!(table.pages(id, 1).unwrap()[0], kernels::pages::PageId::NONE);
    assert_eq!(
        table.truncate(id, 64),
        Err(StateError::Forgotten {
            sequence: id,
            len: 64,
            layer: 1
        })
    );
    table.check_integrity().unwrap();
}

#[test]
fn unsupported_state_is_refused() {
    let layer = LayerState {
        spec: StateSpec::Fixed { bytes: 4 },
        store: 0,
        policy: Arc::new(Full),
    };
    let refused = Table::new(vec![layer], &[1], 1, 64).unwrap_err();
    assert_eq!(
        refused,
        StateError::Unsupported {
            layer: 0,
            spec: StateSpec::Fixed { bytes: 4 }
        }
    );
}

proptest! {
    #[test]
    fn the_books_add_up(actions in prop::collection::vec((0u32..4, 0u8..4, 0usize..300), 1..60)) {
        let mut table = Table::new(layers(64), &[12, 9], 3, 256).unwrap();
        for (which, action, len) in actions {
            let id = SequenceId(which);
            match action {
                0 => drop(table.create()),
                1 => {
                    if table.reserve(id, len).is_ok() {
                        table.commit(id, len).unwrap();
                    }
                }
                2 => drop(table.truncate(id, len)),
                _ => drop(table.release(id)),
            }
            prop_assert_eq!(table.check_integrity(), Ok(()));
        }
    }
}
