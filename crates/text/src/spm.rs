//! SentencePiece BPE: merges by score over the whole text, with byte fallback.
//!
//! After Kudo and Richardson 2018 and the published `sentencepiece` library's BPE model: neighbours whose
//! concatenation is a piece merge, the highest score first, the leftmost among equals.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap},
};

use aho_corasick::AhoCorasick;

use crate::{
    TokenId, TokenizerError, TokenizerSpec,
    error::map_of,
    spec::TokenType,
    special::{self, Piece},
};

/// U+2581, which stands for a space.
pub(crate) const SPACE: &str = "\u{2581}";

/// A SentencePiece vocabulary, indexed for encoding.
#[derive(Debug)]
pub(crate) struct Pieces {
    ids: HashMap<Box<[u8]>, TokenId>,
    scores: Vec<f32>,
    is_unused: Vec<bool>,
    /// The longest piece, in bytes: no longer merge can exist.
    longest: usize,
    /// User-defined pieces, which are matched before merging.
    user_defined: Option<(AhoCorasick, Vec<TokenId>)>,
    /// The tokens of the 256 bytes, if the vocabulary has them.
    bytes: Option<Box<[TokenId; 256]>>,
    unknown: Option<TokenId>,
    add_space_prefix: bool,
}

/// A stretch of the text; a doubly linked list in a vector. A merged-away symbol has length 0.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    length: usize,
    previous: usize,
    next: usize,
    /// A user-defined piece: never merged.
    is_frozen: bool,
}

/// "No neighbour".
const NONE: usize = usize::MAX;

/// A possible merge of the symbols at `left` and `right`, whose lengths add up to `length`.
#[derive(PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        // Not total_cmp: −0 and +0 are the same score. Scores are checked to be finite.
        let score = self.score.partial_cmp(&other.score);
        score
            .unwrap_or(Ordering::Equal)
            .then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_of(token: &[u8]) -> Option<u8> {
    let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let text = std::str::from_utf8(digits).ok()?;
    let is_hex = text.len() == 2 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(text, 16).ok()).flatten()
}

/// Writes spaces as U+2581. GGUF stores user-defined pieces with plain spaces.
fn escape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b' ' => out.extend_from_slice(SPACE.as_bytes()),
            _ => out.push(byte),
        }
    }
    out
}

impl Pieces {
    /// Indexes a vocabulary whose `types` have been read.
    ///
    /// # Errors
    /// Scores missing or not finite, two equal pieces, an incomplete set of byte tokens, or neither byte
    /// tokens nor an unknown token.
    pub(crate) fn new(spec: &TokenizerSpec, types: &[TokenType]) -> Result<Self, TokenizerError> {
        if spec.scores.len() != spec.tokens.len() {
            return Err(TokenizerError::LengthMismatch {
                what: "scores",
                found: spec.scores.len(),
                tokens: spec.tokens.len(),
            });
        }
        if let Some(id) = spec.scores.iter().position(|s| !s.is_finite()) {
            return Err(TokenizerError::BadScore {
                id,
                score: spec.scores[id],
            });
        }
        let mut ids = map_of("the pieces", spec.tokens.len())?;
        let mut user_defined = Vec::new();
        for (id, (token, kind)) in (0..).zip(spec.tokens.iter().zip(types)) {
            let piece = match kind {
                TokenType::Normal | TokenType::Unused => token.clone(),
                TokenType::UserDefined => escape(token),
                _ => continue,
            };
            if *kind == TokenType::UserDefined && !piece.is_empty() {
                user_defined.push((id, piece.clone()));
            }
            if let Some(first) = ids.insert(piece.into_boxed_slice(), id) {
                return Err(TokenizerError::duplicate(token, first, id));
            }
        }
        let bytes = byte_tokens(spec, types)?;
        if bytes.is_none() && spec.unk.is_none() {
            return Err(TokenizerError::NoFallback);
        }
        Ok(Self {
            longest: ids.keys().map(|k| k.len()).max().unwrap_or(0),
            ids,
            scores: spec.scores.clone(),
            is_unused: types.iter().map(|t| *t == TokenType::Unused).collect(),
            user_defined: special::automaton(&user_defined)?,
            bytes,
            unknown: spec.unk,
            add_space_prefix: spec.add_space_prefix.unwrap_or(true),
        })
    }

