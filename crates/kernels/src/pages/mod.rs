//! The bytes of K and V, in pages of 64 positions of one layer.
//!
//! # Layout
//! A page holds, for each kv head in turn,
//!
//! - K transposed, `[head_dim][64 positions]`, so that in q·k the lanes are positions;
//! - V, `[64 positions][value stride]`, so that in p·v the lanes are dimensions. The value stride is
//!   `value_dim` rounded up to a multiple of sixteen; what is beyond `value_dim` stays zero.
//!
//! # Rounding
//! Values are rounded to the page's type, to nearest even, as they are written, and are read nowhere
//! else than here: so what a query sees of a key never depends on when the key was written. A value
//! that the type cannot hold as a finite number is an error.

mod memory;
mod value;
mod write;

pub(crate) use memory::ZeroedBytes;
pub(crate) use value::KvValue;
pub use write::KvSlot;

use crate::lanes::LANES;
use crate::prefetch;
use std::fmt;

/// The number of positions in a page, and in a block of attention's arithmetic.
pub const PAGE_POSITIONS: usize = 64;

/// The index of a page in its [`PageStore`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u32);

impl PageId {
    /// No page: stands in a page table for positions that no row can see any more.
    pub const NONE: Self = Self(u32::MAX);
}

/// The type K and V are kept in.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
}

impl KvType {
    /// The name used in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// The size of one value, in bytes.
    #[must_use]
    pub fn bytes_per_value(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one position of one layer holds.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct KvShape {
    /// The number of heads of K and V.
    pub kv_heads: usize,
    /// The number of dimensions of a head of K (and of a query).
    pub head_dim: usize,
    /// The number of dimensions of a head of V (and of an output).
    pub value_dim: usize,
    /// The type both are kept in.
    pub kv_type: KvType,
}

impl KvShape {
    /// The number of values from one position of V to the next within a page.
    #[must_use]
    pub fn value_stride(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// The number of values of one head's K in a page.
    fn key_values(&self) -> usize {
        self.head_dim * PAGE_POSITIONS
    }

    /// The number of values of one head's V in a page.
    fn value_values(&self) -> usize {
        self.value_stride() * PAGE_POSITIONS
    }

    /// The size of a page, in bytes, or `None` where that overflows.
    #[must_use]
    pub fn page_bytes(&self) -> Option<usize> {
        self.value_dim
            .checked_next_multiple_of(LANES)?
            .checked_add(self.head_dim)?
            .checked_mul(PAGE_POSITIONS)?
            .checked_mul(self.kv_heads)?
            .checked_mul(self.kv_type.bytes_per_value())
    }
}

/// Which of the two a value belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum KvPart {
    /// K.
    Key,
    /// V.
    Value,
}

impl fmt::Display for KvPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "K",
            Self::Value => "V",
        })
    }
}

/// What can go wrong with a [`PageStore`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PageError {
    /// A dimension is zero, or the sizes overflow.
    #[error(
        "cannot make KV pages of shape {shape:?}: each of its sizes must be at least 1 and \
         {pages} pages must fit in the address space"
    )]
    Shape {
        /// The shape asked for.
        shape: KvShape,
        /// The number of pages asked for.
        pages: usize,
    },
    /// The memory cannot be had.
    #[error(
        "cannot reserve {bytes} bytes for {pages} KV pages; ask for a shorter context or fewer \
         sequences"
    )]
    Memory {
        /// The number of bytes asked for.
        bytes: usize,
        /// The number of pages asked for.
        pages: usize,
    },
    /// There is no such page.
    #[error("KV page {page} does not exist; the store has {pages}")]
    Page {
        /// The page asked for.
        page: u32,
        /// The number of pages there are.
        pages: usize,
    },
    /// There is no such position in a page.
    #[error("slot {slot} of a KV page does not exist; a page has {PAGE_POSITIONS}")]
    Slot {
        /// The slot asked for.
        slot: usize,
    },
    /// A slice has the wrong length.
    #[error("{part} of {rows} positions has {found} values instead of {expected}")]
    Length {
        /// Whether it is K or V.
        part: KvPart,
        /// The number of positions.
        rows: usize,
        /// The number of values it should have.
        expected: usize,
        /// The number of values it has.
        found: usize,
    },
    /// A value that the page's type cannot hold.
    #[error(
        "{part} value {value} (row {row}, kv head {head}, index {index}) does not fit the KV type \
         {kv_type}; {}", advice(*.kv_type, *.value)
    )]
    Overflow {
        /// Whether it is in K or V.
        part: KvPart,
        /// The row among those written.
        row: usize,
        /// The kv head.
        head: usize,
        /// The index within the head.
        index: usize,
        /// The value.
        value: f32,
        /// The type of the pages.
        kv_type: KvType,
    },
}

