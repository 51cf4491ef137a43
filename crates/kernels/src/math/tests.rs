use super::*;
use crate::lanes::twins::{Random, bits, for_each_shape, same_on_all};

/// The error of `result` in units of the last place of `exact`, which is taken as normal.
fn ulps(result: f32, exact: f64) -> f64 {
    let exponent = (libm::fabs(exact) as f32).to_bits() >> 23;
    let ulp = f64::from(f32::from_bits(exponent.max(1) << 23)) * 2_f64.powi(-23);
    (f64::from(result) - exact).abs() / ulp
}

/// The worst error of `F` over every `stride`-th float in `range`, and where it is.
fn worst<F: Unary>(function: F, exact: fn(f64) -> f64, range: [f32; 2], stride: u32) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    let mut pending = Vec::new();
    let mut flush = |pending: &mut Vec<f32>| {
        let mut results = pending.clone();
        map(Isa::best(), function, &mut results);
        for (&x, &result) in pending.iter().zip(&results) {
            let error = ulps(result, exact(f64::from(x)));
            if error > worst.0 || error.is_nan() {
                worst = (error, x);
            }
        }
        pending.clear();
    };
    for magnitude in (0..f32::INFINITY.to_bits()).step_by(stride as usize) {
        for x in [f32::from_bits(magnitude), -f32::from_bits(magnitude)] {
            if range[0] <= x && x <= range[1] {
                pending.push(x);
            }
        }
        if pending.len() > 4096 {
            flush(&mut pending);
        }
    }
    flush(&mut pending);
    worst
}

