//! Sampling: each step against its definition, and the distribution of draws.
#![allow(clippy::unwrap_used)]

use engine::sampling::{History, Sampler, Sampling, SamplingError, log_probs, log_sum_exp};
use proptest::prelude::*;

fn sample(logits: &[f32], sampling: &Sampling, history: &History, position: usize) -> u32 {
    Sampler::new(logits.len())
        .sample(logits, sampling, history, position)
        .unwrap()
}

fn history(prompt: &[u32], generated: &[u32]) -> History {
    let mut history = History::new(16, prompt);
    generated.iter().for_each(|&token| history.push(token));
    history
}

/// The tokens that come up in many draws.
fn support(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let none = history(&[], &[]);
    let mut seen: Vec<u32> = (0..2000)
        .map(|p| sample(logits, sampling, &none, p))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

const LOGITS: [f32; 6] = [1.0, 3.0, 2.0, 3.0, -1.0, 2.5];

fn hot() -> Sampling {
    Sampling {
        temperature: 5.0,
        ..Sampling::default()
    }
}

#[test]
fn greedy_takes_the_best_and_the_lower_id_of_equals() {
    let none = history(&[], &[]);
    assert_eq!(sample(&LOGITS, &Sampling::default(), &none, 0), 1);
    assert_eq!(sample(&[-1.0; 6], &Sampling::default(), &none, 0), 0);
}

#[test]
fn filters_keep_what_they_say() {
    assert_eq!(support(&LOGITS, &hot()), [0, 1, 2, 3, 4, 5]);
    assert_eq!(support(&LOGITS, &Sampling { top_k: 3, ..hot() }), [1, 3, 5]);
    // Of two equal logits the lower id goes first.
    assert_eq!(support(&LOGITS, &Sampling { top_k: 1, ..hot() }), [1]);
    let cold = Sampling {
        temperature: 1.0,
        ..hot()
    };
    // Weights e^3 e^3 e^2.5 e^2 e^1 e^-1: two reach 0.64 of the whole, three 0.83.
    assert_eq!(
        support(
            &LOGITS,
            &Sampling {
                top_p: 0.63,
                ..cold.clone()
            }
        ),
        [1, 3]
    );
    assert_eq!(
        support(
            &LOGITS,
            &Sampling {
                top_p: 0.65,
                ..cold.clone()
            }
        ),
        [1, 3, 5]
    );
    assert_eq!(
        support(
            &LOGITS,
            &Sampling {
                top_p: 1e-9,
                ..cold.clone()
            }
        ),
        [1]
    );
    // e^-0.5 = 0.61 of the best, e^-1 = 0.37.
    assert_eq!(
        support(
            &LOGITS,
            &Sampling {
                min_p: 0.5,
                ..cold.clone()
            }
        ),
        [1, 3, 5]
    );
    assert_eq!(support(&LOGITS, &Sampling { min_p: 1.0, ..cold }), [1, 3]);
}

#[test]
fn draws_follow_the_distribution() {
    let sampling = Sampling {
        temperature: 1.0,
        seed: 9,
        ..Sampling::default()
    };
    let none = history(&[], &[]);
    let draws = 40_000;
    let mut counts = [0; 6];
    let mut sampler = Sampler::new(6);
    for position in 0..draws {
        counts[sampler.sample(&LOGITS, &sampling, &none, position).unwrap() as usize] += 1;
    }
    let total = log_sum_exp(&LOGITS);
    for (count, logit) in counts.into_iter().zip(LOGITS) {
        let expected = libm::exp(f64::from(logit) - total);
        let found = f64::from(count) / draws as f64;
        // Five standard deviations.
        let spread = 5.0 * libm::sqrt(expected * (1.0 - expected) / draws as f64);
        assert!(
            (found - expected).abs() < spread,
            "{logit}: {found} instead of {expected}"
        );
    }
}

#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let none = history(&[], &[]);
    let sampling = |seed| Sampling { seed, ..hot() };
    let run = |seed| -> Vec<u32> {
        (0..64)
            .map(|p| sample(&LOGITS, &sampling(seed), &none, p))
            .collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let backwards: Vec<u32> = (0..64)
        .rev()
        .map(|p| sample(&LOGITS, &sampling(1), &none, p))
        .collect();
    assert_eq!(backwards.into_iter().rev().collect::<Vec<_>>(), run(1));
}

#[test]
fn penalties_and_bias_move_the_choice() {
    let greedy = Sampling::default();
    let seen = history(&[1], &[3, 3]);
    let repetition = Sampling {
        repetition_penalty: 2.0,
        ..greedy.clone()
    };
    assert_eq!(
        sample(&LOGITS, &repetition, &seen, 0),
        5,
        "prompt and answer are both penalised"
    );
    let presence = Sampling {
        presence_penalty: 1.0,
        ..greedy.clone()
    };
    assert_eq!(
        sample(&LOGITS, &presence, &seen, 0),
        1,
        "the prompt is not penalised by presence"
    );
    let frequency = Sampling {
        frequency_penalty: 0.4,
        ..greedy.clone()
    };
    let twice = history(&[], &[1, 3, 3]);
    assert_eq!(
        sample(&LOGITS, &frequency, &twice, 0),
        1,
        "twice is worse than once"
    );
    let bias = Sampling {
        logit_bias: vec![(4, 10.0)],
        ..greedy.clone()
    };
    assert_eq!(sample(&LOGITS, &bias, &seen, 0), 4);
    let negative = [-1.0, -2.0];
    let both = history(&[0], &[]);
    assert_eq!(
        sample(
            &negative,
            &Sampling {
                repetition_penalty: 3.0,
                ..greedy
            },
            &both,
            0
        ),
        1
    );
}

#[test]
fn what_is_ruled_out_never_comes() {
    let bias = |tokens: std::ops::Range<u32>| Sampling {
        logit_bias: tokens.map(|t| (t, f64::NEG_INFINITY)).collect(),
        ..hot()
    };
    assert_eq!(support(&LOGITS, &bias(1..6)), [0]);
    let mut sampler = Sampler::new(6);
    let none = history(&[], &[]);
    let nothing = sampler.sample(&LOGITS, &bias(0..6), &none, 0);
    assert_eq!(nothing, Err(SamplingError::NothingLeft));
}

#[test]
fn parameters_out_of_range_are_named() {
    let bad = [
        Sampling {
            temperature: -0.1,
            ..Sampling::default()
        },
        Sampling {
            temperature: f64::NAN,
            ..Sampling::default()
        },
        Sampling {
            top_p: 0.0,
            ..Sampling::default()
        },
        Sampling {
            min_p: 1.5,
            ..Sampling::default()
        },
        Sampling {
            repetition_penalty: 0.0,
            ..Sampling::default()
        },
        Sampling {
            frequency_penalty: 1e9,
            ..Sampling::default()
        },
        Sampling {
            presence_penalty: f64::INFINITY,
            ..Sampling::default()
        },
        Sampling {
            logit_bias: vec![(99, 0.0)],
            ..Sampling::default()
        },
        Sampling {
            logit_bias: vec![(1, f64::NAN)],
            ..Sampling::default()
        },
    ];
    for sampling in bad {
        assert!(sampling.validate(10).is_err(), "{sampling:?}");
    }
    hot().validate(10).unwrap();
}

proptest! {
    #[test]
    fn log_probs_are_sorted_and_add_up(
        logits in prop::collection::vec(-20.0f32..20.0, 1..40),
        n in 0usize..50,
    ) {
        let token = (logits.len() / 2) as u32;
        let (chosen, top) = log_probs(&logits, token, n);
        prop_assert_eq!(top.len(), n.min(logits.len()));
        prop_assert!(top.is_sorted_by(|a, b| (b.log_prob, a.token) <= (a.log_prob, b.token)));
        prop_assert_eq!(chosen.log_prob, f64::from(logits[token as usize]) - log_sum_exp(&logits));
        if n >= logits.len() {
            let total: f64 = top.iter().map(|t| libm::exp(t.log_prob)).sum();
            prop_assert!((total - 1.0).abs() < 1e-12);
        }
    }
}
