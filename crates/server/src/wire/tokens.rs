//! `/tokenize` and `/detokenize`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::chat::Message;

/// A text or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenizeRequest {
    /// The model, as `/v1/models` names it.
    pub(crate) model: Option<String>,
    /// A text; or else `messages`.
    pub(crate) prompt: Option<String>,
    /// A conversation, through the model's chat template.
    #[schema(min_items = 1)]
    pub(crate) messages: Option<Vec<Message>>,
    /// Whether tokens that mark the beginning are added to a text. True where none is given.
    pub(crate) add_special_tokens: Option<bool>,
    /// Whether the names of control tokens in a text are read as these tokens. True where none is given.
    pub(crate) parse_special_tokens: Option<bool>,
    /// Whether a conversation ends with the beginning of an answer. True where none is given.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Tells the text of each token.
    pub(crate) return_token_strs: Option<bool>,
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenizeAnswer {
    /// Their number.
    pub(crate) count: usize,
    /// Positions for prompt and answer together.
    pub(crate) max_model_len: usize,
    /// The tokens.
    pub(crate) tokens: Vec<u32>,
    /// Asked for by `return_token_strs`; escaped where they are not whole characters.
    pub(crate) token_strs: Option<Vec<String>>,
}

/// Tokens.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DetokenizeRequest {
    /// The model, as `/v1/models` names it.
    pub(crate) model: Option<String>,
    /// The tokens.
    pub(crate) tokens: Vec<u32>,
    /// Whether control tokens are shown by their names. True where none is given.
    pub(crate) show_control: Option<bool>,
}

/// A text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeAnswer {
    /// The text.
    pub(crate) prompt: String,
}
