//! The thread that owns the engine. Requests come in through a bounded channel; what happens to them goes out
//! through one bounded channel for each client. The thread never waits for a client.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::{Engine, EngineError, EngineStats, Event, Request, RequestId};
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{mpsc, oneshot};

use crate::errors::ApiError;
use crate::metrics::Metrics;

/// Submissions on their way to the engine.
const SUBMISSIONS_MAX: usize = 256;

/// Something that happened to one of a client's requests.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// Which of the requests that were submitted together.
    pub(crate) index: usize,
    /// When the step that led to it ended.
    pub(crate) at: Instant,
    /// What happened.
    pub(crate) event: Event,
}

/// Requests of one client that begin together.
#[derive(Debug)]
struct Submission {
    requests: Vec<Request>,
    events: mpsc::Sender<Delivery>,
    reply: oneshot::Sender<Result<(), EngineError>>,
}

/// What the thread and the server share.
#[derive(Debug, Default)]
struct Shared {
    stats: Mutex<EngineStats>,
    cancel_all: AtomicBool,
}

/// The way to the engine's thread.
#[derive(Clone, Debug)]
pub(crate) struct EngineHandle {
    submissions: mpsc::Sender<Submission>,
    shared: Arc<Shared>,
    events_max: usize,
}

impl EngineHandle {
    /// Submits requests that begin together, all or none. Their events come through the receiver; they end when
    /// it is dropped. `prompt` is the name of the field that their tokens come from.
    ///
    /// # Errors
    /// What the engine says to one of them, or that too many wait.
    pub(crate) async fn submit(
        &self,
        requests: Vec<Request>,
        prompt: &str,
    ) -> Result<mpsc::Receiver<Delivery>, ApiError> {
        // Each may have a start and an end besides what a client has not read yet.
        let capacity = self.events_max + 2 * requests.len();
        let (events, receiver) = mpsc::channel(capacity);
        let (reply, answer) = oneshot::channel();
        let submission = Submission {
            requests,
            events,
            reply,
        };
        self.submissions
            .try_send(submission)
            .map_err(|error| match error {
                TrySendError::Full(_) => {
                    let message = "too many requests arrive at once; try again later";
                    ApiError::busy("queue_full", message, 1)
                }
                TrySendError::Closed(_) => stopped(),
            })?;
        match answer.await {
            Ok(Ok(())) => Ok(receiver),
            Ok(Err(error)) => Err(ApiError::of_engine(&error, prompt)),
            Err(_) => Err(stopped()),
        }
    }

    /// The engine's figures after its last step.
    pub(crate) fn stats(&self) -> EngineStats {
        *lock(&self.shared.stats)
    }

    /// Whether the thread still works.
    pub(crate) fn is_alive(&self) -> bool {
        !self.submissions.is_closed()
    }

    /// Ends every request with the next step, and refuses new ones.
    pub(crate) fn cancel_all(&self) {
        self.shared.cancel_all.store(true, Ordering::Relaxed);
    }
}

fn stopped() -> ApiError {
    ApiError::unavailable("engine_stopped", "the engine has stopped")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called before each step.
pub(crate) type Hook = Option<Arc<dyn Fn() + Send + Sync>>;

/// Starts the thread. It ends when every [`EngineHandle`] is gone; the receiver then says so, or that it failed.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(
    engine: Engine,
    events_max: usize,
    metrics: Arc<Metrics>,
    before_step: Hook,
) -> std::io::Result<(EngineHandle, oneshot::Receiver<()>)> {
    let (submissions, incoming) = mpsc::channel(SUBMISSIONS_MAX);
    let (ended, end) = oneshot::channel();
    let shared = Arc::new(Shared::default());
    let worker = Worker {
        engine,
        incoming,
        live: HashMap::new(),
        shared: Arc::clone(&shared),
        metrics,
        before_step,
    };
    std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            worker.run();
            // Not sent when the thread panics: the receiver sees the difference.
            let _ = ended.send(());
        })?;
    let handle = EngineHandle {
        submissions,
        shared,
        events_max,
    };
    Ok((handle, end))
}

