//! `/v1/models`.

use serde::Serialize;
use utoipa::ToSchema;

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// The models.
    pub data: Vec<ModelCard>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// Its name in requests.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// `plainchant`.
    pub owned_by: &'static str,
    /// Positions for prompt and answer together.
    pub max_model_len: usize,
    /// Names everything that the logits depend on.
    pub system_fingerprint: String,
}
