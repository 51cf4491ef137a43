//! What attention refuses, and that it allocates nothing.
#![allow(unsafe_code)] // an allocator that counts

use kernels::attention::{
    AttentionArgs, AttentionError, AttentionLimits, AttentionScratch, RowRef, attention,
};
use kernels::isa::Isa;
use kernels::pages::{KvShape, KvType, PageId, PageStore};
use kernels::pool::Pool;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller answers for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller answers for.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LIMITS: AttentionLimits = AttentionLimits {
    rows: 40,
    heads: 6,
    head_dim: 32,
    value_dim: 32,
    context: 2048,
    threads: 1,
};

fn store() -> PageStore {
    let shape = KvShape {
        kv_heads: 2,
        head_dim: 32,
        value_dim: 32,
        kv_type: KvType::F16,
    };
    PageStore::new(shape, 32).expect("a small store")
}

/// A call with some rows over one page table, its `q` and `out` of the right length.
fn call(rows: &[RowRef], heads: usize, table: &[PageId]) -> Result<(), AttentionError> {
    let store = store();
    let mut scratch = AttentionScratch::new(LIMITS).expect("a little memory");
    let q = vec![1.0; rows.len() * heads * 32];
    let mut out = vec![0.0; rows.len() * heads * 32];
    attention(
        Isa::best(),
        &Pool::new(1),
        &mut scratch,
        AttentionArgs {
            store: &store,
            q: &q,
            out: &mut out,
            heads,
            scale: 1.0,
            softcap: None,
            rows,
            page_tables: &[table],
        },
    )
}

#[test]
fn rows_that_cannot_be() {
    let table = [PageId(0), PageId::NONE, PageId(31), PageId(32)];
    assert_eq!(call(&[RowRef::causal(63, None, 0)], 6, &table), Ok(()));
    assert_eq!(call(&[], 6, &table), Ok(()));
    // A page that is not there, seen and unseen; the row after one that sees it is found out too.
    assert_eq!(call(&[RowRef::causal(191, Some(64), 0)], 6, &table), Ok(()));
    let missing = |row, entry, page| AttentionError::Page {
        row,
        table: 0,
        entry,
        page,
        pages: 32,
    };
    for (rows, error) in [
        (vec![RowRef::causal(64, None, 0)], missing(0, 1, u32::MAX)),
        (
            vec![RowRef::causal(191, Some(65), 0)],
            missing(0, 1, u32::MAX),
        ),
        (
            vec![
                RowRef::causal(63, None, 0),
                RowRef::causal(200, Some(20), 0),
            ],
            missing(1, 3, 32),
        ),
    ] {
        assert_eq!(call(&rows, 6, &table), Err(error));
    }
    for (first, end, in_table, positions) in [
        (5, 5, 0, 256),
        (6, 5, 0, 256),
        (0, 257, 0, 256),
        (0, 1, 1, 0),
    ] {
        let row = RowRef {
            first,
            end,
            table: in_table,
        };
        let error = AttentionError::Row {
            row: 0,
            first,
            end,
            table: in_table,
            positions,
        };
        assert_eq!(call(&[row], 6, &table), Err(error));
    }
}

#[test]
fn sizes_that_do_not_fit() {
    let table = [PageId(0)];
    let rows = vec![RowRef::causal(3, None, 0); 41];
    assert_eq!(
        call(&rows, 6, &table).map_err(|error| error.to_string()),
        Err("attention was set up for 40 rows, and asked for 41".to_owned())
    );
    assert!(matches!(
        call(&rows[..1], 8, &table),
        Err(AttentionError::Limit {
            what: "heads",
            asked: 8,
            limit: 6
        })
    ));
    for heads in [0, 5] {
        let error = AttentionError::Heads { heads, kv_heads: 2 };
        assert_eq!(call(&rows[..1], heads, &table), Err(error));
    }
    for (rows, context) in [(40, usize::MAX), (40, 1 << 56), (1 << 56, 100)] {
        let limits = AttentionLimits {
            rows,
            context,
            ..LIMITS
        };
        match AttentionScratch::new(limits).expect_err("too much") {
            AttentionError::Memory { bytes, limits: l } => {
                assert_eq!(l, limits);
                assert!(bytes > rows.max(context) || bytes == usize::MAX);
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn slices_of_the_wrong_length() {
    let (store, pool) = (store(), Pool::new(1));
    let mut scratch = AttentionScratch::new(LIMITS).expect("a little memory");
    for (q, out, what) in [(191, 192, "q"), (192, 193, "out")] {
        let error = attention(
            Isa::best(),
            &pool,
            &mut scratch,
            AttentionArgs {
                store: &store,
                q: &vec![0.0; q],
                out: &mut vec![0.0; out],
                heads: 6,
                scale: 1.0,
                softcap: None,
                rows: &[RowRef::causal(3, None, 0)],
                page_tables: &[&[PageId(0)]],
            },
        );
        let error = error.expect_err("a wrong length").to_string();
        let expected = format!(
            "{what} of 1 rows has {} values instead of 192",
            q.max(out) - usize::from(what == "q")
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn a_call_allocates_nothing() {
    let (store, pool) = (store(), Pool::new(1));
    let mut scratch = AttentionScratch::new(LIMITS).expect("a little memory");
    let table: Vec<PageId> = (0..32).map(PageId).collect();
    let rows: Vec<RowRef> = (1100..1140).map(|at| RowRef::causal(at, None, 0)).collect();
    let q = vec![1.0; 40 * 6 * 32];
    let mut out = vec![0.0; 40 * 6 * 32];
    for rows in [&rows[..], &rows[..1]] {
        let count = rows.len() * 6 * 32;
        let before = ALLOCATIONS.get();
        let result = attention(
            Isa::best(),
            &pool,
            &mut scratch,
            AttentionArgs {
                store: &store,
                q: &q[..count],
                out: &mut out[..count],
                heads: 6,
                scale: 1.0,
                softcap: None,
                rows,
                page_tables: &[&table],
            },
        );
        let after = ALLOCATIONS.get();
        assert_eq!(result, Ok(()));
        assert_eq!(after, before);
    }
}

/// What comes after a visited block is fetched ahead, whoever sees it: what stands there need not be a page.
#[test]
fn entries_that_no_row_sees_may_be_anything() {
    let rows = [
        RowRef {
            first: 0,
            end: 64,
            table: 0,
        },
        RowRef {
            first: 128,
            end: 192,
            table: 0,
        },
    ];
    for unseen in [PageId::NONE, PageId(999), PageId(32)] {
        assert_eq!(call(&rows, 2, &[PageId(0), unseen, PageId(1)]), Ok(()));
        assert_eq!(call(&rows[..1], 2, &[PageId(0), unseen]), Ok(()));
    }
}
