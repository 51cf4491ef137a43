//! `/v1/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{Request, TokenEvent, TokenLogProbs};
use text::{DetokenizerOptions, EncodeOptions, Tokenizer};

use crate::app::Shared;
use crate::auth::Caller;
use crate::body::Json;
use crate::errors::{ApiError, ErrorBody};
use crate::generate::{
    Plan, Running, Update, check_log_probs, check_model, check_n, check_stops,
    check_stream_options, note, now_s, start,
};
use crate::options::Served;
use crate::prompt::{self, Encoded, encode_text};
use crate::record::{Recorder, fresh_id, random};
use crate::stream::{self, Format};
use crate::token_text::{Offsets, token_text};
use crate::wire::Usage;
use crate::wire::completion::{
    Completion, CompletionChoice, CompletionLogProbs, CompletionRequest, Prompt,
};

/// Tokens of an answer at most where no limit is given, as in the OpenAI API.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Goes on from prompts.
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", security((), ("key" = [])),
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The answers: whole, or as they come.", content(
            (Completion = "application/json"),
            (Completion = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is refused.", body = ErrorBody),
        (status = "5XX", description = "The server can't do it.", body = ErrorBody),
    )
)]
pub(crate) async fn completions(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(recorder): Extension<Recorder>,
    Json(mut request): Json<CompletionRequest>,
) -> Result<Response, ApiError> {
    check_model(&app, &request.model)?;
    let is_stream = request.stream.unwrap_or(false);
    let include_usage = check_stream_options(is_stream, request.stream_options)?;
    note(&recorder, request.user.take(), request.metadata.as_ref())?;
    let prompts = std::mem::take(&mut request.prompt.0);
    if prompts.is_empty() {
        return Err(ApiError::field("prompt", "`prompt` is empty"));
    }
    let n = check_n(request.n, prompts.len())?;
    if request.best_of.is_some_and(|best_of| best_of as usize != n) {
        let message = "`best_of` is not supported beside the value of `n`: leave it out";
        return Err(ApiError::field("best_of", message));
    }
    let seed = request.seed.map_or_else(random, |seed| seed.0);
    let echo = request.echo.unwrap_or(false);
    let generates = request.max_tokens != Some(0);
    if !generates && !echo {
        let message = "`max_tokens` is 0: it must be 1 or more, unless `echo` is true";
        return Err(ApiError::field("max_tokens", message));
    }
    let engine_request = engine_request(&mut request, seed, app.vocabulary)?;

    let add_special = request.add_special_tokens.unwrap_or(true);
    let encode = move |served: &Served| encode_all(served, prompts, add_special);
    let encoded = prompt::work(&app, encode).await?;
    if app.options.log_prompts {
        let texts: Vec<&str> = encoded.iter().map(|prompt| prompt.text.as_str()).collect();
        recorder.update(|record| record.prompt = Some(texts.join("\n")));
    }
    let tokens: Vec<Vec<u32>> = encoded.iter().map(|prompt| prompt.tokens.clone()).collect();
    let with_ids = request.return_token_ids.unwrap_or(false);
    let mut answers = Vec::with_capacity(encoded.len() * n);
    for prompt in &encoded {
        for _ in 0..n {
            let tokenizer = &app.served.tokenizer;
            let log_probs = engine_request.log_probs;
            answers.push(Answer::new(tokenizer, prompt, echo, log_probs, with_ids));
        }
    }
    let look = Look {
        id: format!("cmpl-{}", fresh_id()),
        created: now_s(),
        app: Arc::clone(&app),
        generates,
        answers,
    };
    let plan = Plan {
        prompts: tokens,
        n,
        request: engine_request,
        prompt_field: "prompt",
    };
    let running = start(&app, &caller, recorder, plan).await?;
    let mut response = if is_stream {
        let format = Streamed {
            look,
            include_usage,
        };
        stream::respond(&app, running, format)
    } else {
        whole(look, running).await?.into_response()
    };
    response.headers_mut().insert("x-seed", seed.into());
    Ok(response)
}

