//! For the tests of damaged files: a builder that writes any bytes, an allocator that counts, and one
//! function that does everything with a file that a program may do.
#![allow(dead_code, unsafe_code, clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ops::Range,
};

use kernels::{formats::Format, pool::Pool};
use weights::{
    gguf::{Gguf, GgufError, ValueType},
    load::{load_matrix, load_vector},
};

/// Counts what each thread has allocated.
pub(crate) struct CountingAllocator;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches only cells that
// need no allocation.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NOW.set(NOW.get().wrapping_add(layout.size()));
        PEAK.set(PEAK.get().max(NOW.get()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.set(NOW.get().saturating_sub(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `f` gives, and the most bytes that this thread held in it beyond those it held before.
pub(crate) fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = f();
    (result, PEAK.get() - before)
}

/// The most memory that reading a file of so many bytes may take, its own bytes not counted.
pub(crate) fn memory_limit(file_bytes: usize) -> usize {
    64 * file_bytes + (64 << 10)
}

/// Reads a file and everything in it, as any program might. It must not panic, whatever the bytes.
pub(crate) fn parse_any(bytes: Vec<u8>) -> Result<(), GgufError> {
    let gguf = Gguf::from_bytes("any.gguf", bytes)?;
    let metadata = gguf.metadata();
    let mut shown = String::new();
    for (key, value) in metadata.iter() {
        use std::fmt::Write;
        shown.clear();
        let _ = write!(shown, "{value}");
        let _ = metadata.get_u32(key);
        let _ = metadata.get_i32(key);
        let _ = metadata.get_u64(key);
        let _ = metadata.get_f32(key);
        let _ = metadata.get_bool(key);
        let _ = metadata.get_str(key);
        let _ = metadata.get_bytes(key);
        let _ = metadata.get_u32_array(key).map(Iterator::count);
        let _ = metadata.get_f32_array(key).map(Iterator::count);
        let _ = metadata.get_bool_array(key).map(Iterator::count);
        let _ = metadata.get_bytes_array(key).map(Iterator::count);
        let _ = metadata.get_str_array(key).map(Iterator::count);
        let _ = metadata.opt_u32_each(key, 3);
        if let Ok(array) = metadata.get_array(key) {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    let facts = gguf.facts();
    assert!(facts.tensor_bytes <= facts.file_bytes);
    let pool = Pool::new(1);
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor_bytes(tensor).len() as u64, tensor.bytes());
        let _ = load_vector(&gguf, tensor.name(), tensor.elements());
        let _ = load_matrix(&gguf, tensor.name(), [tensor.rows(), tensor.cols()], &pool);
    }
    gguf.release(0..usize::MAX);
    Ok(())
}

/// Writes the bytes of a file, right or wrong, and notes where its fields are.
#[derive(Clone, Default)]
pub(crate) struct Builder {
    pub(crate) bytes: Vec<u8>,
    /// Where numbers with a meaning for the reader are: counts, lengths, types, dimensions, offsets.
    pub(crate) fields: Vec<Range<usize>>,
}

impl Builder {
    /// Magic, version and the two counts.
    pub(crate) fn header(version: u32, tensors: u64, keys: u64) -> Self {
        Self::default()
            .raw(b"GGUF")
            .u32(version)
            .u64(tensors)
            .u64(keys)
    }

    /// A version 3 file with these counts.
    pub(crate) fn v3(tensors: u64, keys: u64) -> Self {
        Self::header(3, tensors, keys)
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    fn field(mut self, bytes: &[u8]) -> Self {
        self.fields
            .push(self.bytes.len()..self.bytes.len() + bytes.len());
        self.raw(bytes)
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn string(self, text: impl AsRef<[u8]>) -> Self {
        self.u64(text.as_ref().len() as u64).raw(text.as_ref())
    }

    /// A key and the type of its value, which is to follow.
    pub(crate) fn key(self, key: &str, value_type: ValueType) -> Self {
        self.string(key).u32(value_type.number())
    }

    /// A key, and an array of which the elements are to follow.
    pub(crate) fn array(self, key: &str, element: ValueType, len: u64) -> Self {
        self.key(key, ValueType::Array)
            .u32(element.number())
            .u64(len)
    }

    /// A directory entry.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], tensor_type: u32, offset: u64) -> Self {
        let dimensions = self.string(name).u32(dims.len() as u32);
        dims.iter()
            .fold(dimensions, |b, &d| b.u64(d))
            .u32(tensor_type)
            .u64(offset)
    }

    pub(crate) fn pad(mut self, alignment: usize) -> Self {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(alignment), 0);
        self
    }

    pub(crate) fn zeros(mut self, count: usize) -> Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }
}

/// A right file with a bit of everything; the data section starts at a multiple of 32.
pub(crate) fn valid() -> Builder {
    use ValueType as T;
    Builder::v3(3, 9)
        .key("general.architecture", T::String)
        .string("llama")
        .key("general.alignment", T::U32)
        .u32(32)
        .key("flag", T::Bool)
        .raw(&[1])
        .key("double", T::F64)
        .raw(&1.5_f64.to_le_bytes())
        .key("small", T::I8)
        .raw(&[0xff])
        .array("tokens", T::String, 3)
        .string("a")
        .string("")
        .string([0xff, 0xfe])
        .array("scores", T::F32, 2)
        .raw(&[0, 0, 128, 63, 0, 0, 0, 64])
        .array("flags", T::Bool, 2)
        .raw(&[0, 1])
        .array("nested", T::Array, 2)
        .u32(T::U16.number())
        .u64(1)
        .raw(&[7, 0])
        .u32(T::String.number())
        .u64(1)
        .string("x")
        .tensor("norm", &[8], Format::F32.ggml_type(), 0)
        .tensor("matrix", &[32, 2], Format::Q8_0.ggml_type(), 32)
        .tensor("other", &[256], 10, 128)
        .pad(32)
        .zeros(128 + 84)
}
