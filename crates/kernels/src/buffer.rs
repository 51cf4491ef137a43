//! Memory for activations: zeroed, and aligned to cache lines.
//!
//! Sixteen f32 that lie across two lines cost each vector store twice, and two threads that write
//! neighbouring vectors would fight for the line between them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::lanes::LANES;

/// A cache line of 32-bit numbers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; LANES]);

/// A number of 32 bits for which every pattern of bits is a value.
pub trait Word: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
}

impl Word for f32 {}
impl Word for u32 {}

/// A slice of numbers whose first is aligned to 64 bytes.
pub struct Buffer<T> {
    lines: Vec<Line>,
    len: usize,
    words: PhantomData<T>,
}

impl<T: Word> Buffer<T> {
    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self {
            lines: vec![Line([0; LANES]); len.div_ceil(LANES)],
            len,
            words: PhantomData,
        }
    }
}

impl<T: Word> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines are initialised and hold at least `len` words; any bits are a `T`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Word> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the lines are borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zero_aligned_and_as_long_as_asked() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let mut buffer = Buffer::<f32>::zeroed(len);
            assert_eq!(&*buffer, vec![0.0; len]);
            assert!(buffer.as_ptr().cast::<Line>().is_aligned());
            buffer.fill(1.0);
            assert_eq!(&*buffer, vec![1.0; len]);
        }
    }
}
