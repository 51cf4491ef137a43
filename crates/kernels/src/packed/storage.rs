//! Memory for packed weights: aligned, uninitialised until packed, on huge pages where there are any.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// A cache line, and the widest vector.
const ALIGN: usize = 64;
/// Blocks of at least twice this size are aligned to it.
const HUGE_PAGE: usize = 2 << 20;

/// A block of bytes aligned to at least 64.
#[derive(Debug)]
pub(crate) struct Storage {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory, owned by this value alone.
unsafe impl Send for Storage {}
// SAFETY: shared access only reads it (see `as_ptr`).
unsafe impl Sync for Storage {}

impl Storage {
    /// `len` uninitialised bytes, or nothing where there is no memory for them.
    pub(crate) fn uninitialised(len: usize) -> Option<Self> {
        let align = if len >= 2 * HUGE_PAGE {
            HUGE_PAGE
        } else {
            ALIGN
        };
        let layout = Layout::from_size_align(len.max(ALIGN), align).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range is ours and the advice changes no contents. A refusal costs speed only.
            unsafe {
                libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
            }
        }
        Some(Self { start, layout })
    }

    /// Its first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