/// What the engine is told beside the prompts.
fn engine_request(
    request: &mut CompletionRequest,
    seed: u64,
    vocabulary: usize,
) -> Result<Request, ApiError> {
    let sampling = request.sampling(seed, vocabulary)?;
    let log_probs = request.logprobs.map(|n| check_log_probs("logprobs", n));
    let log_probs = log_probs.transpose()?;
    let echo = request.echo.unwrap_or(false);
    let prompt_log_probs = log_probs.filter(|_| echo);
    let mut max_tokens = request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS) as usize;
    if prompt_log_probs.is_none() {
        // The engine has nothing to do for an echo without an answer; its one token is not told.
        max_tokens = max_tokens.max(1);
    }
    Ok(Request {
        sampling,
        max_tokens: Some(max_tokens),
        stop: check_stops(request.stop.take())?,
        ignore_end: request.ignore_eos.unwrap_or(false),
        log_probs,
        prompt_log_probs,
        logits_hash: request.logits_hash.unwrap_or(false),
        cache_prompt: request.cache_prompt.unwrap_or(true),
        ..Request::default()
    })
}

/// The tokens and texts of all prompts.
fn encode_all(
    served: &Served,
    prompts: Vec<Prompt>,
    add_special: bool,
) -> Result<Vec<Encoded>, ApiError> {
    let is_one = prompts.len() == 1;
    let options = EncodeOptions {
        add_special,
        parse_special: true,
    };
    let known = served.tokenizer.vocab_size();
    let encode = |(index, prompt)| {
        let param = || match is_one {
            true => "prompt".to_owned(),
            false => format!("prompt[{index}]"),
        };
        let encoded = match prompt {
            Prompt::Text(text) => encode_text(served, text, options, param)?,
            Prompt::Tokens(tokens) => {
                if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
                    let message = format!(
                        "`{}`: token {token} is outside the vocabulary of {known}",
                        param()
                    );
                    return Err(ApiError::field(param(), message));
                }
                let options = DetokenizerOptions {
                    at_text_start: true,
                    ..DetokenizerOptions::default()
                };
                Encoded {
                    text: served.tokenizer.decode(&tokens, options),
                    tokens,
                }
            }
        };
        if encoded.tokens.is_empty() {
            let message = format!("`{}` has no tokens: send at least one", param());
            return Err(ApiError::field(param(), message));
        }
        Ok(encoded)
    };
    prompts.into_iter().enumerate().map(encode).collect()
}

/// An answer on its way.
struct Answer {
    tokenizer: Arc<Tokenizer>,
    /// The text of the prompt and its tokens, until they were told.
    echo: Option<Encoded>,
    prompt_ids: Option<Vec<u32>>,
    with_ids: bool,
    with_log_probs: bool,
    /// Whether the most probable tokens are told.
    with_top: bool,
    offsets: Offsets,
}

impl Answer {
    fn new(
        tokenizer: &Arc<Tokenizer>,
        prompt: &Encoded,
        echo: bool,
        log_probs: Option<usize>,
        with_ids: bool,
    ) -> Self {
        let characters = if echo { prompt.text.chars().count() } else { 0 };
        let echo = echo.then(|| Encoded {
            tokens: prompt.tokens.clone(),
            text: prompt.text.clone(),
        });
        Self {
            tokenizer: Arc::clone(tokenizer),
            echo,
            prompt_ids: with_ids.then(|| prompt.tokens.clone()),
            with_ids,
            with_log_probs: log_probs.is_some(),
            with_top: log_probs.is_some_and(|n| n > 0),
            offsets: Offsets::new(tokenizer, false, characters),
        }
    }

    fn no_log_probs(&self) -> Option<CompletionLogProbs> {
        self.with_log_probs.then(|| CompletionLogProbs {
            top_logprobs: self.with_top.then(Vec::new),
            ..CompletionLogProbs::default()
        })
    }

    /// An answer without text.
    fn empty(&self, index: usize) -> CompletionChoice {
        CompletionChoice {
            index,
            logprobs: self.no_log_probs(),
            token_ids: self.with_ids.then(Vec::new),
            ..CompletionChoice::default()
        }
    }

    fn add_log_prob(&self, all: &mut CompletionLogProbs, token: u32, new: Option<&TokenLogProbs>) {
        all.tokens.push(token_text(&self.tokenizer, token));
        all.token_logprobs.push(new.map(|new| new.chosen.log_prob));
        if let Some(top) = &mut all.top_logprobs {
            let entry = |p: &engine::sampling::TokenLogProb| {
                (token_text(&self.tokenizer, p.token), p.log_prob)
            };
            top.push(new.map(|new| new.top.iter().rev().map(entry).collect()));
        }
    }

