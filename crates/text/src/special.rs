//! Finding tokens that are matched as text before anything else: control and user-defined ones.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{TokenId, TokenizerError};

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece<'a> {
    /// Plain text, never empty.
    Text(&'a str),
    /// A token and the bytes of text it was matched over.
    Token(TokenId, usize),
}

/// An automaton over the tokens' texts, and the id of each of its patterns.
pub(crate) type Automaton = (AhoCorasick, Vec<TokenId>);

/// An automaton that finds these tokens, or `None` if there are none. Texts must not be empty.
///
/// # Errors
/// More text than an automaton holds.
pub(crate) fn automaton(
    tokens: &[(TokenId, Vec<u8>)],
) -> Result<Option<Automaton>, TokenizerError> {
    if tokens.is_empty() {
        return Ok(None);
    }
    let built = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(tokens.iter().map(|(_, text)| text));
    match built {
        Ok(found) => Ok(Some((found, tokens.iter().map(|(id, _)| *id).collect()))),
        Err(_) => Err(TokenizerError::TooManySpecial {
            count: tokens.len(),
        }),
    }
}

/// Cuts `text` at the tokens, the leftmost first and the longest of those. Time: linear.
pub(crate) fn split<'a>(text: &'a str, automaton: Option<&Automaton>) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    if let Some((automaton, ids)) = automaton {
        for found in automaton.find_iter(text) {
            // A token that is not whole characters can't be matched in text.
            let (Some(before), true) = (
                text.get(start..found.start()),
                text.is_char_boundary(found.end()),
            ) else {
                continue;
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before));
            }
            pieces.push(Piece::Token(ids[found.pattern().as_usize()], found.len()));
            start = found.end();
        }
    }
    if start < text.len() {
        pieces.push(Piece::Text(&text[start..]));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_then_the_longest_token_is_found() {
        let tokens = [
            (7, b"<a>".to_vec()),
            (8, b"<a>b".to_vec()),
            (9, b"a>bc".to_vec()),
        ];
        let automaton = automaton(&tokens).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            split("x<a>bc<a>", automaton.as_ref()),
            [
                Piece::Text("x"),
                Piece::Token(8, 4),
                Piece::Text("c"),
                Piece::Token(7, 3)
            ]
        );
        assert_eq!(split("", automaton.as_ref()), []);
        assert_eq!(split("x", None), [Piece::Text("x")]);
    }
}
