//! Using the time that a worker waits: fetching what it will read next into its cache.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::prefetch;

/// Fetched ahead at most: a part of the second-level cache that its other contents can spare.
const MOST_BYTES: usize = 256 * 1024;
/// Fetched between two looks at whether the wait is over.
const STEP_BYTES: usize = 4 * prefetch::LINE;

/// A stretch of memory, by its address: nothing is read or written through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Where it starts.
    pub address: usize,
    /// How long it is.
    pub bytes: usize,
}

/// What one worker will read next, as far as it isn't fetched.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl Ahead {
    /// Replaces what is to be fetched.
    pub(super) fn set(&self, stretch: Stretch) {
        // In between there is nothing to fetch, rather than all from one address to the other.
        self.end.store(0, Ordering::Release);
        self.next.store(stretch.address, Ordering::Release);
        let end = stretch
            .address
            .saturating_add(stretch.bytes.min(MOST_BYTES));
        self.end.store(end, Ordering::Release);
    }

    /// Fetches the next lines; false when there are none.
    #[inline]
    pub(super) fn fetch(&self) -> bool {
        let end = self.end.load(Ordering::Acquire);
        let next = self.next.load(Ordering::Acquire);
        // Two that replace it at the same time may leave the start of one and the end of the other.
        if next >= end || end - next > MOST_BYTES {
            return false;
        }
        for at in (0..STEP_BYTES).step_by(prefetch::LINE) {
            prefetch::second_level(std::ptr::without_provenance(next.wrapping_add(at)));
        }
        // It may have been replaced by now, and then stays.
        let _ = self.next.compare_exchange(
            next,
            next.saturating_add(STEP_BYTES),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_to_the_end_and_no_further() {
        let ahead = Ahead::default();
        assert!(!ahead.fetch());
        ahead.set(Stretch {
            address: 4096,
            bytes: 2 * STEP_BYTES + 1,
        });
        assert_eq!((0..9).filter(|_| ahead.fetch()).count(), 3);
        ahead.set(Stretch {
            address: 64,
            bytes: usize::MAX / 2,
        });
        let steps = MOST_BYTES / STEP_BYTES;
        assert_eq!((0..2 * steps).filter(|_| ahead.fetch()).count(), steps);
        ahead.set(Stretch {
            address: usize::MAX - STEP_BYTES,
            bytes: usize::MAX,
        });
        assert_eq!((0..9).filter(|_| ahead.fetch()).count(), 1);
    }

    #[test]
    fn an_end_that_belongs_to_another_start_is_no_stretch() {
        let ahead = Ahead::default();
        ahead.next.store(64, Ordering::Relaxed);
        ahead.end.store(1 << 40, Ordering::Relaxed);
        assert!(!ahead.fetch());
    }
}
