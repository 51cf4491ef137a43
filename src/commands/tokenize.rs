//! `tokenize`: the tokens of a text.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use text::{EncodeOptions, TokenId, Tokenizer};

use super::prompt;
use crate::cli::TokenizeArgs;
use crate::{report, session};

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    count: usize,
    tokens: Vec<Token<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    id: TokenId,
    /// As text; bytes that are none become U+FFFD.
    piece: String,
    bytes: &'a [u8],
}

/// Prints the tokens of a text.
///
/// # Errors
/// When the model has no tokenizer that is supported, or the text is not UTF-8.
pub(crate) fn run(args: &TokenizeArgs) -> Result<()> {
    let text = match args.text.as_deref() {
        Some(prompt::STDIN) | None => prompt::read_stdin()?,
        Some(text) => text.to_owned(),
    };
    let file = session::open(&args.model.model)?;
    let tokenizer = session::tokenizer(&file)?;
    let special = !args.no_special;
    let ids = tokenizer.encode(
        &text,
        EncodeOptions {
            add_special: special,
            parse_special: special,
        },
    );
    if let Some(lost) = tokenizer.lost_character(&text) {
        let (character, offset) = (lost.character, lost.offset);
        report::note(&format!(
            "note: the vocabulary can't write {character:?} (byte {offset}); left out"
        ));
    }
    if args.json {
        let tokens = ids.iter().map(|&id| token(&tokenizer, id)).collect();
        let report = Report {
            model: &args.model.model,
            count: ids.len(),
            tokens,
        };
        return report::print_json(&report, true);
    }
    let mut out = String::new();
    if args.ids {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        writeln!(out, "{}", ids.join(" "))?;
    } else {
        for &id in &ids {
            writeln!(
                out,
                "{id:>8}  {}",
                report::quoted(tokenizer.token_bytes(id))
            )?;
        }
    }
    report::print(&out)
}

fn token(tokenizer: &Tokenizer, id: TokenId) -> Token<'_> {
    let bytes = tokenizer.token_bytes(id);
    Token {
        id,
        piece: String::from_utf8_lossy(bytes).into_owned(),
        bytes,
    }
}
