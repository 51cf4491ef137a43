//! Token ids from text.

use std::{borrow::Cow, collections::HashMap};

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::{
    Detokenizer, DetokenizerOptions, TokenId, TokenizerError, TokenizerSpec,
    bpe::{Merges, Scratch},
    byte_level,
    error::map_of,
    pretokenize::{self, PreTokenizer},
    spec::TokenType,
    special::{self, Automaton, Piece},
    spm::{self, Pieces},
};

/// Names of control tokens that end a generation, whatever else the file says.
const END_OF_GENERATION: [&str; 13] = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|eot|>",
    "</s>",
    "<｜end▁of▁sentence｜>",
];

/// How to read a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS before and EOS behind where the file says so.
    pub add_special: bool,
    /// Read the texts of control tokens as those tokens. User-defined tokens always are.
    pub parse_special: bool,
}

/// A character that [`Tokenizer::encode`] leaves out because the vocabulary cannot write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostCharacter {
    /// The character.
    pub character: char,
    /// Where it is, in bytes from the start of the text.
    pub offset: usize,
}

/// A model's vocabulary, ready to encode and decode. Building one is the expensive part; it is immutable
/// and can be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    algorithm: Algorithm,
    types: Vec<TokenType>,
    /// The bytes of all tokens, one after the other, and where each begins (one more than tokens).
    bytes: Vec<u8>,
    starts: Vec<usize>,
    /// Tokens matched as text when control tokens are read, and when they are not.
    with_control: Option<Automaton>,
    without_control: Option<Automaton>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    unk: Option<TokenId>,
    pad: Option<TokenId>,
    add_bos: bool,
    add_eos: bool,
    ends_generation: Vec<TokenId>,
    chat_template: Option<String>,
}

#[derive(Debug)]
enum Algorithm {
    ByteLevel {
        pre: PreTokenizer,
        merges: Merges,
        /// Tokens by their bytes, for pre-tokenizers that take a whole word if it is a token.
        whole: HashMap<Box<[u8]>, TokenId>,
        add_space_prefix: bool,
    },
    SentencePiece(Pieces),
}

impl Tokenizer {
    /// Builds a tokenizer from what a file says.
    ///
    /// # Errors
    /// A kind of tokenizer, pre-tokenizer or normalizer that is not known; a vocabulary whose parts
    /// don't fit together. The error names the key or token.
    pub fn new(spec: TokenizerSpec) -> Result<Self, TokenizerError> {
        if spec.tokens.is_empty() {
            return Err(TokenizerError::NoTokens);
        }
        if TokenId::try_from(spec.tokens.len()).is_err() {
            return Err(TokenizerError::BadKey {
                key: "tokenizer.ggml.tokens",
                found: format!("{} tokens", spec.tokens.len()),
                expected: "fewer than 2^32",
            });
        }
        let types = spec.token_types()?;
        spec.check_ids()?;
        if spec.has_charsmap {
            return Err(TokenizerError::Unsupported {
                key: "tokenizer.ggml.precompiled_charsmap",
                what: "SentencePiece normalization by a character map",
            });
        }
        if spec.remove_extra_whitespaces == Some(true) {
            return Err(TokenizerError::Unsupported {
                key: "tokenizer.ggml.remove_extra_whitespaces",
                what: "removing extra white space",
            });
        }
        let (algorithm, bos_by_default) = match spec.model.as_str() {
            "gpt2" => byte_level_algorithm(&spec, &types)?,
            "llama" => (Algorithm::SentencePiece(Pieces::new(&spec, &types)?), true),
            _ => return Err(TokenizerError::UnknownModel { found: spec.model }),
        };
        let is_spm = matches!(algorithm, Algorithm::SentencePiece(_));
        let (bytes, starts) = decoded(&spec, &types, is_spm)?;
        let add_bos = match spec.add_bos {
            Some(true) if spec.bos.is_none() => {
                return Err(TokenizerError::MissingKey {
                    key: "tokenizer.ggml.bos_token_id",
                    why: "tokenizer.ggml.add_bos_token is true",
                });
            }
            add => add.unwrap_or(bos_by_default),
        };
        if spec.add_eos == Some(true) && spec.eos.is_none() {
            return Err(TokenizerError::MissingKey {
                key: "tokenizer.ggml.eos_token_id",
                why: "tokenizer.ggml.add_eos_token is true",
            });
        }
        Ok(Self {
            // SentencePiece itself matches user-defined tokens, after it has written spaces as U+2581.
            without_control: automaton(&spec, &types, |t| t == TokenType::UserDefined && !is_spm)?,
            with_control: automaton(&spec, &types, |t| match t {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => !is_spm,
                _ => false,
            })?,
            ends_generation: ends_of_generation(&spec, &types),
            algorithm,
            types,
            bytes,
            starts,
            bos: spec.bos,
            eos: spec.eos,
            unk: spec.unk,
            pad: spec.pad,
            add_bos,
            add_eos: spec.add_eos.unwrap_or(false),
            chat_template: spec.chat_template,
        })
    }

