use super::*;
use crate::lanes::twins::{Random, bits, for_each_shape, same_on_all};

const EPS: f32 = 1e-6;

fn on_all(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    same_on_all("rms_norm", |twin| {
        let mut out = vec![f32::NAN; x.len()];
        twin.run(RmsNorm {
            x,
            weight,
            eps,
            out: &mut out,
        });
        out
    })
}

#[test]
fn rms_norm_is_the_same_on_all_twins() {
    for_each_shape(|random, kind, len| {
        // The squares must not overflow: what is not finite is outside the contract.
        let x: Vec<f32> = random
            .row(kind, len)
            .iter()
            .map(|v| v.clamp(-1e17, 1e17))
            .collect();
        let weight = random.row(0, len);
        let out = on_all(&x, &weight, EPS);
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / len as f64;
        let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
        for i in 0..len {
            let exact = f64::from(x[i]) * factor * f64::from(weight[i]);
            let tolerance = exact.abs() * 1e-6 + 1e-44;
            assert!(
                (f64::from(out[i]) - exact).abs() <= tolerance,
                "{} {exact}",
                out[i]
            );
        }
    });
}

#[test]
fn every_operation_is_rounded_once() {
    let mut random = Random(17);
    for len in 1..=100 {
        let (x, weight) = (random.row(0, len), random.row(0, len));
        let sum = crate::reduce::sum_of_squares(Isa::Scalar, &x);
        let factor = 1.0 / (sum / len as f32 + EPS).sqrt();
        let expected: Vec<f32> = x.iter().zip(&weight).map(|(x, w)| x * factor * w).collect();
        assert_eq!(bits(&on_all(&x, &weight, EPS)), bits(&expected));
    }
}

#[test]
fn in_place_normalises_each_head_like_a_row() {
    let mut random = Random(23);
    for head_dim in [1, 7, 16, 64, 80, 100] {
        let weight = random.row(0, head_dim);
        let heads = random.row(0, 5 * head_dim);
        let expected: Vec<f32> = heads
            .chunks(head_dim)
            .flat_map(|head| on_all(head, &weight, EPS))
            .collect();
        let result = same_on_all("rms_norm_in_place", |twin| {
            let mut rows = heads.clone();
            twin.run(RmsNormInPlace {
                rows: &mut rows,
                weight: &weight,
                eps: EPS,
            });
            rows
        });
        assert_eq!(bits(&result), bits(&expected));
        let mut rows = heads.clone();
        rms_norm_in_place(Isa::best(), &mut rows, &weight, EPS);
        assert_eq!(bits(&rows), bits(&expected));
    }
}

#[test]
fn a_row_of_zeros_stays_zero() {
    let mut out = [1.0; 5];
    for isa in Isa::supported() {
        rms_norm(isa, &[0.0; 5], &[2.0; 5], EPS, &mut out);
        assert_eq!(bits(&out), [0; 5]);
        rms_norm(isa, &[], &[], EPS, &mut []);
        rms_norm_in_place(isa, &mut [], &[], EPS);
    }
}

#[test]
#[should_panic(expected = "10 elements are no whole number of rows of 4")]
fn a_broken_row_is_refused() {
    rms_norm_in_place(Isa::Scalar, &mut [0.0; 10], &[1.0; 4], EPS);
}