fn advice(kv_type: KvType, value: f32) -> &'static str {
    match kv_type {
        KvType::F16 if value.is_finite() => "use the KV type f32",
        _ => "the layer's input is already not finite",
    }
}

/// Owns the pages of every layer and sequence that share a [`KvShape`].
pub struct PageStore {
    shape: KvShape,
    page_bytes: usize,
    pages: usize,
    memory: ZeroedBytes,
}

impl fmt::Debug for PageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageStore")
            .field("shape", &self.shape)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

impl PageStore {
    /// Reserves `pages` zeroed pages, aligned to 64 bytes; the operating system provides the memory as
    /// pages are first written.
    ///
    /// # Errors
    /// [`PageError::Shape`] when a size is zero or the product overflows, [`PageError::Memory`] when
    /// the memory cannot be had.
    pub fn new(shape: KvShape, pages: usize) -> Result<Self, PageError> {
        let bad_shape = PageError::Shape { shape, pages };
        if shape.kv_heads == 0 || shape.head_dim == 0 || shape.value_dim == 0 {
            return Err(bad_shape);
        }
        // An id must tell every page from `PageId::NONE`.
        if pages >= u32::MAX as usize {
            return Err(bad_shape);
        }
        let page_bytes = shape.page_bytes().ok_or_else(|| bad_shape.clone())?;
        let bytes = page_bytes.checked_mul(pages).ok_or(bad_shape)?;
        let memory = ZeroedBytes::new(bytes).ok_or(PageError::Memory { bytes, pages })?;
        Ok(Self {
            shape,
            page_bytes,
            pages,
            memory,
        })
    }

    /// What one position of one layer holds.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The size of a page, in bytes: a multiple of 64.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The place of a page in the memory.
    ///
    /// # Errors
    /// [`PageError::Page`] when there is no such page.
    fn start(&self, page: PageId) -> Result<usize, PageError> {
        let index = page.0 as usize;
        if index < self.pages {
            Ok(index * self.page_bytes)
        } else {
            Err(PageError::Page {
                page: page.0,
                pages: self.pages,
            })
        }
    }

