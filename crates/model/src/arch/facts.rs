//! A family's view of a file's metadata: keys without the family's prefix, sizes within reason.

use weights::gguf::{Gguf, Metadata, Value};

use crate::error::ModelError;

/// The largest size of anything (width, heads, context…) that is believed.
const SIZE_MAX: usize = 1 << 24;
/// The most layers that are believed.
const LAYERS_MAX: usize = 1024;

/// The hyper-parameters of one model.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    file: &'a Gguf,
    metadata: Metadata<'a>,
    prefix: &'a str,
}

impl<'a> Facts<'a> {
    /// The facts in `file` whose keys begin with `prefix.`.
    #[must_use]
    pub fn new(file: &'a Gguf, prefix: &'a str) -> Self {
        Self {
            file,
            metadata: file.metadata(),
            prefix,
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// A size that must be there.
    ///
    /// # Errors
    /// Missing, no integer, or not between 1 and 2²⁴ (1,024 for `block_count`).
    pub fn size(&self, name: &str) -> Result<usize, ModelError> {
        let key = self.key(name);
        let value = self.metadata.get_usize(&key)?;
        self.checked(name, value)
    }

    /// A size that may be missing.
    ///
    /// # Errors
    /// No integer, or out of bounds.
    pub fn size_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        match self.metadata.opt_usize(&self.key(name))? {
            Some(value) => self.checked(name, value),
            None => self.checked(name, default),
        }
    }

    fn checked(&self, name: &str, value: usize) -> Result<usize, ModelError> {
        let max = if name == "block_count" {
            LAYERS_MAX
        } else {
            SIZE_MAX
        };
        if (1..=max).contains(&value) {
            Ok(value)
        } else {
            Err(self.unsupported(name, value.to_string(), &format!("1 to {max}")))
        }
    }

    /// A finite number that must be there.
    ///
    /// # Errors
    /// Missing, no float, or not finite.
    pub fn float(&self, name: &str) -> Result<f32, ModelError> {
        let value = self.metadata.get_f32(&self.key(name))?;
        self.finite(name, value)
    }

    /// A finite number that may be missing.
    ///
    /// # Errors
    /// No float, or not finite.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        let value = self.metadata.opt_f32(&self.key(name))?.unwrap_or(default);
        self.finite(name, value)
    }

    fn finite(&self, name: &str, value: f32) -> Result<f32, ModelError> {
        if value.is_finite() && value >= 0.0 {
            Ok(value)
        } else {
            Err(self.unsupported(name, value.to_string(), "a finite number from 0 up"))
        }
    }

    /// A switch that may be missing.
    ///
    /// # Errors
    /// No bool.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.metadata.opt_bool(&self.key(name))?.unwrap_or(default))
    }

    /// One switch for each of `count` things; `None` where the key holds no array.
    ///
    /// # Errors
    /// An array of something else, or of another length.
    pub fn flags(&self, name: &str, count: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(None);
        }
        let flags: Vec<bool> = self.metadata.get_bool_array(&key)?.collect();
        if flags.len() == count {
            Ok(Some(flags))
        } else {
            let found = format!("an array of {}", flags.len());
            Err(self.unsupported(name, found, &format!("one for each of {count} layers")))
        }
    }

    /// A text that may be missing.
    ///
    /// # Errors
    /// No string.
    pub fn text_or(&self, name: &str, default: &'a str) -> Result<&'a str, ModelError> {
        Ok(self.metadata.opt_str(&self.key(name))?.unwrap_or(default))
    }

    /// Refuses a file in which the number `name` is above `most`, since `feature` is not supported.
    ///
    /// # Errors
    /// It is.
    pub fn refuse_above(&self, name: &str, most: usize, feature: &str) -> Result<(), ModelError> {
        match self.metadata.opt_usize(&self.key(name))? {
            Some(value) if value > most => {
                let expected = format!("at most {most} ({feature} are not supported yet)");
                Err(self.unsupported(name, value.to_string(), &expected))
            }
            _ => Ok(()),
        }
    }

    /// Whether the file has a tensor of that name.
    #[must_use]
    pub fn has_tensor(&self, name: &str) -> bool {
        self.file.find_tensor(name).is_some()
    }

    /// Entries of the vocabulary: the rows of the embedding table.
    ///
    /// # Errors
    /// No such tensor, or not a matrix.
    pub fn vocabulary(&self) -> Result<usize, ModelError> {
        let tensor = self.file.tensor("token_embd.weight")?;
        match tensor.dims() {
            [_, rows] if (1..=SIZE_MAX).contains(rows) => Ok(*rows),
            dims => Err(ModelError::UnsupportedValue {
                key: "the shape of token_embd.weight".into(),
                value: format!("{dims:?}"),
                expected: "[embedding_length, vocabulary]".into(),
            }),
        }
    }

    /// The error for a value that is well-formed but not supported.
    #[must_use]
    pub fn unsupported(&self, name: &str, value: String, expected: &str) -> ModelError {
        ModelError::UnsupportedValue {
            key: self.key(name),
            value,
            expected: expected.into(),
        }
    }
}
