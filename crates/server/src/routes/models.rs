//! `/v1/models`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};

use crate::app::{App, Shared};
use crate::errors::{ApiError, ErrorBody};
use crate::generate::check_model;
use crate::wire::models::{ModelCard, ModelList};

fn card(app: &App) -> ModelCard {
    ModelCard {
        id: app.served.id.clone(),
        object: "model",
        created: app.served.created_s,
        owned_by: "plainchant",
        max_model_len: app.context,
        system_fingerprint: app.served.system_fingerprint.clone(),
    }
}

/// The models that requests can name.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", security((), ("key" = [])), responses(
    (status = 200, description = "The models.", body = ModelList),
    (status = "4XX", description = "The request is refused.", body = ErrorBody),
))]
pub(crate) async fn list(State(app): State<Shared>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: vec![card(&app)],
    })
}

/// One of them.
#[utoipa::path(get, path = "/v1/models/{model}", tag = "OpenAI", security((), ("key" = [])),
    params(("model" = String, Path, description = "The model's name.")),
    responses(
        (status = 200, description = "The model.", body = ModelCard),
        (status = "4XX", description = "The request is refused.", body = ErrorBody),
    )
)]
pub(crate) async fn one(
    State(app): State<Shared>,
    model: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(model) =
        model.map_err(|error| ApiError::field("model", format!("`model`: {error}")))?;
    check_model(&app, &model)?;
    Ok(Json(card(&app)))
}
