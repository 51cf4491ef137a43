//! Writing positions into pages.

use super::{KvPart, KvShape, KvType, KvValue, PAGE_POSITIONS, PageError, PageId, PageStore};
use crate::fpenv;
use crate::isa::Isa;
use crate::lanes::{LANES, LaneKernel, Lanes, dispatch};
use crate::pool::Pool;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fewer rows than this are written by the calling thread alone; waking others would cost more.
const PARALLEL_ROWS: usize = 16;

/// The place of one position of one layer.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct KvSlot {
    /// The page.
    pub page: PageId,
    /// The position within the page, less than [`PAGE_POSITIONS`].
    pub slot: usize,
}

impl PageStore {
    /// Writes one position: `k` holds `kv_heads * head_dim` values and `v` `kv_heads * value_dim`, each
    /// rounded to the store's type, to nearest even.
    ///
    /// # Errors
    /// As [`write_rows`](Self::write_rows).
    pub fn write(
        &mut self,
        isa: Isa,
        page: PageId,
        slot: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), PageError> {
        let slots = [KvSlot { page, slot }];
        self.check_rows(&slots, k, v)?;
        let heads = 2 * self.shape.kv_heads;
        let rows = self.rows(&slots, k, v);
        let _guard = fpenv::Guard::new();
        // All of them, so that what is written does not depend on what doesn't fit.
        let unfit = (0..heads).filter(|head| !rows.write(isa, *head)).count();
        self.report(unfit == 0, k, v)
    }

    /// Writes a position per row, shared out over the pool: `slots[i]` takes row `i` of `k` (rows of
    /// `kv_heads * head_dim` values) and of `v` (rows of `kv_heads * value_dim`).
    ///
    /// # Errors
    /// [`PageError::Page`], [`PageError::Slot`] or [`PageError::Length`] for arguments that don't fit
    /// the store; nothing is written then. [`PageError::Overflow`] for the first value, by row, then K
    /// before V, that is not finite after rounding; the positions written must not be used then.
    pub fn write_rows(
        &mut self,
        isa: Isa,
        pool: &Pool,
        slots: &[KvSlot],
        k: &[f32],
        v: &[f32],
    ) -> Result<(), PageError> {
        self.check_rows(slots, k, v)?;
        if slots.is_empty() {
            return Ok(());
        }
        let chunks = 2 * self.shape.kv_heads;
        let rows = self.rows(slots, k, v);
        let fits = AtomicBool::new(true);
        let write = |chunk: usize, _worker: usize| {
            if !rows.write(isa, chunk) {
                fits.store(false, Ordering::Relaxed);
            }
        };
        if slots.len() < PARALLEL_ROWS {
            let _guard = fpenv::Guard::new();
            (0..chunks).for_each(|chunk| write(chunk, 0));
        } else {
            pool.run(chunks, &write);
        }
        self.report(fits.into_inner(), k, v)
    }

