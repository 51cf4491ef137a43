//! The gates of gated feed-forward networks.

use crate::isa::Isa;
use crate::lanes::{LaneKernel, Lanes, dispatch};
use crate::math::{GeluTanh, Silu, Unary};
use crate::reduce::zip_in_place;

/// `gate[i] = silu(gate[i]) · up[i]` (SwiGLU).
///
/// # Panics
/// When the lengths differ.
pub fn silu_gate(isa: Isa, gate: &mut [f32], up: &[f32]) {
    gate_by::<Silu>(isa, gate, up);
}

/// `gate[i] = gelu_tanh(gate[i]) · up[i]` (GeGLU with the tanh approximation).
///
/// # Panics
/// When the lengths differ.
pub fn gelu_tanh_gate(isa: Isa, gate: &mut [f32], up: &[f32]) {
    gate_by::<GeluTanh>(isa, gate, up);
}

fn gate_by<F: Unary>(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up differ in length");
    dispatch(isa, Gate::<F>::new(gate, up));
}

struct Gate<'a, F> {
    gate: &'a mut [f32],
    up: &'a [f32],
    activation: std::marker::PhantomData<F>,
}

impl<'a, F> Gate<'a, F> {
    fn new(gate: &'a mut [f32], up: &'a [f32]) -> Self {
        Self {
            gate,
            up,
            activation: std::marker::PhantomData,
        }
    }
}

impl<F: Unary> LaneKernel for Gate<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        zip_in_place::<V>(self.gate, self.up, |gate, up| F::apply(gate).mul(up));
    }
}

#[cfg(test)]
mod tests;
