//! Putting together what the splits of a row gave.

use crate::lanes::{LANES, LaneKernel, Lanes};
use crate::math::exp_softmax;

/// A softmax over part of the positions: the maximum, and the sum of weights.
#[derive(Clone, Copy)]
pub(super) struct Stats {
    pub(super) m: f32,
    pub(super) l: f32,
}

/// Adds the next split, `next` with its sums of values `next_acc`, to what the earlier ones gave,
/// `stats` with `acc`; gives the new maximum and sum.
pub(super) struct Merge<'a> {
    pub(super) stats: Stats,
    pub(super) acc: &'a mut [f32],
    pub(super) next: Stats,
    pub(super) next_acc: &'a [f32],
}

impl LaneKernel for Merge<'_> {
    type Output = Stats;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Stats {
        let (old_m, next_m) = (V::splat(self.stats.m), V::splat(self.next.m));
        let m = old_m.max(next_m);
        let corr = exp_softmax(old_m.sub(m));
        let next_corr = exp_softmax(next_m.sub(m));
        let l = V::splat(self.stats.l).fma(corr, V::splat(self.next.l).mul(next_corr));
        let next = self.next_acc.as_chunks::<LANES>().0;
        for (sum, next) in self.acc.as_chunks_mut::<LANES>().0.iter_mut().zip(next) {
            V::load(sum)
                .fma(corr, V::load(next).mul(next_corr))
                .store(sum);
        }
        Stats {
            m: m.to_array()[0],
            l: l.to_array()[0],
        }
    }
}

/// `acc / l`, for as many dimensions as `out` has.
pub(super) struct Finish<'a> {
    pub(super) l: f32,
    pub(super) acc: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl LaneKernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let l = V::splat(self.l);
        let sums = self.acc.as_chunks::<LANES>().0;
        let (whole, part) = self.out.as_chunks_mut::<LANES>();
        for (sum, out) in sums.iter().zip(&mut *whole) {
            V::load(sum).div(l).store(out);
        }
        if let Some(sum) = sums.get(whole.len()) {
            V::load(sum).div(l).store_part(part);
        }
    }
}
