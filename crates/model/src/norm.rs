//! Root-mean-square norms with their weights.

/// `x / sqrt(mean(x²) + epsilon) · weight`.
#[derive(Clone, Debug)]
pub struct Norm {
    /// One factor per value.
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub epsilon: f32,
}
