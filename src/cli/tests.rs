#![allow(clippy::unwrap_used)]

use clap::CommandFactory;
use engine::PREFILL_CHUNK_MAX;
use engine::sampling::Sampling;

use super::bench::parse_size;
use super::sampling::parse_bias;
use super::shared::{THREADS_MAX, default_model};
use super::*;

#[test]
fn the_definitions_are_sound() {
    Cli::command().debug_assert();
    assert!(!default_model().is_empty());
}

#[test]
fn the_commands_in_the_readme_are_understood() {
    let mut count = 0;
    for line in include_str!("../../README.md").lines() {
        let starts = ["plainchant ", "cargo run --release -- "];
        let Some((_, command)) = starts.iter().find_map(|start| line.split_once(start)) else {
            continue;
        };
        if !line.starts_with("    ") {
            continue;
        }
        let command = command.split(" # ").next().unwrap_or_default();
        // What is in quotes is one argument.
        let parts = command.split('"').enumerate();
        let arguments = parts.flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        });
        let parsed = Cli::try_parse_from(std::iter::once("plainchant").chain(arguments));
        assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        count += 1;
    }
    assert!(count >= 10, "only {count} commands found");
}

#[test]
fn the_help_states_the_ranges_that_the_engine_checks() {
    let mut command = Cli::command();
    let run = command.find_subcommand_mut("run").unwrap();
    let help = run.render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let plain = || Sampling::default();
    let nan = f64::NAN;
    let wrong = [
        Sampling {
            temperature: nan,
            ..plain()
        },
        Sampling {
            top_p: nan,
            ..plain()
        },
        Sampling {
            min_p: nan,
            ..plain()
        },
        Sampling {
            repetition_penalty: nan,
            ..plain()
        },
        Sampling {
            frequency_penalty: nan,
            ..plain()
        },
        Sampling {
            presence_penalty: nan,
            ..plain()
        },
        Sampling {
            logit_bias: vec![(0, nan)],
            ..plain()
        },
    ];
    for sampling in wrong {
        let error = sampling.validate(1).unwrap_err().to_string();
        let (name, range) = error.split_once(" is NaN: it must be ").unwrap();
        let flag = format!("--{} <", name.replace('_', "-"));
        let entry = help
            .split(&flag)
            .nth(1)
            .unwrap()
            .split(" --")
            .next()
            .unwrap();
        assert!(entry.contains(range), "no {range:?} in {entry:?}");
    }
    assert!(help.contains(&format!("1 to {PREFILL_CHUNK_MAX}")));
    assert!(help.contains(&format!("1 to {THREADS_MAX}")));
}

#[test]
fn biases_and_sizes_are_read_or_refused() {
    assert_eq!(parse_bias("42=-1.5"), Ok((42, -1.5)));
    assert_eq!(parse_bias("1=-inf"), Ok((1, f64::NEG_INFINITY)));
    for bad in ["", "5", "x=1", "5=", "-1=2", "5=a"] {
        assert!(parse_bias(bad).is_err(), "{bad}");
    }
    assert_eq!(parse_size("16x256"), Ok((16, 256)));
    for bad in ["", "16", "0x256", "16x100", "16x0", "axb", "16x65792"] {
        assert!(parse_size(bad).is_err(), "{bad}");
    }
}
