//! Room on the disk.

use std::path::Path;

use super::SourceError;

/// The bytes that this user may still write to the file system of `folder`, where the system tells.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let answer = rustix::fs::statvfs(folder).ok()?;
        Some(answer.f_bavail.saturating_mul(answer.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

/// Refuses to begin what there is no room for. `what` is to be put into `folder`, which must be there.
pub(super) fn check_room(what: &str, folder: &Path, needed: u64) -> Result<(), SourceError> {
    match free_bytes(folder) {
        Some(free) if free < needed => Err(SourceError::NoRoom {
            what: what.to_owned(),
            folder: folder.to_owned(),
            needed,
            free,
        }),
        _ => Ok(()),
    }
}

/// The bytes free in `folder`, in words.
pub(super) fn free_in_words(folder: &Path) -> String {
    match free_bytes(folder) {
        Some(free) => format!("{free} bytes are free"),
        None => "too few bytes are free".to_owned(),
    }
}
