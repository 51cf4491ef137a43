//! Memory for packed weights: aligned, uninitialised until packed, on huge pages where there are any.
//!
//! Streaming weights through small pages costs up to half of the bandwidth on a virtual machine, where each
//! miss of the address cache walks two page tables. Most matrices of a small model are smaller than a huge
//! page, so they lie one behind the other in common regions.

use std::sync::{Arc, Mutex, PoisonError};

use crate::region::{ALIGN, Pages, Region};

/// The size of a common region; what is not used of it is never touched, and so takes no memory.
const REGION: usize = 32 << 20;
/// A block from this size on has a region of its own.
const LARGE: usize = REGION / 2;
/// A block below this size too: it gains nothing from huge pages.
const SMALL: usize = 64 << 10;

/// The region that small blocks are taken from, and how much of it is taken.
static COMMON: Mutex<Option<(Arc<Region>, usize)>> = Mutex::new(None);

/// A block of bytes aligned to 64.
#[derive(Debug)]
pub(crate) struct Storage {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Storage {
    /// `len` uninitialised bytes, or nothing where there is no memory for them.
    pub(crate) fn uninitialised(len: usize) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(ALIGN)?;
        if !(SMALL..LARGE).contains(&len) {
            let region = Arc::new(Region::new(len, Pages::OF_WEIGHTS)?);
            return Some(Self {
                region,
                offset: 0,
                len,
            });
        }
        let mut common = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, offset) = match common.take() {
            Some((region, used)) if used + len <= REGION => (region, used),
            _ => (Arc::new(Region::new(REGION, Pages::OF_WEIGHTS)?), 0),
        };
        *common = Some((Arc::clone(&region), offset + len));
        Some(Self {
            region,
            offset,
            len,
        })
    }

    /// Its first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the block lies within the region.
        unsafe { self.region.as_ptr().add(self.offset) }
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let mut common = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
        // When only this block and the list hold the region, it is empty: let go of it.
        if common.as_ref().is_some_and(|(region, _)| {
            Arc::ptr_eq(region, &self.region) && Arc::strong_count(region) == 2
        }) {
            *common = None;
        }
    }
}
