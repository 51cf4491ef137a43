//! `/metrics`: figures for Prometheus.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::app::Shared;
use crate::errors::{ApiError, ErrorBody};
use crate::metrics::CONTENT_TYPE;

/// Figures of the server and the engine.
#[utoipa::path(get, path = "/metrics", tag = "operations", security((), ("key" = [])), responses(
    (status = 200, description = "OpenMetrics text.", body = String,
        content_type = "application/openmetrics-text"),
    (status = "4XX", description = "The request is refused.", body = ErrorBody),
))]
pub(crate) async fn metrics(State(app): State<Shared>) -> Result<impl IntoResponse, ApiError> {
    let text = app.metrics.render(app.engine.stats());
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}
