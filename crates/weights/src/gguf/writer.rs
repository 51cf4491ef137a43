//! Writes GGUF files, version 3.
//!
//! ```
//! use kernels::formats::Format;
//! use weights::gguf::{Gguf, writer::Writer};
//!
//! let mut writer = Writer::new();
//! writer.set("general.architecture", "llama");
//! writer.set("llama.block_count", 2_u32);
//! writer.set("tokenizer.ggml.tokens", &["a", "b"][..]);
//! writer.declare("output_norm.weight", &[3], Format::F32);
//! let file = writer.write(Vec::new(), &[&[0; 12]])?;
//! let gguf = Gguf::from_bytes("example", file)?;
//! assert_eq!(gguf.metadata().get_u32("llama.block_count")?, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::{self, Write};

use super::{
    DEFAULT_ALIGNMENT,
    types::{TensorType, ValueType},
    value::{Array, Value},
};

/// A value that can be written: a number, a bool, a string (`&str`, or [`Bytes`] where it may not be
/// UTF-8), a slice of such values for an array, or a [`Value`] read from another file.
pub trait Element {
    /// The type in the file.
    const TYPE: ValueType;
    /// Appends the value as it lies in the file.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A string given as bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

macro_rules! elements {
    ($($type:ty: $value_type:ident, |$value:ident, $out:ident| $encode:expr;)*) => {$(
        impl Element for $type {
            const TYPE: ValueType = ValueType::$value_type;
            fn encode(&self, $out: &mut Vec<u8>) {
                let $value = self;
                $encode;
            }
        }
    )*};
}

elements! {
    u8: U8, |v, out| out.push(*v);
    i8: I8, |v, out| out.extend(v.to_le_bytes());
    u16: U16, |v, out| out.extend(v.to_le_bytes());
    i16: I16, |v, out| out.extend(v.to_le_bytes());
    u32: U32, |v, out| out.extend(v.to_le_bytes());
    i32: I32, |v, out| out.extend(v.to_le_bytes());
    f32: F32, |v, out| out.extend(v.to_le_bytes());
    bool: Bool, |v, out| out.push(u8::from(*v));
    u64: U64, |v, out| out.extend(v.to_le_bytes());
    i64: I64, |v, out| out.extend(v.to_le_bytes());
    f64: F64, |v, out| out.extend(v.to_le_bytes());
    &str: String, |v, out| encode_string(v.as_bytes(), out);
    String: String, |v, out| encode_string(v.as_bytes(), out);
    Bytes<'_>: String, |v, out| encode_string(v.0, out);
    Array<'_>: Array, |v, out| encode_array(v.element_type(), v.len(), v.raw(), out);
}

impl<T: Element> Element for &[T] {
    const TYPE: ValueType = ValueType::Array;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_array(T::TYPE, self.len(), &[], out);
        for element in *self {
            element.encode(out);
        }
    }
}

impl<T: Element> Element for Vec<T> {
    const TYPE: ValueType = ValueType::Array;
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

fn encode_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn encode_array(element: ValueType, len: usize, elements: &[u8], out: &mut Vec<u8>) {
    out.extend(element.number().to_le_bytes());
    out.extend((len as u64).to_le_bytes());
    out.extend(elements);
}

/// A file being described: first its metadata and tensors, then, from [`Writer::begin`] on, the data.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    alignment: Option<u32>,
    keys: Vec<(String, ValueType, Vec<u8>)>,
    tensors: Vec<Declared>,
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dims: Vec<usize>,
    tensor_type: TensorType,
    bytes: u64,
}

impl Writer {
    /// An empty file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the alignment of tensor data (32 bytes otherwise) and the key that states it.
    pub fn set_alignment(&mut self, alignment: u32) {
        self.alignment = Some(alignment);
        self.set("general.alignment", alignment);
    }

    /// Sets a key, in place of an earlier value.
    pub fn set<E: Element>(&mut self, key: &str, value: E) {
        let mut encoded = Vec::new();
        value.encode(&mut encoded);
        match self.keys.iter_mut().find(|k| k.0 == key) {
            Some(entry) => (entry.1, entry.2) = (E::TYPE, encoded),
            None => self.keys.push((key.to_owned(), E::TYPE, encoded)),
        }
    }

    /// Sets a key to a value read from another file, of the same type.
    pub fn set_value(&mut self, key: &str, value: Value<'_>) {
        match value {
            Value::U8(v) => self.set(key, v),
            Value::I8(v) => self.set(key, v),
            Value::U16(v) => self.set(key, v),
            Value::I16(v) => self.set(key, v),
            Value::U32(v) => self.set(key, v),
            Value::I32(v) => self.set(key, v),
            Value::F32(v) => self.set(key, v),
            Value::Bool(v) => self.set(key, v),
            Value::String(v) => self.set(key, Bytes(v)),
            Value::Array(v) => self.set(key, v),
            Value::U64(v) => self.set(key, v),
            Value::I64(v) => self.set(key, v),
            Value::F64(v) => self.set(key, v),
        }
    }