fn logistic_exact(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

fn gelu_exact(x: f64) -> f64 {
    let u = libm::sqrt(2.0 / std::f64::consts::PI) * (x + 0.044715 * x * x * x);
    x * logistic_exact(2.0 * u)
}

/// The bounds that the module's documentation states.
fn check_bounds(stride: u32) -> Vec<(&'static str, (f64, f32), f64)> {
    let all = [-f32::MAX, f32::MAX];
    // Where the exact result is a normal number, or the function's own.
    let exponential = [EXP_CUT, 88.722];
    let logistic = [EXP_CUT, f32::MAX];
    vec![
        ("exp", worst(Exp, libm::exp, exponential, stride), 1.0),
        (
            "exp_softmax",
            worst(ExpSoftmax, libm::exp, [SOFTMAX_CUT, 88.722], stride),
            1.0,
        ),
        (
            "sigmoid",
            worst(Sigmoid, logistic_exact, logistic, stride),
            2.5,
        ),
        ("tanh", worst(Tanh, libm::tanh, all, stride), 3.0),
        (
            "silu",
            worst(Silu, |x| x * logistic_exact(x), logistic, stride),
            4.0,
        ),
        (
            "gelu_tanh",
            worst(GeluTanh, gelu_exact, [-1.0, 1e12], stride),
            4.0,
        ),
    ]
}

#[test]
fn errors_stay_within_their_bounds() {
    for (name, (error, at), bound) in check_bounds(997) {
        assert!(error <= bound, "{name}({at:e}) is off by {error} ulp");
    }
}

/// All of the more than four thousand million floats.
#[test]
#[ignore = "takes minutes"]
#[allow(clippy::print_stdout)]
fn errors_stay_within_their_bounds_everywhere() {
    for (name, (error, at), bound) in check_bounds(1) {
        println!("{name}: at most {error} ulp, at {at:e}");
        assert!(error <= bound, "{name}({at:e}) is off by {error} ulp");
    }
}

#[test]
fn a_wrong_coefficient_would_be_noticed() {
    #[derive(Clone, Copy)]
    struct Off;
    impl Unary for Off {
        #[inline(always)]
        fn apply<V: Lanes>(self, x: V) -> V {
            exp(x.mul(V::splat(1.0 + f32::EPSILON)))
        }
    }
    assert!(worst(Off, libm::exp, [EXP_CUT, 88.722], 997).0 > 1.0);
}

#[test]
fn gelu_is_close_below_minus_one() {
    let mut x: Vec<f32> = (0..200_000).map(|i| -1.0 - i as f32 * 1e-4).collect();
    let inputs = x.clone();
    gelu_tanh_in_place(Isa::best(), &mut x);
    for (&x, &y) in inputs.iter().zip(&x) {
        let error = f64::from(y) - gelu_exact(f64::from(x));
        assert!(
            error.abs() < 3.0 * 2_f64.powi(-26),
            "gelu_tanh({x}) is off by {error:e}"
        );
    }
}

fn one(function: fn(Isa, &mut [f32]), x: f32) -> f32 {
    let mut row = [x];
    function(Isa::best(), &mut row);
    row[0]
}

#[test]
fn the_exponential_has_its_exact_values() {
    for function in [exp_in_place, exp_softmax_in_place] {
        assert_eq!(one(function, 0.0).to_bits(), 1_f32.to_bits());
        assert_eq!(one(function, -0.0).to_bits(), 1_f32.to_bits());
        for x in [
            f32::NEG_INFINITY,
            f32::MIN,
            -1e30,
            -104.0,
            EXP_CUT.next_down(),
        ] {
            assert_eq!(one(function, x).to_bits(), 0, "exp({x:e})");
        }
        assert_eq!(one(function, f32::INFINITY), f32::INFINITY);
        assert_eq!(one(function, f32::MAX), f32::INFINITY);
        assert_eq!(one(function, 88.722_85), f32::INFINITY);
        assert!(one(function, 88.722_83).is_finite());
        assert!(one(function, f32::NAN).is_nan());
    }
    assert!(one(exp_in_place, EXP_CUT) >= f32::MIN_POSITIVE);
    assert_eq!(
        one(exp_softmax_in_place, SOFTMAX_CUT.next_down()).to_bits(),
        0
    );
    let at_cut = one(exp_softmax_in_place, SOFTMAX_CUT);
    assert!(at_cut > 1.8e-35 && at_cut == one(exp_in_place, SOFTMAX_CUT));
}

#[test]
fn exp_never_falls_by_more_than_an_ulp() {
    // Around every change of n, where two polynomials meet, and in between.
    let mut falls = 0;
    for n in -124..=127 {
        let edge = (f64::from(n) + 0.5) * std::f64::consts::LN_2;
        let mut x = vec![edge as f32];
        for _ in 0..500 {
            x.insert(0, x[0].next_down());
            x.push(x[x.len() - 1].next_up());
        }
        exp_in_place(Isa::best(), &mut x);
        for pair in x.windows(2) {
            falls += usize::from(pair[1] < pair[0]);
            assert!(
                pair[1].to_bits() + 1 >= pair[0].to_bits(),
                "{:e} {:e}",
                pair[0],
                pair[1]
            );
        }
    }
    assert!(
        falls < 300,
        "exp falls {falls} times around the changes of n"
    );
}

#[test]
fn limits_of_the_activations() {
    for (x, y) in [
        (0.0, 0.5),
        (-0.0, 0.5),
        (100.0, 1.0),
        (f32::MAX, 1.0),
        (-1e5, 0.0),
        (f32::MIN, 0.0),
    ] {
        assert_eq!(one(sigmoid_in_place, x), y, "sigmoid({x:e})");
    }
    for x in [0.0, -0.0, 1e-45, -1e-45, 1e-38, -3e-20, 1e-5] {
        assert_eq!(one(tanh_in_place, x).to_bits(), x.to_bits(), "tanh({x:e})");
    }
    for x in [9.1, 20.0, 1e10, f32::MAX] {
        assert_eq!(
            (one(tanh_in_place, x), one(tanh_in_place, -x)),
            (1.0, -1.0),
            "tanh({x:e})"
        );
    }
    for function in [silu_in_place, gelu_tanh_in_place] {
        for x in [0.0, 50.0, 1e12, f32::MAX] {
            assert_eq!(one(function, x), x);
        }
        for x in [-0.0, -1e3, -1e12, f32::MIN] {
            assert_eq!(one(function, x), 0.0, "of {x:e}");
        }
    }
    for function in [
        sigmoid_in_place,
        tanh_in_place,
        silu_in_place,
        gelu_tanh_in_place,
    ] {
        assert!(one(function, f32::NAN).is_nan());
    }
}

#[test]
fn odd_and_even_parts() {
    let mut random = Random(41);
    for _ in 0..10_000 {
        let x = random.unit() * 12.0;
        assert_eq!(
            one(tanh_in_place, -x).to_bits(),
            (-one(tanh_in_place, x)).to_bits()
        );
    }
}

fn twins<F: Unary>(function: F, name: &str) {
    for_each_shape(|random, kind, len| {
        let x = random.row(kind, len);
        let result = same_on_all(name, |twin| {
            let mut x = x.clone();
            twin.run(Map {
                function,
                x: &mut x,
            });
            x
        });
        let mut by_one = x.clone();
        by_one
            .iter_mut()
            .for_each(|v| map(Isa::best(), function, std::slice::from_mut(v)));
        assert_eq!(
            bits(&result),
            bits(&by_one),
            "{name}: an element's place changes its value"
        );
    });
    // The range in which all of them do something.
    let mut random = Random(43);
    let x: Vec<f32> = (0..100_000).map(|_| random.unit() * 100.0).collect();
    same_on_all(name, |twin| {
        let mut x = x.clone();
        twin.run(Map {
            function,
            x: &mut x,
        });
        x
    });
}

#[test]
fn all_functions_are_the_same_on_all_twins() {
    twins(Exp, "exp");
    twins(ExpSoftmax, "exp_softmax");
    twins(Sigmoid, "sigmoid");
    twins(Tanh, "tanh");
    twins(Silu, "silu");
    twins(GeluTanh, "gelu_tanh");
}
