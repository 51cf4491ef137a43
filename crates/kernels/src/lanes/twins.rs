//! What the tests of all lane kernels share: the list of twins, and rows of awkward values.

use super::{LaneKernel, dispatch, dispatch_soft};
use crate::isa::Isa;

/// A way to run a kernel that must give the same bits as all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// The reference without hardware FMA.
    Soft,
    /// What `dispatch` chooses.
    Of(Isa),
}

impl Twin {
    /// All that this CPU can run, the reference first.
    pub(crate) fn all() -> Vec<Self> {
        let isas = Isa::supported().into_iter().map(Self::Of);
        std::iter::once(Self::Soft).chain(isas).collect()
    }

    pub(crate) fn run<K: LaneKernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Soft => dispatch_soft(kernel),
            Self::Of(isa) => dispatch(isa, kernel),
        }
    }
}

/// The bits of each element: equality that tells −0 from +0.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Checks that `compute` gives the same bits with every twin, and returns what it gave.
#[track_caller]
pub(crate) fn same_on_all(what: &str, compute: impl Fn(Twin) -> Vec<f32>) -> Vec<f32> {
    let reference = compute(Twin::Soft);
    for twin in Twin::all() {
        let result = compute(twin);
        assert_eq!(result.len(), reference.len(), "{what}: {twin:?}");
        let difference = (0..result.len()).find(|&i| result[i].to_bits() != reference[i].to_bits());
        if let Some(i) = difference {
            panic!(
                "{what}: element {i} is {:e} with {twin:?} and {:e} with the reference",
                result[i], reference[i]
            );
        }
    }
    reference
}

/// A small generator of test values (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.bits() as usize % bound
    }

    /// Evenly between −1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        self.bits() as f32 / 2_f32.powi(31) - 1.0
    }

    /// Any finite number, all exponents alike.
    pub(crate) fn finite(&mut self) -> f32 {
        loop {
            let x = f32::from_bits(self.bits());
            if x.is_finite() {
                return x;
            }
        }
    }

    /// A row of one of several kinds: ordinary values, all exponents, extremes, values near zero.
    pub(crate) fn row(&mut self, kind: usize, len: usize) -> Vec<f32> {
        const EXTREMES: [f32; 14] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::MIN_POSITIVE,
            -f32::MIN_POSITIVE,
            1e-45,
            -1e-45,
            f32::MAX,
            f32::MIN,
            1e30,
            -1e-30,
            65504.0,
            -88.5,
        ];
        (0..len)
            .map(|_| match kind % 4 {
                0 => self.unit() * 8.0,
                1 => self.finite(),
                2 => EXTREMES[self.below(EXTREMES.len())],
                _ => self.unit() * 1e-40,
            })
            .collect()
    }
}

/// Calls `check` with each length up to 100 and each kind of row.
pub(crate) fn for_each_shape(mut check: impl FnMut(&mut Random, usize, usize)) {
    let mut random = Random(0x5eed);
    for len in 0..=100 {
        for kind in 0..4 {
            check(&mut random, kind, len);
        }
    }
}
