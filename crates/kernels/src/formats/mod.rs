//! The block formats of weights: how many values a block holds, in how many bytes.

/// A block format of tensor data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Format {
    /// All formats, in the order of their GGUF type numbers.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::BF16,
    ];

    /// (name, GGUF type number, values per block, bytes per block)
    const fn facts(self) -> (&'static str, u32, usize, usize) {
        match self {
            Self::F32 => ("F32", 0, 1, 4),
            Self::F16 => ("F16", 1, 1, 2),
            Self::BF16 => ("BF16", 30, 1, 2),
            Self::Q4_0 => ("Q4_0", 2, 32, 18),
            Self::Q4_1 => ("Q4_1", 3, 32, 20),
            Self::Q5_0 => ("Q5_0", 6, 32, 22),
            Self::Q5_1 => ("Q5_1", 7, 32, 24),
            Self::Q8_0 => ("Q8_0", 8, 32, 34),
            Self::Q4_K => ("Q4_K", 12, 256, 144),
            Self::Q5_K => ("Q5_K", 13, 256, 176),
            Self::Q6_K => ("Q6_K", 14, 256, 210),
        }
    }

    /// The name, as in GGUF tools.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// The type number in GGUF files.
    #[must_use]
    pub const fn ggml_type(self) -> u32 {
        self.facts().1
    }

    /// Values per block.
    #[must_use]
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes per block, in the file.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// The format with that GGUF type number, where it is supported.
    #[must_use]
    pub fn from_ggml_type(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.ggml_type() == number)
    }
}
