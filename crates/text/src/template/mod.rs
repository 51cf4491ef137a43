//! Chat templates: the prompt of a conversation.
//!
//! Models come with a Jinja template that writes a conversation as text. It is rendered the way
//! `transformers.apply_chat_template` does: the same whitespace rules, the same variables (`messages`,
//! `tools`, `documents`, `add_generation_prompt`, the special tokens), the same extra functions, and
//! Python's view of values. Templates come with files, so they are not trusted: a render has a budget of
//! work and of output, and ends with an error when it is spent.
//!
//! Known differences: `'…' % (…)` is an error (use the `format` filter); the `else` of a `for` whose every
//! round ended in `continue` does not run; a list printed as such shows non-ASCII characters that Python
//! escapes (U+00A0); `title` writes digraphs such as ǆ in upper case.

mod functions;
mod generation;
mod json;
mod methods;
mod tags;
mod time;

use std::{collections::BTreeMap, io};

pub use jiff::civil::DateTime;
use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig, value::Serde};
use serde_json::{Map, Value};

use crate::{TokenId, Tokenizer};

/// The name of the one template in an environment.
const NAME: &str = "chat template";

/// Work a render may do: about one unit per instruction and per 64 bytes of data.
const FUEL: u64 = 1_000_000;

/// Bytes a render may write.
const OUTPUT_BYTES: usize = 16 << 20;

/// How deep JSON values may be nested.
const DEPTH: usize = 128;

/// Bytes a template may have; those in use have at most some thirty thousand.
const SOURCE_BYTES: usize = 128 << 10;

/// Stack for compiling and rendering. The engine compiles recursively, by the nesting of expressions,
/// and drops and prints values recursively, which a template can nest as deep as its fuel lasts: 268 bytes for each
/// unit. Only the pages touched are ever backed by memory, but all of it takes address space.
const STACK_BYTES: usize = 256 << 20;

/// A chat template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is not valid, or fails on these messages.
    #[error("chat template{}: {message}", at_line(.line))]
    Template {
        /// What went wrong.
        message: String,
        /// The line of the template, from 1.
        line: Option<usize>,
    },
    /// The template itself refuses these messages, by `raise_exception`.
    #[error("the chat template refuses these messages: {message}{}", at_line(.line))]
    Raised {
        /// What the template says.
        message: String,
        /// The line of the template, from 1.
        line: Option<usize>,
    },
    /// The template does too much work, or writes too much.
    #[error("chat template{}: exceeds the limit of {what}", at_line(.line))]
    Limit {
        /// What there is a limit of.
        what: &'static str,
        /// The line of the template, from 1.
        line: Option<usize>,
    },
    /// An input is not of the right form.
    #[error("{what} {problem}")]
    Input {
        /// The input.
        what: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No thread to work in: a matter of the system, not of the template.
    #[error(
        "the system refuses a thread for chat templates, whose stack takes {mib} MiB of address space (a limit may be set: \
         see `ulimit -v` and `ulimit -u`): {0}",
        mib = STACK_BYTES >> 20
    )]
    NoThread(String),
    /// The thread panicked.
    #[error("the chat template broke the engine that renders it")]
    Panicked,
}

/// Runs `work` with a stack that no template overflows.
fn with_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|e| TemplateError::NoThread(e.to_string()))?;
        worker
            .join()
            .unwrap_or_else(|_| Err(TemplateError::Panicked))
    })
}

fn at_line(line: &Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" (line {line})"))
}

/// What a conversation is rendered from.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// The messages: objects with `role`, `content` and whatever else the template reads. Keys whose
    /// value is null are dropped, as the reference does.
    pub messages: &'a [Value],
    /// Function schemas, as an array.
    pub tools: Option<&'a Value>,
    /// Whether to end with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// More variables for the template; they go before all others.
    pub extra: Option<&'a Map<String, Value>>,
    /// What `strftime_now` takes for the time.
    pub now: DateTime,
}

