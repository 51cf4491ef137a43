//! What the engine did and holds, in plain numbers.

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
    /// Pages whose bytes wait elsewhere.
    pub pages_swapped: usize,
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
