//! Byte-level BPE: merges by rank inside one word.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use crate::{TokenId, TokenizerError, byte_level, error::map_of};

/// The merges of a vocabulary, by token ids.
#[derive(Debug)]
pub(crate) struct Merges {
    /// The token of each single byte; some vocabularies lack bytes that never occurred in training.
    bytes: Box<[Option<TokenId>; 256]>,
    /// From a pair of neighbours to the merge's rank (0 first) and the token it makes.
    pairs: HashMap<(TokenId, TokenId), (u32, TokenId)>,
}

/// One token of the word being merged; a doubly linked list in a vector.
#[derive(Clone, Copy)]
struct Symbol {
    id: TokenId,
    previous: usize,
    next: usize,
    is_alive: bool,
}

/// "No neighbour".
const NONE: usize = usize::MAX;

/// A possible merge: rank, place of the left token, token made. The heap gives the lowest rank first,
/// leftmost first among equals.
type Candidate = Reverse<(u32, usize, TokenId)>;

/// Buffers reused from word to word.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

impl Merges {
    /// Resolves `merges` (each `left SPACE right`, best first) with `id_of`, which knows every token by
    /// its stored text. A merge that makes a token for which `is_control` holds is left out: plain text
    /// must not turn into a control token.
    ///
    /// # Errors
    /// A merge without exactly two parts, or whose parts or result are no tokens.
    pub(crate) fn new(
        merges: &[String],
        id_of: impl Fn(&[u8]) -> Option<TokenId>,
        is_control: impl Fn(TokenId) -> bool,
    ) -> Result<Self, TokenizerError> {
        let mut bytes = Box::new([None; 256]);
        for byte in 0..=255_u8 {
            let text = byte_level::character(byte).to_string();
            bytes[usize::from(byte)] = id_of(text.as_bytes()).filter(|&id| !is_control(id));
        }
        let mut pairs = map_of("the merges", merges.len())?;
        for (index, merge) in merges.iter().enumerate() {
            let bad = |problem| TokenizerError::BadMerge {
                index,
                merge: merge.clone(),
                problem,
            };
            let mut parts = merge.split(' ');
            let (left, right) = match (parts.next(), parts.next(), parts.next()) {
                (Some(l), Some(r), None) if !l.is_empty() && !r.is_empty() => (l, r),
                _ => return Err(bad("is not two parts with one space between")),
            };
            let find = |text: &str| id_of(text.as_bytes());
            let (Some(a), Some(b)) = (find(left), find(right)) else {
                return Err(bad("has a part that is no token"));
            };
            let made = find(&[left, right].concat()).ok_or_else(|| bad("makes no token"))?;
            let rank = u32::try_from(index).map_err(|_| bad("is one too many"))?;
            if !is_control(made) {
                pairs.insert((a, b), (rank, made));
            }
        }
        Ok(Self { bytes, pairs })
    }

    /// Whether the vocabulary has a token for this byte.
    pub(crate) fn has_byte(&self, byte: u8) -> bool {
        self.bytes[usize::from(byte)].is_some()
    }

    /// Appends the tokens of one word. Bytes without a token are left out, as the reference does.
    /// Time: n log n in the word's length.
    pub(crate) fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        let Scratch { symbols, heap } = scratch;
        symbols.clear();
        heap.clear();
        for id in word.iter().filter_map(|&b| self.bytes[usize::from(b)]) {
            let at = symbols.len();
            symbols.push(Symbol {
                id,
                previous: at.wrapping_sub(1),
                next: at + 1,
                is_alive: true,
            });
        }
        match symbols.last_mut() {
            Some(last) => last.next = NONE,
            None => return,
        }
        for left in 0..symbols.len() - 1 {
            self.push_candidate(symbols, heap, left);
        }
        while let Some(Reverse((_, left, made))) = heap.pop() {
            let Symbol { id, next, .. } = symbols[left];
            // Earlier merges may have taken either side since this candidate was noted.
            if !symbols[left].is_alive
                || next == NONE
                || self.pairs.get(&(id, symbols[next].id)).map(|&(_, m)| m) != Some(made)
            {
                continue;
            }
            let right = symbols[next];
            symbols[next].is_alive = false;
            symbols[left].id = made;
            symbols[left].next = right.next;
            if right.next != NONE {
                symbols[right.next].previous = left;
                self.push_candidate(symbols, heap, left);
            }
            if symbols[left].previous != NONE {
                self.push_candidate(symbols, heap, symbols[left].previous);
            }
        }
        out.extend(symbols.iter().filter(|s| s.is_alive).map(|s| s.id));
    }

    fn push_candidate(&self, symbols: &[Symbol], heap: &mut BinaryHeap<Candidate>, left: usize) {
        let pair = (symbols[left].id, symbols[symbols[left].next].id);
        if let Some(&(rank, made)) = self.pairs.get(&pair) {
            heap.push(Reverse((rank, left, made)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKENS: [&str; 10] = ["a", "b", "c", "ab", "bc", "aa", "aaa", "abc", "cab", "aab"];
    const MERGES: [&str; 8] = ["b c", "a a", "a b", "a bc", "ab c", "aa a", "c ab", "aa b"];

    fn merges() -> Merges {
        let list: Vec<String> = MERGES.iter().map(ToString::to_string).collect();
        Merges::new(&list, find, |_| false).unwrap_or_else(|e| panic!("{e}"))
    }

    fn find(text: &[u8]) -> Option<TokenId> {
        let at = TOKENS.iter().position(|t| t.as_bytes() == text)?;
        TokenId::try_from(at).ok()
    }

    /// The definition: while any merge applies, do the best-ranked leftmost one.
    fn naive(text: &str) -> Vec<TokenId> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let rank = |pair: &[String]| MERGES.iter().position(|m| *m == pair.join(" "));
            let best = (0..parts.len().saturating_sub(1))
                .filter_map(|at| Some((rank(&parts[at..at + 2])?, at)))
                .min();
            let Some((_, at)) = best else { break };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
        parts.iter().filter_map(|p| find(p.as_bytes())).collect()
    }

    proptest! {
        #[test]
        fn the_heap_equals_the_definition(text in "[abc]{0,24}") {
            let mut out = Vec::new();
            merges().encode(text.as_bytes(), &mut Scratch::default(), &mut out);
            prop_assert_eq!(out, naive(&text));
        }
    }

    #[test]
    fn bytes_without_a_token_are_left_out() {
        let mut out = Vec::new();
        merges().encode(b"a\x04b", &mut Scratch::default(), &mut out);
        assert_eq!(out, [3]);
        assert!(!merges().has_byte(4));
    }
}