    /// What comes before the first token.
    fn begin(&mut self, to: &mut CompletionChoice, prompt: Option<&[Option<TokenLogProbs>]>) {
        // An answer that is told whole comes here for every token.
        if let Some(ids) = self.prompt_ids.take() {
            to.prompt_token_ids = Some(ids);
        }
        let Some(echo) = self.echo.take() else {
            return;
        };
        to.text.push_str(&echo.text);
        if let (Some(all), Some(log_probs)) = (&mut to.logprobs, prompt) {
            let mut offsets = Offsets::new(&self.tokenizer, true, 0);
            for (&token, new) in echo.tokens.iter().zip(log_probs) {
                all.text_offset.push(offsets.push(token));
                self.add_log_prob(all, token, new.as_ref());
            }
        }
    }

    fn token(&mut self, to: &mut CompletionChoice, token: &TokenEvent) {
        to.text.push_str(&token.text);
        if let Some(ids) = &mut to.token_ids {
            ids.push(token.token);
        }
        if let Some(all) = &mut to.logprobs {
            all.text_offset.push(self.offsets.push(token.token));
            self.add_log_prob(all, token.token, token.log_probs.as_ref());
        }
    }
}

/// All answers on their way.
struct Look {
    id: String,
    created: u64,
    app: Shared,
    /// Whether there is to be any answer beside the prompts.
    generates: bool,
    answers: Vec<Answer>,
}

impl Look {
    /// Adds an update to an answer, or to the part of it that comes next. Says whether that changed it.
    fn update(&mut self, choice: &mut CompletionChoice, update: Update) -> bool {
        let answer = &mut self.answers[choice.index];
        match update {
            Update::Prompt(prompt) => {
                answer.begin(choice, Some(&prompt.log_probs));
                true
            }
            Update::Token(token) => {
                // Where no log-probabilities of the prompt come, this is the first that comes.
                answer.begin(choice, None);
                if self.generates {
                    answer.token(choice, &token);
                }
                let says_something = answer.with_ids || answer.with_log_probs;
                says_something || !choice.text.is_empty()
            }
            Update::End(finished) => {
                if self.generates {
                    choice.text.push_str(&finished.text);
                    choice.finish_reason = Some(finished.reason.name());
                } else {
                    choice.finish_reason = Some("length");
                }
                choice.logits_hash = finished.logits_hash;
                true
            }
        }
    }

    fn completion(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<Usage>>,
    ) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.app.served.id.clone(),
            system_fingerprint: self.app.served.system_fingerprint.clone(),
            choices,
            usage,
        }
    }

    fn usage(&self, usage: Usage) -> Usage {
        if self.generates {
            return usage;
        }
        let cached = usage.prompt_tokens_details.cached_tokens;
        Usage::new(usage.prompt_tokens, cached, 0)
    }
}

/// Waits for all answers.
async fn whole(mut look: Look, mut running: Running) -> Result<axum::Json<Completion>, ApiError> {
    let empty = look.answers.iter().enumerate();
    let mut choices: Vec<_> = empty.map(|(index, answer)| answer.empty(index)).collect();
    while let Some((index, update)) = running.next().await? {
        look.update(&mut choices[index], update);
    }
    let usage = look.usage(running.usage());
    Ok(axum::Json(look.completion(choices, Some(Some(usage)))))
}

/// Answers as they come.
struct Streamed {
    look: Look,
    include_usage: bool,
}

impl Format for Streamed {
    type Chunk = Completion;

    fn begin(&mut self) -> Vec<Completion> {
        Vec::new()
    }

    fn update(&mut self, index: usize, update: Update) -> Option<Completion> {
        let mut choice = self.look.answers[index].empty(index);
        let changed = self.look.update(&mut choice, update);
        let usage = self.include_usage.then_some(None);
        changed.then(|| self.look.completion(vec![choice], usage))
    }

    fn usage(&mut self, usage: Usage) -> Option<Completion> {
        let usage = self.look.usage(usage);
        self.include_usage
            .then(|| self.look.completion(Vec::new(), Some(Some(usage))))
    }
}
