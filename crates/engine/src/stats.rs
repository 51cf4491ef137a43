//! What the engine did and holds, in plain numbers.

use std::time::Duration;

/// What a client is told to wait for at most, in seconds.
const RETRY_MAX_S: f64 = 600.0;

/// A snapshot of an engine; totals are since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Requests waiting, the preempted ones among them.
    pub waiting: usize,
    /// Requests running.
    pub running: usize,
    /// Of these, those whose prompt is being read.
    pub prefilling: usize,
    /// Of these, those that answer.
    pub decoding: usize,
    /// Requests that wait to go on.
    pub preempted: usize,
    /// Pages of keys and values there are.
    pub pages_total: usize,
    /// Of these, free ones.
    pub pages_free: usize,
    /// Of these, ones that running requests hold.
    pub pages_held: usize,
    /// Of these, ones kept only because another request may want them.
    pub pages_cached: usize,
    /// Bytes of pages that were moved elsewhere.
    pub swapped_bytes: u64,
    /// Bytes of all pages.
    pub state_bytes: u64,
    /// Requests taken.
    pub submitted: u64,
    /// Requests refused because the queue was full or they could never fit.
    pub rejected: u64,
    /// Requests that ended because the model or a stop text ended them.
    pub stopped: u64,
    /// Requests that ended at their limit of tokens.
    pub reached_length: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens of the prompts of requests that have begun.
    pub prompt_tokens: u64,
    /// Of these, those found in the cache.
    pub prefix_hit_tokens: u64,
    /// Prompt tokens run by the model, those run again after a preemption included.
    pub computed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Preemptions by moving pages elsewhere.
    pub swaps: u64,
    /// Preemptions by forgetting, to compute again.
    pub recomputes: u64,
    /// Steps run.
    pub steps: u64,
    /// Steps that failed with all their requests, and were run again with each alone.
    pub failed_steps: u64,
    /// Tokens of the last step.
    pub last_step_tokens: usize,
    /// Of these, those of answers.
    pub last_step_decodes: usize,
    /// Time of the last step.
    pub last_step_ms: f64,
    /// Time in the model.
    pub busy_ms: f64,
    /// Time in steps outside the model.
    pub scheduling_ms: f64,
}

/// When requests ended, for an estimate of when there is room again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    last: Option<Duration>,
    /// A running mean of the time from one end to the next, in seconds.
    interval_s: Option<f64>,
}

impl Ends {
    pub(crate) fn add(&mut self, now: Duration) {
        if let Some(last) = self.last {
            let interval_s = now.saturating_sub(last).as_secs_f64();
            let mean = self.interval_s.unwrap_or(interval_s);
            self.interval_s = Some(mean + (interval_s - mean) / 8.0);
        }
        self.last = Some(now);
    }

    /// Seconds until half of those that wait have likely gone; at least one.
    pub(crate) fn retry_after_s(&self, waiting: usize) -> u64 {
        let half = waiting.div_ceil(2) as f64;
        (self.interval_s.unwrap_or(0.0) * half)
            .clamp(1.0, RETRY_MAX_S)
            .ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_ends() {
        let mut ends = Ends::default();
        assert_eq!(ends.retry_after_s(1000), 1);
        for second in 0..100 {
            ends.add(Duration::from_secs(2 * second));
        }
        assert_eq!((ends.retry_after_s(3), ends.retry_after_s(64)), (4, 64));
        assert_eq!(ends.retry_after_s(1_000_000), 600);
    }
}
