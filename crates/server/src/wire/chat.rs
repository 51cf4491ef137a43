//! `/v1/chat/completions`.

use std::fmt;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    LogitBias, Metadata, Never, Only, Seed, ServiceTier, StreamOptions, Texts, Usage, sampling_of,
};

/// A conversation and how to go on from it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatRequest {
    /// The model, as `/v1/models` names it.
    pub(crate) model: String,
    /// The conversation; at least one message.
    #[schema(min_items = 1)]
    pub(crate) messages: Vec<Message>,
    /// Answers to generate, 1 to 128.
    #[schema(minimum = 1, maximum = 128)]
    pub(crate) n: Option<u32>,
    /// Tokens of each answer at most; as many as the context holds where none is given.
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<u32>,
    /// The older name of `max_completion_tokens`.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    /// Texts that end an answer, at most 16; none of them is part of it.
    pub(crate) stop: Option<Texts>,
    /// Sends the answers as they come.
    pub(crate) stream: Option<bool>,
    /// What is sent besides.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Whether to tell log-probabilities.
    pub(crate) logprobs: Option<bool>,
    /// The most probable tokens to tell at each position, 0 to 20; needs `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<u32>,
    /// Divides the logits, 0 to 100; 0 always takes the most probable token. 1 where none is given.
    #[schema(minimum = 0, maximum = 100)]
    pub(crate) temperature: Option<f64>,
    /// Keeps the most probable tokens whose probabilities reach it.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Keeps so many of the most probable tokens; 0 keeps all.
    pub(crate) top_k: Option<u32>,
    /// Drops tokens less probable than this times the most probable one.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens in prompt or answer.
    #[schema(minimum = 0.01, maximum = 100)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Subtracted from a token's logit for each time it is in the answer.
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Subtracted from a token's logit if it is in the answer.
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) presence_penalty: Option<f64>,
    /// Added to the logits of single tokens, by token id.
    pub(crate) logit_bias: Option<LogitBias>,
    /// Seed of the draws; drawn where none is given, and told in the header `x-seed`.
    pub(crate) seed: Option<Seed>,
    /// Goes on when the model ends its answer.
    pub(crate) ignore_eos: Option<bool>,
    /// Whether the prompt may be found in the cache, and kept there. True where none is given.
    pub(crate) cache_prompt: Option<bool>,
    /// Tells the token ids of the prompt and of each answer.
    pub(crate) return_token_ids: Option<bool>,
    /// Tells a hash over all logits of each answer.
    pub(crate) logits_hash: Option<bool>,
    /// Goes to the log.
    pub(crate) user: Option<String>,
    /// Goes to the log.
    pub(crate) safety_identifier: Option<String>,
    /// Goes to the log; at most 16 pairs.
    pub(crate) metadata: Option<Metadata>,
    /// Answers are never kept.
    #[schema(inline)]
    pub(crate) store: Option<Only<false>>,
    /// There is one tier.
    pub(crate) service_tier: Option<ServiceTier>,
    /// Answers are text.
    pub(crate) modalities: Option<Vec<Modality>>,
    /// Answers are free text.
    pub(crate) response_format: Option<ResponseFormat>,
    /// Tools are not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub(crate) tools: Option<Vec<Never>>,
    /// Tools are not supported.
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Tools are not supported.
    #[schema(inline)]
    pub(crate) parallel_tool_calls: Option<Only<true>>,
    /// Not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub(crate) functions: Option<Vec<Never>>,
    /// Not supported.
    pub(crate) function_call: Option<ToolChoice>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) audio: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) prediction: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) reasoning_effort: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) verbosity: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) web_search_options: Option<Never>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) prompt_cache_key: Option<Never>,
}

sampling_of!(ChatRequest);

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    /// Who says it.
    pub(crate) role: Role,
    /// What is said.
    pub(crate) content: Content,
    /// Names of speakers are not supported.
    #[schema(inline)]
    pub(crate) name: Option<Never>,
    /// Part of answers; not supported.
    #[schema(inline)]
    pub(crate) refusal: Option<Never>,
    /// Part of answers; not supported.
    #[schema(inline)]
    pub(crate) audio: Option<Never>,
    /// Part of answers; not supported.
    #[schema(inline)]
    pub(crate) function_call: Option<Never>,
    /// Part of answers; tools are not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub(crate) tool_calls: Option<Vec<Never>>,
    /// Part of answers; not supported.
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    pub(crate) annotations: Option<Vec<Never>>,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
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
pub(crate) enum Content {
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
pub(crate) struct Part {
    /// Only text is supported.
    #[serde(rename = "type")]
    pub(crate) kind: PartKind,
    /// The text.
    pub(crate) text: String,
}

/// The kind of a part.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartKind {
    /// Text.
    Text,
}

/// A kind of answer.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Modality {
    /// Text.
    Text,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    /// Only free text is supported.
    #[serde(rename = "type")]
    pub(crate) kind: Modality,
}

/// How tools are used: not at all.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolChoice {
    /// Not.
    None,
    /// There are none.
    Auto,
}

/// The answers to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    /// Names the answer.
    pub(crate) id: String,
    /// `chat.completion`.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The model.
    pub(crate) model: String,
    /// Names everything that the logits depend on.
    pub(crate) system_fingerprint: String,
    /// The answers.
    pub(crate) choices: Vec<ChatChoice>,
    /// Tokens.
    pub(crate) usage: Usage,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// Which.
    pub(crate) index: usize,
    /// What the model says.
    pub(crate) message: ChatAnswer,
    /// Asked for by `logprobs`.
    pub(crate) logprobs: Option<ChatLogProbs>,
    /// `stop` or `length`.
    pub(crate) finish_reason: &'static str,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Asked for by `logits_hash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logits_hash: Option<String>,
}

/// What the model says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatAnswer {
    /// `assistant`.
    pub(crate) role: &'static str,
    /// The text.
    pub(crate) content: String,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub(crate) refusal: (),
}

/// Log-probabilities of an answer.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogProbs {
    /// For each token.
    pub(crate) content: Vec<ChatTokenLogProb>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    pub(crate) refusal: (),
}

/// The log-probability of a token, and the most probable ones in its place.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatTokenLogProb {
    /// The token.
    #[serde(flatten)]
    pub(crate) chosen: ChatTokenScore,
    /// The most probable ones, best first.
    pub(crate) top_logprobs: Vec<ChatTokenScore>,
}

/// A token and its log-probability.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatTokenScore {
    /// The token's text; `bytes:` and its bytes where they are not whole characters.
    pub(crate) token: String,
    /// Natural logarithm.
    pub(crate) logprob: f64,
    /// The token's bytes.
    pub(crate) bytes: Vec<u8>,
}

/// A part of the answers to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk {
    /// Names the answer.
    pub(crate) id: String,
    /// `chat.completion.chunk`.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The model.
    pub(crate) model: String,
    /// Names everything that the logits depend on.
    pub(crate) system_fingerprint: String,
    /// What is new.
    pub(crate) choices: Vec<ChatDelta>,
    /// Asked for by `include_usage`; null but in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
    /// Asked for by `return_token_ids`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// What is new of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    /// Which.
    pub(crate) index: usize,
    /// The new part.
    pub(crate) delta: ChatDeltaText,
    /// Asked for by `logprobs`.
    pub(crate) logprobs: Option<ChatLogProbs>,
    /// `stop` or `length`, at the end.
    pub(crate) finish_reason: Option<&'static str>,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Asked for by `logits_hash`, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logits_hash: Option<String>,
}

/// A new part of the text.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatDeltaText {
    /// In the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
}
