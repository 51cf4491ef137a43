//! The endpoints, one file each, and their description.

mod chat;
mod completions;
mod detokenize;
mod health;
mod metrics;
mod models;
mod openapi;
mod ready;
mod tokenize;

use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;

/// What the description says beside the endpoints.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Plainchant",
        description = "An OpenAI-compatible server for open-weight language models. Fields that are not \
            described here are refused, never ignored."
    ),
    modifiers(&Keys)
)]
struct Description;

/// Says how keys are sent.
struct Keys;

impl Modify for Keys {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = description.components.get_or_insert_default();
        components.add_security_scheme("key", scheme);
    }
}

/// Endpoints that need no key.
pub(crate) fn open() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(health::health))
        .routes(routes!(ready::ready))
        .routes(routes!(openapi::openapi))
}

/// Endpoints that need one where there are keys.
pub(crate) fn guarded() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(chat::chat_completions))
        .routes(routes!(completions::completions))
        .routes(routes!(models::list))
        .routes(routes!(models::one))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(detokenize::detokenize))
        .routes(routes!(metrics::metrics))
}

/// The description of all endpoints as JSON.
pub(crate) fn description() -> Result<String, serde_json::Error> {
    open().merge(guarded()).to_openapi().to_json()
}
