//! The gates of gated feed-forward networks.

use crate::isa::Isa;
use crate::lanes::{Lanes, dispatch};
use crate::math::{Binary, GeluTanh, Silu, Unary, Zip};

/// `gate[i] = silu(gate[i]) · up[i]` (SwiGLU).
///
/// # Panics
/// When the lengths differ.
pub fn silu_gate(isa: Isa, gate: &mut [f32], up: &[f32]) {
    gate_by(isa, Silu, gate, up);
}

/// `gate[i] = gelu_tanh(gate[i]) · up[i]` (GeGLU with the tanh approximation).
///
/// # Panics
/// When the lengths differ.
pub fn gelu_tanh_gate(isa: Isa, gate: &mut [f32], up: &[f32]) {
    gate_by(isa, GeluTanh, gate, up);
}

fn gate_by<F: Unary>(isa: Isa, activation: F, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up differ in length");
    let function = Gate(activation);
    dispatch(
        isa,
        Zip {
            function,
            x: gate,
            y: up,
        },
    );
}

/// The product of the activated first and the second.
#[derive(Clone, Copy)]
struct Gate<F>(F);

impl<F: Unary> Binary for Gate<F> {
    #[inline(always)]
    fn apply<V: Lanes>(self, gate: V, up: V) -> V {
        self.0.apply(gate).mul(up)
    }
}

#[cfg(test)]
mod tests;
