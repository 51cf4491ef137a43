//! Reads the stream of one answer.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::Response;
use ureq::http::header::CONTENT_TYPE;

use super::answer::{Failure, FailureKind, Sample};
use super::client::{message_of, successful};
use super::sse::{Event, Parser};
use crate::report::milliseconds;

/// The longest stream that is read, in bytes.
const STREAM_BYTES_MAX: usize = 1 << 28;

/// Reads a stream into `sample`, to its end or until `observe` gives false.
pub(super) fn read(
    response: Response<ureq::Body>,
    due: Instant,
    timeout: Duration,
    sample: &mut Sample,
    observe: &mut dyn FnMut(usize, Instant) -> bool,
) -> Result<(), Failure> {
    let response = successful(response)?;
    let content_type = response.headers().get(CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    if !content_type.starts_with("text/event-stream") {
        let problem = format!("the answer is of type {content_type:?}, not a stream of events");
        return Err(Failure::new(FailureKind::Malformed, problem));
    }
    let mut body = response.into_body().into_reader();
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    let (mut buffer, mut total) = ([0; 1 << 14], 0);
    loop {
        let count = body
            .read(&mut buffer)
            .map_err(|error| Failure::of(error.into(), timeout))?;
        let now = Instant::now();
        total += count;
        if total > STREAM_BYTES_MAX {
            let problem = format!("the stream is longer than {STREAM_BYTES_MAX} bytes");
            return Err(Failure::new(FailureKind::Malformed, problem));
        }
        if count == 0 {
            // Not every server says that it is done.
            return match sample.finish_reason {
                Some(_) => Ok(()),
                None => Err(Failure::new(
                    FailureKind::Cut,
                    "the stream ended before the answer did",
                )),
            };
        }
        parser
            .push(&buffer[..count], &mut events)
            .map_err(|error| Failure::new(FailureKind::Malformed, error.to_string()))?;
        for event in events.drain(..) {
            match event {
                Event::Data(data) if data == "[DONE]" => return Ok(()),
                Event::Error(error) => {
                    return Err(Failure::new(FailureKind::Server, message_of(&error)));
                }
                Event::Data(data) => {
                    let has_text = take(&data, now - due.min(now), sample)?;
                    if has_text && !observe(sample.chunks_ms.len(), now) {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Takes what an event tells; says whether it has text.
fn take(data: &str, at: Duration, sample: &mut Sample) -> Result<bool, Failure> {
    let malformed = |problem: &str| {
        let message = format!("{problem}: {}", message_of(data));
        Failure::new(FailureKind::Malformed, message)
    };
    let event: Value = serde_json::from_str(data).map_err(|_| malformed("an event is not JSON"))?;
    if event.get("error").is_some_and(|error| !error.is_null()) {
        return Err(Failure::new(FailureKind::Server, message_of(data)));
    }
    let choices = event.get("choices").and_then(Value::as_array);
    let choices = choices.ok_or_else(|| malformed("an event has no choices"))?;
    let count = |place| {
        let count = event.pointer(place).and_then(Value::as_u64);
        count.map(|count| count as usize)
    };
    if let Some(tokens) = count("/usage/prompt_tokens") {
        sample.prompt_tokens = Some(tokens);
        sample.cached_tokens = count("/usage/prompt_tokens_details/cached_tokens");
    }
    sample.usage_tokens = count("/usage/completion_tokens").or(sample.usage_tokens);
    let Some(choice) = choices.first() else {
        return Ok(false);
    };
    if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
        sample.finish_reason = Some(reason.to_owned());
    }
    let places = ["/text", "/delta/content", "/delta/reasoning_content"];
    let texts = places.iter().filter_map(|place| choice.pointer(place));
    let has_text = texts.filter_map(Value::as_str).any(|text| !text.is_empty());
    if has_text {
        sample.chunks_ms.push(milliseconds(at));
    }
    Ok(has_text)
}
