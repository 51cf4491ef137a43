//! What can be wrong with a GGUF file.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::types::{TensorType, supported_names};

/// A GGUF file that can't be read or doesn't hold what was asked of it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .file.display())]
pub struct GgufError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: Box<GgufProblem>,
}

impl GgufError {
    pub(crate) fn new(file: &Path, problem: GgufProblem) -> Self {
        Self {
            file: file.to_owned(),
            problem: Box::new(problem),
        }
    }
}

/// What is wrong. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// The file can't be opened, read or mapped.
    #[error("can't {action}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        error: io::Error,
    },
    /// Not a regular file.
    #[error("found {found}, expected a regular file holding a GGUF model")]
    NotAFile {
        /// What it is instead.
        found: &'static str,
    },
    /// The first bytes aren't those of a GGUF file.
    #[error("this is {found}, not a GGUF model (at byte 0, expected the magic `GGUF`)")]
    NotGguf {
        /// What the file looks like.
        found: String,
    },
    /// A file for big-endian machines.
    #[error(
        "at byte 4: this is a big-endian GGUF file (version {version}), expected a little-endian one; \
         convert it with gguf_convert_endian from the `gguf` Python package"
    )]
    BigEndian {
        /// The version, read in the file's own byte order.
        version: u32,
    },
    /// A version that isn't read.
    #[error("at byte 4: found GGUF version {found}, expected 2 or 3{}", version_hint(*.found))]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A field reaches past the end of the file.
    #[error(
        "the file is truncated or damaged: at byte {offset}, {what} needs {}, but {} of the file's {}",
        counted(*.needed, "byte"),
        still(*.left),
        counted(*.file_bytes, "byte")
    )]
    Truncated {
        /// Where the field starts.
        offset: u64,
        /// The field.
        what: String,
        /// The bytes it needs.
        needed: u64,
        /// The bytes that are left.
        left: u64,
        /// The bytes of the file.
        file_bytes: u64,
    },
    /// There are said to be more of something than fit into what is left of the file.
    #[error(
        "the file is truncated or damaged: at byte {offset}, {what} is {count}, which needs at least {needed} \
         bytes, but {} of the file's {}",
        still(*.left),
        counted(*.file_bytes, "byte")
    )]
    CountTruncated {
        /// Where the count starts.
        offset: u64,
        /// The count.
        what: String,
        /// Its value.
        count: u64,
        /// The least bytes that so many take.
        needed: u128,
        /// The bytes that are left.
        left: u64,
        /// The bytes of the file.
        file_bytes: u64,
    },
    /// A field with a value that can't be.
    #[error("at byte {offset}: {what} is {found}, expected {expected}")]
    Malformed {
        /// Where the field starts.
        offset: u64,
        /// The field.
        what: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// The same key or tensor name twice.
    #[error(
        "at byte {second}: {what} `{name}` appears twice (first at byte {first}), expected once"
    )]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
        /// Offset of the first.
        first: u64,
        /// Offset of the second.
        second: u64,
    },
    /// A tensor's data reaches past the end of the file.
    #[error(
        "the file is truncated or damaged: the data of tensor `{name}` is {} from byte {offset} on, but the file \
         has only {}",
        counted(*.bytes, "byte"),
        counted(*.file_bytes, "byte")
    )]
    TensorOutside {
        /// The tensor.
        name: String,
        /// Where its data starts.
        offset: u64,
        /// The bytes of its data.
        bytes: u64,
        /// The bytes of the file.
        file_bytes: u64,
    },
    /// The data of two tensors share bytes.
    #[error(
        "at byte {offset}: the data of tensor `{second}` starts inside that of tensor `{first}`, which \
         ends at byte {first_end}; expected no overlap"
    )]
    TensorsOverlap {
        /// The tensor that starts first.
        first: String,
        /// Where it ends.
        first_end: u64,
        /// The tensor that starts inside it.
        second: String,
        /// Where that one starts.
        offset: u64,
    },
    /// One part of a model that is split over several files.
    #[error(
        "key `split.count` is {count}: the model is split over {count} files, which is not supported \
         yet; merge them into one file first (llama-gguf-split --merge)"
    )]
    Sharded {
        /// The number of files.
        count: u64,
    },
    /// A key that was asked for and isn't there.
    #[error("key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// What its value should have been.
        expected: String,
    },
    /// A key with a value of another type or range.
    #[error("key `{key}` (at byte {offset}) is {found}, expected {expected}")]
    WrongValue {
        /// The key.
        key: String,
        /// Where the key starts.
        offset: u64,
        /// Its value.
        found: String,
        /// What it should have been.
        expected: String,
    },
    /// A tensor that was asked for and isn't there.
    #[error(
        "tensor `{name}` is missing (the file has {})",
        counted(*.tensors as u64, "tensor")
    )]
    MissingTensor {
        /// The tensor.
        name: String,
        /// How many there are.
        tensors: usize,
    },
    /// A tensor in a format that the kernels don't have.
    #[error(
        "tensor `{name}` has type {} ({found}), which is not supported; supported: {}",
        .found.number(),
        supported_names()
    )]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        found: TensorType,
    },
    /// A tensor of another shape than asked for.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?} (row length last)")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape, row length last.
        found: Vec<usize>,
        /// The shape that was asked for, row length last.
        expected: Vec<usize>,
    },
    /// A tensor that should have been a plain vector of floats.
    #[error("tensor `{name}` has type {found}, expected F32, F16 or BF16")]
    NotFloat {
        /// The tensor.
        name: String,
        /// Its type.
        found: TensorType,
    },
}

/// A number of things, `noun` being the word for one of them.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn still(count: u64) -> String {
    format!("{count} {} left", if count == 1 { "is" } else { "are" })
}

fn version_hint(found: u32) -> &'static str {
    match found {
        0 => "; the file is damaged",
        1 => "; version 1 was used for a few weeks in 2023: download or convert the model again",
        _ => "; it may have been written by a newer tool",
    }
}
