//! Python's methods of strings, lists and dicts that the template engine lacks or treats differently.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind, from_args},
};
use minijinja_contrib::pycompat;

/// Calls a method; what is not known here goes to the engine's own set.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq if method == "index" => Some(index_in(value, args)?),
        ValueKind::Map if method == "copy" => {
            from_args::<()>(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(value) => Ok(value),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(args)?;
            strip(text, characters, method != "rstrip", method != "lstrip").into()
        }
        "split" | "rsplit" => split_method(text, method == "rsplit", args)?,
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            lines(text, keep_ends.unwrap_or(false)).into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = match method {
                "partition" => text.split_once(separator),
                _ => text.rsplit_once(separator),
            };
            let parts = match (found, method) {
                (Some((before, after)), _) => [before, separator, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            minijinja::value::Tuple::from(parts.map(Value::from)).into()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            match text.find(part) {
                Some(at) => text[..at].chars().count().into(),
                None => return Err(invalid("substring not found")),
            }
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            pad(text, width, fill.unwrap_or(" "), method)?.into()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let width = width.saturating_sub(sign.len());
            format!("{sign}{}", pad(digits, width, "0", "rjust")?).into()
        }
        "isspace" => (!text.is_empty() && text.chars().all(is_space)).into(),
        "title" => title(text).into(),
        "casefold" => text.to_lowercase().into(),
        "swapcase" => swap_case(text).into(),
        _ => return Ok(None),
    }))
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `str.isspace` for one character: White_Space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c)
}

/// `str.strip`, `lstrip` and `rstrip`.
pub(super) fn strip<'a>(
    text: &'a str,
    characters: Option<&str>,
    start: bool,
    end: bool,
) -> &'a str {
    let goes = |c: char| characters.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if start {
        text.trim_start_matches(goes)
    } else {
        text
    };
    if end {
        text.trim_end_matches(goes)
    } else {
        text
    }
}

/// `str.split` and `rsplit`, with `sep` and `maxsplit` by place or name.
fn split_method(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (by_place, limit, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match by_place {
        Some(value) => Some(value),
        None => named.get::<Option<Value>>("sep")?,
    };
    let limit = match limit {
        Some(limit) => Some(limit),
        None => named.get::<Option<i64>>("maxsplit")?,
    };
    named.assert_all_used()?;
    // A negative limit means none.
    let limit = limit
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX - 1);
    let separator = separator.filter(|s| !s.is_none());
    let parts: Vec<Value> = match &separator {
        None => split_at_spaces(text, limit, from_right),
        Some(value) => {
            let separator = value
                .as_str()
                .ok_or_else(|| invalid("split: the separator must be a string"))?;
            if separator.is_empty() {
                return Err(invalid("split: the separator is empty"));
            }
            if from_right {
                let mut parts: Vec<_> = text.rsplitn(limit + 1, separator).collect();
                parts.reverse();
                parts
            } else {
                text.splitn(limit + 1, separator).collect()
            }
        }
    }
    .into_iter()
    .map(Value::from)
    .collect();
    Ok(parts.into())
}

/// Splits at runs of white space, at most `limit` times.
fn split_at_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, !from_right, from_right);
    while !rest.is_empty() {
        let found = if from_right {
            rest.char_indices()
                .rfind(|&(_, c)| is_space(c))
                .map(|(at, c)| (&rest[at + c.len_utf8()..], &rest[..at]))
        } else {
            rest.find(is_space).map(|at| rest.split_at(at))
        };
        match found {
            Some((part, others)) if parts.len() < limit => {
                parts.push(part);
                rest = strip(others, None, !from_right, from_right);
            }
            _ => {
                parts.push(rest);
                break;
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// `str.splitlines`.
fn lines(text: &str, keep_ends: bool) -> Vec<Value> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_end = |c: char| {
            matches!(
                c,
                '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'
                    ..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        let end = rest.find(is_end).unwrap_or(rest.len());
        let after = &rest[end..];
        let width = if after.starts_with("\r\n") {
            2
        } else {
            after.chars().next().map_or(0, char::len_utf8)
        };
        let shown = if keep_ends { end + width } else { end };
        lines.push(Value::from(&rest[..shown]));
        rest = &rest[end + width..];
    }
    lines
}

/// `str.title`: a letter is upper case unless it follows one.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        let is_cased = c.is_uppercase() || c.is_lowercase();
        if is_cased && !after_letter {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        after_letter = is_cased;
    }
    out
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

/// `str.ljust`, `rjust` and `center`.
fn pad(text: &str, width: usize, fill: &str, method: &str) -> Result<String, Error> {
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be one character"));
    }
    if width > super::OUTPUT_BYTES {
        return Err(invalid("the width is out of range"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // Python puts the odd one on the left if the width is odd, too.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok([&fill.repeat(left), text, &fill.repeat(missing - left)].concat())
}

/// `list.index`.
fn index_in(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    for (at, item) in list.try_iter()?.enumerate() {
        if item == *wanted {
            return Ok(at.into());
        }
    }
    Err(invalid("the value is not in the list"))
}
