//! The key-value part of a GGUF file.

use std::{ops::Range, path::Path};

use super::{
    cursor::Cursor,
    error::{GgufError, GgufProblem},
    types::ValueType,
    value::{Array, Value, read_type},
};

/// The most keys a file may have. Real files have fewer than a hundred.
const MAX_KEYS: usize = 1 << 16;

/// The most bytes of a key (GGUF specification: 2¹⁶ − 1).
const MAX_KEY_BYTES: usize = (1 << 16) - 1;

/// Where a key's value lies in the file.
#[derive(Debug)]
struct Entry {
    key: String,
    offset: u64,
    value_type: ValueType,
    start: usize,
    /// For an array: what spares walking it again.
    array: Option<ArrayPlace>,
}

/// Where the elements of an array lie in the file.
#[derive(Debug)]
struct ArrayPlace {
    element: ValueType,
    len: usize,
    bytes: Range<usize>,
}

/// The directory of keys.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// In the order of the file.
    entries: Vec<Entry>,
    /// Indices into `entries`, in the order of the keys.
    sorted: Vec<u32>,
}

impl Directory {
    /// Reads `count` keys and values, checking every value.
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Self, GgufProblem> {
        if count > MAX_KEYS {
            return Err(GgufProblem::Malformed {
                offset: 16,
                what: "the number of keys".into(),
                found: count.to_string(),
                expected: format!("at most {MAX_KEYS}"),
            });
        }
        let mut entries = Vec::new();
        for index in 0..count {
            entries.push(read_entry(cursor, index)?);
        }
        let mut sorted: Vec<u32> = (0u32..).take(entries.len()).collect();
        let by_key = |i: &u32| entries[*i as usize].key.as_str();
        sorted.sort_by(|a, b| by_key(a).cmp(by_key(b)));
        for pair in sorted.windows(2) {
            if by_key(&pair[0]) == by_key(&pair[1]) {
                return Err(GgufProblem::Duplicate {
                    what: "key",
                    name: by_key(&pair[0]).to_owned(),
                    first: entries[pair[0] as usize].offset,
                    second: entries[pair[1] as usize].offset,
                });
            }
        }
        Ok(Self { entries, sorted })
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let entry = |i: &u32| &self.entries[*i as usize];
        let at = self
            .sorted
            .binary_search_by(|i| entry(i).key.as_str().cmp(key))
            .ok()?;
        self.sorted.get(at).map(entry)
    }
}

fn read_entry(cursor: &mut Cursor<'_>, index: usize) -> Result<Entry, GgufProblem> {
    let offset = cursor.at() as u64;
    let wrong_key = |found: String| GgufProblem::Malformed {
        offset,
        what: format!("key {index}"),
        found,
        expected: format!("UTF-8 text of 1 to {MAX_KEY_BYTES} bytes"),
    };
    let key = cursor.string(format_args!("key {index}"))?;
    if key.is_empty() {
        return Err(wrong_key("empty".into()));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(wrong_key(format!("{} bytes long", key.len())));
    }
    let key = std::str::from_utf8(key).map_err(|e| wrong_key(format!("not UTF-8 ({e})")))?;
    let value_type = read_type(cursor, format_args!("the value type of key `{key}`"))?;
    let start = cursor.at();
    let value = Value::read(
        cursor,
        value_type,
        format_args!("the value of key `{key}`"),
        0,
    )?;
    let array = match value {
        Value::Array(array) => Some(ArrayPlace {
            element: array.element_type(),
            len: array.len(),
            bytes: cursor.at() - array.raw().len()..cursor.at(),
        }),
        _ => None,
    };
    Ok(Entry {
        key: key.to_owned(),
        offset,
        value_type,
        start,
        array,
    })
}

/// The metadata of a file. Values are decoded when asked for; strings and arrays borrow the file.
///
/// The typed getters come in two forms: `get_*` needs the key to be there, `opt_*` gives `None` where
/// it isn't. Both give an error that names the key, what was found and what was expected where the value
/// has another type or is out of range. Integers of any width are accepted where the value fits, since
/// tools disagree about widths.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    pub(crate) file: &'a Path,
    pub(crate) bytes: &'a [u8],
    pub(crate) directory: &'a Directory,
}

