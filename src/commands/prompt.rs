//! From arguments and standard input to the tokens of a prompt.

use std::io::{self, IsTerminal, Read};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use text::{EncodeOptions, RenderInput, TokenId, Tokenizer};

use crate::report::Usage;
use crate::session;

/// Bytes of standard input that are read at most: far more than any context holds.
const INPUT_MAX: u64 = 64 << 20;

/// What stands for standard input where a text or a file is expected.
pub(crate) const STDIN: &str = "-";

/// Standard input as text.
///
/// # Errors
/// When it can't be read, is too large or is not UTF-8.
pub(crate) fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let read = io::stdin()
        .lock()
        .take(INPUT_MAX + 1)
        .read_to_end(&mut bytes);
    read.context("can't read standard input")?;
    if bytes.len() as u64 > INPUT_MAX {
        bail!(
            "standard input has more than {INPUT_MAX} bytes, the most that is read of it; give a shorter text, or one \
             part after the other"
        );
    }
    utf8(bytes, "standard input")
}

/// Bytes as text; `what` they are is named in the error.
///
/// # Errors
/// When they are not UTF-8.
pub(crate) fn utf8(bytes: Vec<u8>, what: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[offset];
        anyhow!("{what} is not UTF-8: byte 0x{byte:02x} at offset {offset}")
    })
}

/// The prompt: the argument, standard input where that is not a terminal, or both with a blank line
/// between them. `-` as the argument is standard input alone, a terminal too.
///
/// # Errors
/// When there is none, or standard input is not text.
pub(crate) fn gather(argument: Option<&str>, raw: bool) -> Result<String> {
    let asks_for_stdin = argument == Some(STDIN);
    let argument = argument.filter(|_| !asks_for_stdin);
    let mut piped = String::new();
    if asks_for_stdin || !io::stdin().is_terminal() {
        piped = read_stdin()?;
        if !raw {
            let line = piped.strip_suffix('\n').unwrap_or(&piped);
            piped.truncate(line.strip_suffix('\r').unwrap_or(line).len());
        }
    }
    let prompt = match argument {
        Some(argument) if piped.is_empty() => argument.to_owned(),
        Some(argument) => format!("{argument}\n\n{piped}"),
        None => piped,
    };
    if prompt.is_empty() {
        let message =
            "there is no prompt: give one as an argument or on standard input (see --help)";
        return Err(Usage(message.to_owned()).into());
    }
    Ok(prompt)
}

/// A prompt as tokens.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The tokens.
    pub(crate) tokens: Vec<TokenId>,
    /// Whether the chat template was applied.
    pub(crate) is_chat: bool,
}

/// The tokens of a prompt: through the chat template unless there is none or `raw` asks for none.
///
/// # Errors
/// When the template fails, there is a system message and no template, or the vocabulary can't write a
/// character.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    prompt: &str,
    system: Option<&str>,
    raw: bool,
) -> Result<Encoded> {
    refuse_lost(tokenizer, prompt, "the prompt")?;
    let template = if raw {
        None
    } else {
        session::chat_template(
            tokenizer,
            "the model's chat template can't be used; --raw does without it",
        )?
    };
    let Some(template) = template else {
        if system.is_some() {
            bail!("this model has no chat template, so --system can't be honoured");
        }
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        return Ok(Encoded {
            tokens: tokenizer.encode(prompt, options),
            is_chat: false,
        });
    };
    let mut messages: Vec<Value> = Vec::new();
    if let Some(system) = system {
        refuse_lost(tokenizer, system, "the system message")?;
        messages.push(json!({ "role": "system", "content": system }));
    }
    messages.push(json!({ "role": "user", "content": prompt }));
    let rendered = template.render(&RenderInput::new(&messages))?;
    Ok(Encoded {
        tokens: tokenizer.encode_chat(&rendered),
        is_chat: true,
    })
}

/// Leaving characters out in silence would answer another prompt.
fn refuse_lost(tokenizer: &Tokenizer, text: &str, what: &str) -> Result<()> {
    match tokenizer.lost_character(text) {
        None => Ok(()),
        Some(lost) => bail!(
            "{what} has {:?} at byte {}, which the model's vocabulary can't write",
            lost.character,
            lost.offset
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::utf8;

    #[test]
    fn the_first_wrong_byte_is_named() {
        let error = utf8(b"ab\xff\xfe".to_vec(), "it").unwrap_err().to_string();
        assert_eq!(error, "it is not UTF-8: byte 0xff at offset 2");
        let cut = utf8("é".as_bytes()[..1].to_vec(), "it")
            .unwrap_err()
            .to_string();
        assert_eq!(cut, "it is not UTF-8: byte 0xc3 at offset 0");
        assert_eq!(utf8("é".into(), "it").unwrap(), "é");
    }
}
