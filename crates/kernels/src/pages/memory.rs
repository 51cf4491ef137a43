//! Zeroed memory aligned to a cache line.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// The size of a cache line and of the widest register, in bytes.
pub(crate) const LINE_BYTES: usize = 64;

/// The size of a huge page.
#[cfg(target_os = "linux")]
const HUGE_BYTES: usize = 2 << 20;

/// What allocators give at once from fresh zero pages; a larger alignment makes them write the zeros.
const LAZY_ALIGN_BYTES: usize = 16;

/// An owned run of zeroed bytes, aligned to [`LINE_BYTES`], that cannot grow.
///
/// Large ones are reserved only: the operating system provides memory as it is first touched.
pub(crate) struct ZeroedBytes {
    block: NonNull<u8>,
    layout: Layout,
    offset: usize,
    len: usize,
}

// SAFETY: the memory is owned, and reached only through `&self` (shared reads) and `&mut self`.
unsafe impl Send for ZeroedBytes {}
// SAFETY: as above.
unsafe impl Sync for ZeroedBytes {}

impl ZeroedBytes {
    /// `len` zero bytes, or `None` where they cannot be had.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let padded = len.max(1).checked_add(LINE_BYTES)?;
        let layout = Layout::from_size_align(padded, LAZY_ALIGN_BYTES).ok()?;
        // SAFETY: the layout's size is not zero.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let offset = block.as_ptr().align_offset(LINE_BYTES);
        let mut bytes = Self {
            block,
            layout,
            offset: offset.min(LINE_BYTES),
            len,
        };
        bytes.ask_for_huge_pages();
        Some(bytes)
    }

    /// Asks for pages of 2 MiB where that is worth it: attention reads here and there from all of it, and
    /// with small pages looks up addresses half of the time. A refusal changes nothing but the speed.
    fn ask_for_huge_pages(&mut self) {
        #[cfg(target_os = "linux")]
        if self.len >= 2 * HUGE_BYTES {
            let inner = self.as_mut_ptr().align_offset(HUGE_BYTES);
            let len = (self.len - inner) / HUGE_BYTES * HUGE_BYTES;
            // SAFETY: the range lies within the memory, and the advice does not change what it holds.
            unsafe {
                libc::madvise(
                    self.as_mut_ptr().add(inner).cast(),
                    len,
                    libc::MADV_HUGEPAGE,
                );
            }
        }
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte, aligned to [`LINE_BYTES`].
    pub(crate) fn as_ptr(&self) -> *const u8 {
        // SAFETY: the block has `LINE_BYTES` more than `len`, and `offset` is at most that.
        unsafe { self.block.as_ptr().add(self.offset) }
    }

    /// The first byte, for writing.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: as in `as_ptr`.
        unsafe { self.block.as_ptr().add(self.offset) }
    }

    /// All bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from the pointer on, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// All bytes, for writing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes from the pointer on, borrowed with `self` exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl Drop for ZeroedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.block.as_ptr(), self.layout) }
    }
}