    /// Whether text is encoded as if a space stood before it.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Appends the tokens of `text`, which holds no control tokens. Time: n log n.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        if text.is_empty() {
            return;
        }
        let prefix = if self.add_space_prefix { SPACE } else { "" };
        let text = [prefix, &text.replace(' ', SPACE)].concat();
        let mut symbols = self.symbols(&text);
        let splits = self.merge(text.as_bytes(), &mut symbols);
        let mut at = 0;
        let mut was_unknown = false;
        while let Some(symbol) = symbols.get(at) {
            let piece = &text.as_bytes()[symbol.start..symbol.start + symbol.length];
            self.emit(piece, &splits, &mut was_unknown, out);
            at = symbol.next;
        }
    }

    /// The text as user-defined pieces and single characters.
    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let mut symbols = Vec::with_capacity(text.len());
        let mut push = |start, length, is_frozen| {
            let at = symbols.len();
            symbols.push(Symbol {
                start,
                length,
                previous: at.wrapping_sub(1),
                next: at + 1,
                is_frozen,
            });
        };
        let mut start = 0;
        for piece in special::split(text, self.user_defined.as_ref()) {
            match piece {
                Piece::Token(_, length) => {
                    push(start, length, true);
                    start += length;
                }
                Piece::Text(part) => {
                    for c in part.chars() {
                        push(start, c.len_utf8(), false);
                        start += c.len_utf8();
                    }
                }
            }
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        symbols
    }

    /// Merges until nothing merges; returns how each unused piece came about.
    fn merge<'a>(&self, text: &'a [u8], symbols: &mut [Symbol]) -> Splits<'a> {
        let mut splits = Splits::new();
        let mut heap = BinaryHeap::new();
        for left in 0..symbols.len().saturating_sub(1) {
            self.push_candidate(text, symbols, left, &mut heap, &mut splits);
        }
        while let Some(candidate) = heap.pop() {
            let Candidate { left, right, .. } = candidate;
            let (a, b) = (symbols[left], symbols[right]);
            // Earlier merges may have taken or grown either side since this candidate was noted.
            if a.length == 0 || b.length == 0 || a.length + b.length != candidate.length {
                continue;
            }
            symbols[left].length = candidate.length;
            symbols[left].next = b.next;
            symbols[right].length = 0;
            if b.next != NONE {
                symbols[b.next].previous = left;
                self.push_candidate(text, symbols, left, &mut heap, &mut splits);
            }
            if a.previous != NONE {
                self.push_candidate(text, symbols, a.previous, &mut heap, &mut splits);
            }
        }
        splits
    }

    fn push_candidate<'a>(
        &self,
        text: &'a [u8],
        symbols: &[Symbol],
        left: usize,
        heap: &mut BinaryHeap<Candidate>,
        splits: &mut Splits<'a>,
    ) {
        let a = symbols[left];
        let b = symbols[a.next];
        let length = a.length + b.length;
        if a.is_frozen || b.is_frozen || length > self.longest {
            return;
        }
        let piece = &text[a.start..a.start + length];
        let Some(&id) = self.ids.get(piece) else {
            return;
        };
        if self.is_unused[id as usize] {
            splits.insert(piece, a.length);
        }
        heap.push(Candidate {
            score: self.scores[id as usize],
            left,
            right: a.next,
            length,
        });
    }

    /// Appends the token of a piece; unused pieces are taken apart again, characters without a token
    /// become bytes, or one unknown token for a whole run of them.
    fn emit(
        &self,
        piece: &[u8],
        splits: &Splits<'_>,
        was_unknown: &mut bool,
        out: &mut Vec<TokenId>,
    ) {
        let mut stack = vec![piece];
        while let Some(piece) = stack.pop() {
            let id = self.ids.get(piece).copied();
            if id.is_some_and(|id| self.is_unused[id as usize])
                && let Some(&left) = splits.get(piece)
            {
                stack.extend([&piece[left..], &piece[..left]]);
                continue;
            }
            match (id, &self.bytes, self.unknown) {
                (Some(id), ..) => out.push(id),
                (None, Some(bytes), _) => out.extend(piece.iter().map(|&b| bytes[usize::from(b)])),
                (None, None, Some(unknown)) if !*was_unknown => out.push(unknown),
                (None, None, _) => {}
            }
            *was_unknown = id.is_none() && self.bytes.is_none();
        }
    }
}

/// For unused pieces: the length of the left part each was last merged from.
type Splits<'a> = HashMap<&'a [u8], usize>;

/// The tokens `<0x00>` … `<0xFF>`: all of them or, if there is none, `None`.
fn byte_tokens(
    spec: &TokenizerSpec,
    types: &[TokenType],
) -> Result<Option<Box<[TokenId; 256]>>, TokenizerError> {
    let mut found = [None; 256];
    for (id, (token, kind)) in (0..).zip(spec.tokens.iter().zip(types)) {
        if *kind != TokenType::Byte {
            continue;
        }
        let byte = byte_of(token).ok_or_else(|| TokenizerError::BadByteToken {
            id,
            text: String::from_utf8_lossy(token).into_owned(),
        })?;
        if let Some(first) = found[usize::from(byte)].replace(id) {
            return Err(TokenizerError::duplicate(token, first, id));
        }
    }
    let count = found.iter().flatten().count();
    match count {
        0 => Ok(None),
        256 => Ok(Some(Box::new(found.map(Option::unwrap_or_default)))),
        _ => Err(TokenizerError::IncompleteByteTokens { count }),
    }
}

/// Appends a stored piece with U+2581 written as a space.
pub(crate) fn unescape(piece: &[u8], out: &mut Vec<u8>) {
    let mut rest = piece;
    while let Some((&first, tail)) = rest.split_first() {
        match rest.strip_prefix(SPACE.as_bytes()) {
            Some(tail) => {
                out.push(b' ');
                rest = tail;
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
}
