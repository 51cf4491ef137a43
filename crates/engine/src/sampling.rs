//! How a token is chosen from logits.
//!
//! In this order: logit bias; repetition, frequency and presence penalties; temperature; top-k; top-p;
//! min-p; then the draw. Values are f64 from the first step on. Candidates are sorted by (logit
//! descending, id ascending) and summed in that order, so the result depends on nothing but the logits,
//! the parameters, the seed, the position, and the tokens before it.
//!
//! Repetition looks at prompt and answer, frequency and presence at the answer only. Log-probabilities
//! are those of the model itself: softmax of the logits before any of these steps.

use crate::random::gumbel;

/// The largest bias, up or down, beside −∞.
const BIAS_MAX: f64 = 1e6;

/// Parameters of the choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the best.
    pub temperature: f64,
    /// Keeps the best k; 0 keeps all.
    pub top_k: usize,
    /// Keeps the best candidates whose probabilities reach p; 1 keeps all.
    pub top_p: f64,
    /// Drops candidates less probable than p times the best; 0 drops none.
    pub min_p: f64,
    /// Divides positive and multiplies negative logits of tokens already seen; 1 is none.
    pub repetition_penalty: f64,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: f64,
    /// Subtracted once if a token was generated.
    pub presence_penalty: f64,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f64)>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// The best token, always.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// A parameter is out of range.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SamplingError {
    /// A number outside its range.
    #[error("{name} is {value}: it must be {range}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What it was set to.
        value: f64,
        /// What is allowed.
        range: &'static str,
    },
    /// A bias for a token that does not exist.
    #[error(
        "logit_bias is for token {token}: it must be below {vocabulary}, the size of the vocabulary"
    )]
    NoSuchToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// Two biases for one token.
    #[error("logit_bias is given twice for token {0}")]
    BiasTwice(u32),
    /// Nothing is left to choose from.
    #[error("logit_bias rules out every token")]
    NothingLeft,
}

impl SamplingError {
    /// The field of [`Sampling`] that is wrong. The message begins with it, so that a program can put its own
    /// name for it in that place.
    #[must_use]
    pub fn parameter(&self) -> &'static str {
        match self {
            Self::OutOfRange { name, .. } => name,
            Self::NoSuchToken { .. } | Self::BiasTwice(_) | Self::NothingLeft => "logit_bias",
        }
    }
}

impl Sampling {
    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is out of range.
    pub fn validate(&self, vocabulary: usize) -> Result<(), SamplingError> {
        let checks = [
            (
                "temperature",
                self.temperature,
                0.0..=100.0,
                "from 0 to 100",
            ),
            (
                "top_p",
                self.top_p,
                f64::MIN_POSITIVE..=1.0,
                "above 0 and at most 1",
            ),
            ("min_p", self.min_p, 0.0..=1.0, "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0.01..=100.0,
                "from 0.01 to 100",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                -100.0..=100.0,
                "from -100 to 100",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                -100.0..=100.0,
                "from -100 to 100",
            ),
        ];
        for (name, value, range, allowed) in checks {
            if !range.contains(&value) {
                return Err(SamplingError::OutOfRange {
                    name,
                    value,
                    range: allowed,
                });
            }
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocabulary {
                return Err(SamplingError::NoSuchToken { token, vocabulary });
            }
            if !(bias == f64::NEG_INFINITY || bias.abs() <= BIAS_MAX) {
                let name = "logit_bias";
                return Err(SamplingError::OutOfRange {
                    name,
                    value: bias,
                    range: "from -1000000 to 1000000, or -inf",
                });
            }
        }
        let mut biased: Vec<u32> = self.logit_bias.iter().map(|(token, _)| *token).collect();
        biased.sort_unstable();
        if let Some(pair) = biased.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SamplingError::BiasTwice(pair[0]));
        }
        let ruled_out = self
            .logit_bias
            .iter()
            .filter(|(_, bias)| *bias == f64::NEG_INFINITY);
        if ruled_out.count() == vocabulary {
            return Err(SamplingError::NothingLeft);
        }
        Ok(())
    }
}

/// The tokens before a position, as the penalties see them.
#[derive(Clone, Debug)]
pub struct History {
    /// Times each token was generated.
    generated: Vec<u32>,
    /// Distinct tokens seen, prompt and answer.
    seen: Vec<u32>,
    is_seen: Vec<bool>,
}

impl History {
    /// The history of a request: its prompt. Room for every token, so that adding allocates nothing.
    #[must_use]
    pub fn new(vocabulary: usize, prompt: &[u32]) -> Self {
        let mut history = Self {
            generated: vec![0; vocabulary],
            seen: Vec::with_capacity(vocabulary),
            is_seen: vec![false; vocabulary],
        };
        for &token in prompt {
            history.see(token);
        }
        history
    }

    /// Adds a generated token.
    pub fn push(&mut self, token: u32) {
        self.see(token);
        self.generated[token as usize] += 1;
    }

