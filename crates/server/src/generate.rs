//! From a request to the engine, and from its events to what clients are told.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::{Event, FinishReason, Finished, PromptEvent, Request, TokenEvent, derive_seed};
use tokio::sync::mpsc;

use crate::app::Shared;
use crate::auth::Caller;
use crate::engine_thread::Delivery;
use crate::errors::ApiError;
use crate::limits::{CHOICES_MAX, LOG_PROBS_MAX, METADATA_MAX, STOP_CHARACTERS_MAX, STOPS_MAX};
use crate::record::Recorder;
use crate::wire::{Metadata, StreamOptions, Texts, Usage};

/// What a client asks for, whatever the form of the answer.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The prompts, as tokens.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Answers to each prompt.
    pub(crate) n: usize,
    /// Everything else that the engine is told; its prompt is empty.
    pub(crate) request: Request,
    /// The field that prompts come from.
    pub(crate) prompt_field: &'static str,
}

/// Refuses requests for another model than the one that is served.
pub(crate) fn check_model(app: &Shared, model: &str) -> Result<(), ApiError> {
    let id = &app.served.id;
    if model == id {
        return Ok(());
    }
    let message = format!("there is no model {model:?} here: this server has {id:?}");
    let status = axum::http::StatusCode::NOT_FOUND;
    Err(ApiError::refused(status, "model_not_found", message).with_param("model"))
}

/// Answers for each of `prompts` prompts.
pub(crate) fn check_n(n: Option<u32>, prompts: usize) -> Result<usize, ApiError> {
    let n = n.unwrap_or(1) as usize;
    if (1..=CHOICES_MAX).contains(&n.saturating_mul(prompts)) {
        return Ok(n);
    }
    let message =
        format!("`n` is {n} for {prompts} prompts: answers must be from 1 to {CHOICES_MAX} in all");
    Err(ApiError::field("n", message))
}

/// The most probable tokens to tell at each position.
pub(crate) fn check_log_probs(param: &str, count: u32) -> Result<usize, ApiError> {
    if count <= LOG_PROBS_MAX {
        return Ok(count as usize);
    }
    let message = format!("`{param}` is {count}: it must be from 0 to {LOG_PROBS_MAX}");
    Err(ApiError::field(param, message))
}

/// The texts that end an answer.
pub(crate) fn check_stops(stop: Option<Texts>) -> Result<Vec<String>, ApiError> {
    let stops = stop.unwrap_or_default().0;
    if stops.len() > STOPS_MAX {
        let count = stops.len();
        let message = format!("`stop` has {count} texts: it may have {STOPS_MAX}");
        return Err(ApiError::field("stop", message));
    }
    for (index, stop) in stops.iter().enumerate() {
        let characters = stop.chars().count();
        if !(1..=STOP_CHARACTERS_MAX).contains(&characters) {
            let message = format!(
                "`stop[{index}]` has {characters} characters: it must have from 1 to {STOP_CHARACTERS_MAX}"
            );
            return Err(ApiError::field(format!("stop[{index}]"), message));
        }
    }
    Ok(stops)
}

/// Whether the usage is to be told in the stream.
pub(crate) fn check_stream_options(
    is_stream: bool,
    options: Option<StreamOptions>,
) -> Result<bool, ApiError> {
    match options {
        Some(_) if !is_stream => {
            let message = "`stream_options` needs `stream` to be true";
            Err(ApiError::field("stream_options", message))
        }
        options => Ok(options.and_then(|o| o.include_usage).unwrap_or(false)),
    }
}

