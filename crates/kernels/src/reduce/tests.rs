use super::*;
use crate::lanes::twins::{Random, bits, for_each_shape, same_on_all};

/// The sum's order spelled out: sixteen lanes, then the tree.
fn sum_of_squares_naive(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (i, v) in x.iter().enumerate() {
        lanes[i % 16] = v.mul_add(*v, lanes[i % 16]);
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[test]
fn sum_of_squares_follows_its_order_on_all_twins() {
    for_each_shape(|random, kind, len| {
        let x = random.row(kind, len);
        let sum = same_on_all("sum of squares", |twin| {
            vec![twin.run(SumOfSquares { x: &x })]
        });
        assert_eq!(
            sum[0].to_bits(),
            sum_of_squares_naive(&x).to_bits(),
            "{len} elements"
        );
        if kind == 0 {
            let exact: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            assert!(
                (f64::from(sum[0]) - exact).abs() <= exact * 1e-6,
                "{} {exact}",
                sum[0]
            );
        }
    });
}

#[test]
fn another_order_of_the_sum_would_be_noticed() {
    let mut random = Random(3);
    let differ = (0..100).filter(|_| {
        let x = random.row(0, 1000);
        let one_by_one = x.iter().fold(0.0_f32, |sum, v| v.mul_add(*v, sum));
        sum_of_squares(Isa::Scalar, &x).to_bits() != one_by_one.to_bits()
    });
    assert!(differ.count() > 50);
}

#[test]
fn argmax_names_the_lowest_of_the_largest() {
    for_each_shape(|random, kind, len| {
        // Few different values, so that there are ties.
        let x: Vec<f32> = random
            .row(kind, len)
            .iter()
            .map(|v| v.clamp(-1.0, 1.0))
            .collect();
        let largest = x.iter().copied().reduce(|a, b| if b > a { b } else { a });
        let expected = largest.and_then(|largest| x.iter().position(|&v| v == largest));
        for isa in Isa::supported() {
            match expected {
                Some(index) => assert_eq!(argmax(isa, &x), Ok(index)),
                None => assert_eq!(argmax(isa, &x), Err(ArgmaxError::Empty)),
            }
        }
    });
}

#[test]
fn argmax_is_found_in_any_block() {
    for len in [1023, 1024, 1025, 4096, 5000] {
        for index in [0, 1, 15, 16, 1023, 1024, 1040, 4095, len - 1] {
            if index >= len {
                continue;
            }
            let mut x = vec![-3.5; len];
            x[index] = -3.25;
            if index + 7 < len {
                x[index + 7] = -3.25;
            }
            for isa in Isa::supported() {
                assert_eq!(argmax(isa, &x), Ok(index), "{len} elements on {isa}");
            }
        }
    }
}

#[test]
fn both_zeros_tie() {
    for isa in Isa::supported() {
        assert_eq!(argmax(isa, &[-1.0, -0.0, 0.0]), Ok(1));
        assert_eq!(argmax(isa, &[-1.0, 0.0, -0.0]), Ok(1));
    }
}

#[test]
fn what_is_not_finite_is_reported_where_it_is_first() {
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
        for len in [1, 2, 16, 17, 100, 1024, 1025, 3000] {
            for index in [0, 1, 15, 16, 99, 1023, 1024, 2999] {
                if index >= len {
                    continue;
                }
                let mut x = vec![f32::MAX; len];
                x[index] = value;
                x[len - 1] = value;
                for isa in Isa::supported() {
                    assert_eq!(first_non_finite(isa, &x), Some(index));
                    let error = argmax(isa, &x).expect_err("not finite");
                    let ArgmaxError::NonFinite {
                        index: found,
                        value: reported,
                    } = error
                    else {
                        panic!("{error}");
                    };
                    assert_eq!((found, reported.to_bits()), (index, value.to_bits()));
                }
            }
        }
    }
    let error = argmax(Isa::Scalar, &[0.0, f32::NAN]).expect_err("not finite");
    assert_eq!(error.to_string(), "element 1 is NaN; all must be finite");
}

#[test]
fn finite_rows_pass() {
    for_each_shape(|random, kind, len| {
        let x = random.row(kind, len);
        for isa in Isa::supported() {
            assert_eq!(first_non_finite(isa, &x), None, "{x:?}");
        }
    });
}

#[test]
fn max_is_the_largest() {
    for_each_shape(|random, kind, len| {
        let x = random.row(kind, len);
        let largest = same_on_all("max", |twin| vec![twin.run(Max { x: &x })])[0];
        let expected = x
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        assert!(largest == expected, "{largest} {expected}");
    });
}

#[test]
fn element_wise_steps_round_once() {
    for_each_shape(|random, kind, len| {
        let (x, y, factor) = (
            random.row(kind, len),
            random.row(kind + 1, len),
            random.finite(),
        );
        type Step<'a> = &'a dyn Fn(f32, f32) -> f32;
        let check = |what: &str, run: &dyn Fn(Isa, &mut [f32]), step: Step<'_>| {
            let expected: Vec<f32> = x.iter().zip(&y).map(|(&x, &y)| step(x, y)).collect();
            for isa in Isa::supported() {
                let mut result = x.clone();
                run(isa, &mut result);
                assert_eq!(
                    bits(&result),
                    bits(&expected),
                    "{what}, {len} elements on {isa}"
                );
            }
        };
        // Sums of two extremes may overflow, but never to a NaN.
        check("add", &|isa, x| add_assign(isa, x, &y), &|x, y| x + y);
        check("scale", &|isa, x| scale(isa, x, factor), &|x, _| x * factor);
        check(
            "add scaled",
            &|isa, x| add_scaled(isa, x, 0.75, &y),
            &|x, y| 0.75_f32.mul_add(y, x),
        );
    });
}

#[test]
fn softcap_bounds_on_all_twins() {
    for_each_shape(|random, kind, len| {
        let x = random.row(kind, len);
        for cap in [30.0, 50.0, 0.1] {
            let capped = same_on_all("softcap", |twin| {
                let mut x = x.clone();
                let function = Softcap { cap };
                twin.run(math::Map {
                    function,
                    x: &mut x,
                });
                x
            });
            for (&x, &y) in x.iter().zip(&capped) {
                let exact = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                let tolerance = exact.abs() * 4e-7 + f64::from(f32::MIN_POSITIVE);
                assert!(
                    (f64::from(y) - exact).abs() <= tolerance,
                    "{x} → {y}, not {exact}"
                );
                assert!(y.abs() <= cap);
            }
        }
    });
}

#[test]
#[should_panic(expected = "rows to add differ in length")]
fn rows_of_different_length_are_refused() {
    add_assign(Isa::Scalar, &mut [0.0; 3], &[0.0; 4]);
}
