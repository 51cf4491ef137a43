//! `/ready`: whether requests are taken.

use axum::Json;
use axum::extract::State;

use super::health::Good;
use crate::app::Shared;
use crate::errors::{ApiError, ErrorBody};

/// Says whether requests are taken.
#[utoipa::path(get, path = "/ready", tag = "operations", responses(
    (status = 200, description = "They are.", body = Good),
    (status = "5XX", description = "The server is shutting down, or the engine has stopped.", body = ErrorBody),
))]
pub(crate) async fn ready(State(app): State<Shared>) -> Result<Json<Good>, ApiError> {
    match (app.is_serving(), app.engine.is_alive()) {
        (true, true) => Ok(Json(Good { status: "ok" })),
        (false, _) => Err(ApiError::unavailable(
            "shutting_down",
            "the server is shutting down",
        )),
        (true, false) => Err(ApiError::unavailable(
            "engine_stopped",
            "the engine has stopped",
        )),
    }
}
