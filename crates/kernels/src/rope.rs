//! Rotary position embedding.
//!
//! Pair `i` of a head at position `pos` turns by the angle `f32(pos) · inv_freq[i]`, rounded once: a pure
//! function of the position and the pair. Everything that scales frequencies is applied to `inv_freq`
//! when a model is loaded. Frequencies are computed in f64 and rounded to f32 at the end of each step.

use std::f64::consts::TAU;

use crate::isa::Isa;
use crate::lanes::{LANES, LaneKernel, Lanes, dispatch};

/// Which elements of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Neighbours: elements `2i` and `2i + 1`.
    Normal,
    /// Halves: elements `i` and `i + n` of the `2n` that turn.
    Neox,
}

/// The frequencies of one kind of rope, ready to give the angles of any position.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    inv_freq: Vec<f32>,
    attention_factor: f32,
}

impl RopeTable {
    /// `inv_freq[i]` is the angle, in radians, that pair `i` turns by from one position to the next;
    /// `attention_factor` multiplies every cosine and sine (1 but for YaRN and its like).
    #[must_use]
    pub fn new(inv_freq: Vec<f32>, attention_factor: f32) -> Self {
        Self {
            inv_freq,
            attention_factor,
        }
    }

    /// The number of pairs that turn, half the number of elements.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// The angle per position of each pair.
    #[must_use]
    pub fn inv_freq(&self) -> &[f32] {
        &self.inv_freq
    }

    /// The factor on cosines and sines.
    #[must_use]
    pub fn attention_factor(&self) -> f32 {
        self.attention_factor
    }

    /// The cosine and sine of each pair at `pos`, each taken in f64 of the f32 angle, rounded to f32,
    /// and multiplied by the attention factor.
    ///
    /// # Panics
    /// When `cos` or `sin` is not [`RopeTable::pairs`] long.
    pub fn angles(&self, pos: u32, cos: &mut [f32], sin: &mut [f32]) {
        assert_eq!(
            cos.len(),
            self.pairs(),
            "cosines for another number of pairs"
        );
        assert_eq!(sin.len(), self.pairs(), "sines for another number of pairs");
        for (i, inv_freq) in self.inv_freq.iter().enumerate() {
            let angle = pos as f32 * inv_freq;
            let (s, c) = libm::sincos(f64::from(angle));
            cos[i] = c as f32 * self.attention_factor;
            sin[i] = s as f32 * self.attention_factor;
        }
    }
}

/// The plain frequencies, `base^(−2i / dims)` for each pair `i` of `dims` elements.
#[must_use]
pub fn inv_freq(base: f32, dims: usize) -> Vec<f32> {
    (0..dims / 2)
        .map(|i| libm::pow(f64::from(base), -((2 * i) as f64) / dims as f64) as f32)
        .collect()
}

/// Linear scaling: positions shrink by `factor`.
pub fn scale_linear(inv_freq: &mut [f32], factor: f32) {
    for freq in inv_freq {
        *freq /= factor;
    }
}

/// Divides each frequency by its own factor (the tensor `rope_freqs.weight` of GGUF files).
///
/// # Panics
/// When there are not as many factors as frequencies.
pub fn divide_each(inv_freq: &mut [f32], factors: &[f32]) {
    assert_eq!(
        inv_freq.len(),
        factors.len(),
        "factors for another number of pairs"
    );
    for (freq, factor) in inv_freq.iter_mut().zip(factors) {
        *freq /= factor;
    }
}

/// How Llama 3.1 and its successors stretch their frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// By how much slow pairs are slowed.
    pub factor: f32,
    /// Pairs that turn fewer times than this over the original context are slowed in full.
    pub low_freq_factor: f32,
    /// Pairs that turn more often than this over the original context are left alone.
    pub high_freq_factor: f32,
    /// The context that the model was first trained with, in positions.
    pub original_context: u32,
}

impl Llama3Scaling {
    /// Scales plain frequencies: slow ones are divided by the factor, fast ones stay, between them the
    /// two are mixed by the number of turns over the original context.
    pub fn apply(&self, inv_freq: &mut [f32]) {
        let [factor, low, high] =
            [self.factor, self.low_freq_factor, self.high_freq_factor].map(f64::from);
        for freq in inv_freq {
            let plain = f64::from(*freq);
            let turns = f64::from(self.original_context) * plain / TAU;
            *freq = if turns < low {
                plain / factor
            } else if turns > high {
                plain
            } else {
                let share = (turns - low) / (high - low);
                (1.0 - share) * plain / factor + share * plain
            } as f32;
        }
    }
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071, section 3.2): slow pairs are interpolated, fast ones are not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// By how much the context grows.
    pub factor: f32,
    /// Pairs that turn more often than this over the original context are left alone.
    pub beta_fast: f32,
    /// Pairs that turn fewer times than this over the original context are slowed in full.
    pub beta_slow: f32,
    /// The context that the model was first trained with, in positions.
    pub original_context: u32,
    /// Whether the two limits between pairs are rounded outwards to whole pairs.
    pub truncate: bool,
}

impl YarnScaling {
    /// Scales plain frequencies that were made with `base`. Between the two limits the share of the
    /// plain frequency falls linearly with the pair's number.
    pub fn apply(&self, base: f32, inv_freq: &mut [f32]) {
        let dims = 2 * inv_freq.len();
        let (first, last) = self.limits(base, dims);
        let factor = f64::from(self.factor);
        for (i, freq) in inv_freq.iter_mut().enumerate() {
            let plain = f64::from(*freq);
            let slowed = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
            *freq = (plain / factor * slowed + plain * (1.0 - slowed)) as f32;
        }
    }