/// Where a request's events go.
#[derive(Debug)]
struct Client {
    index: usize,
    events: mpsc::Sender<Delivery>,
}

struct Worker {
    engine: Engine,
    incoming: mpsc::Receiver<Submission>,
    live: HashMap<RequestId, Client>,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    before_step: Hook,
}

impl Worker {
    fn run(mut self) {
        let mut events = Vec::new();
        let mut gone = Vec::new();
        self.publish();
        while self.take_submissions() {
            if let Some(hook) = &self.before_step {
                hook();
            }
            self.cancel_gone(&mut gone, &mut events);
            let steps = !self.engine.is_idle();
            if steps && let Err(error) = self.engine.step(&mut events) {
                tracing::error!(%error, "a step failed");
            }
            let stats = self.publish();
            if steps {
                let tokens = stats.last_step_tokens as f64;
                self.metrics.step_tokens.observe(tokens);
                let seconds = stats.last_step_ms / 1000.0;
                self.metrics.step_seconds.observe(seconds);
            }
            self.deliver(&mut events);
        }
    }

    /// Takes what has come; waits for it when there is nothing to do. False when nothing can come any more.
    fn take_submissions(&mut self) -> bool {
        if self.engine.is_idle() {
            match self.incoming.blocking_recv() {
                Some(submission) => self.submit(submission),
                None => return false,
            }
        }
        loop {
            match self.incoming.try_recv() {
                Ok(submission) => self.submit(submission),
                Err(TryRecvError::Empty) => return true,
                // What runs goes on to its end.
                Err(TryRecvError::Disconnected) => return !self.engine.is_idle(),
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            requests,
            events,
            reply,
        } = submission;
        if events.is_closed() {
            return;
        }
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match self.engine.submit(request) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    for id in ids {
                        let _ = self.cancel(id);
                    }
                    let _ = reply.send(Err(error));
                    return;
                }
            }
        }
        for (index, id) in ids.into_iter().enumerate() {
            let events = events.clone();
            self.live.insert(id, Client { index, events });
        }
        let _ = reply.send(Ok(()));
    }

    /// Ends the requests whose clients have gone, or all of them.
    fn cancel_gone(&mut self, gone: &mut Vec<RequestId>, events: &mut Vec<Event>) {
        let all = self.shared.cancel_all.load(Ordering::Relaxed);
        let ids = self.live.iter();
        let ids = ids.filter(|(_, client)| all || client.events.is_closed());
        gone.extend(ids.map(|(id, _)| *id));
        for id in gone.drain(..) {
            events.extend(self.cancel(id));
        }
    }

    fn cancel(&mut self, id: RequestId) -> Option<Event> {
        self.engine.cancel(id).unwrap_or_else(|error| {
            tracing::error!(%error, "a request could not be cancelled");
            None
        })
    }

    /// Hands events to their clients. One whose buffer is full has lost its request.
    fn deliver(&mut self, events: &mut Vec<Event>) {
        let at = Instant::now();
        let mut slow = Vec::new();
        for event in events.drain(..) {
            let id = event.request();
            let is_last = matches!(event, Event::Finished(_));
            let Some(client) = self.live.get(&id) else {
                continue;
            };
            let index = client.index;
            let sent = client.events.try_send(Delivery { index, at, event });
            if matches!(sent, Err(TrySendError::Full(_))) {
                slow.push(id);
            }
            if is_last {
                self.live.remove(&id);
            }
        }
        let is_changed = !slow.is_empty();
        for id in slow {
            self.metrics.slow_clients.inc();
            self.live.remove(&id);
            let _ = self.cancel(id);
        }
        // There may be no further step to tell of it.
        if is_changed {
            self.publish();
        }
    }

    /// Lets the server see the engine's figures, and gives them.
    fn publish(&self) -> EngineStats {
        let stats = self.engine.stats();
        *lock(&self.shared.stats) = stats;
        stats
    }
}

/// Time from one moment to a later one, in milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1000.0
}
