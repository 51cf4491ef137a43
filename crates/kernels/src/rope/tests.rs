use super::*;
use crate::lanes::twins::{Random, bits, same_on_all};

fn angles(table: &RopeTable, pos: u32) -> (Vec<f32>, Vec<f32>) {
    let (mut cos, mut sin) = (vec![0.0; table.pairs()], vec![0.0; table.pairs()]);
    table.angles(pos, &mut cos, &mut sin);
    (cos, sin)
}

#[test]
fn plain_frequencies_are_powers_of_the_base() {
    let freq = inv_freq(10_000.0, 8);
    assert_eq!(freq, [1.0, 0.1, 0.01, 0.001]);
    assert_eq!(inv_freq(500_000.0, 128).len(), 64);
    for (i, freq) in inv_freq(500_000.0, 128).iter().enumerate() {
        let exact = 500_000_f64.powf(-(i as f64) / 64.0);
        assert!((f64::from(*freq) / exact - 1.0).abs() < 6e-8, "pair {i}");
    }
}

#[test]
fn angles_are_those_of_the_rounded_product() {
    let table = RopeTable::new(inv_freq(1e6, 64), 1.0);
    for pos in [0, 1, 2, 1_000, 32_767, 131_071, 1_048_575] {
        let (cos, sin) = angles(&table, pos);
        for i in 0..table.pairs() {
            let angle = f64::from(pos as f32 * table.inv_freq()[i]);
            assert!((f64::from(cos[i]) - angle.cos()).abs() <= 3e-8);
            assert!((f64::from(sin[i]) - angle.sin()).abs() <= 3e-8);
        }
    }
    let (cos, sin) = angles(&table, 0);
    assert_eq!((cos, sin), (vec![1.0; 32], vec![0.0; 32]));
}

#[test]
fn the_attention_factor_multiplies_both() {
    let (cos, sin) = angles(&RopeTable::new(inv_freq(1e4, 32), 1.0), 77);
    let (scaled_cos, scaled_sin) = angles(&RopeTable::new(inv_freq(1e4, 32), 1.25), 77);
    for i in 0..16 {
        assert_eq!(scaled_cos[i].to_bits(), (cos[i] * 1.25).to_bits());
        assert_eq!(scaled_sin[i].to_bits(), (sin[i] * 1.25).to_bits());
    }
}

/// The turn by its definition, pair by pair.
fn turned(style: RopeStyle, head: &[f32], cos: &[f32], sin: &[f32]) -> Vec<f32> {
    let mut out = head.to_vec();
    for i in 0..cos.len() {
        let (a, b) = match style {
            RopeStyle::Normal => (2 * i, 2 * i + 1),
            RopeStyle::Neox => (i, i + cos.len()),
        };
        let (x, y) = (head[a], head[b]);
        out[a] = x.mul_add(cos[i], -(y * sin[i]));
        out[b] = y.mul_add(cos[i], x * sin[i]);
    }
    out
}

#[test]
fn both_styles_turn_their_pairs_on_all_twins() {
    let mut random = Random(31);
    for pairs in (0..=50).chain([64, 96, 128]) {
        let (cos, sin) = angles(&RopeTable::new(inv_freq(1e4, 2 * pairs), 1.0), 12_345);
        for rest in [0, 1, 16, 64] {
            let head_dim = 2 * pairs + rest;
            // Products of extremes must not make an infinity less an infinity.
            let heads: Vec<f32> = random
                .row(rest, 3 * head_dim)
                .iter()
                .map(|v| v.clamp(-1e38, 1e38))
                .collect();
            for style in [RopeStyle::Normal, RopeStyle::Neox] {
                let result = same_on_all("rope", |twin| {
                    let mut heads = heads.clone();
                    let turn = Turn {
                        heads: &mut heads,
                        head_dim,
                        cos: &cos,
                        sin: &sin,
                    };
                    match style {
                        RopeStyle::Normal => twin.run(TurnNeighbours(turn)),
                        RopeStyle::Neox => twin.run(TurnHalves(turn)),
                    }
                    heads
                });
                if head_dim == 0 {
                    continue;
                }
                let expected: Vec<f32> = heads
                    .chunks(head_dim)
                    .flat_map(|h| turned(style, h, &cos, &sin))
                    .collect();
                assert_eq!(
                    bits(&result),
                    bits(&expected),
                    "{style:?}, {pairs} pairs, {rest} more"
                );
                let mut one_by_one = heads.clone();
                for head in one_by_one.chunks_mut(head_dim) {
                    apply(Isa::best(), style, head, &cos, &sin);
                }
                assert_eq!(bits(&one_by_one), bits(&expected));
            }
        }
    }
}

