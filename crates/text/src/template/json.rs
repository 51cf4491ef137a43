//! `tojson` as `transformers` defines it: Python's `json.dumps`, without HTML escapes.

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// How deep values may be nested.
const DEPTH: usize = 128;

/// The arguments of `json.dumps` that templates can set.
pub(super) struct Style {
    pub(super) ensure_ascii: bool,
    /// What one level is indented by; `None` keeps all on one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

/// The JSON text of a value.
///
/// # Errors
/// Undefined values, keys that JSON can't have, and values nested too deep.
pub(super) fn to_json(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write(value, style, 0, &mut out)?;
    Ok(out)
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("tojson: {detail}"))
}

fn write(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(bad(format!("the value is nested more than {DEPTH} deep")));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String => string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container(&items, ['[', ']'], style, depth, out, |item, out| {
                write(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut fields = Vec::new();
            for key in value.try_iter()? {
                fields.push((key_text(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                fields.sort_by(|a, b| a.0.cmp(&b.0));
            }
            container(
                &fields,
                ['{', '}'],
                style,
                depth,
                out,
                |(key, item), out| {
                    string(key, style, out);
                    out.push_str(&style.key_separator);
                    write(item, style, depth + 1, out)
                },
            )?;
        }
        kind => return Err(bad(format!("a value of type {kind} is not JSON"))),
    }
    Ok(())
}

/// Writes a list or an object by its items.
fn container<T>(
    items: &[T],
    [open, close]: [char; 2],
    style: &Style,
    depth: usize,
    out: &mut String,
    mut write_item: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(depth + 1, out);
        write_item(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

/// The text of an object's key.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => number(key),
        kind => Err(bad(format!("a key of type {kind} is not JSON"))),
    }
}

/// A number as Python writes it.
pub(super) fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    Ok(float(f64::try_from(value.clone())?))
}

/// A float as Python's `repr` writes it: the shortest digits that read back, with an exponent below 1e-4
/// and from 1e16.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = value.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn string(text: &str, style: &Style, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            '\0'..='\u{1F}' => escape(c, out),
            _ if style.ensure_ascii && !(' '..='~').contains(&c) => escape(c, out),
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// `\uXXXX`, two of them beyond the basic plane.
fn escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