    /// The factor on cosines and sines that goes with it, `0.1 · ln(factor) + 1`, at least 1.
    #[must_use]
    pub fn attention_factor(&self) -> f32 {
        if self.factor <= 1.0 {
            return 1.0;
        }
        (0.1 * libm::log(f64::from(self.factor)) + 1.0) as f32
    }

    /// The pairs (as fractions of pairs) that turn `beta_fast` and `beta_slow` times over the original
    /// context.
    fn limits(&self, base: f32, dims: usize) -> (f64, f64) {
        let pair_of = |turns: f32| {
            let ratio = f64::from(self.original_context) / (f64::from(turns) * TAU);
            dims as f64 * libm::log(ratio) / (2.0 * libm::log(f64::from(base)))
        };
        let (mut first, mut last) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (first, last) = (libm::floor(first), libm::ceil(last));
        }
        if first < 0.0 {
            first = 0.0;
        }
        if last > dims as f64 - 1.0 {
            last = dims as f64 - 1.0;
        }
        // Equal limits make a step, which this keeps from dividing by zero.
        if last == first {
            (first, last + 0.001)
        } else {
            (first, last)
        }
    }
}

/// Turns the first `2 · cos.len()` elements of a head; the rest stays as it is.
///
/// For a pair (a, b): `a' = fma(a, cos, −(b · sin))` and `b' = fma(b, cos, a · sin)`, the product inside
/// rounded first.
///
/// # Panics
/// When `cos` and `sin` differ in length, or the head has fewer elements than turn.
pub fn apply(isa: Isa, style: RopeStyle, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let head_dim = head.len();
    apply_heads(isa, style, head, head_dim, cos, sin);
}

/// [`apply`] to each stretch of `head_dim` elements: all heads of one position.
///
/// # Panics
/// As [`apply`], and when `heads` is not a whole number of heads.
pub fn apply_heads(
    isa: Isa,
    style: RopeStyle,
    heads: &mut [f32],
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
) {
    assert_eq!(cos.len(), sin.len(), "cosines and sines differ in number");
    assert!(
        2 * cos.len() <= head_dim,
        "{} pairs in a head of {head_dim}",
        cos.len()
    );
    assert!(
        heads.is_empty() || heads.len().is_multiple_of(head_dim),
        "{} elements are no whole number of heads of {head_dim}",
        heads.len()
    );
    let turn = Turn {
        heads,
        head_dim,
        cos,
        sin,
    };
    match style {
        RopeStyle::Normal => dispatch(isa, TurnNeighbours(turn)),
        RopeStyle::Neox => dispatch(isa, TurnHalves(turn)),
    }
}

struct Turn<'a> {
    heads: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

/// The pair (a, b) turned.
#[inline(always)]
fn turn<V: Lanes>(a: V, b: V, cos: V, sin: V) -> (V, V) {
    (a.fma(cos, b.mul(sin).neg()), b.fma(cos, a.mul(sin)))
}

struct TurnHalves<'a>(Turn<'a>);

impl LaneKernel for TurnHalves<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Turn {
            heads,
            head_dim,
            cos,
            sin,
        } = self.0;
        let pairs = cos.len();
        for head in heads.chunks_exact_mut(head_dim.max(1)) {
            let (first, second) = head[..2 * pairs].split_at_mut(pairs);
            let parts = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
            let angles = cos.chunks(LANES).zip(sin.chunks(LANES));
            for ((a, b), (cos, sin)) in parts.zip(angles) {
                let (x, y) = turn(load::<V>(a), load(b), load(cos), load(sin));
                store(x, a);
                store(y, b);
            }
        }
    }
}

struct TurnNeighbours<'a>(Turn<'a>);

impl LaneKernel for TurnNeighbours<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Turn {
            heads,
            head_dim,
            cos,
            sin,
        } = self.0;
        for head in heads.chunks_exact_mut(head_dim.max(1)) {
            let parts = head[..2 * cos.len()].chunks_mut(2 * LANES);
            let angles = cos.chunks(LANES).zip(sin.chunks(LANES));
            for (pairs, (cos, sin)) in parts.zip(angles) {
                let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
                for (i, pair) in pairs.chunks_exact(2).enumerate() {
                    (a[i], b[i]) = (pair[0], pair[1]);
                }
                let (x, y) = turn(V::load(&a), V::load(&b), load(cos), load(sin));
                x.store(&mut a);
                y.store(&mut b);
                for (i, pair) in pairs.chunks_exact_mut(2).enumerate() {
                    (pair[0], pair[1]) = (a[i], b[i]);
                }
            }
        }
    }
}

#[inline(always)]
fn load<V: Lanes>(x: &[f32]) -> V {
    match x.try_into() {
        Ok(whole) => V::load(whole),
        Err(_) => V::load_part(x, 0.0),
    }
}

#[inline(always)]
fn store<V: Lanes>(v: V, x: &mut [f32]) {
    match <&mut [f32; LANES]>::try_from(&mut *x) {
        Ok(whole) => v.store(whole),
        Err(_) => v.store_part(x),
    }
}

#[cfg(test)]
mod tests;
