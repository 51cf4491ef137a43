//! How many prompt tokens a step may take beside running answers.
//!
//! A client that reads an answer waits one step for each token, so a step that carries a part of a prompt
//! may take [`SLOWDOWN`] times as long as one without. Times are measured as the engine runs; they decide
//! how prompts are cut up, and so never what comes out.

use kernels::pages::PAGE_POSITIONS;

use crate::engine::SEQUENCES_MAX;

/// How much longer than a step without prompts a step with a part of one may take. Below the 2 that is
/// promised, for what a single step varies by; a prompt then gets `1 − 1 / SLOWDOWN` of the time, so that it
/// takes about 2.2 times as long as alone.
const SLOWDOWN: f64 = 1.85;

/// Prompt tokens in a step at least, so that prompts go on beside answers whatever is measured.
const LEAST: usize = 4;

/// Steps with answers only that are measured before a prompt joins them, at a number of answers not seen
/// lately.
const PROBES: u32 = 2;

/// Steps after which a measurement is taken again.
const STALE_STEPS: u64 = 512;

/// What is assumed until something is measured, in milliseconds.
const PROMPT_TOKEN_MS: f64 = 1.0;

/// The time of a step with answers only.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    ms: f64,
    samples: u32,
    /// The step it was measured in last.
    step: u64,
}

/// Measured times of steps.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// By the number of answers.
    alone: [Alone; SEQUENCES_MAX + 1],
    /// What a prompt token adds to a step, beside answers.
    beside_ms: Option<f64>,
    /// What a prompt token takes in a step of prompts only.
    prompt_ms: Option<f64>,
    step: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            alone: [Alone::default(); SEQUENCES_MAX + 1],
            beside_ms: None,
            prompt_ms: None,
            step: 0,
        }
    }
}

impl Pace {
    /// Prompt tokens that a step with `decodes` answers may take, at most `most`. None while the answers'
    /// own time has to be measured first.
    pub(crate) fn prompt_budget(&self, decodes: usize, most: usize) -> usize {
        if decodes == 0 {
            return most;
        }
        let alone = self.alone[decodes];
        let is_known = alone.samples >= PROBES && self.step - alone.step < STALE_STEPS;
        if !is_known {
            return 0;
        }
        let per_token = self.beside_ms.or(self.prompt_ms);
        let budget = alone.ms * (SLOWDOWN - 1.0) / per_token.unwrap_or(PROMPT_TOKEN_MS);
        (budget as usize).clamp(LEAST.min(most), most)
    }

    /// A step took so long.
    pub(crate) fn record(&mut self, decodes: usize, prompt_tokens: usize, ms: f64) {
        self.step += 1;
        match (decodes, prompt_tokens) {
            (0, 0) => {}
            (0, _) => self.prompt_ms = Some(blend(self.prompt_ms, ms / prompt_tokens as f64)),
            (_, 0) => self.alone[decodes].take(ms, self.step),
            _ => {
                let alone = self.alone[decodes].ms;
                let added = (ms - alone).max(ms * 0.01) / prompt_tokens as f64;
                self.beside_ms = Some(blend(self.beside_ms, added));
            }
        }
    }

    /// The time to compute `tokens` again.
    pub(crate) fn recompute_ms(&self, tokens: usize) -> f64 {
        let per_token = self.prompt_ms.or(self.beside_ms);
        tokens as f64 * per_token.unwrap_or(PROMPT_TOKEN_MS)
    }
}

impl Alone {
    /// Steps are late for many reasons and never early, so a short one counts more than a long one.
    fn take(&mut self, ms: f64, step: u64) {
        let share = if ms < self.ms { 0.5 } else { 0.1 };
        self.ms = match self.samples {
            0 => ms,
            1..PROBES => self.ms.min(ms),
            _ => self.ms + (ms - self.ms) * share,
        };
        self.samples = self.samples.saturating_add(1);
        self.step = step;
    }
}

/// A running mean, where one late step changes little.
fn blend(before: Option<f64>, now: f64) -> f64 {
    match before {
        Some(before) => before + (now.min(before * 4.0) - before) * 0.25,
        None => now,
    }
}

/// `len` cut to whole pages.
pub(crate) fn whole_pages(len: usize) -> usize {
    len / PAGE_POSITIONS * PAGE_POSITIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose steps take `10 + decodes + 0.4 · tokens` milliseconds, and a little for each step
    /// that has both.
    fn step_ms(decodes: usize, tokens: usize) -> f64 {
        let both = if decodes > 0 && tokens > 0 { 1.0 } else { 0.0 };
        let weights = if decodes > 0 { 10.0 } else { 0.0 };
        weights + decodes as f64 + 0.4 * tokens as f64 + both
    }

    /// Runs a prompt of 4,096 tokens beside `decodes` answers; the longest step and the time of all.
    fn run(pace: &mut Pace, decodes: usize) -> (f64, f64) {
        let (mut left, mut longest, mut total) = (4096, 0.0_f64, 0.0);
        while left > 0 {
            let tokens = pace.prompt_budget(decodes, 512).min(left);
            let ms = step_ms(decodes, tokens);
            pace.record(decodes, tokens, ms);
            left -= tokens;
            longest = longest.max(ms);
            total += ms;
        }
        (longest, total)
    }

    #[test]
    fn answers_slow_down_by_less_than_two_and_the_prompt_by_less_than_two_and_a_half() {
        for decodes in [1, 8, 16, 64] {
            let mut pace = Pace::default();
            let (_, alone) = run(&mut pace, 0);
            let (longest, beside) = run(&mut pace, decodes);
            let plain = step_ms(decodes, 0);
            assert!(
                longest <= 2.0 * plain,
                "{decodes}: {longest} ms beside {plain}"
            );
            assert!(
                beside <= 2.5 * alone,
                "{decodes}: {beside} ms beside {alone}"
            );
        }
    }

    #[test]
    fn a_late_step_changes_little() {
        let mut pace = Pace::default();
        run(&mut pace, 0);
        run(&mut pace, 8);
        let before = pace.prompt_budget(8, 512);
        pace.record(8, 0, 100_000.0);
        pace.record(8, 0, step_ms(8, 0));
        for _ in 0..8 {
            pace.record(8, 0, step_ms(8, 0));
        }
        let after = pace.prompt_budget(8, 512);
        assert!(after <= before * 4, "{before}, {after}");
    }

    #[test]
    fn prompts_go_on_whatever_is_measured() {
        let mut pace = Pace::default();
        for _ in 0..4 {
            pace.record(3, 0, 1e-9);
            pace.record(3, 1, 1e9);
        }
        assert_eq!(pace.prompt_budget(3, 512), LEAST);
        assert_eq!(pace.prompt_budget(3, 2), 2);
        assert_eq!(pace.prompt_budget(0, 512), 512);
    }
}
