//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{Request, TokenEvent, TokenLogProbs};
use text::Tokenizer;

use crate::app::Shared;
use crate::auth::Caller;
use crate::body::Json;
use crate::errors::{ApiError, ErrorBody};
use crate::generate::{
    Plan, Running, Update, check_log_probs, check_model, check_n, check_stops,
    check_stream_options, note, now_s, start,
};
use crate::prompt::{self, encode_chat};
use crate::record::{Recorder, fresh_id, random};
use crate::stream::{self, Format};
use crate::token_text::token_text;
use crate::wire::Usage;
use crate::wire::chat::{
    ChatAnswer, ChatChoice, ChatChunk, ChatCompletion, ChatDelta, ChatDeltaText, ChatLogProbs,
    ChatRequest, ChatTokenLogProb, ChatTokenScore,
};

/// Goes on from a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", security((), ("key" = [])),
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The answers: whole, or as they come.", content(
            (ChatCompletion = "application/json"),
            (ChatChunk = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is refused.", body = ErrorBody),
        (status = "5XX", description = "The server can't do it.", body = ErrorBody),
    )
)]
pub(crate) async fn chat_completions(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(recorder): Extension<Recorder>,
    Json(mut request): Json<ChatRequest>,
) -> Result<Response, ApiError> {
    check_model(&app, &request.model)?;
    let is_stream = request.stream.unwrap_or(false);
    let include_usage = check_stream_options(is_stream, request.stream_options)?;
    let user = request.user.take().or(request.safety_identifier.take());
    note(&recorder, user, request.metadata.as_ref())?;
    let n = check_n(request.n, 1)?;
    let seed = request.seed.map_or_else(random, |seed| seed.0);
    let engine_request = engine_request(&mut request, seed, app.vocabulary)?;

    let messages = std::mem::take(&mut request.messages);
    let encoded = prompt::work(&app, |served| encode_chat(served, messages, true)).await?;
    if app.options.log_prompts {
        recorder.update(|record| record.prompt = Some(encoded.text));
    }
    let with_ids = request.return_token_ids.unwrap_or(false);
    let look = Look {
        id: format!("chatcmpl-{}", fresh_id()),
        created: now_s(),
        app: Arc::clone(&app),
        with_ids,
        with_log_probs: engine_request.log_probs.is_some(),
        prompt_token_ids: with_ids.then(|| encoded.tokens.clone()),
    };
    let plan = Plan {
        prompts: vec![encoded.tokens],
        n,
        request: engine_request,
        prompt_field: "messages",
    };
    let running = start(&app, &caller, recorder, plan).await?;
    let mut response = if is_stream {
        let format = Streamed {
            look,
            n,
            include_usage,
        };
        stream::respond(&app, running, format)
    } else {
        whole(&look, n, running).await?.into_response()
    };
    response.headers_mut().insert("x-seed", seed.into());
    Ok(response)
}

/// What the engine is told beside the prompt.
fn engine_request(
    request: &mut ChatRequest,
    seed: u64,
    vocabulary: usize,
) -> Result<Request, ApiError> {
    let sampling = request.sampling(seed, vocabulary)?;
    let log_probs = match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (true, top) => Some(check_log_probs("top_logprobs", top.unwrap_or(0))?),
        (false, None) => None,
        (false, Some(_)) => {
            let message = "`top_logprobs` needs `logprobs` to be true";
            return Err(ApiError::field("top_logprobs", message));
        }
    };
    Ok(Request {
        sampling,
        max_tokens: max_tokens(request)?,
        stop: check_stops(request.stop.take())?,
        ignore_end: request.ignore_eos.unwrap_or(false),
        log_probs,
        logits_hash: request.logits_hash.unwrap_or(false),
        cache_prompt: request.cache_prompt.unwrap_or(true),
        ..Request::default()
    })
}

/// The limit under either of its names.
fn max_tokens(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let (new, old) = (request.max_completion_tokens, request.max_tokens);
    if new.is_some() && old.is_some() && new != old {
        let message = "`max_tokens` and `max_completion_tokens` differ: send one of them";
        return Err(ApiError::field("max_tokens", message));
    }
    let name = if new.is_some() {
        "max_completion_tokens"
    } else {
        "max_tokens"
    };
    match new.or(old) {
        Some(0) => {
            let message = format!("`{name}` is 0: it must be 1 or more");
            Err(ApiError::field(name, message))
        }
        limit => Ok(limit.map(|n| n as usize)),
    }
}

/// What all answers of a request have in common.
struct Look {
    id: String,
    created: u64,
    app: Shared,
    with_ids: bool,
    with_log_probs: bool,
    prompt_token_ids: Option<Vec<u32>>,
}

