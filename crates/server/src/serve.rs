//! From an engine to a running server, and to its end.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use tokio::sync::oneshot;

use crate::app::{App, Shared};
use crate::limits::RateLimit;
use crate::metrics::Metrics;
use crate::options::{Options, Served};
use crate::shutdown::{Phase, Shutdown};
use crate::{app, connection, engine_thread, routes};

/// Threads that serve connections; they compute nothing.
const SERVER_THREADS: usize = 2;
/// Threads that tokenize and render.
const TEXT_THREADS: usize = 4;
/// Time to tell the clients of cancelled requests so.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often the end looks whether connections are left.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The server can't start, or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The system refuses threads or sockets.
    #[error("the server can't start: {0}")]
    Start(#[from] std::io::Error),
    /// An origin that is none.
    #[error("{0:?} is no origin of web pages: expected one such as https://example.org, or *")]
    Origin(String),
    /// The description of the API can't be written.
    #[error("the description of the API can't be written: {0}")]
    Description(#[from] serde_json::Error),
    /// A bug.
    #[error("the engine's thread has ended unexpectedly; see the log above")]
    EngineEnded,
}

/// Serves `engine` on `listener` until `shutdown` is requested and requests have ended.
///
/// The engine runs on a thread of its own (and those of its pool); connections are served by two others.
///
/// # Errors
/// When the server can't start, or the engine's thread ends by a bug.
pub fn serve(
    engine: Engine,
    served: Served,
    options: Options,
    listener: TcpListener,
    shutdown: &Shutdown,
) -> Result<(), ServeError> {
    listener.set_nonblocking(true)?;
    let metrics = Arc::new(Metrics::default());
    let vocabulary = engine.model().architecture.vocabulary;
    let context = engine.options().context;
    let hook = options.before_step.clone();
    let (handle, ended) =
        engine_thread::start(engine, options.events_max, Arc::clone(&metrics), hook)?;
    let app = Arc::new(App {
        engine: handle,
        rate: RateLimit::new(options.requests_per_minute),
        served,
        options,
        metrics,
        shutdown: shutdown.subscribe(),
        vocabulary,
        context,
        description: routes::description()?,
    });
    let router = app::router(&app)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVER_THREADS)
        .max_blocking_threads(TEXT_THREADS)
        .thread_name("server")
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let accepting = connection::accept(listener, router, Arc::clone(&app));
        run(accepting, &app, shutdown, ended).await
    });
    // Tasks that are left hold nothing that has to be put in order.
    runtime.shutdown_timeout(FAREWELL);
    result
}

async fn run(
    accepting: impl Future<Output = ()>,
    app: &Shared,
    shutdown: &Shutdown,
    mut ended: oneshot::Receiver<()>,
) -> Result<(), ServeError> {
    tokio::select! {
        () = accepting => {}
        _ = &mut ended => return Err(ServeError::EngineEnded),
    }
    let drain = app.options.drain;
    tracing::info!(drain_s = drain.as_secs_f64(), "draining");
    tokio::select! {
        drained = tokio::time::timeout(drain, all_closed(app)) => {
            if drained.is_err() {
                tracing::warn!("requests that still run are cancelled");
                app.engine.cancel_all();
                let _ = tokio::time::timeout(FAREWELL, all_closed(app)).await;
            }
        }
        _ = &mut ended => return Err(ServeError::EngineEnded),
    }
    shutdown.advance(Phase::Closing);
    tracing::info!("ended");
    Ok(())
}

/// Waits until no connection is open.
async fn all_closed(app: &Shared) {
    while app.metrics.connections.get() > 0 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
