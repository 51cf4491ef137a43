//! `/v1/completions`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LogitBias, Metadata, Never, Seed, StreamOptions, Texts, Usage, sampling_of};

/// Prompts and how to go on from them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletionRequest {
    /// The model, as `/v1/models` names it.
    pub(crate) model: String,
    /// A text, token ids, or several of either.
    pub(crate) prompt: Prompts,
    /// Answers to generate for each prompt; 1 to 128 for all prompts together.
    #[schema(minimum = 1, maximum = 128)]
    pub(crate) n: Option<u32>,
    /// Only the value of `n` is supported.
    #[schema(minimum = 1, maximum = 128)]
    pub(crate) best_of: Option<u32>,
    /// Tokens of each answer at most; 16 where none is given. 0 with `echo` scores the prompt.
    pub(crate) max_tokens: Option<u32>,
    /// Texts that end an answer, at most 16; none of them is part of it.
    pub(crate) stop: Option<Texts>,
    /// Sends the answers as they come.
    pub(crate) stream: Option<bool>,
    /// What is sent besides.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Tells log-probabilities, and so many of the most probable tokens at each position, 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) logprobs: Option<u32>,
    /// Begins each answer with its prompt.
    pub(crate) echo: Option<bool>,
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
    /// Whether tokens that mark the beginning are added to texts. True where none is given.
    pub(crate) add_special_tokens: Option<bool>,
    /// Tells the token ids of the prompt and of each answer.
    pub(crate) return_token_ids: Option<bool>,
    /// Tells a hash over all logits of each answer.
    pub(crate) logits_hash: Option<bool>,
    /// Goes to the log.
    pub(crate) user: Option<String>,
    /// Goes to the log; at most 16 pairs.
    pub(crate) metadata: Option<Metadata>,
    /// Not supported.
    #[schema(inline)]
    pub(crate) suffix: Option<Never>,
}

sampling_of!(CompletionRequest);

/// A prompt.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    /// To be tokenized.
    Text(String),
    /// As the model reads it.
    Tokens(Vec<u32>),
}

/// One prompt or several.
#[derive(Clone, Debug, ToSchema)]
#[schema(value_type = PromptForms)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

/// How [`Prompts`] look.
#[derive(ToSchema)]
#[serde(untagged)]
enum PromptForms {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

const EXPECTED: &str = "a string, an array of token ids, or an array of either";

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Prompts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
                while let Some(item) = items.next_element()? {
                    match item {
                        Item::Token(token) if prompts.is_empty() => tokens.push(token),
                        Item::Prompt(prompt) if tokens.is_empty() => prompts.push(prompt),
                        _ => {
                            let message = "it mixes token ids and prompts";
                            return Err(de::Error::custom(message));
                        }
                    }
                }
                if !tokens.is_empty() {
                    prompts.push(Prompt::Tokens(tokens));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

/// What stands in an array of prompts, or in one of token ids.
enum Item {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Item;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or an array of token ids")
            }
            fn visit_u64<E: de::Error>(self, token: u64) -> Result<Item, E> {
                let token = u32::try_from(token).map_err(|_| {
                    de::Error::invalid_value(de::Unexpected::Unsigned(token), &"a token id")
                })?;
                Ok(Item::Token(token))
            }
            fn visit_str<E>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Prompt(Prompt::Text(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = items.next_element()? {
                    tokens.push(token);
                }
                Ok(Item::Prompt(Prompt::Tokens(tokens)))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

/// The answers to prompts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    /// Names the answer.
    pub(crate) id: String,
    /// `text_completion`.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The model.
    pub(crate) model: String,
    /// Names everything that the logits depend on.
    pub(crate) system_fingerprint: String,
    /// The answers: `n` to the first prompt, then `n` to the next.
    pub(crate) choices: Vec<CompletionChoice>,
    /// Tokens. While answers are sent as they come: asked for by `include_usage`, null but in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
}

/// An answer, or what is new of it.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    /// Which.
    pub(crate) index: usize,
    /// The text.
    pub(crate) text: String,
    /// Asked for by `logprobs`.
    pub(crate) logprobs: Option<CompletionLogProbs>,
    /// `stop` or `length`; null before the end.
    pub(crate) finish_reason: Option<&'static str>,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Asked for by `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Asked for by `logits_hash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logits_hash: Option<String>,
}

/// Log-probabilities of an answer, with those of the prompt first where it is echoed.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogProbs {
    /// The tokens' texts; `bytes:` and their bytes where they are not whole characters.
    pub(crate) tokens: Vec<String>,
    /// Natural logarithms; null for the first token of a prompt.
    pub(crate) token_logprobs: Vec<Option<f64>>,
    /// The most probable tokens at each position; null for the first token of a prompt.
    pub(crate) top_logprobs: Option<Vec<Option<BTreeMap<String, f64>>>>,
    /// Where each token begins in the text, in characters.
    pub(crate) text_offset: Vec<usize>,
}