fn log_prob(tokenizer: &Tokenizer, log_probs: &TokenLogProbs) -> ChatTokenLogProb {
    let score = |p: &engine::sampling::TokenLogProb| ChatTokenScore {
        token: token_text(tokenizer, p.token),
        logprob: p.log_prob,
        bytes: tokenizer.token_bytes(p.token).to_vec(),
    };
    ChatTokenLogProb {
        chosen: score(&log_probs.chosen),
        top_logprobs: log_probs.top.iter().map(score).collect(),
    }
}

/// Waits for all answers.
async fn whole(
    look: &Look,
    n: usize,
    mut running: Running,
) -> Result<axum::Json<ChatCompletion>, ApiError> {
    let tokenizer = &look.app.served.tokenizer;
    let choice = |index| ChatChoice {
        index,
        message: ChatAnswer {
            role: "assistant",
            content: String::new(),
            refusal: (),
        },
        logprobs: look.with_log_probs.then(ChatLogProbs::default),
        finish_reason: "",
        token_ids: look.with_ids.then(Vec::new),
        logits_hash: None,
    };
    let mut choices: Vec<ChatChoice> = (0..n).map(choice).collect();
    while let Some((index, update)) = running.next().await? {
        let choice = &mut choices[index];
        match update {
            Update::Prompt(_) => {}
            Update::Token(token) => {
                choice.message.content.push_str(&token.text);
                if let Some(ids) = &mut choice.token_ids {
                    ids.push(token.token);
                }
                if let (Some(all), Some(new)) = (&mut choice.logprobs, &token.log_probs) {
                    all.content.push(log_prob(tokenizer, new));
                }
            }
            Update::End(finished) => {
                choice.message.content.push_str(&finished.text);
                choice.finish_reason = finished.reason.name();
                choice.logits_hash = finished.logits_hash;
            }
        }
    }
    Ok(axum::Json(ChatCompletion {
        id: look.id.clone(),
        object: "chat.completion",
        created: look.created,
        model: look.app.served.id.clone(),
        system_fingerprint: look.app.served.system_fingerprint.clone(),
        choices,
        usage: running.usage(),
        prompt_token_ids: look.prompt_token_ids.clone(),
    }))
}

/// Answers as they come.
struct Streamed {
    look: Look,
    n: usize,
    include_usage: bool,
}

impl Streamed {
    fn chunk(&self, choices: Vec<ChatDelta>) -> ChatChunk {
        ChatChunk {
            id: self.look.id.clone(),
            object: "chat.completion.chunk",
            created: self.look.created,
            model: self.look.app.served.id.clone(),
            system_fingerprint: self.look.app.served.system_fingerprint.clone(),
            choices,
            usage: self.include_usage.then_some(None),
            prompt_token_ids: None,
        }
    }

    fn token(&self, index: usize, token: TokenEvent) -> Option<ChatChunk> {
        let says_something =
            !token.text.is_empty() || self.look.with_log_probs || self.look.with_ids;
        let tokenizer = &self.look.app.served.tokenizer;
        says_something.then(|| {
            self.chunk(vec![ChatDelta {
                index,
                delta: ChatDeltaText {
                    role: None,
                    content: Some(token.text),
                },
                logprobs: token.log_probs.as_ref().map(|new| ChatLogProbs {
                    content: vec![log_prob(tokenizer, new)],
                    refusal: (),
                }),
                finish_reason: None,
                token_ids: self.look.with_ids.then(|| vec![token.token]),
                logits_hash: None,
            }])
        })
    }
}

impl Format for Streamed {
    type Chunk = ChatChunk;

    fn begin(&mut self) -> Vec<ChatChunk> {
        let first = |index| {
            self.chunk(vec![ChatDelta {
                index,
                delta: ChatDeltaText {
                    role: Some("assistant"),
                    content: Some(String::new()),
                },
                logprobs: None,
                finish_reason: None,
                token_ids: None,
                logits_hash: None,
            }])
        };
        let mut chunks: Vec<ChatChunk> = (0..self.n).map(first).collect();
        if let Some(chunk) = chunks.first_mut() {
            chunk.prompt_token_ids = self.look.prompt_token_ids.take();
        }
        chunks
    }

    fn update(&mut self, index: usize, update: Update) -> Option<ChatChunk> {
        match update {
            Update::Prompt(_) => None,
            Update::Token(token) => self.token(index, token),
            Update::End(finished) => Some(self.chunk(vec![ChatDelta {
                index,
                delta: ChatDeltaText {
                    role: None,
                    content: (!finished.text.is_empty()).then_some(finished.text),
                },
                logprobs: None,
                finish_reason: Some(finished.reason.name()),
                token_ids: None,
                logits_hash: finished.logits_hash,
            }])),
        }
    }

    fn usage(&mut self, usage: Usage) -> Option<ChatChunk> {
        self.include_usage.then(|| ChatChunk {
            usage: Some(Some(usage)),
            ..self.chunk(Vec::new())
        })
    }
}