/// What the log is told of the request.
pub(crate) fn note(
    recorder: &Recorder,
    user: Option<String>,
    metadata: Option<&Metadata>,
) -> Result<(), ApiError> {
    let pairs = metadata.map_or(0, Metadata::len);
    if pairs > METADATA_MAX {
        let message = format!("`metadata` has {pairs} pairs: it may have {METADATA_MAX}");
        return Err(ApiError::field("metadata", message));
    }
    recorder.update(|record| {
        record.user = user;
        record.metadata = metadata.map(|pairs| format!("{pairs:?}"));
    });
    Ok(())
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// Begins what a client asks for.
pub(crate) async fn start(
    app: &Shared,
    caller: &Caller,
    recorder: Recorder,
    plan: Plan,
) -> Result<Running, ApiError> {
    if !app.is_serving() {
        let message = "the server is shutting down";
        return Err(ApiError::unavailable("shutting_down", message));
    }
    let Plan {
        prompts,
        n,
        mut request,
        prompt_field,
    } = plan;
    let seed = request.sampling.seed;
    request.tenant = caller.tenant;
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    recorder.update(|record| {
        record.seed = Some(seed);
        record.prompt_tokens = prompt_tokens;
    });
    let mut requests = Vec::with_capacity(prompts.len() * n);
    for prompt in prompts {
        // Each prompt's answers are those it would have alone.
        for index in 0..n as u32 {
            let mut request = request.clone();
            request.prompt.clone_from(&prompt);
            request.sampling.seed = derive_seed(seed, index);
            requests.push(request);
        }
    }
    let count = requests.len();
    let deliveries = app.engine.submit(requests, prompt_field).await?;
    Ok(Running {
        app: Shared::clone(app),
        recorder,
        deliveries,
        n,
        last_token: vec![None; count],
        unfinished: count,
        prompt_tokens,
        cached_tokens: 0,
        generated_tokens: 0,
    })
}

/// Something to tell a client.
#[derive(Debug)]
pub(crate) enum Update {
    /// Log-probabilities of the prompt.
    Prompt(PromptEvent),
    /// A token.
    Token(TokenEvent),
    /// The end of an answer.
    End(Finished),
}

/// Answers on their way. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Running {
    app: Shared,
    recorder: Recorder,
    deliveries: mpsc::Receiver<Delivery>,
    n: usize,
    /// When the last token of each answer came.
    last_token: Vec<Option<Instant>>,
    unfinished: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
}

impl Running {
    /// Waits for the next update of one of the answers, whose index comes with it. `None` when all have ended.
    ///
    /// # Errors
    /// When an answer can't come to its end.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Update)>, ApiError> {
        while self.unfinished > 0 {
            let Some(delivery) = self.deliveries.recv().await else {
                return Err(self.lost());
            };
            let Delivery { index, at, event } = delivery;
            match event {
                Event::Started(started) => {
                    // The other answers to a prompt find it in the cache by way of the first.
                    if index.is_multiple_of(self.n) {
                        self.cached_tokens += started.cached_tokens;
                        let cached = self.cached_tokens;
                        self.recorder.update(|record| record.cached_tokens = cached);
                    }
                }
                Event::Prompt(prompt) => return Ok(Some((index, Update::Prompt(prompt)))),
                Event::Token(token) => {
                    self.time(index, at);
                    return Ok(Some((index, Update::Token(token))));
                }
                Event::Finished(finished) => {
                    self.unfinished -= 1;
                    self.generated_tokens += finished.generated_tokens;
                    self.recorder.update(|record| record.finished(&finished));
                    return match finished.reason {
                        FinishReason::Stop | FinishReason::Length => {
                            Ok(Some((index, Update::End(finished))))
                        }
                        FinishReason::Cancelled => Err(ApiError::unavailable(
                            "cancelled",
                            "the request was cancelled because the server is shutting down",
                        )),
                        FinishReason::Failed => Err(ApiError::internal(
                            finished.error.unwrap_or_else(|| "the model failed".into()),
                        )),
                    };
                }
            }
        }
        Ok(None)
    }

    /// Takes the time of a token.
    fn time(&mut self, index: usize, at: Instant) {
        match self.last_token[index].replace(at) {
            None => self.recorder.update(|record| record.first_token(at)),
            Some(last) => {
                let time = at.saturating_duration_since(last);
                self.app
                    .metrics
                    .inter_token_seconds
                    .observe(time.as_secs_f64());
            }
        }
    }

    /// Why no more events come although answers have not ended.
    fn lost(&self) -> ApiError {
        if self.app.engine.is_alive() {
            let limit = self.app.options.events_max;
            let message = format!(
                "the answer was read too slowly: more than {limit} parts of it waited; it has been cancelled"
            );
            ApiError::unavailable("slow_client", message)
        } else {
            ApiError::unavailable("engine_stopped", "the engine has stopped")
        }
    }

    /// Tokens of the request and of the answers so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage::new(
            self.prompt_tokens,
            self.cached_tokens,
            self.generated_tokens,
        )
    }
}
