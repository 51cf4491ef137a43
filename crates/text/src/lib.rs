//! Text in, tokens out, and back.
//!
//! * [`Tokenizer`]: token ids from text, as the model's reference tokenizer gives them.
//! * [`Detokenizer`]: text from token ids as they come, never broken UTF-8.
//! * [`StopStrings`]: ends a text at the first of several strings, which may span tokens.
//! * [`ChatTemplate`]: the prompt of a conversation, byte for byte that of the reference.
//!
//! Nothing here knows layers or requests. Input that can't be handled is an error that names it; hostile
//! text, vocabularies and templates take bounded time.

mod bpe;
mod byte_level;
mod detokenizer;
mod error;
mod gguf;
mod pretokenize;
mod spec;
mod special;
mod spm;
mod stop;
pub mod template;
mod tokenizer;
mod unicode;

pub use detokenizer::{Detokenizer, DetokenizerOptions};
pub use error::TokenizerError;
pub use gguf::LoadError;
pub use spec::TokenizerSpec;
pub use stop::{StopError, StopOutput, StopStrings};
pub use template::{ChatTemplate, RenderInput, TemplateError};
pub use tokenizer::{EncodeOptions, LostCharacter, Tokenizer};

/// The number of a token in its vocabulary.
pub type TokenId = u32;
