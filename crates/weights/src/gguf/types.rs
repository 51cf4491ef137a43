//! The type numbers of GGUF: of metadata values, and of tensor data.

use std::fmt;

use kernels::formats::Format;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// All types, by their number in the file.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with that number in the file.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// The number in the file.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Bytes of one value, or of its shortest form: an empty string is a length of 8 bytes, an empty
    /// array an element type of 4 and a count of 8.
    #[must_use]
    pub const fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    /// The name, as in Rust.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type number of a tensor's data. It may be one that the kernels don't support, or one that
/// nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType(u32);

/// Types that other tools write and the kernels don't read: (number, name, values per block, bytes per
/// block). The sizes are needed to find where such a tensor ends. Zero sizes: types since removed from
/// ggml, whose layout differs between tools.
const OTHER_TYPES: [(u32, &str, usize, usize); 32] = [
    (4, "Q4_2 (removed from ggml)", 0, 0),
    (5, "Q4_3 (removed from ggml)", 0, 0),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (31, "Q4_0_4_4 (removed from ggml)", 0, 0),
    (32, "Q4_0_4_8 (removed from ggml)", 0, 0),
    (33, "Q4_0_8_8 (removed from ggml)", 0, 0),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (36, "IQ4_NL_4_4 (removed from ggml)", 0, 0),
    (37, "IQ4_NL_4_8 (removed from ggml)", 0, 0),
    (38, "IQ4_NL_8_8 (removed from ggml)", 0, 0),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 0, 0),
];

impl TensorType {
    /// The type with that number.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number in the file.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The block format, where the kernels support it.
    #[must_use]
    pub fn format(self) -> Option<Format> {
        Format::from_ggml_type(self.0)
    }

    fn other(self) -> Option<&'static (u32, &'static str, usize, usize)> {
        OTHER_TYPES.iter().find(|t| t.0 == self.0)
    }

    /// The name in ggml, or `unknown`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.format() {
            Some(format) => format.name(),
            None => self.other().map_or("unknown", |t| t.1),
        }
    }

    /// (values, bytes) per block, where known.
    #[must_use]
    pub fn block(self) -> Option<(usize, usize)> {
        match self.format() {
            Some(format) => Some((format.block_len(), format.block_bytes())),
            None => self.other().map(|t| (t.2, t.3)).filter(|b| b.0 > 0),
        }
    }
}

impl From<Format> for TensorType {
    fn from(format: Format) -> Self {
        Self(format.ggml_type())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "unknown" => write!(f, "unknown type {}", self.0),
            name => f.write_str(name),
        }
    }
}

/// The names of the supported formats, separated by commas.
pub(crate) fn supported_names() -> String {
    Format::ALL.map(Format::name).join(", ")
}