    /// The tokens of `text`. Time: n log n in its length.
    ///
    /// Some byte-level vocabularies lack a few bytes (control characters); those characters are left
    /// out, as the reference tokenizers do. [`lost_character`](Self::lost_character) finds them.
    #[must_use]
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<TokenId> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && self.add_bos {
            out.extend(self.bos);
        }
        self.encode_into(text, options.parse_special, &mut out);
        if options.add_special && self.add_eos {
            out.extend(self.eos);
        }
        out
    }

    /// The tokens of a rendered chat template: control tokens are read, EOS is not added, and BOS is
    /// added if the file says so and the template did not write it.
    #[must_use]
    pub fn encode_chat(&self, rendered: &str) -> Vec<TokenId> {
        let mut out = Vec::with_capacity(rendered.len() / 3 + 2);
        let written = self
            .bos
            .is_some_and(|bos| rendered.as_bytes().starts_with(self.token_bytes(bos)));
        if self.add_bos && !written {
            out.extend(self.bos);
        }
        self.encode_into(rendered, true, &mut out);
        out
    }

    fn encode_into(&self, text: &str, parse_special: bool, out: &mut Vec<TokenId>) {
        let automaton = match parse_special {
            true => &self.with_control,
            false => &self.without_control,
        };
        let mut scratch = Scratch::default();
        for piece in special::split(text, automaton.as_ref()) {
            match (piece, &self.algorithm) {
                (Piece::Token(id, _), _) => out.push(id),
                (Piece::Text(text), Algorithm::SentencePiece(pieces)) => pieces.encode(text, out),
                (Piece::Text(text), Algorithm::ByteLevel { .. }) => {
                    self.encode_byte_level(text, &mut scratch, out);
                }
            }
        }
    }

    fn encode_byte_level(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        let Algorithm::ByteLevel {
            pre,
            merges,
            whole,
            add_space_prefix,
        } = &self.algorithm
        else {
            return;
        };
        let mut text = match pre.normalizes_to_nfc() {
            true => nfc(text),
            false => Cow::Borrowed(text),
        };
        if *add_space_prefix && !text.starts_with(' ') {
            text.to_mut().insert(0, ' ');
        }
        for word in pre.words(&text) {
            match whole.get(word.as_bytes()) {
                Some(&id) => out.push(id),
                None => merges.encode(word.as_bytes(), scratch, out),
            }
        }
    }

    /// The first character of `text` that [`encode`](Self::encode) would leave out, if there is one.
    #[must_use]
    pub fn lost_character(&self, text: &str) -> Option<LostCharacter> {
        let Algorithm::ByteLevel { merges, .. } = &self.algorithm else {
            return None;
        };
        let has_bytes = |c: char| {
            let mut buffer = [0; 4];
            c.encode_utf8(&mut buffer)
                .bytes()
                .all(|b| merges.has_byte(b))
        };
        text.char_indices()
            .find(|&(_, c)| !has_bytes(c))
            .map(|(offset, character)| LostCharacter { character, offset })
    }

    /// The bytes a token stands for: the byte-level alphabet, U+2581 and `<0xNN>` undone. A token may end
    /// within a character. Empty for an id that is not in the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        let at = id as usize;
        match (self.starts.get(at), self.starts.get(at.saturating_add(1))) {
            (Some(&start), Some(&end)) => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// Whether a token is not text: control, unknown and unused tokens, and ids out of range.
    #[must_use]
    pub fn is_control(&self, id: TokenId) -> bool {
        !matches!(
            self.types.get(id as usize),
            Some(TokenType::Normal | TokenType::UserDefined | TokenType::Byte)
        )
    }

    /// Whether a generation ends with this token: EOS, end of turn, end of message, and control tokens
    /// with a name known to mean one of them.
    #[must_use]
    pub fn is_end_of_generation(&self, id: TokenId) -> bool {
        self.ends_generation.contains(&id)
    }

    /// All tokens for which [`is_end_of_generation`](Self::is_end_of_generation) holds, ascending.
    #[must_use]
    pub fn end_of_generation_tokens(&self) -> &[TokenId] {
        &self.ends_generation
    }

    /// How many tokens there are; ids are below it.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.types.len()
    }

    /// The token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that stands for what has none.
    #[must_use]
    pub fn unk(&self) -> Option<TokenId> {
        self.unk
    }

    /// The padding token.
    #[must_use]
    pub fn pad(&self) -> Option<TokenId> {
        self.pad
    }

    /// Whether a text begins with BOS.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The file's chat template.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// A streaming decoder.
    #[must_use]
    pub fn detokenizer(&self, options: DetokenizerOptions) -> Detokenizer<&Self> {
        Detokenizer::new(self, options)
    }

    /// The text of whole tokens, without control tokens; invalid UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn decode(&self, ids: &[TokenId], options: DetokenizerOptions) -> String {
        let mut detokenizer = self.detokenizer(options);
        let mut text = String::new();
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        text
    }

    /// Whether text is encoded as if a space stood before it, so that decoding drops it again.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        match &self.algorithm {
            Algorithm::SentencePiece(pieces) => pieces.adds_space_prefix(),
            Algorithm::ByteLevel { .. } => false,
        }
    }
}