    /// Copies all of page `from` over page `to`.
    ///
    /// # Errors
    /// [`PageError::Page`] when there is no such page.
    pub fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), PageError> {
        let (from, to) = (self.start(from)?, self.start(to)?);
        let source = from..from + self.page_bytes;
        self.memory.as_mut_slice().copy_within(source, to);
        Ok(())
    }

    /// The bytes of a page, for saving it elsewhere.
    ///
    /// # Errors
    /// [`PageError::Page`] when there is no such page.
    pub fn bytes(&self, page: PageId) -> Result<&[u8], PageError> {
        let start = self.start(page)?;
        Ok(&self.memory.as_slice()[start..start + self.page_bytes])
    }

    /// The bytes of a page, for bringing back what [`bytes`](Self::bytes) gave.
    ///
    /// # Errors
    /// [`PageError::Page`] when there is no such page.
    pub fn bytes_mut(&mut self, page: PageId) -> Result<&mut [u8], PageError> {
        let start = self.start(page)?;
        Ok(&mut self.memory.as_mut_slice()[start..start + self.page_bytes])
    }

    /// Brings the lines closer that a position will be written to, of which K's are scattered over the page.
    ///
    /// A hint for a step of few rows: it costs time, and changes nothing else.
    pub fn prefetch(&self, place: KvSlot) {
        let Ok(start) = self.start(place.page) else {
            return;
        };
        let bytes = self.shape.kv_type.bytes_per_value();
        let page = &self.memory.as_slice()[start..start + self.page_bytes];
        let line = |value: usize| prefetch::for_write(page.as_ptr().wrapping_add(value * bytes));
        for head in 0..self.shape.kv_heads {
            let keys = self.head_start(head);
            for dim in 0..self.shape.head_dim {
                line(keys + dim * PAGE_POSITIONS + place.slot);
            }
            let row = keys + self.shape.key_values() + place.slot * self.shape.value_stride();
            for value in (0..self.shape.value_dim).step_by(prefetch::LINE / bytes) {
                line(row + value);
            }
        }
    }

    /// One position as it is kept, widened to f32: K (`kv_heads * head_dim` values) and V (`kv_heads *
    /// value_dim` values).
    ///
    /// # Errors
    /// [`PageError::Page`] or [`PageError::Slot`] when there is no such position.
    pub fn read(&self, page: PageId, slot: usize) -> Result<(Vec<f32>, Vec<f32>), PageError> {
        match self.shape.kv_type {
            KvType::F32 => self.read_values::<f32>(page, slot),
            KvType::F16 => self.read_values::<u16>(page, slot),
        }
    }

    fn read_values<T: KvValue>(
        &self,
        page: PageId,
        slot: usize,
    ) -> Result<(Vec<f32>, Vec<f32>), PageError> {
        self.start(page)?;
        if slot >= PAGE_POSITIONS {
            return Err(PageError::Slot { slot });
        }
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for head in 0..self.shape.kv_heads {
            let keys = self.keys::<T>(page, head);
            k.extend(keys.iter().map(|lanes| lanes[slot].widen()));
            let start = slot * self.shape.value_stride();
            let values = &self.values::<T>(page, head)[start..][..self.shape.value_dim];
            v.extend(values.iter().map(|value| value.widen()));
        }
        Ok((k, v))
    }

    /// Where head `head` of the page begins, in values of the store's type from the start of the page.
    fn head_start(&self, head: usize) -> usize {
        head * (self.shape.key_values() + self.shape.value_values())
    }

    /// All values of a page.
    ///
    /// # Panics
    /// When there is no such page, or `T` is not the store's type: callers have checked both.
    #[inline(always)]
    fn page_values<T: KvValue>(&self, page: PageId) -> &[T] {
        assert!(T::TYPE == self.shape.kv_type, "wrong type of KV page");
        let index = page.0 as usize;
        assert!(index < self.pages, "no such KV page");
        let count = self.page_bytes / size_of::<T>();
        // SAFETY: the page lies within the memory, whose start and page size are multiples of 64, and
        // any bits are a value of `T` (`u16` or `f32`).
        unsafe {
            let start = self.memory.as_ptr().add(index * self.page_bytes);
            std::slice::from_raw_parts(start.cast::<T>(), count)
        }
    }

    /// K of one head in a page: `[head_dim][64 positions]`.
    ///
    /// # Panics
    /// As [`page_values`](Self::page_values), or when there is no such head.
    #[inline(always)]
    pub(crate) fn keys<T: KvValue>(&self, page: PageId, head: usize) -> &[[T; PAGE_POSITIONS]] {
        let start = self.head_start(head);
        let flat = &self.page_values::<T>(page)[start..start + self.shape.key_values()];
        flat.as_chunks().0
    }

    /// V of one head in a page: `[64 positions][value stride]`.
    ///
    /// # Panics
    /// As [`page_values`](Self::page_values), or when there is no such head.
    #[inline(always)]
    pub(crate) fn values<T: KvValue>(&self, page: PageId, head: usize) -> &[T] {
        let start = self.head_start(head) + self.shape.key_values();
        &self.page_values::<T>(page)[start..start + self.shape.value_values()]
    }
}