    /// Adds a tensor. Its data are given later, in the order of these calls. `dims` are in GGUF order:
    /// the row length first.
    pub fn declare(&mut self, name: &str, dims: &[usize], tensor_type: impl Into<TensorType>) {
        let tensor_type = tensor_type.into();
        let (block_len, block_bytes) = tensor_type.block().unwrap_or((1, 0));
        let bytes = dims.iter().product::<usize>() / block_len * block_bytes;
        self.tensors.push(Declared {
            name: name.to_owned(),
            dims: dims.to_vec(),
            tensor_type,
            bytes: bytes as u64,
        });
    }

    /// Writes everything up to the data.
    ///
    /// # Errors
    /// A name, shape or alignment that a reader would refuse; writing fails.
    pub fn begin<W: Write>(self, out: W) -> io::Result<DataWriter<W>> {
        self.check()?;
        let alignment = self.alignment.map_or(DEFAULT_ALIGNMENT, u64::from);
        let mut head = Vec::new();
        head.extend(b"GGUF");
        head.extend(3_u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value_type, encoded) in &self.keys {
            encode_string(key.as_bytes(), &mut head);
            head.extend(value_type.number().to_le_bytes());
            head.extend(encoded);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            encode_string(tensor.name.as_bytes(), &mut head);
            // At most four, as checked above.
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor
                .dims
                .iter()
                .for_each(|&d| head.extend((d as u64).to_le_bytes()));
            head.extend(tensor.tensor_type.number().to_le_bytes());
            head.extend(u64::to_le_bytes(offset));
            offset += tensor.bytes.next_multiple_of(alignment);
        }
        let mut writer = DataWriter {
            out,
            alignment,
            at: 0,
            tensors: self.tensors,
            current: 0,
            written: 0,
        };
        writer.raw(&head)?;
        writer.pad()?;
        Ok(writer)
    }

    /// Writes the whole file, with the data of each tensor in the order of their declaration.
    ///
    /// # Errors
    /// As [`Writer::begin`]; data of another size than declared.
    pub fn write<W: Write>(self, out: W, data: &[&[u8]]) -> io::Result<W> {
        let mut writer = self.begin(out)?;
        for bytes in data {
            writer.write(bytes)?;
        }
        writer.finish()
    }

    fn check(&self) -> io::Result<()> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if let Some(alignment) = self.alignment.filter(|a| !a.is_power_of_two()) {
            return refuse(format!(
                "the alignment is {alignment}, expected a power of two"
            ));
        }
        for tensor in &self.tensors {
            let Declared {
                name,
                dims,
                tensor_type,
                ..
            } = tensor;
            let Some((block_len, _)) = tensor_type.block() else {
                return refuse(format!("tensor `{name}`: {tensor_type} can't be written"));
            };
            if !(1..=4).contains(&dims.len()) || dims.contains(&0) {
                return refuse(format!(
                    "tensor `{name}` has dimensions {dims:?}, expected 1 to 4 of at least 1"
                ));
            }
            if !dims[0].is_multiple_of(block_len) {
                return refuse(format!(
                    "tensor `{name}` has row length {}, expected a multiple of {block_len}",
                    dims[0]
                ));
            }
        }
        Ok(())
    }
}

/// A file whose tensors' data are being written.
#[derive(Debug)]
pub struct DataWriter<W> {
    out: W,
    alignment: u64,
    /// Bytes written so far.
    at: u64,
    tensors: Vec<Declared>,
    /// The tensor being written, and the bytes of it written so far.
    current: usize,
    written: u64,
}

impl<W: Write> DataWriter<W> {
    /// Writes the next bytes of data: a part of a tensor, a whole one, never more than the rest of the
    /// current one. Padding between tensors is added by itself.
    ///
    /// # Errors
    /// More bytes than the current tensor has left, or more tensors than were declared; writing fails.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let Some(tensor) = self.tensors.get(self.current) else {
            return refuse(format!(
                "all {} declared tensors are written",
                self.tensors.len()
            ));
        };
        let left = tensor.bytes - self.written;
        if bytes.len() as u64 > left {
            let (name, got) = (&tensor.name, bytes.len());
            return refuse(format!(
                "tensor `{name}` has {left} bytes left to write, got {got}"
            ));
        }
        let complete = bytes.len() as u64 == left;
        self.raw(bytes)?;
        self.written += bytes.len() as u64;
        if complete {
            self.pad()?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// A tensor's data are missing; flushing fails.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(tensor) = self.tensors.get(self.current) {
            let what = format!(
                "tensor `{}` has {} of {} bytes of data",
                tensor.name, self.written, tensor.bytes
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Zero bytes up to the next multiple of the alignment.
    fn pad(&mut self) -> io::Result<()> {
        let mut left = self.at.next_multiple_of(self.alignment) - self.at;
        while left > 0 {
            let now = left.min(4096);
            self.raw(&[0; 4096][..now as usize])?;
            left -= now;
        }
        Ok(())
    }
}
