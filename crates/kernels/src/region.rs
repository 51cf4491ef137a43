//! Memory from the allocator, on pages of a chosen size.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// A cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;
/// The size and alignment of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// The pages that a region asks the operating system for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The smallest there are, 4 KiB on most systems.
    Small,
    /// Of 2 MiB, as packed weights ask for; where the system has none to give they are small.
    Huge,
}

impl Pages {
    /// What can be asked for on this operating system.
    pub const ALL: &'static [Self] = if cfg!(target_os = "linux") {
        &[Self::Small, Self::Huge]
    } else {
        &[Self::Small]
    };

    /// What packed weights ask for on this operating system.
    pub const OF_WEIGHTS: Self = if cfg!(target_os = "linux") {
        Self::Huge
    } else {
        Self::Small
    };

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Huge => "huge",
        }
    }
}

/// Uninitialised bytes aligned to [`ALIGN`].
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory, reached through pointers only: whoever uses one vouches for the access.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len` bytes, at least one, or nothing where they can't be had. What is smaller than a huge page is on
    /// small ones.
    pub(crate) fn new(len: usize, pages: Pages) -> Option<Self> {
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { ALIGN };
        let layout = Layout::from_size_align(len.max(1), align).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            let advice = match pages {
                Pages::Small => libc::MADV_NOHUGEPAGE,
                Pages::Huge => libc::MADV_HUGEPAGE,
            };
            // SAFETY: the range is ours and the advice changes no contents. A refusal costs speed only.
            unsafe {
                libc::madvise(start.as_ptr().cast(), len, advice);
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        Some(Self { start, layout })
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
