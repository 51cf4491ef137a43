//! Metadata values, decoded from the bytes of the file when asked for.

use std::fmt;

use super::{cursor::Cursor, error::GgufProblem, types::ValueType};

/// How deep arrays may be nested. No known tool writes more than one level.
pub(crate) const MAX_ARRAY_DEPTH: usize = 4;

/// A metadata value. Strings and arrays borrow the bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// The bytes of a string: UTF-8 by the specification, but tokens may be cut anywhere.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value, where it is an integer of any width.
    #[must_use]
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value, where it is a float; f64 is rounded to f32.
    #[must_use]
    pub fn float(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            #[allow(clippy::cast_possible_truncation)]
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// The type.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Reads one value of that type, checking it and, for an array, everything inside it.
    pub(crate) fn read(
        cursor: &mut Cursor<'a>,
        value_type: ValueType,
        what: fmt::Arguments<'_>,
        depth: usize,
    ) -> Result<Self, GgufProblem> {
        Ok(match value_type {
            ValueType::U8 => Self::U8(cursor.u8(what)?),
            ValueType::I8 => Self::I8(cursor.u8(what)?.cast_signed()),
            ValueType::U16 => Self::U16(cursor.u16(what)?),
            ValueType::I16 => Self::I16(cursor.u16(what)?.cast_signed()),
            ValueType::U32 => Self::U32(cursor.u32(what)?),
            ValueType::I32 => Self::I32(cursor.u32(what)?.cast_signed()),
            ValueType::F32 => Self::F32(f32::from_bits(cursor.u32(what)?)),
            ValueType::Bool => Self::Bool(read_bool(cursor, what)?),
            ValueType::String => Self::String(cursor.string(what)?),
            ValueType::Array => Self::Array(Array::read(cursor, what, depth + 1)?),
            ValueType::U64 => Self::U64(cursor.u64(what)?),
            ValueType::I64 => Self::I64(cursor.u64(what)?.cast_signed()),
            ValueType::F64 => Self::F64(f64::from_bits(cursor.u64(what)?)),
        })
    }
}

/// Reads a value type, naming the offset when the number is none.
pub(crate) fn read_type(
    cursor: &mut Cursor<'_>,
    what: fmt::Arguments<'_>,
) -> Result<ValueType, GgufProblem> {
    let offset = cursor.at() as u64;
    let number = cursor.u32(what)?;
    ValueType::from_number(number).ok_or_else(|| GgufProblem::Malformed {
        offset,
        what: what.to_string(),
        found: number.to_string(),
        expected: format!("a value type from 0 to {}", ValueType::ALL.len() - 1),
    })
}

fn read_bool(cursor: &mut Cursor<'_>, what: fmt::Arguments<'_>) -> Result<bool, GgufProblem> {
    let offset = cursor.at() as u64;
    match cursor.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(GgufProblem::Malformed {
            offset,
            what: what.to_string(),
            found: other.to_string(),
            expected: "a bool, 0 or 1".into(),
        }),
    }
}

/// An array value: its elements stay in the file and are decoded while iterating.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// An array whose elements have been checked before.
    pub(crate) fn new(element: ValueType, len: usize, bytes: &'a [u8]) -> Self {
        Self {
            element,
            len,
            bytes,
        }
    }

    /// The type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, in order.
    #[must_use]
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            element: self.element,
            left: self.len,
            cursor: Cursor::new(self.bytes, 0),
        }
    }

    /// The elements as they lie in the file.
    pub(crate) fn raw(&self) -> &'a [u8] {
        self.bytes
    }

    fn read(
        cursor: &mut Cursor<'a>,
        what: fmt::Arguments<'_>,
        depth: usize,
    ) -> Result<Self, GgufProblem> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(GgufProblem::Malformed {
                offset: cursor.at() as u64,
                what: what.to_string(),
                found: format!("an array nested {depth} deep"),
                expected: format!("at most {MAX_ARRAY_DEPTH} levels"),
            });
        }
        let element = read_type(cursor, format_args!("the element type of {what}"))?;
        let len = cursor.count(
            element.min_bytes(),
            format_args!("the array length of {what}"),
        )?;
        let bytes = match element {
            ValueType::Bool | ValueType::String | ValueType::Array => {
                let start = *cursor;
                for index in 0..len {
                    let what = format_args!("element {index} of {what}");
                    Value::read(cursor, element, what, depth)?;
                }
                start.between(cursor)
            }
            // The count above has already been bounded by what is left, so this can't overflow.
            number => cursor.take((len * number.min_bytes()) as u64, what)?,
        };
        Ok(Self {
            element,
            len,
            bytes,
        })
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element, self.len)
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;
    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Iterates over the elements of an [`Array`].
#[derive(Clone)]
pub struct ArrayIter<'a> {
    element: ValueType,
    left: usize,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Everything was checked when the file was opened. Should the file have been changed since, the
        // iteration ends early instead of reading astray.
        Value::read(
            &mut self.cursor,
            self.element,
            format_args!("an array element"),
            1,
        )
        .ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}

/// For people: numbers and strings as they are (long ones cut), the first elements of an array.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES: usize = 60;
        const SHOWN_ELEMENTS: usize = 6;
        match self {
            Self::U8(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}"),
            Self::U16(v) => write!(f, "{v}"),
            Self::I16(v) => write!(f, "{v}"),
            Self::U32(v) => write!(f, "{v}"),
            Self::I32(v) => write!(f, "{v}"),
            Self::F32(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::U64(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::String(bytes) => {
                let cut = &bytes[..bytes.len().min(SHOWN_BYTES)];
                write!(f, "{:?}", String::from_utf8_lossy(cut))?;
                if bytes.len() > SHOWN_BYTES {
                    write!(f, "… ({} bytes)", bytes.len())?;
                }
                Ok(())
            }
            Self::Array(array) => {
                write!(f, "{} × {} [", array.len(), array.element_type())?;
                for (i, value) in array.iter().take(SHOWN_ELEMENTS).enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(if array.len() > SHOWN_ELEMENTS {
                    ", …]"
                } else {
                    "]"
                })
            }
        }
    }
}
