//! GGUF files: a header, metadata (keys with values), a directory of tensors, and their data.
//!
//! Source of the layout: the GGUF specification in the ggml repository (`docs/gguf.md`), versions 2 and
//! 3, which differ only in that version 3 may be big-endian (not supported here).

mod cursor;
mod error;
mod metadata;
mod sniff;
mod tensors;
mod types;
mod value;
pub mod writer;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use kernels::formats::Format;

use self::{cursor::Cursor, metadata::Directory, tensors::Tensors};
pub use self::{
    error::{GgufError, GgufProblem},
    metadata::Metadata,
    tensors::TensorInfo,
    types::{TensorType, ValueType},
    value::{Array, ArrayIter, Value},
};
use crate::map::Bytes;

/// The alignment of tensor data where the file doesn't state one, bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The least bytes of a key with its value: key length 8, key 1, type 4, value 1.
const MIN_KEY_BYTES: usize = 14;

/// An open GGUF file: everything but the tensors' data has been read and checked, and the data are known
/// to lie inside the file.
///
/// The file is mapped, not read: see the limit on truncating or overwriting it meanwhile, which the
/// project avoids by creating files only by rename.
#[derive(Debug)]
pub struct Gguf {
    file: PathBuf,
    bytes: Bytes,
    version: u32,
    alignment: u64,
    directory: Directory,
    tensors: Tensors,
}

/// What a file holds, for people and for progress bars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The GGUF version.
    pub version: u32,
    /// The bytes of the file.
    pub file_bytes: u64,
    /// The alignment of tensor data, bytes.
    pub alignment: u64,
    /// The number of metadata keys.
    pub keys: usize,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of values in all tensors.
    pub parameters: u64,
    /// The bytes of all tensors' data.
    pub tensor_bytes: u64,
    /// The same by type, most bytes first.
    pub types: Vec<TypeFacts>,
}

/// What a file holds in tensors of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeFacts {
    /// The type.
    pub tensor_type: TensorType,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of values.
    pub parameters: u64,
    /// The bytes of data.
    pub bytes: u64,
}

impl Gguf {
    /// Opens a file and reads its directory.
    ///
    /// # Errors
    /// The file can't be opened, is no GGUF file, is damaged or truncated, or is one part of several.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let bytes = open_bytes(path).map_err(|problem| GgufError::new(path, problem))?;
        Self::parse(path, bytes)
    }

    /// Reads a file held in memory; `name` stands for the file in errors.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(&name.into(), Bytes::Memory(bytes))
    }

    fn parse(path: &Path, bytes: Bytes) -> Result<Self, GgufError> {
        let fail = |problem| GgufError::new(path, problem);
        let slice = bytes.as_slice();
        let (version, mut cursor) = read_magic(slice).map_err(fail)?;
        let tensor_count = cursor
            .count(
                tensors::MIN_TENSOR_BYTES,
                format_args!("the number of tensors"),
            )
            .map_err(fail)?;
        let key_count = cursor
            .count(MIN_KEY_BYTES, format_args!("the number of keys"))
            .map_err(fail)?;
        let directory = Directory::read(&mut cursor, key_count).map_err(fail)?;
        let metadata = Metadata {
            file: path,
            bytes: slice,
            directory: &directory,
        };
        check_not_sharded(metadata)?;
        let alignment = read_alignment(metadata)?;
        let tensors = Tensors::read(&mut cursor, tensor_count, alignment, slice.len() as u64)
            .map_err(fail)?;
        Ok(Self {
            file: path.to_owned(),
            bytes,
            version,
            alignment,
            directory,
            tensors,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata {
            file: &self.file,
            bytes: self.bytes.as_slice(),
            directory: &self.directory,
        }
    }

    /// All tensors, supported or not, in the order of the file.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors.infos
    }

    /// The tensor with that name, supported or not.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.find(name)
    }

    /// The tensor with that name, which must be there and of a supported type.
    ///
    /// # Errors
    /// It is missing, or its type is not supported.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        let info = self.find_tensor(name).ok_or_else(|| {
            let (name, tensors) = (name.to_owned(), self.tensors().len());
            self.error(GgufProblem::MissingTensor { name, tensors })
        })?;
        self.tensor_format(info)?;
        Ok(info)
    }

    /// The block format of a tensor.
    ///
    /// # Errors
    /// Its type is not supported.
    pub fn tensor_format(&self, info: &TensorInfo) -> Result<Format, GgufError> {
        info.format().ok_or_else(|| {
            let (name, found) = (info.name().to_owned(), info.tensor_type());
            self.error(GgufProblem::UnsupportedType { name, found })
        })
    }

    /// The data of a tensor of this file, as they lie there: blocks in row order. (Nothing, for a tensor
    /// of another file that would lie outside this one.)
    #[must_use]
    pub fn tensor_bytes(&self, info: &TensorInfo) -> &[u8] {
        self.bytes
            .as_slice()
            .get(self.tensor_range(info))
            .unwrap_or_default()
    }

    /// Where the data of a tensor lie in the file: for [`Gguf::release`].
    #[must_use]
    pub fn tensor_range(&self, info: &TensorInfo) -> Range<usize> {
        let start = usize::try_from(info.offset()).unwrap_or(usize::MAX);
        start..start.saturating_add(usize::try_from(info.bytes()).unwrap_or(usize::MAX))
    }

    /// Gives back the memory of the whole pages inside a range of the file; they are read again if
    /// touched.
    pub fn release(&self, range: Range<usize>) {
        self.bytes.release(range);
    }

    /// Counts and sizes.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let mut types: BTreeMap<TensorType, TypeFacts> = BTreeMap::new();
        for info in self.tensors() {
            let tensor_type = info.tensor_type();
            let of_type = types.entry(tensor_type).or_insert(TypeFacts {
                tensor_type,
                tensors: 0,
                parameters: 0,
                bytes: 0,
            });
            of_type.tensors += 1;
            // A tensor of unknown type can claim any shape, so the sum may not fit.
            of_type.parameters = of_type.parameters.saturating_add(info.elements() as u64);
            of_type.bytes += info.bytes();
        }
        let mut types: Vec<TypeFacts> = types.into_values().collect();
        types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
        Facts {
            version: self.version,
            file_bytes: self.bytes.as_slice().len() as u64,
            alignment: self.alignment,
            keys: self.directory_len(),
            tensors: self.tensors().len(),
            parameters: types
                .iter()
                .fold(0, |sum: u64, t| sum.saturating_add(t.parameters)),
            tensor_bytes: types.iter().map(|t| t.bytes).sum(),
            types,
        }
    }

    fn directory_len(&self) -> usize {
        self.metadata().len()
    }

    pub(crate) fn error(&self, problem: GgufProblem) -> GgufError {
        GgufError::new(&self.file, problem)
    }
}

