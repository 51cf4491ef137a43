//! What all endpoints share, and how they are put together.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware;
use tokio::sync::watch;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::engine_thread::EngineHandle;
use crate::errors::ApiError;
use crate::limits::RateLimit;
use crate::metrics::Metrics;
use crate::options::{Options, Served};
use crate::serve::ServeError;
use crate::shutdown::Phase;
use crate::{auth, record, routes};

/// What all endpoints share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: EngineHandle,
    pub(crate) served: Served,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rate: RateLimit,
    pub(crate) shutdown: watch::Receiver<Phase>,
    /// Entries of the model's vocabulary.
    pub(crate) vocabulary: usize,
    /// Positions of a sequence.
    pub(crate) context: usize,
    /// The description of the API as JSON.
    pub(crate) description: String,
}

/// Shared by all tasks.
pub(crate) type Shared = Arc<App>;

impl App {
    /// Whether new requests are taken.
    pub(crate) fn is_serving(&self) -> bool {
        *self.shutdown.borrow() == Phase::Serving
    }
}

/// All endpoints with keys, limits and the log around them.
pub(crate) fn router(app: &Shared) -> Result<Router, ServeError> {
    let (open, guarded) = (routes::open(), routes::guarded());
    let keys = middleware::from_fn_with_state(Arc::clone(app), auth::check);
    let (guarded, _) = guarded.route_layer(keys).split_for_parts();
    let (open, _) = open.split_for_parts();
    let mut router = open
        .merge(guarded)
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(middleware::from_fn_with_state(
            Arc::clone(app),
            record::keep,
        ));
    if let Some(cors) = cors(&app.options.cors_origins)? {
        router = router.layer(cors);
    }
    Ok(router.with_state(Arc::clone(app)))
}

fn cors(origins: &[String]) -> Result<Option<CorsLayer>, ServeError> {
    if origins.is_empty() {
        return Ok(None);
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let parsed = origins.iter().map(|origin| {
            HeaderValue::from_str(origin).map_err(|_| ServeError::Origin(origin.clone()))
        });
        AllowOrigin::list(parsed.collect::<Result<Vec<_>, _>>()?)
    };
    let exposed = [HeaderName::from_static("x-request-id"), header::RETRY_AFTER];
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE])
        .expose_headers(exposed);
    Ok(Some(layer))
}

async fn unknown_path(uri: axum::http::Uri) -> ApiError {
    let message = format!("there is nothing at {}", uri.path());
    ApiError::refused(StatusCode::NOT_FOUND, "unknown_url", message).closing()
}

async fn unknown_method(method: Method, uri: axum::http::Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::refused(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
    .closing()
}