    fn check_rows(&self, slots: &[KvSlot], k: &[f32], v: &[f32]) -> Result<(), PageError> {
        for place in slots {
            self.start(place.page)?;
            if place.slot >= PAGE_POSITIONS {
                return Err(PageError::Slot { slot: place.slot });
            }
        }
        let (shape, rows) = (self.shape, slots.len());
        for (part, found, width) in [
            (KvPart::Key, k.len(), shape.kv_heads * shape.head_dim),
            (KvPart::Value, v.len(), shape.kv_heads * shape.value_dim),
        ] {
            let expected = rows.saturating_mul(width);
            if found != expected {
                return Err(PageError::Length {
                    part,
                    rows,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// The rows, checked, and where they go.
    fn rows<'a>(&'a mut self, slots: &'a [KvSlot], k: &'a [f32], v: &'a [f32]) -> Rows<'a> {
        Rows {
            shape: self.shape,
            page_bytes: self.page_bytes,
            memory: self.memory.as_mut_ptr(),
            slots,
            k,
            v,
        }
    }

    /// Finds the first value that does not fit, where there is one.
    fn report(&self, fits: bool, k: &[f32], v: &[f32]) -> Result<(), PageError> {
        if fits {
            return Ok(());
        }
        let limit = match self.shape.kv_type {
            KvType::F32 => f32::LIMIT,
            KvType::F16 => u16::LIMIT,
        };
        let first = |part, values: &[f32], dim: usize| {
            let width = self.shape.kv_heads * dim;
            let place = values.iter().position(|x| x.is_nan() || x.abs() >= limit)?;
            let within = place % width;
            Some(PageError::Overflow {
                part,
                row: place / width,
                head: within / dim,
                index: within % dim,
                value: values[place],
                kv_type: self.shape.kv_type,
            })
        };
        let row = |error: &PageError| match error {
            PageError::Overflow { row, .. } => *row,
            _ => usize::MAX,
        };
        let in_k = first(KvPart::Key, k, self.shape.head_dim);
        let in_v = first(KvPart::Value, v, self.shape.value_dim);
        in_k.into_iter()
            .chain(in_v)
            .min_by_key(row)
            .map_or(Ok(()), Err)
    }
}

/// Rows to be written, shared by the threads that write them.
struct Rows<'a> {
    shape: KvShape,
    page_bytes: usize,
    memory: *mut u8,
    slots: &'a [KvSlot],
    k: &'a [f32],
    v: &'a [f32],
}

// SAFETY: made from an exclusive borrow of the store; chunks write disjoint parts of the pages.
unsafe impl Sync for Rows<'_> {}

impl Rows<'_> {
    /// Writes K (even chunks) or V (odd chunks) of kv head `chunk / 2` of all rows, and says whether all
    /// values fit. Each chunk must run on one thread only.
    fn write(&self, isa: Isa, chunk: usize) -> bool {
        match self.shape.kv_type {
            KvType::F32 => self.write_values::<f32>(isa, chunk),
            KvType::F16 => self.write_values::<u16>(isa, chunk),
        }
    }

    fn write_values<T: KvValue>(&self, isa: Isa, chunk: usize) -> bool {
        let (shape, head) = (self.shape, chunk / 2);
        let head_start = head * (shape.key_values() + shape.value_values());
        let is_key = chunk.is_multiple_of(2);
        let (source, dim, start, slot_step, index_step) = if is_key {
            (self.k, shape.head_dim, head_start, 1, PAGE_POSITIONS)
        } else {
            let start = head_start + shape.key_values();
            (self.v, shape.value_dim, start, shape.value_stride(), 1)
        };
        dispatch(
            isa,
            WriteHead::<T> {
                rows: self,
                source: &source[head * dim..],
                row_step: shape.kv_heads * dim,
                dim,
                // SAFETY: the start of a head lies within the first page.
                first: unsafe { self.memory.cast::<T>().add(start) },
                slot_step,
                index_step,
            },
        )
    }
}

/// Writes one head of K or V: value `index` of slot `slot` goes to
/// `first + page + slot * slot_step + index * index_step`.
struct WriteHead<'a, T> {
    rows: &'a Rows<'a>,
    source: &'a [f32],
    row_step: usize,
    dim: usize,
    first: *mut T,
    slot_step: usize,
    index_step: usize,
}

impl<T: KvValue> LaneKernel for WriteHead<'_, T> {
    type Output = bool;

    #[inline(always)]
    fn run<V: Lanes>(self) -> bool {
        let limit = V::splat(T::LIMIT);
        let mut unfit = V::splat(0.0);
        for (row, place) in self.rows.slots.iter().enumerate() {
            let source = &self.source[row * self.row_step..][..self.dim];
            let page = place.page.0 as usize * self.rows.page_bytes / size_of::<T>();
            let to = page + place.slot * self.slot_step;
            for (part, values) in source.chunks(LANES).enumerate() {
                let x = match <&[f32; LANES]>::try_from(values) {
                    Ok(whole) => V::load(whole),
                    Err(_) => V::load_part(values, 0.0),
                };
                // A NaN is not below the limit either.
                unfit = V::select(limit.gt(x.abs()), unfit, V::splat(1.0));
                let rounded = T::round(x);
                for (i, value) in rounded.iter().enumerate().take(values.len()) {
                    let index = part * LANES + i;
                    // SAFETY: page, slot and index were checked to lie within the store; no other
                    // chunk writes this head's K or V.
                    unsafe { self.first.add(to + index * self.index_step).write(*value) };
                }
            }
        }
        let fits: [f32; LANES] = unfit.to_array();
        fits.iter().all(|lane| *lane == 0.0)
    }
}