macro_rules! getters {
    ($($get:ident, $opt:ident, $type:ty, $expected:expr, $convert:expr;)*) => {$(
        #[doc = concat!("The value of a key that must be there: ", $expected, ".")]
        ///
        /// # Errors
        /// The key is missing, or its value has another type or is out of range.
        pub fn $get(&self, key: &str) -> Result<$type, GgufError> {
            self.$opt(key)?.ok_or_else(|| self.missing(key, $expected))
        }

        #[doc = concat!("The value of a key that may be missing: ", $expected, ".")]
        ///
        /// # Errors
        /// Its value has another type or is out of range.
        pub fn $opt(&self, key: &str) -> Result<Option<$type>, GgufError> {
            self.typed(key, $expected, $convert)
        }
    )*};
}

macro_rules! number_arrays {
    ($($get:ident, $opt:ident, $type:ty, $expected:expr, $convert:expr;)*) => {$(
        #[doc = concat!("The value of a key that must be there: ", $expected, ".")]
        ///
        /// # Errors
        /// The key is missing, or its value is no array, or an element has another type or is out of
        /// range (the first such element is named).
        pub fn $get(
            &self,
            key: &str,
        ) -> Result<impl ExactSizeIterator<Item = $type> + Clone + use<'a>, GgufError> {
            self.$opt(key)?.ok_or_else(|| self.missing(key, $expected))
        }

        #[doc = concat!("The value of a key that may be missing: ", $expected, ".")]
        ///
        /// # Errors
        /// Its value is no array, or an element has another type or is out of range.
        pub fn $opt(
            &self,
            key: &str,
        ) -> Result<Option<impl ExactSizeIterator<Item = $type> + Clone + use<'a>>, GgufError> {
            self.elements(key, $expected, $convert)
        }
    )*};
}

