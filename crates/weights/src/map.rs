//! The bytes of a file: a read-only memory map, or a buffer in memory.
//!
//! **Known limit.** A map shows the file as it is at each access. If another process truncates the file
//! while it is mapped, touching a page past the new end raises `SIGBUS` (Unix) or an in-page error
//! (Windows) and ends the process; if another process overwrites it, the bytes read change. Model files
//! must therefore be replaced by rename, never edited in place, while an engine has them open. Files in
//! the project's own cache are only ever created by rename.
#![allow(unsafe_code)]

use std::{fs::File, io, ops::Range};

use memmap2::Mmap;

/// Read-only bytes.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap),
    Memory(Vec<u8>),
}

impl Bytes {
    /// Maps a whole file, which must not be empty.
    ///
    /// # Errors
    /// The operating system's refusal to map.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process's reads. Changes to the file from
        // outside are the known limit stated at the top of this module: all reads are bounds-checked
        // against the mapped length, so changed bytes can only be wrong values, not wrong accesses.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self::Mapped(map))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }

    /// Tells the operating system that the whole pages inside `range` are not needed in memory; they
    /// are read from the file again if touched. Does nothing for bytes in memory, for a range without a
    /// whole page, and where the system has no such call.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self {
            let page = page_size();
            let start = range.start.div_ceil(page) * page;
            let end = range.end.min(map.len()) / page * page;
            if start < end {
                // SAFETY: the map is a shared, read-only, file-backed one, so dropping its pages loses
                // nothing: the next access reads the same bytes from the file. Advice may fail; then the
                // pages stay, which costs memory only.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Bytes per page of memory.
#[cfg(unix)]
fn page_size() -> usize {
    // SAFETY: `sysconf` reads a constant of the system and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size)
        .ok()
        .filter(|s| s.is_power_of_two())
        .unwrap_or(1 << 16)
}
