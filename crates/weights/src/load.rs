//! From the tensors of a file to matrices packed for the kernels and vectors of f32.
//!
//! The pages of the file are given back while packing, so that resident memory grows by the packed
//! size only.

use std::{
    ops::Range,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use kernels::{
    formats::Format,
    packed::{PackError, PackedMatrix},
    pool::Pool,
};

use crate::gguf::{Gguf, GgufError, GgufProblem, TensorInfo};

/// A tensor that can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is missing, of an unsupported type, or of another shape.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// It can't be packed.
    #[error("{}: tensor `{tensor}`: {error}", .file.display())]
    Pack {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the kernels say.
        error: PackError,
    },
    /// A vector holds a value that is infinite or not a number.
    #[error("{}: tensor `{tensor}`: value {index} is {value}, expected a finite number", .file.display())]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Which value.
        index: usize,
        /// The value.
        value: f32,
    },
}

/// How far loading has come, in bytes of the file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// The bytes of the tensors read so far.
    pub done: u64,
    /// The bytes of all tensors in the file.
    pub total: u64,
}

/// How to load.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// Turns every matrix into F32 before packing it: the same weights without the arithmetic of
    /// quantised formats, for comparison with other implementations. Needs the memory that F32 needs,
    /// and once more that of the largest matrix.
    pub dequantize: bool,
    /// Called as loading goes on, from any thread of the pool, some times per matrix.
    pub progress: Option<&'a (dyn Fn(LoadProgress) + Sync)>,
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("dequantize", &self.dequantize)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// Loads the tensors of one file.
#[derive(Debug)]
pub struct Loader<'a> {
    gguf: &'a Gguf,
    pool: &'a Pool,
    options: LoadOptions<'a>,
    done: AtomicU64,
    total: u64,
}

impl<'a> Loader<'a> {
    /// A loader for that file.
    #[must_use]
    pub fn new(gguf: &'a Gguf, pool: &'a Pool, options: LoadOptions<'a>) -> Self {
        let total = gguf.facts().tensor_bytes;
        Self {
            gguf,
            pool,
            options,
            done: AtomicU64::new(0),
            total,
        }
    }

    /// The file.
    #[must_use]
    pub fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    /// Packs the matrix `name`, which must have the shape `[rows, cols]`.
    ///
    /// # Errors
    /// It is missing, of an unsupported type or of another shape; a value or scale is not finite; there
    /// is no memory for it.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<PackedMatrix, LoadError> {
        let info = self.gguf.tensor(name)?;
        let format = self.gguf.tensor_format(info)?;
        check_shape(self.gguf, info, &shape)?;
        let [rows, cols] = shape;
        let src = self.gguf.tensor_bytes(info);
        let start = self.gguf.tensor_range(info).start;
        let done = |range: Range<usize>| {
            self.gguf.release(start + range.start..start + range.end);
            self.advance(range.len() as u64);
        };
        let packed = if self.options.dequantize && format != Format::F32 {
            let values = dequantize(format, rows, cols, src, &done);
            PackedMatrix::pack(Format::F32, rows, cols, &values, self.pool, &|_| ())
        } else {
            PackedMatrix::pack(format, rows, cols, src, self.pool, &done)
        };
        // The pages on the borders of the ranges above.
        self.gguf.release(self.gguf.tensor_range(info));
        packed.map_err(|error| LoadError::Pack {
            file: self.gguf.path().to_owned(),
            tensor: name.to_owned(),
            error,
        })
    }

    /// Reads the vector `name`, which must have `len` values of F32, F16 or BF16, as f32 (exactly).
    ///
    /// # Errors
    /// It is missing, of another type or length, or holds a value that is not finite.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let values = load_vector(self.gguf, name, len)?;
        if let Some(info) = self.gguf.find_tensor(name) {
            self.advance(info.bytes());
        }
        Ok(values)
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = self.options.progress {
            progress(LoadProgress {
                done,
                total: self.total,
            });
        }
    }
}

/// Packs the matrix `name`, which must have the shape `[rows, cols]`. See [`Loader`] for more at once.
///
/// # Errors
/// As [`Loader::matrix`].
pub fn load_matrix(
    gguf: &Gguf,
    name: &str,
    shape: [usize; 2],
    pool: &Pool,
) -> Result<PackedMatrix, LoadError> {
    Loader::new(gguf, pool, LoadOptions::default()).matrix(name, shape)
}

/// Reads the vector `name`, which must have `len` values of F32, F16 or BF16, as f32 (exactly).
///
/// # Errors
/// As [`Loader::vector`].
pub fn load_vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
    let info = gguf.tensor(name)?;
    let format = gguf.tensor_format(info)?;
    check_shape(gguf, info, &[len])?;
    if !matches!(format, Format::F32 | Format::F16 | Format::BF16) {
        let (name, found) = (name.to_owned(), info.tensor_type());
        return Err(gguf.error(GgufProblem::NotFloat { name, found }).into());
    }
    let mut values = vec![0.0; len];
    format.dequantize(gguf.tensor_bytes(info), &mut values);
    match values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        None => Ok(values),
        Some((index, &value)) => Err(LoadError::NotFinite {
            file: gguf.path().to_owned(),
            tensor: name.to_owned(),
            index,
            value,
        }),
    }
}

/// `shape` has the row length last. Leading dimensions of 1 don't count, since writers drop them.
fn check_shape(gguf: &Gguf, info: &TensorInfo, shape: &[usize]) -> Result<(), LoadError> {
    let significant = |shape: &[usize]| {
        let ones = shape[..shape.len() - 1]
            .iter()
            .take_while(|&&n| n == 1)
            .count();
        shape[ones..].to_vec()
    };
    let found = info.shape();
    if significant(&found) == significant(shape) {
        return Ok(());
    }
    let (name, expected) = (info.name().to_owned(), shape.to_vec());
    Err(gguf
        .error(GgufProblem::Shape {
            name,
            found,
            expected,
        })
        .into())
}

/// The values of a matrix as little-endian f32; `done` as in [`PackedMatrix::pack`].
fn dequantize(
    format: Format,
    rows: usize,
    cols: usize,
    src: &[u8],
    done: &dyn Fn(Range<usize>),
) -> Vec<u8> {
    const CHUNK_BYTES: usize = 1 << 20;
    let mut out = Vec::with_capacity(rows * cols * 4);
    let mut row = vec![0.0_f32; cols];
    let row_bytes = cols / format.block_len() * format.block_bytes();
    let mut read = 0..0;
    for bytes in src.chunks_exact(row_bytes) {
        format.dequantize(bytes, &mut row);
        row.iter().for_each(|v| out.extend(v.to_le_bytes()));
        read.end += row_bytes;
        if read.len() >= CHUNK_BYTES || read.end == src.len() {
            done(read.clone());
            read.start = read.end;
        }
    }
    out
}
