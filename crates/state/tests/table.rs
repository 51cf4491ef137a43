//! Lives of sequences, one rule at a time. (What holds whatever happens is shown by the simulation.)
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kernels::pages::PageId;
use state::{
    Full, LayerState, Move, Policy, SequenceId, StateError, StateSpec, StoreSpec, Table,
    TableOptions, TenantId, Window,
};

const T: TenantId = TenantId(1);
const PAGED: StateSpec = StateSpec::Paged {
    bytes_per_position: 8,
};
const PAGE_BYTES: usize = 512;

fn layer(spec: StateSpec, store: usize, policy: impl Policy + 'static) -> LayerState {
    LayerState {
        spec,
        store,
        policy: Arc::new(policy),
    }
}

fn full(store: usize) -> LayerState {
    layer(PAGED, store, Full)
}

fn window(positions: usize, store: usize) -> LayerState {
    layer(PAGED, store, Window { positions })
}

fn fixed(store: usize) -> LayerState {
    layer(StateSpec::Fixed { bytes: 4 }, store, Full)
}

fn options(layers: Vec<LayerState>, pages: &[usize]) -> TableOptions {
    let stores = pages.iter().map(|&pages| StoreSpec {
        pages,
        page_bytes: PAGE_BYTES,
    });
    TableOptions {
        layers,
        stores: stores.collect(),
        sequences: 3,
        context: 1024,
        swap_bytes: 4 * PAGE_BYTES as u64,
        checkpoint_every: 64,
    }
}

fn table(layers: Vec<LayerState>, pages: &[usize]) -> Table {
    Table::new(options(layers, pages)).unwrap()
}

fn tokens(first: u32, len: u32) -> Vec<u32> {
    (first..first + len).collect()
}

/// Writes tokens behind what is there.
fn write(table: &mut Table, id: SequenceId, tokens: &[u32]) -> Result<(), StateError> {
    let len = table.len(id).unwrap();
    table.reserve(id, len + tokens.len())?;
    table.commit(id, tokens)?;
    table.check_integrity().unwrap();
    Ok(())
}

/// A sequence of these tokens that came and went.
fn leave(table: &mut Table, tokens: &[u32]) {
    let id = table.create(T).unwrap();
    write(table, id, tokens).unwrap();
    table.finish(id).unwrap();
    table.clear_moves();
    table.check_integrity().unwrap();
}

fn cached(table: &mut Table, tokens: &[u32]) -> usize {
    let started = table.start(T, tokens).unwrap();
    table.check_integrity().unwrap();
    table.release(started.sequence).unwrap();
    started.cached
}