/// Canonical composition (Unicode Standard Annex 15).
fn nfc(text: &str) -> Cow<'_, str> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => Cow::Borrowed(text),
        _ => Cow::Owned(text.nfc().collect()),
    }
}

/// Byte-level BPE, and whether it adds BOS if the file does not say.
fn byte_level_algorithm(
    spec: &TokenizerSpec,
    types: &[TokenType],
) -> Result<(Algorithm, bool), TokenizerError> {
    let name = spec.pre.as_deref().ok_or(TokenizerError::MissingKey {
        key: "tokenizer.ggml.pre",
        why: "without it text would be cut into words by guesswork",
    })?;
    let pre = PreTokenizer::by_name(name).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        found: name.to_owned(),
        known: pretokenize::NAMES.map(|(name, _)| name).join(", "),
    })?;
    let mut by_text = map_of("the tokens", spec.tokens.len())?;
    for (id, (token, kind)) in (0..).zip(spec.tokens.iter().zip(types)) {
        if *kind == TokenType::Unused {
            continue;
        }
        if let Some(first) = by_text.insert(token.as_slice(), id) {
            return Err(TokenizerError::duplicate(token, first, id));
        }
    }
    let is_control =
        |id: TokenId| matches!(types[id as usize], TokenType::Control | TokenType::Unknown);
    let merges = Merges::new(&spec.merges, |text| by_text.get(text).copied(), is_control)?;
    let whole = match pre.ignores_merges() {
        true => by_text
            .iter()
            .filter(|&(_, &id)| types[id as usize] == TokenType::Normal)
            .map(|(text, &id)| (byte_level::decode(text).into_boxed_slice(), id))
            .collect(),
        false => HashMap::new(),
    };
    let algorithm = Algorithm::ByteLevel {
        pre,
        merges,
        whole,
        add_space_prefix: spec.add_space_prefix.unwrap_or(false),
    };
    Ok((algorithm, pre == PreTokenizer::Llama3 && spec.bos.is_some()))
}

/// The bytes every token stands for, and where each begins.
///
/// # Errors
/// There is no memory for them.
fn decoded(
    spec: &TokenizerSpec,
    types: &[TokenType],
    is_spm: bool,
) -> Result<(Vec<u8>, Vec<usize>), TokenizerError> {
    let total: usize = spec.tokens.iter().map(Vec::len).sum();
    let count = spec.tokens.len() + 1;
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    // No token stands for more bytes than it is written with.
    let room = bytes
        .try_reserve(total)
        .and_then(|()| starts.try_reserve(count));
    room.map_err(|_| TokenizerError::OutOfMemory {
        what: "the bytes",
        bytes: total.saturating_add(count * size_of::<usize>()),
    })?;
    for (token, kind) in spec.tokens.iter().zip(types) {
        starts.push(bytes.len());
        match kind {
            TokenType::Byte => match spm::byte_of(token) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(token),
            },
            TokenType::Normal | TokenType::Unused if !is_spm => {
                bytes.extend(byte_level::decode(token));
            }
            TokenType::Normal | TokenType::Unused | TokenType::UserDefined if is_spm => {
                spm::unescape(token, &mut bytes);
            }
            _ => bytes.extend_from_slice(token),
        }
    }
    starts.push(bytes.len());
    Ok((bytes, starts))
}

/// An automaton over the tokens whose type `wanted` holds for.
fn automaton(
    spec: &TokenizerSpec,
    types: &[TokenType],
    wanted: impl Fn(TokenType) -> bool,
) -> Result<Option<Automaton>, TokenizerError> {
    let tokens: Vec<_> = (0..)
        .zip(spec.tokens.iter().zip(types))
        .filter(|(_, (token, kind))| wanted(**kind) && !token.is_empty())
        .map(|(id, (token, _))| (id, token.clone()))
        .collect();
    special::automaton(&tokens)
}

/// The tokens that end a generation, ascending.
fn ends_of_generation(spec: &TokenizerSpec, types: &[TokenType]) -> Vec<TokenId> {
    let mut ends: Vec<TokenId> = [spec.eos, spec.eot, spec.eom]
        .into_iter()
        .flatten()
        .collect();
    let controls = || (0..).zip(spec.tokens.iter().zip(types));
    // In the harmony format, which has <|return|>, <|end|> ends a message but not the generation.
    let is_harmony = controls().any(|(_, (token, _))| token == b"<|return|>");
    for (id, (token, kind)) in controls() {
        let is_end = END_OF_GENERATION.iter().any(|e| e.as_bytes() == token);
        if *kind == TokenType::Control && is_end && !(is_harmony && token == b"<|end|>") {
            ends.push(id);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}
