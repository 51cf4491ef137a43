//! Memory for activations: zeroed, and aligned to cache lines.
//!
//! Sixteen f32 that lie across two lines cost each vector store twice, and two threads that write
//! neighbouring vectors would fight for the line between them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::pages::ZeroedBytes;

/// A number of 32 bits for which every pattern of bits is a value.
pub trait Word: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
}

impl Word for f32 {}
impl Word for u32 {}

/// The memory can't be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot allocate {bytes} bytes for activations; run fewer tokens at once (a smaller prefill chunk)"
)]
pub struct OutOfMemory {
    /// Bytes asked for, as far as they can be counted.
    pub bytes: usize,
}

/// A slice of numbers whose first is aligned to 64 bytes.
pub struct Buffer<T> {
    bytes: ZeroedBytes,
    len: usize,
    words: PhantomData<T>,
}

impl<T: Word> Buffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let bytes = len.saturating_mul(size_of::<T>());
        Ok(Self {
            bytes: ZeroedBytes::new(bytes).ok_or(OutOfMemory { bytes })?,
            len,
            words: PhantomData,
        })
    }
}

impl<T: Word> Buffer<T> {
    /// How many words, without a borrow of any.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first word, without a borrow of any: for threads that write to different places.
    pub(crate) fn base(&self) -> *mut T {
        self.bytes.as_ptr().cast_mut().cast()
    }
}

impl<T: Word> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory is initialised, aligned and holds `len` words; any bits are a `T`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }
}

impl<T: Word> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the memory is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_mut_ptr().cast(), self.len) }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn is_zero_aligned_and_as_long_as_asked() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let mut buffer = Buffer::<f32>::zeroed(len).unwrap();
            assert_eq!(&*buffer, vec![0.0; len]);
            assert!(buffer.as_ptr().addr().is_multiple_of(64));
            buffer.fill(1.0);
            assert_eq!(&*buffer, vec![1.0; len]);
        }
    }

    #[test]
    fn what_cannot_be_had_is_an_error_with_the_bytes() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 58] {
            let bytes = len.saturating_mul(4);
            assert_eq!(
                Buffer::<f32>::zeroed(len).unwrap_err(),
                OutOfMemory { bytes }
            );
        }
    }
}
