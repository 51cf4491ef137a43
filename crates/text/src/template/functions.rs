//! Filters, tests and functions that differ from, or go beyond, those of the template engine.

use minijinja::{
    Environment, Error, ErrorKind, State, Value, escape_formatter,
    value::{Kwargs, Rest, Serde, ValueKind},
};

use super::{json, methods};

/// The message of `raise_exception`, to tell it from other errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds all of them.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("fromjson", fromjson);
    environment.add_filter("string", string);
    environment.add_filter("trim", trim);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.to_vec())
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
        )
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_test("callable", |value: &Value| {
        matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
    });
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| match float_of(value) {
        Some(value) => escape_formatter(out, state, &Value::from(printed(value))),
        None => escape_formatter(out, state, value),
    });
}

/// The value, if it is a float.
fn float_of(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

/// A float as Python prints it.
fn printed(value: f64) -> String {
    match value {
        _ if value.is_nan() => "nan".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        _ => json::float(value),
    }
}

fn string(value: &Value) -> Value {
    match float_of(value) {
        Some(value) => printed(value).into(),
        None if value.kind() == ValueKind::String => value.clone(),
        None => value.to_string().into(),
    }
}

fn trim(value: &Value, characters: Option<&str>) -> String {
    let text = value.to_string();
    methods::strip(&text, characters, true, true).to_owned()
}

/// `default(value, default_value="", boolean=False)`.
fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = match other {
        Some(other) => Some(other),
        None => named.get("default_value")?,
    };
    let boolean = match boolean {
        Some(boolean) => Some(boolean),
        None => named.get("boolean")?,
    };
    named.assert_all_used()?;
    let is_missing = value.is_undefined() || boolean.unwrap_or(false) && !value.is_true();
    Ok(match is_missing {
        true => other.unwrap_or_else(|| "".into()),
        false => value.clone(),
    })
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn fromjson(text: &str) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("fromjson: {e}")))?;
    Ok(Value::from(Serde(value)))
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    by_place: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if by_place.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |at: usize| -> Result<Option<Value>, Error> {
        let value = match by_place.get(at) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(NAMES[at])?,
        };
        Ok(value.filter(|v| !v.is_none()))
    };
    let ensure_ascii = argument(0)?;
    let indent = argument(1)?;
    let separators = argument(2)?;
    let sort_keys = argument(3)?;
    named.assert_all_used()?;
    let indent = indent.map(indentation).transpose()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => {
            let part = |at| pair.get_item_by_index(at).map(|v| v.to_string());
            (part(0)?, part(1)?)
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = json::Style {
        ensure_ascii: ensure_ascii.is_some_and(|v| v.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|v| v.is_true()),
    };
    let text = json::to_json(value, &style)?;
    state.consume_fuel(text.len() as u64 / 4)?;
    Ok(text.into())
}

/// What `indent` means: a number of spaces, or the text itself.
fn indentation(value: Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.to_string()),
        ValueKind::Bool => Ok(" ".repeat(usize::from(value.is_true()))),
        _ => {
            let spaces = i64::try_from(value)?.clamp(0, 64);
            Ok(" ".repeat(usize::try_from(spaces).unwrap_or(0)))
        }
    }
}
