//! Flags of how tokens are chosen.

use clap::Args;
use engine::sampling::Sampling;

use super::shared::whole;

/// How tokens are chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Divides the logits, from 0 to 100; 0 always takes the most probable token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    temperature: f64,
    /// Keeps the K most probable tokens; 0 keeps all
    #[arg(
        long,
        value_name = "K",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, { u32::MAX }>)]
    top_k: u32,
    /// Keeps the most probable tokens whose probabilities reach P, above 0 and at most 1; 1 keeps all
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    top_p: f64,
    /// Drops tokens less probable than P times the most probable one, from 0 to 1; 0 drops none
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    min_p: f64,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer, from
    /// 0.01 to 100; 1 is none
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    repetition_penalty: f64,
    /// Subtracted from a token's logit for each time it is in the answer, from -100 to 100
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    frequency_penalty: f64,
    /// Subtracted from a token's logit if it is in the answer, from -100 to 100
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    presence_penalty: f64,
    /// Added to the logit of a token: a token id and a number from -1000000 to 1000000, or -inf to rule it out
    /// (repeatable)
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f64)>,
    /// Seed of the draws, where the temperature is above 0
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = seed)]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    /// As the engine takes them; ranges are not checked here.
    pub(crate) fn to_sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

/// `ID=BIAS`.
pub(super) fn parse_bias(text: &str) -> Result<(u32, f64), String> {
    let (id, bias) = text
        .split_once('=')
        .ok_or("expected ID=BIAS, as in 42=-1.5")?;
    let id = id
        .trim()
        .parse()
        .map_err(|_| format!("`{id}` is no token id, a whole number from 0"))?;
    let bias = bias
        .trim()
        .parse()
        .map_err(|_| format!("`{bias}` is no number"))?;
    Ok((id, bias))
}

/// A seed.
fn seed(text: &str) -> Result<u64, String> {
    let expected = |_| format!("it must be a whole number from 0 to {}", u64::MAX);
    text.parse().map_err(expected)
}
