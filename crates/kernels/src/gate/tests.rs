use super::*;
use crate::lanes::twins::{bits, for_each_shape, same_on_all};
use crate::math::{gelu_tanh_in_place, silu_in_place};

fn check<F: Unary>(
    activation: F,
    in_place: fn(Isa, &mut [f32]),
    gate_fn: fn(Isa, &mut [f32], &[f32]),
) {
    for_each_shape(|random, kind, len| {
        let (gate, up) = (random.row(kind, len), random.row(0, len));
        let result = same_on_all("gate", |twin| {
            let mut gate = gate.clone();
            twin.run(Zip {
                function: Gate(activation),
                x: &mut gate,
                y: &up,
            });
            gate
        });
        let mut expected = gate.clone();
        in_place(Isa::Scalar, &mut expected);
        expected
            .iter_mut()
            .zip(&up)
            .for_each(|(gate, up)| *gate *= up);
        assert_eq!(bits(&result), bits(&expected));
        let mut by_name = gate.clone();
        gate_fn(Isa::best(), &mut by_name, &up);
        assert_eq!(bits(&by_name), bits(&expected));
    });
}

#[test]
fn silu_gate_is_silu_then_the_product() {
    check(Silu, silu_in_place, silu_gate);
}

#[test]
fn gelu_tanh_gate_is_gelu_then_the_product() {
    check(GeluTanh, gelu_tanh_in_place, gelu_tanh_gate);
}

#[test]
fn known_values() {
    let mut gate = [0.0, 1.0, -1.0, 20.0, -200.0];
    silu_gate(Isa::best(), &mut gate, &[5.0, 2.0, 2.0, 0.5, 3.0]);
    let expected = [0.0, 1.462_117_2, -0.537_882_8, 10.0, 0.0];
    for (value, expected) in gate.iter().zip(expected) {
        assert!((value - expected).abs() < 1e-6, "{value} {expected}");
    }
}