fn open_bytes(path: &Path) -> Result<Bytes, GgufProblem> {
    let io = |action| move |error: io::Error| GgufProblem::Io { action, error };
    // Looked at before opening, since opening a pipe would wait for a writer.
    let kind = fs::metadata(path).map_err(io("open the file"))?;
    if kind.is_dir() {
        return Err(GgufProblem::NotAFile { found: "a folder" });
    }
    if !kind.is_file() {
        return Err(GgufProblem::NotAFile {
            found: "a device, pipe or socket",
        });
    }
    let file = File::open(path).map_err(io("open the file"))?;
    if kind.len() == 0 {
        return Ok(Bytes::Memory(Vec::new()));
    }
    Bytes::map(&file, path).map_err(io("map the file into memory"))
}

/// Checks magic and version; the cursor stands behind them.
fn read_magic(bytes: &[u8]) -> Result<(u32, Cursor<'_>), GgufProblem> {
    let mut cursor = Cursor::new(bytes, 0);
    if !bytes.starts_with(b"GGUF") {
        return Err(GgufProblem::NotGguf {
            found: sniff::describe(bytes),
        });
    }
    cursor.take(4, format_args!("the magic"))?;
    let version = cursor.u32(format_args!("the version"))?;
    match version {
        2 | 3 => Ok((version, cursor)),
        // Versions are small numbers, so a big one is a small one with its bytes swapped.
        v if v != 0 && v.swap_bytes() < 1 << 16 => Err(GgufProblem::BigEndian {
            version: v.swap_bytes(),
        }),
        found => Err(GgufProblem::Version { found }),
    }
}

fn read_alignment(metadata: Metadata<'_>) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    match metadata.opt_u32(KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment.into()),
        Some(_) => Err(metadata.invalid(KEY, "a power of two")),
    }
}

fn check_not_sharded(metadata: Metadata<'_>) -> Result<(), GgufError> {
    match metadata.opt_u64("split.count")? {
        Some(count) if count > 1 => Err(GgufError::new(
            metadata.file,
            GgufProblem::Sharded { count },
        )),
        _ => Ok(()),
    }
}
