//! Limits on how much one tenant, and all together, may ask for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use engine::TenantId;

use crate::errors::ApiError;

/// Answers (`n` for each prompt) that one request may ask for.
pub(crate) const CHOICES_MAX: usize = 128;
/// The most probable tokens that can be asked for at each position.
pub(crate) const LOG_PROBS_MAX: u32 = 20;
/// Stop texts of a request.
pub(crate) const STOPS_MAX: usize = 16;
/// Characters of a stop text.
pub(crate) const STOP_CHARACTERS_MAX: usize = 1024;
/// Pairs of `metadata`.
pub(crate) const METADATA_MAX: usize = 16;

/// Requests a minute for each tenant: a bucket that fills steadily and holds one minute's worth.
///
/// Tenants are those of the file of keys, so their number is bounded.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_minute: Option<u32>,
    buckets: Mutex<HashMap<TenantId, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl RateLimit {
    pub(crate) fn new(per_minute: Option<u32>) -> Self {
        Self {
            per_minute,
            buckets: Mutex::default(),
        }
    }

    /// Counts a request of `tenant`.
    pub(crate) fn take(&self, tenant: TenantId) -> Result<(), ApiError> {
        self.take_at(tenant, Instant::now())
    }

    fn take_at(&self, tenant: TenantId, now: Instant) -> Result<(), ApiError> {
        let Some(per_minute) = self.per_minute else {
            return Ok(());
        };
        let (most, per_second) = (f64::from(per_minute), f64::from(per_minute) / 60.0);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(tenant).or_insert(Bucket {
            tokens: most,
            filled: now,
        });
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * per_second).min(most);
        bucket.filled = now;
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        let wait_s = ((1.0 - bucket.tokens) / per_second).ceil() as u64;
        let message =
            format!("more than {per_minute} requests a minute: try again in {wait_s} seconds");
        Err(ApiError::busy(
            "rate_limit_exceeded",
            message,
            wait_s.max(1),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_empties_and_fills() {
        let (rate, start) = (RateLimit::new(Some(60)), Instant::now());
        let (one, other) = (TenantId(1), TenantId(2));
        for _ in 0..60 {
            assert!(rate.take_at(one, start).is_ok());
        }
        assert!(rate.take_at(one, start).is_err());
        assert!(rate.take_at(other, start).is_ok());
        let later = start + Duration::from_millis(1001);
        assert!(rate.take_at(one, later).is_ok());
        assert!(rate.take_at(one, later).is_err());
        assert!(RateLimit::new(None).take_at(one, start).is_ok());
    }
}
