//! Answers sent as they come, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use crate::app::Shared;
use crate::errors::ApiError;
use crate::generate::{Running, Update};
use crate::wire::Usage;

/// How updates look in the answers of an endpoint.
pub(crate) trait Format: Send + 'static {
    /// What an event carries.
    type Chunk: Serialize;

    /// Chunks before the first update.
    fn begin(&mut self) -> Vec<Self::Chunk>;

    /// The chunk for an update of the answer `index`, where it says something.
    fn update(&mut self, index: usize, update: Update) -> Option<Self::Chunk>;

    /// The last chunk, where the usage is asked for.
    fn usage(&mut self, usage: Usage) -> Option<Self::Chunk>;
}

/// What is left to send.
struct State<F> {
    running: Running,
    format: F,
    ready: VecDeque<Event>,
    has_ended: bool,
}

impl<F: Format> State<F> {
    fn push(&mut self, chunk: &impl Serialize) {
        // Strings, numbers and maps with keys of strings: nothing that JSON can't hold.
        if let Ok(text) = serde_json::to_string(chunk) {
            self.ready.push_back(Event::default().data(text));
        }
    }

    fn push_error(&mut self, error: ApiError) {
        self.push(&error.into_body());
        self.has_ended = true;
    }

    /// The next event. What waits for the client is bounded: nothing is asked of the engine's side before what is
    /// ready is sent.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((Ok(event), self));
            }
            if self.has_ended {
                return None;
            }
            match self.running.next().await {
                Ok(Some((index, update))) => {
                    if let Some(chunk) = self.format.update(index, update) {
                        self.push(&chunk);
                    }
                }
                Ok(None) => {
                    if let Some(chunk) = self.format.usage(self.running.usage()) {
                        self.push(&chunk);
                    }
                    self.ready.push_back(Event::default().data("[DONE]"));
                    self.has_ended = true;
                }
                Err(error) => self.push_error(error),
            }
        }
    }
}

/// Sends answers as they come. Its drop, when the client goes, ends them.
pub(crate) fn respond<F: Format>(app: &Shared, running: Running, format: F) -> Response {
    let mut state = State {
        running,
        format,
        ready: VecDeque::new(),
        has_ended: false,
    };
    for chunk in state.format.begin() {
        state.push(&chunk);
    }
    let keep_alive = KeepAlive::new().interval(app.options.keep_alive);
    let events = stream::unfold(state, State::next);
    Sse::new(events).keep_alive(keep_alive).into_response()
}