#[test]
fn a_sequence_grows_shrinks_and_gives_everything_back() {
    let mut table = table(vec![full(0), window(100, 0), full(1)], &[8, 4]);
    let id = table.create(T).unwrap();
    write(&mut table, id, &tokens(0, 65)).unwrap();
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
fn limits_are_errors_with_the_numbers() {
    let mut table = table(vec![full(0), full(1)], &[8, 1]);
    let id = table.create(T).unwrap();
    let (len, context) = (1025, 1024);
    let long = StateError::TooLong { len, context };
    assert_eq!(table.reserve(id, len), Err(long.clone()));
    assert_eq!(table.start(T, &tokens(0, 1025)), Err(long.clone()));
    assert_eq!(table.fits(len, 1), Err(long));
    let out = StateError::OutOfPages {
        len: 128,
        needed: 1,
        free: 1,
        total: 1,
    };
    assert_eq!(table.can_reserve(id, 128), Ok(false));
    assert_eq!(table.reserve(id, 128), Err(out));
    assert_eq!(table.free_pages(0), 8, "a failed reservation takes nothing");
    let never = StateError::NeverFits {
        len: 128,
        needed: 2,
        total: 1,
    };
    assert_eq!(
        (table.fits(128, 64), table.fits(64, 64)),
        (Err(never), Ok(()))
    );
    let reserved = StateError::NotReserved {
        sequence: id,
        len: 1,
        reserved: 0,
    };
    assert_eq!(table.commit(id, &[1]), Err(reserved));
    table.create(T).unwrap();
    table.create(T).unwrap();
    assert_eq!(table.create(T), Err(StateError::TooManySequences(3)));
}

#[test]
fn wrong_descriptions_are_refused() {
    let ahead = layer(StateSpec::Shared { layer: 0 }, 0, Full);
    assert!(matches!(
        Table::new(options(vec![ahead], &[1])),
        Err(StateError::Layer { layer: 0, .. })
    ));
    assert!(matches!(
        Table::new(options(vec![full(0), full(1)], &[1])),
        Err(StateError::Layer { layer: 1, .. })
    ));
    let mut uneven = options(vec![full(0)], &[1]);
    uneven.checkpoint_every = 100;
    let refused = StateError::CheckpointEvery { every: 100 };
    assert_eq!(Table::new(uneven).unwrap_err(), refused);
}

#[test]
fn a_prefix_is_shared_and_its_last_page_copied_when_written_to() {
    let mut table = table(vec![full(0), full(0)], &[40]);
    let first = tokens(0, 100);
    leave(&mut table, &first);
    assert_eq!(cached(&mut table, &first), 99, "a row is left to run");
    assert_eq!(cached(&mut table, &tokens(0, 64)), 63);
    assert_eq!(cached(&mut table, &tokens(1, 64)), 0);

    let mut longer = first.clone();
    longer.extend(tokens(500, 10));
    let one = table.start(T, &longer).unwrap();
    let two = table.start(T, &longer).unwrap();
    assert_eq!((one.cached, two.cached), (100, 100));
    assert_eq!(table.free_pages(0), 36, "nothing was taken");
    assert_eq!(table.pages_needed(one.sequence, 110), Ok(2));
    let shared = table.pages(one.sequence, 1).unwrap().to_vec();
    write(&mut table, one.sequence, &longer[100..]).unwrap();
    let own = table.pages(one.sequence, 1).unwrap().to_vec();
    assert_eq!((own[0], table.free_pages(0)), (shared[0], 34));
    assert!(table.moves().contains(&Move::Copy {
        store: 0,
        from: shared[1],
        to: own[1]
    }));
    assert_eq!(table.pages(two.sequence, 1).unwrap(), shared);
    table.clear_moves();
    write(&mut table, one.sequence, &[7]).unwrap();
    assert_eq!(table.moves(), [], "it is its own now");
}

#[test]
fn tenants_share_nothing() {
    let mut table = table(vec![full(0)], &[40]);
    leave(&mut table, &tokens(0, 100));
    let other = table.start(TenantId(2), &tokens(0, 100)).unwrap();
    assert_eq!(other.cached, 0);
}

#[test]
fn the_same_work_done_twice_is_kept_once() {
    let mut table = table(vec![full(0)], &[8]);
    let ids = [0, 1].map(|_| table.start(T, &tokens(0, 200)).unwrap().sequence);
    for id in ids {
        write(&mut table, id, &tokens(0, 128)).unwrap();
        table.publish(id).unwrap();
    }
    assert_eq!(table.free_pages(0), 6);
    assert_eq!(table.pages(ids[0], 0), table.pages(ids[1], 0));
    table.check_integrity().unwrap();
}

#[test]
fn pages_behind_a_window_go_only_when_memory_is_short() {
    let mut table = table(vec![full(0), window(64, 0)], &[7]);
    let id = table.create(T).unwrap();
    write(&mut table, id, &tokens(0, 192)).unwrap();
    assert_eq!(table.free_pages(0), 1);
    assert_eq!(table.can_reserve(id, 256), Ok(true));
    table.reserve(id, 256).unwrap();
    assert_eq!(table.pages(id, 1).unwrap()[0], PageId::NONE);
    let forgotten = StateError::Forgotten {
        sequence: id,
        len: 64,
        layer: 1,
    };
    assert_eq!(table.truncate(id, 64), Err(forgotten));
    table.check_integrity().unwrap();
}

#[test]
fn a_hit_needs_the_last_window_only() {
    let mut table = table(vec![full(0), window(64, 1)], &[40, 8]);
    let old = tokens(0, 448);
    leave(&mut table, &old);
    assert_eq!((cached(&mut table, &old), table.free_pages(1)), (447, 1));
    // What lies behind the window goes first, and the whole prefix is still found.
    let id = table.create(T).unwrap();
    write(&mut table, id, &tokens(1000, 64 * 4)).unwrap();
    assert_eq!(cached(&mut table, &old), 447);
    assert_eq!(table.free_pages(0), 40 - 7 - 4, "full layers keep all");
    // Leaving the path early needs a window that is gone: nothing before it is of use either.
    let mut early = old[..150].to_vec();
    early.push(9999);
    assert_eq!(cached(&mut table, &early), 0);
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut table = table(vec![full(0)], &[6]);
    let [a, b, c] = [0, 1000, 2000].map(|first| tokens(first, 128));
    for prompt in [&a, &b, &c] {
        leave(&mut table, prompt);
    }
    assert_eq!((cached(&mut table, &a), table.free_pages(0)), (127, 0));
    leave(&mut table, &tokens(3000, 64));
    assert_eq!(
        cached(&mut table, &b),
        64,
        "its end went, its beginning is left"
    );
    leave(&mut table, &tokens(4000, 65));
    assert_eq!(cached(&mut table, &a), 127);
    assert_eq!(cached(&mut table, &c), 0);
    assert_eq!(cached(&mut table, &b), 64);
    assert_eq!(table.stats().totals.evictions, 3);
}

#[test]
fn pages_in_use_are_not_evicted() {
    let mut table = table(vec![full(0)], &[3]);
    leave(&mut table, &tokens(0, 128));
    let one = table.start(T, &tokens(0, 200)).unwrap();
    let two = table.create(T).unwrap();
    assert_eq!((one.cached, table.can_reserve(two, 65)), (128, Ok(false)));
    assert!(table.reserve(two, 65).is_err());
    table.reserve(two, 64).unwrap();
    table.release(one.sequence).unwrap();
    table.reserve(two, 128).unwrap();
    table.check_integrity().unwrap();
}

#[test]
fn a_hit_lands_on_the_newest_checkpoint_before_the_match() {
    let mut table = table(vec![full(0), fixed(1), fixed(1)], &[40, 20]);
    let id = table.create(T).unwrap();
    let all = tokens(0, 150);
    // As the scheduler does: no span goes past a place for a checkpoint.
    let mut at = 0;
    while at < 100 {
        let end = table.chunk_end(at, 100);
        write(&mut table, id, &all[at..end]).unwrap();
        at = end;
    }
    table.publish(id).unwrap();
    write(&mut table, id, &all[100..128]).unwrap();
    write(&mut table, id, &all[128..]).unwrap();
    table.finish(id).unwrap();
    assert_eq!(table.stats().totals.checkpoints, 4, "64, 100, 128 and 150");
    let mut part = |keep: usize| {
        let mut tokens = all[..keep].to_vec();
        tokens.push(7777);
        cached(&mut table, &tokens)
    };
    let found = [150, 149, 128, 127, 100, 99, 64, 63].map(&mut part);
    assert_eq!(found, [150, 128, 128, 100, 100, 64, 64, 0]);
    assert_eq!(cached(&mut table, &all), 128, "a row is left to run");
}

#[test]
fn a_recurrent_state_is_cleared_shared_and_copied() {
    let mut table = table(vec![fixed(0)], &[4]);
    let id = table.create(T).unwrap();
    table.reserve(id, 10).unwrap();
    let state = table.pages(id, 0).unwrap()[0];
    let clear = Move::Clear {
        store: 0,
        page: state,
    };
    assert_eq!(table.moves(), [clear]);
    table.commit(id, &tokens(0, 10)).unwrap();
    table.clear_moves();
    table.publish(id).unwrap();
    table.reserve(id, 11).unwrap();
    let next = table.pages(id, 0).unwrap()[0];
    let copy = Move::Copy {
        store: 0,
        from: state,
        to: next,
    };
    assert_eq!(table.moves(), [copy], "the checkpoint stays as it is");
    table.commit(id, &[10]).unwrap();
    let cut = |table: &mut Table, len| table.truncate(id, len);
    assert!(matches!(
        cut(&mut table, 5),
        Err(StateError::Forgotten { .. })
    ));
    cut(&mut table, 10).unwrap();
    assert_eq!(table.pages(id, 0).unwrap(), [state]);
    cut(&mut table, 0).unwrap();
    assert_eq!(table.pages(id, 0).unwrap(), [PageId::NONE]);
    table.check_integrity().unwrap();
}

#[test]
fn checkpoints_go_when_states_are_needed() {
    let mut table = table(vec![fixed(0)], &[2]);
    let one = table.create(T).unwrap();
    for at in 0..5 {
        write(&mut table, one, &tokens(64 * at, 64)).unwrap();
    }
    let two = table.create(T).unwrap();
    write(&mut table, two, &[1, 2, 3]).unwrap();
    write(&mut table, one, &[4]).unwrap();
    assert_eq!(
        table.stats().nodes,
        0,
        "nodes without a checkpoint are of no use"
    );
}

#[test]
fn a_fork_copies_nothing_until_one_goes_on() {
    let mut table = table(vec![full(0)], &[10]);
    let one = table.create(T).unwrap();
    write(&mut table, one, &tokens(0, 70)).unwrap();
    table.reserve(one, 200).unwrap();
    let two = table.fork(one).unwrap();
    assert_eq!((table.moves(), table.free_pages(0)), (&[][..], 6));
    assert_eq!(
        table.pages(two, 0).unwrap().len(),
        2,
        "only what is written"
    );
    write(&mut table, two, &[1]).unwrap();
    assert_eq!((table.moves().len(), table.free_pages(0)), (1, 5));
    write(&mut table, one, &[2]).unwrap();
    assert_eq!(table.moves().len(), 1, "the other is alone now");
}

#[test]
fn a_swapped_sequence_holds_nothing_and_comes_back() {
    let mut table = table(vec![full(0), window(64, 0)], &[7]);
    let id = table.create(T).unwrap();
    write(&mut table, id, &tokens(0, 150)).unwrap();
    table.clear_moves();
    assert_eq!(
        table.swap_bytes_of(id),
        Ok(5 * 512),
        "not what is behind the window"
    );
    let full = StateError::SwapFull {
        sequence: id,
        bytes: 5 * 512,
        used: 0,
        limit: 4 * 512,
    };
    assert_eq!(table.swap_out(id), Err(full));
    table.truncate(id, 128).unwrap();
    assert_eq!(table.swap_out(id), Ok(3 * 512));
    let saved: Vec<_> = table.moves().to_vec();
    table.clear_moves();
    assert_eq!((table.free_pages(0), table.is_swapped(id)), (7, Ok(true)));
    assert_eq!(table.pages(id, 0), Err(StateError::Swapped(id)));
    assert_eq!(table.reserve(id, 129), Err(StateError::Swapped(id)));
    let other = table.create(T).unwrap();
    write(&mut table, other, &tokens(0, 190)).unwrap();
    assert_eq!(table.can_swap_in(id), Ok(false));
    assert!(matches!(
        table.swap_in(id),
        Err(StateError::OutOfPages { .. })
    ));
    table.release(other).unwrap();
    table.swap_in(id).unwrap();
    assert_eq!(table.moves().len(), saved.len());
    for (save, load) in saved.iter().zip(table.moves()) {
        let (Move::Save { offset: from, .. }, Move::Load { offset: to, .. }) = (save, load) else {
            panic!("{save:?} {load:?}");
        };
        assert_eq!(from, to);
    }
    assert_eq!(table.swap_in(id), Err(StateError::NotSwapped(id)));
    table.check_integrity().unwrap();
}

#[test]
fn what_was_not_made_from_tokens_is_not_shared() {
    let mut table = table(vec![full(0)], &[10]);
    let id = table.create(T).unwrap();
    write(&mut table, id, &tokens(0, 70)).unwrap();
    table.reserve(id, 80).unwrap();
    table.commit_vectors(id, 10).unwrap();
    write(&mut table, id, &tokens(80, 100)).unwrap();
    table.finish(id).unwrap();
    assert_eq!(cached(&mut table, &tokens(0, 180)), 70);
}

#[test]
fn another_model_key_finds_nothing() {
    let mut table = table(vec![full(0)], &[10]);
    table.set_model_key([1; 32]);
    leave(&mut table, &tokens(0, 70));
    table.set_model_key([1; 32]);
    assert_eq!(cached(&mut table, &tokens(0, 70)), 69);
    table.set_model_key([2; 32]);
    assert_eq!(
        (cached(&mut table, &tokens(0, 70)), table.free_pages(0)),
        (0, 10)
    );
}

/// What is said to fit does, however its growth is cut up, and what is said not to fit doesn't for some cut.
#[test]
fn a_sequence_alone_reaches_what_is_said_to_fit() {
    for positions in [1, 2, 63, 64, 65, 66, 130] {
        for pages in 1..7 {
            for chunk in [1, 2, 7, 63, 64, 65, 128] {
                let new = || table(vec![window(positions, 0)], &[pages]);
                let reached = (1..=chunk).map(|first| reach(new(), first, chunk)).min();
                let what = format!("window {positions}, {pages} pages, chunks of {chunk}");
                assert_eq!(
                    new().fits(LEN, chunk).is_ok(),
                    reached == Some(LEN),
                    "{what}"
                );
            }
        }
    }
}

const LEN: usize = 600;

/// How far a sequence comes on its way to `LEN`.
fn reach(mut table: Table, first: usize, chunk: usize) -> usize {
    let id = table.create(T).unwrap();
    let mut len = 0;
    while len < LEN {
        let run = if len == 0 {
            first
        } else {
            chunk.min(LEN - len)
        };
        if table.reserve(id, len + run).is_err() {
            break;
        }
        len += run;
        table.commit(id, &vec![1; run]).unwrap();
    }
    len
}