    fn see(&mut self, token: u32) {
        if !std::mem::replace(&mut self.is_seen[token as usize], true) {
            self.seen.push(token);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f64,
    token: u32,
}

fn better_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Chooses tokens; keeps its buffers between calls.
#[derive(Debug)]
pub struct Sampler {
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for a vocabulary of that size.
    #[must_use]
    pub fn new(vocabulary: usize) -> Self {
        Self {
            candidates: Vec::with_capacity(vocabulary),
        }
    }

    /// The token for `position` (counted from the start of the sequence).
    ///
    /// # Errors
    /// When the bias rules out everything.
    pub fn sample(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        history: &History,
        position: usize,
    ) -> Result<u32, SamplingError> {
        self.fill(logits, sampling, history);
        if sampling.temperature == 0.0 {
            let best = self.candidates.iter().min_by(|a, b| better_first(a, b));
            return best.map(|c| c.token).ok_or(SamplingError::NothingLeft);
        }
        // Below the best, so that a tiny temperature leads to −∞ and never to +∞.
        let best = self
            .candidates
            .iter()
            .map(|c| c.logit)
            .max_by(f64::total_cmp);
        let best = best.ok_or(SamplingError::NothingLeft)?;
        for candidate in &mut self.candidates {
            candidate.logit = (candidate.logit - best) / sampling.temperature;
        }
        self.keep_top_k(sampling.top_k);
        if sampling.top_p < 1.0 || sampling.min_p > 0.0 {
            self.candidates.sort_unstable_by(better_first);
            self.keep_top_p(sampling.top_p);
            self.keep_min_p(sampling.min_p);
        }
        let seed = sampling.seed;
        let noisy = self.candidates.iter().map(|c| Candidate {
            logit: c.logit + gumbel(seed, position as u64, c.token),
            token: c.token,
        });
        noisy
            .min_by(better_first)
            .map(|c| c.token)
            .ok_or(SamplingError::NothingLeft)
    }

    /// The candidates with bias and penalties applied, in order of id.
    fn fill(&mut self, logits: &[f32], sampling: &Sampling, history: &History) {
        self.candidates.clear();
        let ids = 0u32..;
        self.candidates
            .extend(logits.iter().zip(ids).map(|(&l, token)| Candidate {
                // + 0 makes one of the two zeros, so that they tie.
                logit: f64::from(l) + 0.0,
                token,
            }));
        for &(token, bias) in &sampling.logit_bias {
            self.candidates[token as usize].logit += bias;
        }
        let (frequency, presence) = (sampling.frequency_penalty, sampling.presence_penalty);
        if sampling.repetition_penalty != 1.0 || frequency != 0.0 || presence != 0.0 {
            for &token in &history.seen {
                let logit = &mut self.candidates[token as usize].logit;
                if *logit > 0.0 {
                    *logit /= sampling.repetition_penalty;
                } else {
                    *logit *= sampling.repetition_penalty;
                }
                let times = history.generated[token as usize];
                if times > 0 {
                    *logit -= frequency * f64::from(times) + presence;
                }
            }
        }
        if !sampling.logit_bias.is_empty() {
            self.candidates.retain(|c| c.logit > f64::NEG_INFINITY);
        }
    }

    fn keep_top_k(&mut self, k: usize) {
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, better_first);
            self.candidates.truncate(k);
        }
    }

    /// Keeps the shortest prefix whose probability reaches p, at least one. Sorted before.
    fn keep_top_p(&mut self, p: f64) {
        let Some(best) = self.candidates.first().map(|c| c.logit) else {
            return;
        };
        let weight = |c: &Candidate| libm::exp(c.logit - best);
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut reached = 0.0;
        let enough = self.candidates.iter().position(|c| {
            reached += weight(c);
            reached >= p * total
        });
        self.candidates
            .truncate(enough.map_or(self.candidates.len(), |last| last + 1));
    }

    /// Drops what is less probable than p times the best. Sorted before.
    fn keep_min_p(&mut self, p: f64) {
        let Some(best) = self.candidates.first().map(|c| c.logit) else {
            return;
        };
        let kept = self
            .candidates
            .iter()
            .take_while(|c| libm::exp(c.logit - best) >= p)
            .count();
        self.candidates.truncate(kept.max(1));
    }
}

/// A token and the logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub log_prob: f64,
}

/// The logarithm of Σ exp(logit), in f64 over ascending ids.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits
        .iter()
        .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    let top = f64::from(top);
    top + libm::log(logits.iter().map(|&l| libm::exp(f64::from(l) - top)).sum())
}

/// The log-probability of `token`, and the `n` most probable tokens with theirs, best first.
#[must_use]
pub fn log_probs(logits: &[f32], token: u32, n: usize) -> (TokenLogProb, Vec<TokenLogProb>) {
    let total = log_sum_exp(logits);
    let of = |token: u32| TokenLogProb {
        token,
        log_prob: f64::from(logits[token as usize]) - total,
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    let n = n.min(ids.len());
    if n > 0 && n < ids.len() {
        ids.select_nth_unstable_by(n - 1, by);
    }
    ids.truncate(n);
    ids.sort_unstable_by(by);
    (of(token), ids.into_iter().map(of).collect())
}
