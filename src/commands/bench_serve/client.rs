//! Requests to an OpenAI-compatible server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use ureq::Agent;
use ureq::http::Response;

use super::answer::{Failure, FailureKind, Sample};
use super::stream;
use crate::cli::{BenchServeArgs, Endpoint};
use crate::report::Usage;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the list of models may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer that is read whole, in bytes.
const BODY_BYTES_MAX: u64 = 1 << 22;
/// Characters of an answer that an error quotes.
const QUOTED_CHARS_MAX: usize = 300;

/// Fields that not every server takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras {
    /// `ignore_eos`: go on when the model ends its answer.
    pub(super) ignore_eos: bool,
    /// `stream_options.include_usage`: counts at a stream's end.
    pub(super) include_usage: bool,
}

/// One server, and how it is asked.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Up to and with `/v1`.
    base: String,
    api_key: Option<String>,
    pub(super) model: String,
    endpoint: Endpoint,
    body: Map<String, Value>,
    timeout: Duration,
    pub(super) extras: Extras,
}

impl Client {
    /// For the server that the flags name; asks it for its model where they name none.
    ///
    /// # Errors
    /// When the flags make no sense, or there is no such server.
    pub(super) fn new(args: &BenchServeArgs) -> Result<Self> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // A proxy of the environment would be measured too.
            .proxy(None)
            // A connection that the server has closed meanwhile would count as its failure.
            .max_idle_connections(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .build()
            .new_agent();
        let mut client = Self {
            agent,
            base: base(&args.url)?,
            api_key: args.api_key.clone(),
            model: args.model.clone().unwrap_or_default(),
            endpoint: args.endpoint,
            body: args.body.clone().unwrap_or_default(),
            timeout: args.timeout(),
            extras: Extras::default(),
        };
        if args.model.is_none() {
            client.model = client.first_model()?;
        }
        Ok(client)
    }

    /// The name of the first model that the server lists.
    fn first_model(&self) -> Result<String> {
        let url = format!("{}/models", self.base);
        let request = self
            .agent
            .get(&url)
            .config()
            .timeout_global(Some(LIST_TIMEOUT))
            .build();
        let sent = match &self.api_key {
            Some(key) => request
                .header("Authorization", format!("Bearer {key}"))
                .call(),
            None => request.call(),
        };
        let list = sent
            .map_err(|error| Failure::of(error, LIST_TIMEOUT))
            .and_then(whole)
            .with_context(|| {
                format!("{url} can't be asked which models there are; is the server running?")
            })?;
        match list.pointer("/data/0/id").and_then(Value::as_str) {
            Some(id) => Ok(id.to_owned()),
            None => bail!("{url} lists no model; name one with --model"),
        }
    }

    /// The body of a request.
    fn request_body(&self, prompt: &str, output_tokens: usize, is_stream: bool) -> String {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        match self.endpoint {
            Endpoint::Completions => body.insert("prompt".into(), json!(prompt)),
            Endpoint::Chat => {
                let messages = json!([{"role": "user", "content": prompt}]);
                body.insert("messages".into(), messages)
            }
        };
        body.insert("max_tokens".into(), json!(output_tokens));
        body.insert("temperature".into(), json!(0));
        body.insert("stream".into(), json!(is_stream));
        if is_stream && self.extras.include_usage {
            body.insert("stream_options".into(), json!({"include_usage": true}));
        }
        if self.extras.ignore_eos {
            body.insert("ignore_eos".into(), json!(true));
        }
        body.extend(self.body.clone());
        Value::Object(body).to_string()
    }

    fn post(&self, body: &str) -> Result<Response<ureq::Body>, Failure> {
        let url = match self.endpoint {
            Endpoint::Completions => format!("{}/completions", self.base),
            Endpoint::Chat => format!("{}/chat/completions", self.base),
        };
        let mut request = self
            .agent
            .post(url)
            .header("Content-Type", "application/json")
            .config()
            .timeout_global(Some(self.timeout))
            .build();
        if let Some(key) = &self.api_key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        request
            .send(body)
            .map_err(|error| Failure::of(error, self.timeout))
    }

