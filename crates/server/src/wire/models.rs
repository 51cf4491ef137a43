//! `/v1/models`.

use serde::Serialize;
use utoipa::ToSchema;

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// `list`.
    pub(crate) object: &'static str,
    /// The models.
    pub(crate) data: Vec<ModelCard>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    /// Its name in requests.
    pub(crate) id: String,
    /// `model`.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// `plainchant`.
    pub(crate) owned_by: &'static str,
    /// Positions for prompt and answer together.
    pub(crate) max_model_len: usize,
    /// Names everything that the logits depend on.
    pub(crate) system_fingerprint: String,
}
