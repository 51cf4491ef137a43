//! A reader of little-endian fields that never steps outside its bytes.

use std::fmt;

use super::error::GgufProblem;

/// A place in the bytes of a file.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! number {
    ($name:ident) => {
        pub(crate) fn $name(&mut self, what: fmt::Arguments<'_>) -> Result<$name, GgufProblem> {
            self.array(what).map($name::from_le_bytes)
        }
    };
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            at: at.min(bytes.len()),
        }
    }

    /// The offset of the next byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The bytes from this place up to that of `end`.
    pub(crate) fn between(&self, end: &Self) -> &'a [u8] {
        self.bytes.get(self.at..end.at).unwrap_or_default()
    }

    /// The next `count` bytes.
    pub(crate) fn take(
        &mut self,
        count: u64,
        what: fmt::Arguments<'_>,
    ) -> Result<&'a [u8], GgufProblem> {
        let slice = usize::try_from(count)
            .ok()
            .and_then(|count| self.bytes.get(self.at..self.at.checked_add(count)?));
        match slice {
            Some(slice) => {
                self.at += slice.len();
                Ok(slice)
            }
            None => Err(GgufProblem::Truncated {
                offset: self.at as u64,
                what: what.to_string(),
                needed: count,
                left: self.left() as u64,
                file_bytes: self.bytes.len() as u64,
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: fmt::Arguments<'_>) -> Result<[u8; N], GgufProblem> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    number!(u8);
    number!(u16);
    number!(u32);
    number!(u64);

    /// A string: its length in 8 bytes, then its bytes.
    pub(crate) fn string(&mut self, what: fmt::Arguments<'_>) -> Result<&'a [u8], GgufProblem> {
        let len = self.u64(format_args!("the length of {what}"))?;
        self.take(len, what)
    }

    /// A count of things that each take at least `min_bytes` of what is left. Bounding it here is what
    /// keeps a lying count from costing memory or time.
    pub(crate) fn count(
        &mut self,
        min_bytes: usize,
        what: fmt::Arguments<'_>,
    ) -> Result<usize, GgufProblem> {
        let offset = self.at as u64;
        let count = self.u64(what)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / min_bytes => Ok(count),
            _ => Err(GgufProblem::CountTruncated {
                offset,
                what: what.to_string(),
                count,
                needed: u128::from(count) * min_bytes as u128,
                left: self.left() as u64,
                file_bytes: self.bytes.len() as u64,
            }),
        }
    }
}
