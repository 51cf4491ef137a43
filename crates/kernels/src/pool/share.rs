//! A worker's share of the chunks of a job.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stands for "no more jobs will come". To whoever looks for a chunk it is an empty share.
const CLOSED: u64 = u64::MAX;

/// Chunks that nobody has claimed yet: the first in the lower half, the end in the upper one.
///
/// Its worker takes them from the front, one after the other as they lie in memory; others help from the back,
/// so that what its worker fetches ahead stays its own.
#[derive(Debug, Default)]
pub(super) struct Share(AtomicU64);

impl Share {
    /// Puts chunks into an empty share.
    pub(super) fn fill(&self, chunks: Range<u32>) {
        self.0.store(pack(chunks), Ordering::SeqCst);
    }

    /// Tells that nothing will come any more.
    pub(super) fn close(&self) {
        self.0.store(CLOSED, Ordering::SeqCst);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::SeqCst) == CLOSED
    }

    /// Whether there is something to claim, or nothing will ever be.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        let packed = self.0.load(Ordering::SeqCst);
        packed == CLOSED || !unpack(packed).is_empty()
    }

    /// Claims the first chunk.
    #[inline]
    pub(super) fn take_first(&self) -> Option<u32> {
        self.take(|chunks| chunks.next())
    }

    /// Claims the last chunk.
    #[inline]
    pub(super) fn take_last(&self) -> Option<u32> {
        self.take(|chunks| chunks.next_back())
    }

    #[inline]
    fn take(&self, end: impl Fn(&mut Range<u32>) -> Option<u32>) -> Option<u32> {
        let before = self
            .0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |packed| {
                let mut chunks = unpack(packed);
                end(&mut chunks).map(|_| pack(chunks))
            });
        end(&mut unpack(before.ok()?))
    }
}

fn pack(chunks: Range<u32>) -> u64 {
    u64::from(chunks.start) | u64::from(chunks.end) << 32
}

#[inline]
fn unpack(packed: u64) -> Range<u32> {
    packed as u32..(packed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_each_chunk_once_from_both_ends() {
        let share = Share::default();
        assert!(!share.has_news());
        share.fill(3..6);
        assert!(share.has_news());
        let taken = [share.take_first(), share.take_last(), share.take_first()];
        assert_eq!(taken, [Some(3), Some(5), Some(4)]);
        assert_eq!((share.take_first(), share.take_last()), (None, None));
        assert!(!share.has_news());
    }

    #[test]
    fn a_closed_share_is_news_without_chunks() {
        let share = Share::default();
        share.close();
        assert!(share.has_news() && share.is_closed());
        assert_eq!((share.take_first(), share.take_last()), (None, None));
    }
}
