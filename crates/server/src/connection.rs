//! Connections: how many there may be, how long each may take.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep};
use tower::ServiceExt;

use crate::app::Shared;
use crate::shutdown::Phase;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Header fields of a request.
const HEADERS_MAX: usize = 100;
/// Connections that are being told that there are too many.
const REFUSALS_MAX: usize = 64;
/// Time that a refused or finished connection has to close.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that are read from a finished connection at most, so that its answer isn't lost to a reset.
const LINGER_BYTES_MAX: usize = 1 << 20;
/// Silence after which the system asks whether the other end still exists.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// How often a client with unread input is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a client reads when there are too many connections.
fn refusal() -> String {
    let body = "{\"error\":{\"message\":\"too many connections are open; try again later\",\
        \"type\":\"rate_limit_error\",\"param\":null,\"code\":\"too_many_connections\"}}";
    format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Accepts connections until the server drains, and serves each until it ends.
pub(crate) async fn accept(listener: TcpListener, router: Router, app: Shared) {
    let places = Arc::new(Semaphore::new(app.options.connections_max));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let mut phase = app.shutdown.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = reached(&mut phase, Phase::Draining) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely too many files are open: some will close.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
        };
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let (router, app) = (router.clone(), Arc::clone(&app));
            // Before the task runs, so that the end of the server sees it.
            app.metrics.connections.inc();
            tokio::spawn(async move {
                serve(stream, router, &app).await;
                app.metrics.connections.dec();
                drop(place);
            });
        } else {
            app.metrics.connections_refused.inc();
            if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                tokio::spawn(async move {
                    let stream = Arc::new(stream);
                    let _ = stream.try_write(refusal().as_bytes());
                    linger(&stream).await;
                    drop(place);
                });
            }
        }
    }
}

/// Waits until the server is in `wanted` phase or a later one.
pub(crate) async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    if phase.wait_for(|phase| *phase >= wanted).await.is_err() {
        // Nobody can ask any more.
        std::future::pending().await
    }
}

async fn serve(stream: TcpStream, router: Router, app: &Shared) {
    let stream = Arc::new(stream);
    // Tokens are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_AFTER / 4);
    let _ = SockRef::from(&*stream).set_tcp_keepalive(&keepalive);
    let peer = Peer(Arc::clone(&stream));
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let router = router.clone();
        async move {
            let mut may_be_smuggled = request.headers().contains_key(header::TRANSFER_ENCODING);
            may_be_smuggled |= request
                .headers()
                .get_all(header::CONTENT_LENGTH)
                .iter()
                .count()
                > 1;
            let answer = router.oneshot(request.map(Body::new)).await;
            answer.map(|mut response| {
                if may_be_smuggled {
                    // What follows such a body is never taken for another request.
                    let close = header::HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                response
            })
        }
    });
    let io = Guarded {
        stream: Arc::clone(&stream),
        write_timeout: app.options.write_timeout,
        stalled: None,
    };
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.read_timeout)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut phase = app.shutdown.clone();
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = reached(&mut phase, Phase::Draining) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                result = connection.as_mut() => result,
                () = reached(&mut phase, Phase::Closing) => Ok(()),
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
    linger(&stream).await;
}

/// Reads away what a client still sends, for a short time: closing with unread input would reset the connection
/// and destroy the answer on its way.
async fn linger(stream: &TcpStream) {
    let _ = SockRef::from(stream).shutdown(std::net::Shutdown::Write);
    let read = async {
        let (mut bytes, mut total) = ([0; 4096], 0);
        while total < LINGER_BYTES_MAX && stream.readable().await.is_ok() {
            match stream.try_read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => total += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, read).await;
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Arc<TcpStream>);

impl Peer {
    /// Waits until the client has closed the connection, even where input from before that is unread.
    pub(crate) async fn gone(&self) {
        loop {
            match self.0.ready(tokio::io::Interest::READABLE).await {
                Ok(ready) if ready.is_read_closed() => return,
                Ok(_) => tokio::time::sleep(LOOK_EVERY).await,
                Err(_) => return,
            }
        }
    }
}

/// A stream on which a write that gets nowhere fails after a time.
struct Guarded {
    stream: Arc<TcpStream>,
    write_timeout: Duration,
    /// Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Guarded {
    fn write(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(context)?.is_ready() {
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.stalled = None;
                    return Poll::Ready(written);
                }
            }
        }
        let deadline = Instant::now() + self.write_timeout;
        let stalled = &mut self.stalled;
        let stalled = stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write))
    }
}