impl<'a> Metadata<'a> {
    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.directory.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directory.entries.is_empty()
    }

    /// All keys with their values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let bytes = self.bytes;
        self.directory
            .entries
            .iter()
            .map(move |e| (e.key.as_str(), decode(bytes, e)))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.directory.find(key).map(|e| decode(self.bytes, e))
    }

    /// Whether there is such a key.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.directory.find(key).is_some()
    }

    getters! {
        get_u32, opt_u32, u32, "an integer from 0 to 4294967295",
            |v| v.integer()?.try_into().ok();
        get_i32, opt_i32, i32, "an integer from -2147483648 to 2147483647",
            |v| v.integer()?.try_into().ok();
        get_u64, opt_u64, u64, "an integer from 0 to 18446744073709551615",
            |v| v.integer()?.try_into().ok();
        get_usize, opt_usize, usize, "an integer from 0 up, within the range of a size",
            |v| v.integer()?.try_into().ok();
        get_f32, opt_f32, f32, "a float (f32, or f64 rounded to f32)", |v| v.float();
        get_bool, opt_bool, bool, "a bool", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        };
        get_str, opt_str, &'a str, "a UTF-8 string", |v| match v {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
        get_bytes, opt_bytes, &'a [u8], "a string", |v| match v {
            Value::String(bytes) => Some(*bytes),
            _ => None,
        };
        get_array, opt_array, Array<'a>, "an array", |v| match v {
            Value::Array(array) => Some(*array),
            _ => None,
        };
    }

    number_arrays! {
        get_u32_array, opt_u32_array, u32, "an array of integers from 0 to 4294967295",
            |v| v.integer()?.try_into().ok();
        get_i32_array, opt_i32_array, i32, "an array of integers from -2147483648 to 2147483647",
            |v| v.integer()?.try_into().ok();
        get_f32_array, opt_f32_array, f32, "an array of floats", |v| v.float();
        get_bool_array, opt_bool_array, bool, "an array of bools", |v| match v {
            Value::Bool(b) => Some(b),
            _ => None,
        };
        get_bytes_array, opt_bytes_array, &'a [u8], "an array of strings", |v| match v {
            Value::String(bytes) => Some(bytes),
            _ => None,
        };
        get_str_array, opt_str_array, &'a str, "an array of UTF-8 strings", |v| match v {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
    }

    /// One number for each of `count` things (layers, say): the key holds either one number for all, or
    /// an array with at least one number each. (Some tools write more: for layers they then drop.)
    ///
    /// # Errors
    /// Another type, a number out of range, or an array that is too short.
    pub fn opt_u32_each(&self, key: &str, count: usize) -> Result<Option<Vec<u32>>, GgufError> {
        if !matches!(self.get(key), Some(Value::Array(_))) {
            return Ok(self.opt_u32(key)?.map(|v| vec![v; count]));
        }
        let all = self.get_u32_array(key)?;
        if all.len() < count {
            let found = format!("an array of {}", all.len());
            return Err(self.wrong(key, found, &format!("one number, or {count} of them")));
        }
        Ok(Some(all.take(count).collect()))
    }

    /// An error for a key whose value is of the right type but makes no sense: for use by those who know
    /// what it means.
    #[must_use]
    pub fn invalid(&self, key: &str, expected: &str) -> GgufError {
        match self.get(key) {
            Some(value) => self.wrong(key, describe(&value), expected),
            None => self.missing(key, expected),
        }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match convert(&value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.wrong(key, describe(&value), expected)),
        }
    }

    fn elements<T: 'a>(
        &self,
        key: &str,
        expected: &str,
        convert: fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Elements<'a, T>>, GgufError> {
        let Some(array) = self.typed(key, expected, |v| match v {
            Value::Array(array) => Some(*array),
            _ => None,
        })?
        else {
            return Ok(None);
        };
        // Checked whole first, so that the iterator can give plain values.
        if let Some((index, bad)) = array
            .iter()
            .enumerate()
            .find(|(_, v)| convert(*v).is_none())
        {
            let found = format!("an array whose element {index} is {}", describe(&bad));
            return Err(self.wrong(key, found, expected));
        }
        Ok(Some(Elements {
            array: array.iter(),
            convert,
        }))
    }

    fn missing(&self, key: &str, expected: &str) -> GgufError {
        let (key, expected) = (key.to_owned(), expected.to_owned());
        GgufError::new(self.file, GgufProblem::MissingKey { key, expected })
    }

    fn wrong(&self, key: &str, found: String, expected: &str) -> GgufError {
        let offset = self.directory.find(key).map_or(0, |e| e.offset);
        let (key, expected) = (key.to_owned(), expected.to_owned());
        GgufError::new(
            self.file,
            GgufProblem::WrongValue {
                key,
                offset,
                found,
                expected,
            },
        )
    }
}

/// The elements of an array, converted.
#[derive(Clone)]
struct Elements<'a, T> {
    array: super::value::ArrayIter<'a>,
    convert: fn(Value<'a>) -> Option<T>,
}

impl<T> Iterator for Elements<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        (self.convert)(self.array.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.array.size_hint()
    }
}

impl<T> ExactSizeIterator for Elements<'_, T> {}

fn describe(value: &Value<'_>) -> String {
    match value {
        Value::String(bytes) if std::str::from_utf8(bytes).is_err() => {
            format!("the string {value}, which is not UTF-8")
        }
        Value::Array(array) => format!("an array of {} {}", array.len(), array.element_type()),
        value => format!("the {} {value}", value.value_type()),
    }
}

fn decode<'a>(bytes: &'a [u8], entry: &Entry) -> Value<'a> {
    if let Some(ArrayPlace {
        element,
        len,
        bytes: place,
    }) = &entry.array
    {
        let elements = bytes.get(place.clone()).unwrap_or_default();
        return Value::Array(Array::new(*element, *len, elements));
    }
    let mut cursor = Cursor::new(bytes, entry.start);
    // Checked when the file was opened; an empty string stands in should the file have changed since.
    Value::read(&mut cursor, entry.value_type, format_args!("a value"), 0)
        .unwrap_or(Value::String(&[]))
}
