//! `/v1/chat/completions`.

use std::fmt;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    LogitBias, Metadata, Never, Only, SamplingFields, Seed, ServiceTier, StreamOptions, Texts, Usage,
};

/// A conversation and how to go on from it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// The model, as `/v1/models` names it.
    pub model: String,
    /// The conversation; at least one message.
    #[schema(min_items = 1)]
    pub messages: Vec<Message>,
    /// Answers to generate, 1 to 128.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// Tokens of each answer at most; as many as the context holds where none is given.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<u32>,
    /// The older name of `max_completion_tokens`.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Texts that end an answer, at most 16; none of them is part of it.
    pub stop: Option<Texts>,
    /// Sends the answers as they come.
    pub stream: Option<bool>,
    /// What is sent besides.
    pub stream_options: Option<StreamOptions>,
    /// Whether to tell log-probabilities.
    pub logprobs: Option<bool>,
    /// The most probable tokens to tell at each position, 0 to 20; needs `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Divides the logits, 0 to 100; 0 always takes the most probable token. 1 where none is given.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Keeps the most probable tokens whose probabilities reach it.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Keeps so many of the most probable tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Drops tokens less probable than this times the most probable one.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens in prompt or answer.
    #[schema(minimum = 0.01, maximum = 100)]
    pub repetition_penalty: Option<f64>,
    /// Subtracted from a token's logit for each time it is in the answer.
    #[schema(minimum = -100, maximum = 100)]
    pub frequency_penalty: Option<f64>,
    /// Subtracted from a token's logit if it is in the answer.
    #[schema(minimum = -100, maximum = 100)]
    pub presence_penalty: Option<f64>,
    /// Added to the logits of single tokens, by token id.
    pub logit_bias: Option<LogitBias>,
    /// Seed of the draws; drawn where none is given, and told in the header `x-seed`.
    pub seed: Option<Seed>,
    /// Goes on when the model ends its answer.
    pub ignore_eos: Option<bool>,
    /// Whether the prompt may be found in the cache, and kept there. True where none is given.
    pub cache_prompt: Option<bool>,
    /// Tells the token ids of the prompt and of each answer.
    pub return_token_ids: Option<bool>,
    /// Tells a hash over all logits of each answer.
    pub logits_hash: Option<bool>,
    /// Goes to the log.
    pub user: Option<String>,
    /// Goes to the log.
    pub safety_identifier: Option<String>,
    /// Goes to the log; at most 16 pairs.
    pub metadata: Option<Metadata>,
    /// Answers are never kept.
    #[schema(inline)]
    pub store: Option<Only<false>>,
    /// There is one tier.
    pub service_tier: Option<ServiceTier>,
    /// Answers are text.
    pub modalities: Option<Vec<Modality>>,
    /// Answers are free text.
    pub response_format: Option<ResponseFormat>,
    /// Tools are not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub tools: Option<Vec<Never>>,
    /// Tools are not supported.
    pub tool_choice: Option<ToolChoice>,
    /// Tools are not supported.
    #[schema(inline)]
    pub parallel_tool_calls: Option<Only<true>>,
    /// Not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub functions: Option<Vec<Never>>,
    /// Not supported.
    pub function_call: Option<ToolChoice>,
    /// Not supported.
    #[schema(inline)]
    pub audio: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub prediction: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub reasoning_effort: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub verbosity: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub web_search_options: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub prompt_cache_key: Option<Never>,
}

impl ChatRequest {
    pub(crate) fn sampling(&self) -> SamplingFields<'_> {
        SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.as_ref(),
        }
    }
}

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// Names of speakers are not supported.
    #[schema(inline)]
    pub name: Option<Never>,
    /// Part of answers; not supported.
    #[schema(inline)]
    pub refusal: Option<Never>,
    /// Part of answers; not supported.
    #[schema(inline)]
    pub audio: Option<Never>,
    /// Part of answers; not supported.
    #[schema(inline)]
    pub function_call: Option<Never>,
    /// Part of answers; tools are not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub tool_calls: Option<Vec<Never>>,
    /// Part of answers; not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub annotations: Option<Vec<Never>>,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// The newer name of `system`.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name that chat templates know.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// The text of a message, whole or in parts.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// Whole.
    Text(String),
    /// In parts, which follow each other without anything between.
    Parts(Vec<Part>),
}

impl Content {
    /// As one text.
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts.into_iter().map(|part| part.text).collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of parts")
            }
            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut all = Vec::new();
                while let Some(part) = parts.next_element()? {
                    all.push(part);
                }
                Ok(Content::Parts(all))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

/// A part of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Only text is supported.
    #[serde(rename = "type")]
    #[allow(dead_code)]
    pub kind: PartKind,
    /// The text.
    pub text: String,
}

/// The kind of a part.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Text.
    Text,
}

/// A kind of answer.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Modality {
    /// Text.
    Text,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// Only free text is supported.
    #[serde(rename = "type")]
    #[allow(dead_code)]
    pub kind: Modality,
}

/// How tools are used: not at all.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// Not.
    None,
    /// There are none.
    Auto,
}

/// The answers to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Names the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// Names everything that the logits depend on.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Tokens.
    pub usage: Usage,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Which.
    pub index: usize,
    /// What the model says.
    pub message: ChatAnswer,
    /// Asked for by `logprobs`.
    pub logprobs: Option<ChatLogProbs>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Asked for by `logits_hash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_hash: Option<String>,
}

/// What the model says.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatAnswer {
    /// `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub refusal: (),
}

/// Log-probabilities of an answer.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChatLogProbs {
    /// For each token.
    pub content: Vec<ChatTokenLogProb>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub refusal: (),
}

/// The log-probability of a token, and the most probable ones in its place.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatTokenLogProb {
    /// The token.
    #[serde(flatten)]
    pub chosen: ChatTokenScore,
    /// The most probable ones, best first.
    pub top_logprobs: Vec<ChatTokenScore>,
}

/// A token and its log-probability.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatTokenScore {
    /// The token's text; escaped where it is not whole characters.
    pub token: String,
    /// Natural logarithm.
    pub logprob: f64,
    /// The token's bytes.
    pub bytes: Vec<u8>,
}

/// A part of the answers to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChunk {
    /// Names the answer.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// Names everything that the logits depend on.
    pub system_fingerprint: String,
    /// What is new.
    pub choices: Vec<ChatDelta>,
    /// Asked for by `include_usage`; null but in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// What is new of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatDelta {
    /// Which.
    pub index: usize,
    /// The new part.
    pub delta: ChatDeltaText,
    /// Asked for by `logprobs`.
    pub logprobs: Option<ChatLogProbs>,
    /// `stop` or `length`, at the end.
    pub finish_reason: Option<&'static str>,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Asked for by `logits_hash`, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_hash: Option<String>,
}

/// A new part of the text.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChatDeltaText {
    /// In the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}
