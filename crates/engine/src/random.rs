//! A counter-based generator: the draw for a token at a position is a pure function of
//! (seed, position, stream, token), so it does not depend on how the engine got there.
//!
//! Philox 4×32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four words from a counter and a key.
#[must_use]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// What a draw is for; streams never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// The choice of a token.
    Token = 0,
    /// The seeds of the further answers to one prompt.
    Seed = 1,
}

/// The seed of the answer number `index` of several to one prompt: `seed` itself for the first, so that it
/// is the answer of a request for one; a draw from its stream of seeds for the others.
#[must_use]
pub fn derive_seed(seed: u64, index: u32) -> u64 {
    if index == 0 {
        return seed;
    }
    let counter = [index, 0, Stream::Seed as u32, 0];
    let words = philox(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) << 32 | u64::from(words[1])
}

/// A number in (0, 1) with 52 bits for `token` at `position`.
#[must_use]
pub fn uniform(seed: u64, position: u64, stream: Stream, token: u32) -> f64 {
    let counter = [
        position as u32,
        (position >> 32) as u32,
        stream as u32,
        token,
    ];
    let words = philox(counter, [seed as u32, (seed >> 32) as u32]);
    // 52 bits, so that the half added to them is exact and neither end is reached.
    unit(u64::from(words[0]) << 32 | u64::from(words[1]))
}

/// The middle of one of 2^52 equal parts of (0, 1); 52 bits, so that the half is exact and no end is reached.
fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// A draw from the standard Gumbel distribution for `token` at `position`: the argmax of
/// `logit + gumbel` over tokens is a sample from softmax(logits).
#[must_use]
pub fn gumbel(seed: u64, position: u64, token: u32) -> f64 {
    -libm::log(-libm::log(uniform(seed, position, Stream::Token, token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the generator's reference implementation.
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn derived_seeds_begin_with_the_seed_and_differ() {
        let mut seeds: Vec<u64> = [7, 8, 7 << 32]
            .iter()
            .flat_map(|&seed| (0..100).map(move |index| derive_seed(seed, index)))
            .collect();
        assert_eq!((seeds[0], seeds[100], seeds[200]), (7, 8, 7 << 32));
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 300);
        // They are part of what a request means: they may never change.
        assert_eq!(derive_seed(42, 1), 0x20ff_9139_fdd2_1d94);
    }

    #[test]
    fn no_draw_reaches_an_end() {
        for bits in [0, u64::MAX] {
            let u = unit(bits);
            assert!(u > 0.0 && u < 1.0, "{u}");
            assert!((-libm::log(-libm::log(u))).is_finite());
        }
    }

    #[test]
    fn uniforms_stay_inside_and_spread() {
        let mean = (0..10_000)
            .map(|t| uniform(7, 3, Stream::Token, t))
            .sum::<f64>()
            / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!((0..10_000).all(|p| (0.0..1.0).contains(&uniform(p, p, Stream::Token, 1))));
    }
}