    /// Asks for an answer in one piece, and gives the tokens of the prompt where the server counts them.
    pub(super) fn count_prompt_tokens(&self, prompt: &str) -> Result<Option<usize>, Failure> {
        let response = self.post(&self.request_body(prompt, 1, false))?;
        let answer = whole(response)?;
        let count = answer
            .pointer("/usage/prompt_tokens")
            .and_then(Value::as_u64);
        Ok(count.map(|count| count as usize))
    }

    /// Asks for a stream and reads it, until `observe` says to stop; it is told after each piece of text how many
    /// there were, and when the last came. Times count from `due`.
    pub(super) fn stream(
        &self,
        prompt: &str,
        output_tokens: usize,
        due: Instant,
        observe: &mut dyn FnMut(usize, Instant) -> bool,
    ) -> Sample {
        let body = self.request_body(prompt, output_tokens, true);
        let mut sample = Sample::new(output_tokens);
        let read = self
            .post(&body)
            .and_then(|response| stream::read(response, due, self.timeout, &mut sample, observe));
        sample.finish(due.elapsed(), output_tokens, read.err());
        sample
    }
}

/// The part of all addresses, `/v1` included.
fn base(url: &str) -> Result<String> {
    let trimmed = url.trim_end_matches('/');
    if trimmed.starts_with("https://") {
        let message = format!(
            "--url {url}: https is not supported; use an http address, as that of a tunnel"
        );
        return Err(Usage(message).into());
    }
    if trimmed.strip_prefix("http://").is_none_or(str::is_empty) {
        let message = format!("--url {url} is no address; it must look like http://127.0.0.1:8080");
        return Err(Usage(message).into());
    }
    Ok(match trimmed.ends_with("/v1") {
        true => trimmed.to_owned(),
        false => format!("{trimmed}/v1"),
    })
}

/// A JSON answer that comes in one piece.
fn whole(response: Response<ureq::Body>) -> Result<Value, Failure> {
    let response = successful(response)?;
    let text = response
        .into_body()
        .into_with_config()
        .limit(BODY_BYTES_MAX)
        .read_to_string()
        .map_err(|error| Failure::of(error, LIST_TIMEOUT))?;
    serde_json::from_str(&text).map_err(|_| {
        let problem = format!("the answer is not JSON: {}", shortened(&text));
        Failure::new(FailureKind::Malformed, problem)
    })
}

/// The answer, if its status says that all is well.
pub(super) fn successful(response: Response<ureq::Body>) -> Result<Response<ureq::Body>, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = response
        .into_body()
        .into_with_config()
        .limit(BODY_BYTES_MAX)
        .read_to_string()
        .unwrap_or_default();
    let hint = match status.as_u16() {
        401 | 403 => " (give a key with --api-key)",
        404 => {
            " (is the address that of an OpenAI-compatible server, and does it serve --model and --endpoint?)"
        }
        _ => "",
    };
    let message = format!("{status}{hint}: {}", message_of(&text));
    Err(Failure::new(FailureKind::Status(status.as_u16()), message))
}

/// What an answer says about an error: the message where it is where OpenAI or FastAPI put it.
pub(super) fn message_of(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let message = ["/error/message", "/message", "/detail", "/error"]
        .iter()
        .filter_map(|place| value.pointer(place))
        .find_map(Value::as_str);
    shortened(message.unwrap_or(text))
}

fn shortened(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None if text.is_empty() => "(no text)".to_owned(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_end_with_v1_once() {
        for url in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
        ] {
            assert_eq!(base(url).unwrap(), "http://h:1/v1");
        }
        assert_eq!(base("http://h/api").unwrap(), "http://h/api/v1");
        for url in ["https://h", "h:1", "http://", ""] {
            assert!(base(url).unwrap_err().is::<Usage>(), "{url}");
        }
    }

    #[test]
    fn messages_are_found_where_servers_put_them() {
        for text in [
            r#"{"error":{"message":"no"}}"#,
            r#"{"message":"no"}"#,
            r#"{"detail":"no"}"#,
            r#"{"error":"no"}"#,
            " no\n",
        ] {
            assert_eq!(message_of(text), "no");
        }
        let long = message_of(&"é".repeat(1000));
        assert_eq!(long.chars().count(), QUOTED_CHARS_MAX + 1);
    }
}
