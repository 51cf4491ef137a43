//! One line in the log for each request, when its answer has ended or its client has gone.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use engine::Finished;
use hyper::body::{Frame, SizeHint};

use crate::app::Shared;
use crate::connection::Peer;
use crate::engine_thread::milliseconds;
use crate::metrics::Metrics;

/// The status in the log of a request whose client went away before its answer began.
const CLIENT_GONE: u16 = 499;

/// What is known of a request.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: String,
    method: String,
    path: String,
    start: Instant,
    status: Option<StatusCode>,
    pub(crate) tenant: Option<Arc<str>>,
    /// `user`, `safety_identifier` and `metadata` of the request.
    pub(crate) user: Option<String>,
    pub(crate) metadata: Option<String>,
    pub(crate) seed: Option<u64>,
    /// Set where prompts are logged.
    pub(crate) prompt: Option<String>,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) generated_tokens: usize,
    queue_ms: Option<f64>,
    ttft_ms: Option<f64>,
    preemptions: u32,
    finish: Vec<&'static str>,
    /// The answer was written to its end.
    is_complete: bool,
    metrics: Arc<Metrics>,
}

impl Record {
    /// The first token of the request came at that time.
    pub(crate) fn first_token(&mut self, at: Instant) {
        if self.ttft_ms.is_none() {
            let time = at.saturating_duration_since(self.start);
            self.ttft_ms = Some(milliseconds(time));
            self.metrics.ttft_seconds.observe(time.as_secs_f64());
        }
    }

    /// One of its answers has ended.
    pub(crate) fn finished(&mut self, finished: &Finished) {
        self.generated_tokens += finished.generated_tokens;
        self.preemptions += finished.preemptions;
        self.queue_ms = self.queue_ms.or(Some(finished.queue_ms));
        self.finish.push(finished.reason.name());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.is_complete {
            self.metrics.disconnects.inc();
        }
        let status = self.status.map_or(CLIENT_GONE, |status| status.as_u16());
        tracing::info!(
            id = self.id,
            method = self.method,
            path = self.path,
            status,
            complete = self.is_complete,
            tenant = self.tenant.as_deref(),
            user = self.user,
            metadata = self.metadata,
            seed = self.seed,
            prompt_tokens = self.prompt_tokens,
            cached_tokens = self.cached_tokens,
            generated_tokens = self.generated_tokens,
            finish = self.finish.join(","),
            preemptions = self.preemptions,
            queue_ms = self.queue_ms,
            ttft_ms = self.ttft_ms,
            total_ms = milliseconds(self.start.elapsed()),
            prompt = self.prompt,
            "request"
        );
    }
}

/// A request's record, shared by all who know something of it. The line is written when the last is gone.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(Arc<Mutex<Record>>);

impl Recorder {
    /// Reads or changes the record.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A number that nobody has seen before, in hexadecimal.
pub(crate) fn fresh_id() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// A number drawn from the system.
pub(crate) fn random() -> u64 {
    // Without a source of randomness, the hasher's keys do: they too are drawn from the system.
    getrandom::u64().unwrap_or_else(|_| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(Instant::now())
    })
}

/// Keeps a record of each request, and ends its work when the client goes.
pub(crate) async fn keep(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("unknown".to_owned(), |path| path.as_str().to_owned());
    let record = Record {
        id: fresh_id(),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        start: Instant::now(),
        status: None,
        tenant: None,
        user: None,
        metadata: None,
        seed: None,
        prompt: None,
        prompt_tokens: 0,
        cached_tokens: 0,
        generated_tokens: 0,
        queue_ms: None,
        ttft_ms: None,
        preemptions: 0,
        finish: Vec::new(),
        is_complete: false,
        metrics: Arc::clone(&app.metrics),
    };
    let id = HeaderValue::from_str(&record.id).ok();
    let recorder = Recorder(Arc::new(Mutex::new(record)));
    request.extensions_mut().insert(recorder.clone());
    let peer = request.extensions().get::<Peer>().cloned();
    let mut gone: Gone = Box::pin(async move {
        match peer {
            Some(peer) => peer.gone().await,
            None => std::future::pending().await,
        }
    });
    let mut response = tokio::select! {
        biased;
        response = next.run(request) => response,
        // Nobody will read it.
        () = &mut gone => return Response::new(Body::empty()),
    };
    let status = response.status();
    app.metrics.answered(&route, status);
    recorder.update(|record| record.status = Some(status));
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response.map(|body| {
        Body::new(Recorded {
            body,
            recorder,
            gone,
        })
    })
}

/// Ends when the client has gone.
type Gone = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A body that tells the record when it has ended, and fails when the client has gone.
struct Recorded {
    body: Body,
    recorder: Recorder,
    gone: Gone,
}

impl HttpBody for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.recorder.update(|record| record.is_complete = true);
        }
        if frame.is_pending() && self.gone.as_mut().poll(context).is_ready() {
            let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            return Poll::Ready(Some(Err(axum::Error::new(gone))));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let ended = self.body.is_end_stream();
        if ended {
            self.recorder.update(|record| record.is_complete = true);
        }
        ended
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
