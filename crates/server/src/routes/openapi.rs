//! `/openapi.json`: what all this is.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::app::Shared;

/// The description of this API.
#[utoipa::path(get, path = "/openapi.json", tag = "operations", responses(
    (status = 200, description = "OpenAPI 3.1.", body = Object, content_type = "application/json"),
))]
pub(crate) async fn openapi(State(app): State<Shared>) -> impl IntoResponse {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, app.description.clone())
}
