//! The only way to a matmul.

use std::sync::Arc;

use kernels::packed::PackedMatrix;

/// A linear map `y = W x + b`.
///
/// Input transforms, scales and adapters will join here; there are none yet.
#[derive(Clone, Debug)]
pub struct Linear {
    /// W, packed.
    pub weight: Arc<PackedMatrix>,
    /// b.
    pub bias: Option<Vec<f32>>,
}
