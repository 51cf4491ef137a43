//! Fields that several requests or answers have.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The value of a field that is not supported: there is none but null.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Never {}

impl<'de> Deserialize<'de> for Never {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        de::IgnoredAny::deserialize(deserializer)?;
        Err(de::Error::custom("it is not supported: leave it out"))
    }
}

impl PartialSchema for Never {
    fn schema() -> RefOr<Schema> {
        let null = ObjectBuilder::new().schema_type(Type::Null);
        let null = null.description(Some("Not supported."));
        RefOr::T(Schema::Object(null.build()))
    }
}

impl ToSchema for Never {}

/// A boolean that has one allowed value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Only<const VALUE: bool>;

impl<'de, const VALUE: bool> Deserialize<'de> for Only<VALUE> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match bool::deserialize(deserializer)? {
            value if value == VALUE => Ok(Self),
            value => Err(de::Error::custom(format!(
                "{value} is not supported: it must be {VALUE}"
            ))),
        }
    }
}

impl<const VALUE: bool> PartialSchema for Only<VALUE> {
    fn schema() -> RefOr<Schema> {
        let boolean = ObjectBuilder::new().schema_type(Type::Boolean);
        RefOr::T(Schema::Object(boolean.enum_values(Some([VALUE])).build()))
    }
}

impl<const VALUE: bool> ToSchema for Only<VALUE> {
    fn name() -> std::borrow::Cow<'static, str> {
        if VALUE { "True" } else { "False" }.into()
    }
}

/// The seed of the draws.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Seed;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at most 64 bits")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Seed, E> {
                Ok(Seed(value))
            }
            // The same 64 bits.
            fn visit_i64<E>(self, value: i64) -> Result<Seed, E> {
                Ok(Seed(value as u64))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

impl PartialSchema for Seed {
    fn schema() -> RefOr<Schema> {
        i64::schema()
    }
}

impl ToSchema for Seed {}

/// One text or several.
#[derive(Clone, Debug, Default, ToSchema)]
#[schema(value_type = OneOrMany)]
pub(crate) struct Texts(pub(crate) Vec<String>);

/// How [`Texts`] look.
#[derive(ToSchema)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }
            fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Texts, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = texts.next_element()? {
                    all.push(text);
                }
                Ok(Texts(all))
            }
        }
        deserializer.deserialize_any(Strings)
    }
}

/// What is added to the logits of single tokens, by token id.
#[derive(Clone, Debug, Default, ToSchema)]
#[schema(value_type = BTreeMap<String, f64>)]
pub(crate) struct LogitBias(pub(crate) Vec<(u32, f64)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Biases;
        impl<'de> Visitor<'de> for Biases {
            type Value = LogitBias;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a number for each token id")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut all = Vec::new();
                while let Some((id, bias)) = map.next_entry::<String, f64>()? {
                    let id = id.parse().map_err(|_| {
                        de::Error::custom(format!("{id:?} is no token id, a whole number from 0"))
                    })?;
                    all.push((id, bias));
                }
                Ok(LogitBias(all))
            }
        }
        deserializer.deserialize_map(Biases)
    }
}

/// What is sent of an answer as it comes.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// A last chunk without choices tells the usage.
    pub(crate) include_usage: Option<bool>,
    /// Padding of chunks: there is none.
    #[schema(inline)]
    pub(crate) include_obfuscation: Option<Only<false>>,
}

/// Which tier serves the request: there is one.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServiceTier {
    /// As the server is set up.
    Auto,
    /// The only one.
    Default,
}

/// Pairs that go to the log.
pub(crate) type Metadata = BTreeMap<String, String>;

/// Gives requests the sampling that their fields ask for. (They can't share a struct of those fields: it would be read
/// with `flatten`, which knows no unknown fields.)
macro_rules! sampling_of {
    ($request:ty) => {
        impl $request {
            /// How tokens are chosen, as the engine takes it. Temperature is 1 where none is given, as in the OpenAI API.
            ///
            /// # Errors
            /// When a field is out of its range.
            pub(crate) fn sampling(
                &self,
                seed: u64,
                vocabulary: usize,
            ) -> Result<engine::sampling::Sampling, crate::errors::ApiError> {
                let plain = engine::sampling::Sampling::default();
                let bias = self.logit_bias.as_ref().map(|bias| bias.0.clone());
                let or = |asked: Option<f64>, plain| asked.unwrap_or(plain);
                let sampling = engine::sampling::Sampling {
                    temperature: or(self.temperature, 1.0),
                    top_k: self.top_k.map_or(plain.top_k, |k| k as usize),
                    top_p: or(self.top_p, plain.top_p),
                    min_p: or(self.min_p, plain.min_p),
                    repetition_penalty: or(self.repetition_penalty, plain.repetition_penalty),
                    frequency_penalty: or(self.frequency_penalty, plain.frequency_penalty),
                    presence_penalty: or(self.presence_penalty, plain.presence_penalty),
                    logit_bias: bias.unwrap_or_default(),
                    seed,
                };
                let checked = sampling.validate(vocabulary);
                checked.map_err(|error| crate::errors::ApiError::of_sampling(&error))?;
                Ok(sampling)
            }
        }
    };
}
pub(crate) use sampling_of;

/// Tokens of a request and its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompt, or of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Tokens generated, of all choices.
    pub(crate) completion_tokens: usize,
    /// Both together.
    pub(crate) total_tokens: usize,
    /// More of the prompt's tokens.
    pub(crate) prompt_tokens_details: PromptTokensDetails,
}

/// More of the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Tokens that were not computed, because an earlier request had left them in the cache.
    pub(crate) cached_tokens: usize,
}

impl Usage {
    pub(crate) fn new(prompt: usize, cached: usize, generated: usize) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: generated,
            total_tokens: prompt + generated,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: cached,
            },
        }
    }
}
