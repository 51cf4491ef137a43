//! Sharing out the rows of a matrix over the pool.

use std::marker::PhantomData;

use crate::fpenv;
use crate::pool::Pool;

/// Fewer values than this are done by the calling thread alone; waking others would cost more.
const PARALLEL_VALUES: usize = 16 * 1024;
/// Values a thread takes at once.
const CHUNK_VALUES: usize = 4 * 1024;

/// What is done with a row of each of two matrices: called with its number and values.
pub type RowPairJob<'a> = dyn Fn(usize, &mut [f32], &mut [f32]) + Sync + 'a;

/// Calls `job(row, values)` for each row of `width` values of `data`, on all threads where it pays.
/// Rows are independent, so the result doesn't depend on who does which.
///
/// # Panics
/// When `data` is not a whole number of rows.
pub fn for_each_row(
    pool: &Pool,
    data: &mut [f32],
    width: usize,
    job: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    for_each_row_pair(pool, data, width, &mut [], 0, &|row, values, _| {
        job(row, values)
    });
}

/// Calls `job(row, a, b)` for each row of two matrices of the same number of rows.
///
/// # Panics
/// When a matrix is not a whole number of rows, or their numbers differ.
pub fn for_each_row_pair(
    pool: &Pool,
    a: &mut [f32],
    a_width: usize,
    b: &mut [f32],
    b_width: usize,
    job: &RowPairJob<'_>,
) {
    if a.is_empty() {
        return;
    }
    let _guard = fpenv::Guard::new();
    let rows = a.len() / a_width;
    assert_eq!(
        a.len(),
        rows * a_width,
        "the first matrix is not a whole number of rows"
    );
    assert_eq!(
        b.len(),
        rows * b_width,
        "the second matrix has another number of rows"
    );
    let values = a.len() + b.len();
    let rows_per_chunk = (CHUNK_VALUES / (a_width + b_width).max(1)).max(1);
    let (a, b) = (Rows::new(a, a_width), Rows::new(b, b_width));
    let run = |first: usize, last: usize| {
        for row in first..last {
            // SAFETY: each row belongs to one chunk, and each chunk is run once.
            unsafe { job(row, a.row(row), b.row(row)) };
        }
    };
    if values < PARALLEL_VALUES || pool.threads() == 1 {
        run(0, rows);
    } else {
        pool.run(rows.div_ceil(rows_per_chunk), &|chunk, _worker| {
            run(
                chunk * rows_per_chunk,
                rows.min((chunk + 1) * rows_per_chunk),
            );
        });
    }
}

/// A matrix whose rows are handed out to different threads.
struct Rows<'a> {
    start: *mut f32,
    width: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: made from an exclusive borrow; `row` demands that no row is handed out twice at once.
unsafe impl Sync for Rows<'_> {}

impl<'a> Rows<'a> {
    fn new(data: &'a mut [f32], width: usize) -> Self {
        Self {
            start: data.as_mut_ptr(),
            width,
            owner: PhantomData,
        }
    }

    /// # Safety
    /// `row` is within the matrix, and not handed out elsewhere at the same time.
    #[expect(
        clippy::mut_from_ref,
        reason = "rows are disjoint; see the safety demand"
    )]
    unsafe fn row(&self, row: usize) -> &mut [f32] {
        // SAFETY: within the matrix, as demanded.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.width), self.width) }
    }
}
