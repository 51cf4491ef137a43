//! `/health`: whether the engine works.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::Shared;
use crate::errors::{ApiError, ErrorBody};

/// Good news.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Good {
    /// `ok`.
    pub(crate) status: &'static str,
}

/// Says whether the engine works.
#[utoipa::path(get, path = "/health", tag = "operations", responses(
    (status = 200, description = "It works.", body = Good),
    (status = "5XX", description = "It has stopped.", body = ErrorBody),
))]
pub(crate) async fn health(State(app): State<Shared>) -> Result<Json<Good>, ApiError> {
    if app.engine.is_alive() {
        Ok(Json(Good { status: "ok" }))
    } else {
        Err(ApiError::unavailable(
            "engine_stopped",
            "the engine has stopped",
        ))
    }
}