#[test]
fn a_turn_keeps_lengths_and_relative_angles() {
    let table = RopeTable::new(inv_freq(1e4, 64), 1.0);
    let mut random = Random(5);
    let (query, key) = (random.row(0, 64), random.row(0, 64));
    let score = |style, query_pos, key_pos| {
        let at = |x: &[f32], pos| {
            let (cos, sin) = angles(&table, pos);
            let mut x = x.to_vec();
            apply(Isa::best(), style, &mut x, &cos, &sin);
            x
        };
        let (q, k) = (at(&query, query_pos), at(&key, key_pos));
        q.iter()
            .zip(&k)
            .map(|(&a, &b)| f64::from(a) * f64::from(b))
            .sum::<f64>()
    };
    for style in [RopeStyle::Normal, RopeStyle::Neox] {
        let (near, far) = (score(style, 13, 10), score(style, 1_013, 1_010));
        assert!((near - far).abs() < 1e-2, "{near} {far}");
        assert!(
            (near - score(style, 14, 10)).abs() > 1e-2,
            "the position has no effect"
        );
    }
}

#[test]
fn the_styles_differ_by_a_permutation() {
    let (cos, sin) = angles(&RopeTable::new(inv_freq(1e4, 32), 1.0), 9);
    let head: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let halves: Vec<f32> = (0..16)
        .map(|i| 2 * i)
        .chain((0..16).map(|i| 2 * i + 1))
        .map(|i| i as f32)
        .collect();
    let (mut normal, mut neox) = (head, halves);
    apply(Isa::best(), RopeStyle::Normal, &mut normal, &cos, &sin);
    apply(Isa::best(), RopeStyle::Neox, &mut neox, &cos, &sin);
    for i in 0..16 {
        assert_eq!(normal[2 * i].to_bits(), neox[i].to_bits());
        assert_eq!(normal[2 * i + 1].to_bits(), neox[16 + i].to_bits());
    }
}

#[test]
fn linear_and_separate_factors_divide() {
    let mut freq = vec![1.0, 0.5, 0.25];
    scale_linear(&mut freq, 4.0);
    assert_eq!(freq, [0.25, 0.125, 0.0625]);
    divide_each(&mut freq, &[1.0, 2.0, 8.0]);
    assert_eq!(freq, [0.25, 0.0625, 0.0078125]);
}

#[test]
fn llama3_leaves_fast_pairs_and_slows_slow_ones() {
    let scaling = Llama3Scaling {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    let plain = inv_freq(500_000.0, 128);
    let mut scaled = plain.clone();
    scaling.apply(&mut scaled);
    for (i, (&scaled, &plain)) in scaled.iter().zip(&plain).enumerate() {
        let wavelength = 2.0 * std::f64::consts::PI / f64::from(plain);
        let expected = if wavelength < 8192.0 / 4.0 {
            f64::from(plain)
        } else if wavelength > 8192.0 {
            f64::from(plain) / 8.0
        } else {
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            ((1.0 - smooth) / 8.0 + smooth) * f64::from(plain)
        };
        assert!(
            (f64::from(scaled) / expected - 1.0).abs() < 1e-7,
            "pair {i}"
        );
    }
    assert_eq!(scaled[0], plain[0]);
    assert_eq!(scaled[63], plain[63] / 8.0);
    assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
    assert!(
        scaled
            .iter()
            .zip(&plain)
            .any(|(s, p)| s < p && *s > p / 7.9)
    );
}

#[test]
fn yarn_slows_between_its_limits() {
    let scaling = YarnScaling {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 32_768,
        truncate: true,
    };
    // 128·ln(32768/(32·2π)) / (2·ln 1e6) = 23.596 and, with 1 turn, 39.651.
    assert_eq!(scaling.limits(1e6, 128), (23.0, 40.0));
    let (first, last) = YarnScaling {
        truncate: false,
        ..scaling
    }
    .limits(1e6, 128);
    assert!(
        (first - 23.596).abs() < 1e-3 && (last - 39.651).abs() < 1e-3,
        "{first} {last}"
    );
    let plain = inv_freq(1e6, 128);
    let mut scaled = plain.clone();
    scaling.apply(1e6, &mut scaled);
    assert_eq!(scaled[..24], plain[..24]);
    for i in 40..64 {
        assert_eq!(scaled[i], plain[i] / 4.0);
    }
    let middle = f64::from(plain[30]) * (1.0 - 0.75 * 7.0 / 17.0);
    assert!((f64::from(scaled[30]) / middle - 1.0).abs() < 1e-7);
    assert!((scaling.attention_factor() - 1.138_629_4).abs() < 1e-6);
    assert_eq!(
        YarnScaling {
            factor: 1.0,
            ..scaling
        }
        .attention_factor(),
        1.0
    );
}

#[test]
fn tables_without_pairs_are_no_trouble() {
    assert!(inv_freq(1e4, 0).is_empty());
    let scaling = YarnScaling {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 4096,
        truncate: true,
    };
    scaling.apply(1e4, &mut []);
    apply_heads(Isa::best(), RopeStyle::Neox, &mut [], 0, &[], &[]);
}

#[test]
#[should_panic(expected = "16 pairs in a head of 31")]
fn a_head_that_is_too_short_is_refused() {
    apply(
        Isa::Scalar,
        RopeStyle::Normal,
        &mut [0.0; 31],
        &[1.0; 16],
        &[0.0; 16],
    );
}