impl<'a> RenderInput<'a> {
    /// These messages, with a generation prompt and the local time, and nothing else.
    #[must_use]
    pub fn new(messages: &'a [Value]) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: true,
            extra: None,
            now: jiff::ZonedDateTime::now().datetime(),
        }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of those tokens, which the template sees as
    /// `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// A syntax error, with its line.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| explain(&e))?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        functions::add(&mut environment);
        if source.len() > SOURCE_BYTES {
            return Err(TemplateError::Limit {
                what: "128 KiB of template",
                line: None,
            });
        }
        if let Some(line) = tags::first_too_long(source) {
            return Err(TemplateError::Limit {
                what: "2 KiB of code in one tag",
                line: Some(line),
            });
        }
        let environment = with_deep_stack(move || {
            environment
                .add_template_owned(NAME, generation::neutralize(source))
                .map_err(|e| explain(&e))?;
            Ok(environment)
        })?;
        let special = [("bos_token", bos), ("eos_token", eos)]
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), text?.to_owned())))
            .collect();
        Ok(Self {
            environment,
            special,
        })
    }

    /// The template that a model's file carries, with the texts of its BOS and EOS; `None` if it carries
    /// none.
    ///
    /// # Errors
    /// A syntax error, with its line.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>, TemplateError> {
        let text = |id: Option<TokenId>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned())
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        tokenizer
            .chat_template()
            .map(|source| Self::new(source, bos.as_deref(), eos.as_deref()))
            .transpose()
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// The template fails or refuses the messages (with its line), a limit is exceeded, or an input is
    /// of the wrong form.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TemplateError> {
        let context = self.context(input)?;
        with_deep_stack(|| self.render_here(context))
    }

    fn render_here(
        &self,
        context: BTreeMap<String, minijinja::Value>,
    ) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| explain(&e))?;
        let mut out = Limited::default();
        let result = template.render_captured_to(context, &mut out).map(drop);
        if out.is_over {
            let line = result.err().and_then(|e| e.line());
            return Err(TemplateError::Limit {
                what: "16 MiB of output",
                line,
            });
        }
        result.map_err(|e| explain(&e))?;
        String::from_utf8(out.bytes).map_err(|e| TemplateError::Template {
            message: e.to_string(),
            line: None,
        })
    }

    /// The variables the template sees.
    fn context(
        &self,
        input: &RenderInput<'_>,
    ) -> Result<BTreeMap<String, minijinja::Value>, TemplateError> {
        let none = minijinja::Value::from(());
        let mut messages = Vec::with_capacity(input.messages.len());
        for (index, message) in input.messages.iter().enumerate() {
            let what = || format!("message {index}");
            let Value::Object(fields) = message else {
                return Err(TemplateError::Input {
                    what: what(),
                    problem: "is not an object",
                });
            };
            messages.push(convert(&prepared(fields), what)?);
        }
        let mut context: BTreeMap<String, minijinja::Value> = self
            .special
            .iter()
            .map(|(name, text)| (name.clone(), text.clone().into()))
            .collect();
        for (name, value) in input.extra.into_iter().flatten() {
            context.insert(name.clone(), convert(value, || format!("variable {name}"))?);
        }
        let tools = match input.tools {
            Some(tools @ Value::Array(_)) => convert(tools, || "tools".into())?,
            Some(_) => {
                return Err(TemplateError::Input {
                    what: "tools".into(),
                    problem: "is not an array",
                });
            }
            None => none.clone(),
        };
        let now = input.now;
        let strftime = move |format: &str| time::strftime(now, format);
        let defaults = [
            ("messages", messages.into()),
            ("tools", tools),
            ("documents", none),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            ("strftime_now", minijinja::Value::from_function(strftime)),
        ];
        for (name, value) in defaults {
            context.entry(name.to_owned()).or_insert(value);
        }
        Ok(context)
    }
}

/// A message as the template sees it: without null fields, and with reasoning under both of the names
/// that templates read.
fn prepared(fields: &Map<String, Value>) -> Value {
    let mut kept: Map<String, Value> = Map::new();
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|key| fields.get(*key).filter(|v| !v.is_null()));
    if let Some(text) = reasoning {
        kept.insert("thinking".into(), text.clone());
    }
    for (key, value) in fields {
        if !value.is_null() {
            kept.insert(key.clone(), value.clone());
        }
    }
    if let Some(text) = reasoning {
        kept.insert("reasoning_content".into(), text.clone());
    }
    Value::Object(kept)
}

/// A JSON value as a template value.
fn convert(
    value: &Value,
    what: impl FnOnce() -> String,
) -> Result<minijinja::Value, TemplateError> {
    if is_deeper_than(value, DEPTH) {
        return Err(TemplateError::Input {
            what: what(),
            problem: "is nested more than 128 levels deep",
        });
    }
    Ok(minijinja::Value::from(Serde(value)))
}

fn is_deeper_than(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return true;
    };
    match value {
        Value::Array(items) => items.iter().any(|v| is_deeper_than(v, below)),
        Value::Object(fields) => fields.values().any(|v| is_deeper_than(v, below)),
        _ => false,
    }
}

/// What an engine error means to us.
fn explain(error: &minijinja::Error) -> TemplateError {
    let line = error.line();
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Limit {
            what: "1,000,000 units of work",
            line,
        };
    }
    let mut message = error.kind().to_string();
    if let Some(detail) = error.detail() {
        message = format!("{message}: {detail}");
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<functions::Raised>() {
            return TemplateError::Raised {
                message: raised.0.clone(),
                line,
            };
        }
        if let Some(inner) = cause.downcast_ref::<minijinja::Error>()
            && inner.kind() == ErrorKind::OutOfFuel
        {
            return explain(inner);
        }
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    TemplateError::Template { message, line }
}

/// Output that fails when there is too much of it.
#[derive(Default)]
struct Limited {
    bytes: Vec<u8>,
    is_over: bool,
}

impl io::Write for &mut Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES {
            self.is_over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
