//! The bytes of a file: a read-only memory map, or a buffer in memory.
//!
//! **Known limit.** A map shows the file as it is at each access. If another process truncates the file
//! while it is mapped, touching a page past the new end ends the process: on Unix with a message that names
//! the file and exit status 1 (see [`fault`]), on Windows with an in-page error. If another process overwrites
//! it, the bytes read change. Model files must therefore be replaced by rename, never edited in place, while
//! an engine has them open. Files in the project's own cache are only ever created by rename.
#![allow(unsafe_code)]

#[cfg(unix)]
mod fault;

use std::{fs::File, io, ops::Range, path::Path};

use memmap2::Mmap;

/// Read-only bytes.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mapped),
    Memory(Vec<u8>),
}

/// A map, watched as long as it is there.
#[derive(Debug)]
pub(crate) struct Mapped {
    #[cfg(unix)]
    _watch: fault::Watch,
    map: Mmap,
}

impl Bytes {
    /// Maps a whole file, which must not be empty; `path` names it where it can't be read any more.
    ///
    /// # Errors
    /// The operating system's refusal to map.
    pub(crate) fn map(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process's reads. Changes to the file from
        // outside are the known limit stated at the top of this module: all reads are bounds-checked
        // against the mapped length, so changed bytes can only be wrong values, not wrong accesses.
        let map = unsafe { Mmap::map(file)? };
        #[cfg(not(unix))]
        let _ = path;
        Ok(Self::Mapped(Mapped {
            #[cfg(unix)]
            _watch: fault::Watch::new(
                map.as_ptr() as usize..map.as_ptr() as usize + map.len(),
                path,
            ),
            map,
        }))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(mapped) => &mapped.map,
            Self::Memory(bytes) => bytes,
        }
    }

    /// Tells the operating system that the whole pages inside `range` are not needed in memory; they
    /// are read from the file again if touched. Does nothing for bytes in memory, for a range without a
    /// whole page, and where the system has no such call.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Mapped(Mapped { map, .. }) = self {
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
