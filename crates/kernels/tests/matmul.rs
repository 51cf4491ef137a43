//! Packed products against what the contract says, bit for bit, straight from the bytes of a file.
#![allow(clippy::unwrap_used, missing_docs)]

mod matmul_naive;

use std::ops::Range;
use std::sync::Mutex;

use kernels::formats::Format;
use kernels::isa::Isa;
use kernels::matmul::{Input, Product, QuantizedRows, TILES_FROM, matmul, matmul_soft_fma};
use kernels::packed::{InputKind, PackError, PackedMatrix};
use kernels::pool::Pool;
use matmul_naive::{Order, Random, Scales, bits, naive, random_weights, row_bytes};

fn pack(format: Format, rows: usize, cols: usize, src: &[u8], pool: &Pool) -> PackedMatrix {
    PackedMatrix::pack(format, rows, cols, src, pool, &|_| {}).unwrap()
}

/// `None` is the scalar reference without hardware FMA.
fn twins() -> Vec<Option<Isa>> {
    std::iter::once(None)
        .chain(Isa::supported().into_iter().map(Some))
        .collect()
}

fn product(
    twin: Option<Isa>,
    pool: &Pool,
    weights: &[&PackedMatrix],
    x: &[f32],
    tokens: usize,
) -> Vec<Vec<f32>> {
    let mut outs: Vec<Vec<f32>> = weights
        .iter()
        .map(|w| vec![f32::NAN; tokens * w.rows()])
        .collect();
    let mut products: Vec<Product<'_>> = weights
        .iter()
        .zip(&mut outs)
        .map(|(weight, out)| Product { weight, out })
        .collect();
    let cols = weights[0].cols();
    let mut quantized = QuantizedRows::with_capacity(tokens, cols).unwrap();
    let input = match weights[0].input_kind() {
        InputKind::Float => Input::Float { x, rows: tokens },
        InputKind::Quantized => {
            quantized.quantize(twin.unwrap_or(Isa::Scalar), pool, x, tokens, cols);
            Input::Quantized(&quantized)
        }
    };
    match twin {
        Some(isa) => matmul(isa, pool, input, &mut products),
        None => matmul_soft_fma(pool, input, &mut products),
    }
    outs
}

/// Checks every twin against the naive product.
#[track_caller]
fn check(what: &str, format: Format, rows: usize, cols: usize, src: &[u8], x: &[f32]) {
    let pool = Pool::new(1);
    let packed = pack(format, rows, cols, src, &pool);
    let tokens = x.len() / cols;
    let expected = naive(format, src, rows, cols, x, Order::Contract);
    assert!(expected.iter().all(|v| v.is_finite()), "{what}: not finite");
    for twin in twins() {
        let got = product(twin, &pool, &[&packed], x, tokens).remove(0);
        if let Some(at) = (0..got.len()).find(|&i| got[i].to_bits() != expected[i].to_bits()) {
            panic!(
                "{what}: {} {rows}×{cols}, {tokens} tokens, {twin:?}: output {} of token {} is {:e}, not {:e}",
                format.name(),
                at % rows,
                at / rows,
                got[at],
                expected[at],
            );
        }
    }
}

fn is_float(format: Format) -> bool {
    format.block_len() == 1
}

fn widths(format: Format) -> Vec<usize> {
    match format.block_len() {
        1 => vec![1, 7, 33, 64, 131],
        32 => vec![32, 96, 576],
        _ => vec![256, 1024],
    }
}

#[test]
fn every_twin_is_the_naive_product() {
    let mut random = Random(1);
    for format in Format::ALL {
        for cols in widths(format) {
            for rows in [1, 5, 16, 17, 48, 150] {
                for tokens in [1, 2, 3, 5, 33] {
                    let src = random_weights(format, rows, cols, &mut random, Scales::Usual);
                    let x = random.vector(tokens * cols, 3.0);
                    check("random", format, rows, cols, &src, &x);
                }
            }
        }
    }
}

#[test]
fn every_number_of_tokens() {
    let mut random = Random(2);
    for format in Format::ALL {
        let cols = if is_float(format) { 37 } else { 256 };
        let src = random_weights(format, 20, cols, &mut random, Scales::Usual);
        for tokens in (1..=64).chain([100]) {
            let x = random.vector(tokens * cols, 1.0);
            check("tokens", format, 20, cols, &src, &x);
        }
    }
}

#[test]
fn extremes() {
    let mut random = Random(3);
    for format in Format::ALL {
        let cols = if is_float(format) { 64 } else { 512 };
        let rows = 18;
        let inputs: Vec<(&str, Vec<f32>)> = vec![
            ("zeros", vec![0.0; 5 * cols]),
            ("negative zeros", vec![-0.0; 5 * cols]),
            ("all the same", vec![1.5; 5 * cols]),
            ("all the same, negative", vec![-1.5; 5 * cols]),
            ("denormal", vec![1e-40; 5 * cols]),
            ("just below the threshold", vec![7.8e-31; 5 * cols]),
            ("just above the threshold", vec![7.9e-31; 5 * cols]),
            ("large", vec![1e20; 5 * cols]),
            ("random", random.vector(5 * cols, 1.0)),
        ];
        for scales in [Scales::Usual, Scales::Tiny, Scales::Huge] {
            for fill in [0x00, 0xff, 0x80, 0x7f] {
                let mut src = vec![fill; rows * row_bytes(format, cols)];
                matmul_naive::set_scales(format, &mut src, &mut random, scales);
                if is_float(format) {
                    src = random_weights(format, rows, cols, &mut random, scales);
                }
                for (what, x) in &inputs {
                    check(what, format, rows, cols, &src, x);
                }
            }
        }
    }
}

#[test]
fn threads_neighbours_and_grouping_change_nothing() {
    let mut random = Random(4);
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    for format in Format::ALL {
        let cols = if is_float(format) { 301 } else { 768 };
        let shapes = [700, 33, 5];
        let tokens = match is_float(format) {
            true => 21,
            // On some instruction sets many rows have a kernel of their own.
            false => TILES_FROM + 3,
        };
        let sources: Vec<_> = shapes
            .iter()
            .map(|&rows| random_weights(format, rows, cols, &mut random, Scales::Usual))
            .collect();
        let x = random.vector(tokens * cols, 2.0);
        for isa in Isa::supported().into_iter().rev().take(2) {
            let packed: Vec<_> = shapes
                .iter()
                .zip(&sources)
                .map(|(&rows, src)| pack(format, rows, cols, src, &pools[2]))
                .collect();
            let all: Vec<&PackedMatrix> = packed.iter().collect();
            let together = product(Some(isa), &pools[0], &all, &x, tokens);
            for pool in &pools {
                let again = product(Some(isa), pool, &all, &x, tokens);
                for (a, b) in together.iter().zip(&again) {
                    assert_eq!(bits(a), bits(b), "{} threads", pool.threads());
                }
                for (weight, expected) in all.iter().zip(&together) {
                    let alone = product(Some(isa), pool, &[weight], &x, tokens).remove(0);
                    assert_eq!(bits(&alone), bits(expected), "without the other products");
                    for t in [0, 8, 20] {
                        let token = &x[t * cols..(t + 1) * cols];
                        let alone = product(Some(isa), pool, &[weight], token, 1).remove(0);
                        let rows = weight.rows();
                        let expected = &expected[t * rows..(t + 1) * rows];
                        assert_eq!(bits(&alone), bits(expected), "without the other tokens");
                    }
                }
            }
        }
    }
}

#[test]
fn few_rows_and_many_tokens_on_many_threads() {
    let mut random = Random(5);
    let pools = [Pool::new(1), Pool::new(3)];
    for format in Format::ALL {
        let (rows, cols, tokens) = (17, 1024, 100);
        let src = random_weights(format, rows, cols, &mut random, Scales::Usual);
        let x = random.vector(tokens * cols, 2.0);
        let packed = pack(format, rows, cols, &src, &pools[0]);
        let [one, three] = [&pools[0], &pools[1]]
            .map(|pool| product(Some(Isa::best()), pool, &[&packed], &x, tokens).remove(0));
        assert_eq!(bits(&one), bits(&three));
    }
}

/// The equality above has teeth: other orders of summation differ on the same data.
#[test]
fn other_orders_differ() {
    let mut random = Random(6);
    for format in Format::ALL {
        let cols = if is_float(format) { 131 } else { 1024 };
        let src = random_weights(format, 48, cols, &mut random, Scales::Usual);
        let x = random.vector(3 * cols, 3.0);
        let contract = naive(format, &src, 48, cols, &x, Order::Contract);
        for order in [Order::Descending, Order::SplitK, Order::Unfused] {
            let other = naive(format, &src, 48, cols, &x, order);
            assert_ne!(bits(&contract), bits(&other), "{} {order:?}", format.name());
        }
    }
}

/// A wrong bit layout would pass for right where packing and kernels agree on it; so: the plain dot product
/// of the dequantised row with the activations, in f64, within the error of quantising the activations.
#[test]
fn close_to_the_dequantised_product() {
    let mut random = Random(7);
    for format in Format::ALL {
        let (rows, cols, tokens) = (40, 512, 3);
        let src = random_weights(format, rows, cols, &mut random, Scales::Usual);
        let x = random.vector(tokens * cols, 1.0);
        let pool = Pool::new(1);
        let packed = pack(format, rows, cols, &src, &pool);
        let got = product(Some(Isa::best()), &pool, &[&packed], &x, tokens).remove(0);
        let mut weights = vec![0.0; rows * cols];
        format.dequantize(&src, &mut weights);
        for t in 0..tokens {
            for row in 0..rows {
                let w = &weights[row * cols..(row + 1) * cols];
                let a = &x[t * cols..(t + 1) * cols];
                let dot: f64 = w
                    .iter()
                    .zip(a)
                    .map(|(&w, &a)| f64::from(w) * f64::from(a))
                    .sum();
                let norm: f64 = w
                    .iter()
                    .map(|&w| f64::from(w) * f64::from(w))
                    .sum::<f64>()
                    .sqrt();
                // Errors of up to half a step of 1/127, mostly independent.
                let bound = if is_float(format) { 1e-5 } else { 1.5 / 127.0 } * norm;
                let error = (f64::from(got[t * rows + row]) - dot).abs();
                assert!(error <= bound, "{}: {error} > {bound}", format.name());
            }
        }
    }
}

#[test]
fn dequantised_values_are_those_of_the_formulas() {
    let mut random = Random(8);
    for format in Format::ALL {
        let src = random_weights(format, 3, 512, &mut random, Scales::Usual);
        let mut values = vec![0.0; 3 * 512];
        format.dequantize(&src, &mut values);
        let expected = matmul_naive::values(format, &src);
        assert_eq!(bits(&values), bits(&expected), "{}", format.name());
    }
}

#[test]
fn rows_come_back_bit_for_bit() {
    let mut random = Random(9);
    let pool = Pool::new(2);
    for format in Format::ALL {
        for (rows, cols) in [(1, 256), (21, 512), (64, 768)] {
            let src = random_weights(format, rows, cols, &mut random, Scales::Usual);
            let packed = pack(format, rows, cols, &src, &pool);
            assert_eq!(
                (packed.rows(), packed.cols(), packed.format()),
                (rows, cols, format)
            );
            let mut expected = vec![0.0; cols];
            let mut got = vec![f32::NAN; cols];
            for row in 0..rows {
                let bytes = row_bytes(format, cols);
                format.dequantize(&src[row * bytes..(row + 1) * bytes], &mut expected);
                packed.row(row, &mut got);
                assert_eq!(bits(&got), bits(&expected), "{} row {row}", format.name());
            }
        }
    }
}

#[test]
fn quantised_rows_can_be_reused() {
    let mut random = Random(10);
    let pool = Pool::new(2);
    let src = random_weights(Format::Q4_K, 40, 512, &mut random, Scales::Usual);
    let packed = pack(Format::Q4_K, 40, 512, &src, &pool);
    let mut rows = QuantizedRows::with_capacity(40, 512).unwrap();
    for (tokens, cols) in [(40, 512), (3, 512), (17, 256), (1, 512), (40, 512)] {
        let x = random.vector(tokens * cols, 1.0);
        rows.quantize(Isa::best(), &pool, &x, tokens, cols);
        assert_eq!((rows.rows(), rows.cols()), (tokens, cols));
        if cols == 512 {
            let mut out = vec![f32::NAN; tokens * 40];
            let mut products = [Product {
                weight: &packed,
                out: &mut out,
            }];
            matmul(Isa::best(), &pool, Input::Quantized(&rows), &mut products);
            let expected = naive(Format::Q4_K, &src, 40, 512, &x, Order::Contract);
            assert_eq!(bits(&out), bits(&expected));
        }
    }
}

#[test]
fn what_is_not_finite_is_seen() {
    let pool = Pool::new(1);
    let mut random = Random(11);
    let src = random_weights(Format::Q4_0, 16, 64, &mut random, Scales::Usual);
    let packed = pack(Format::Q4_0, 16, 64, &src, &pool);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = random.vector(3 * 64, 1.0);
        x[64 + 40] = bad;
        for twin in twins() {
            let out = product(twin, &pool, &[&packed], &x, 3).remove(0);
            let finite: Vec<bool> = out.iter().map(|v| v.is_finite()).collect();
            assert!(finite[..16].iter().all(|f| *f) && finite[32..].iter().all(|f| *f));
            assert!(finite[16..32].iter().all(|f| !*f), "{bad} with {twin:?}");
        }
    }
}

#[test]
fn resident_size_is_near_the_file_s() {
    let pool = Pool::new(1);
    let mut random = Random(12);
    for format in Format::ALL {
        let src = random_weights(format, 128, 2048, &mut random, Scales::Usual);
        let packed = pack(format, 128, 2048, &src, &pool);
        let ratio = packed.bytes() as f64 / src.len() as f64;
        assert!((1.0..1.03).contains(&ratio), "{}: {ratio}", format.name());
    }
}

#[test]
fn consumed_ranges_cover_the_source_once() {
    let mut random = Random(13);
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        let (rows, cols) = (1000, 2048);
        let src = random_weights(Format::Q8_0, rows, cols, &mut random, Scales::Usual);
        let ranges = Mutex::new(Vec::<Range<usize>>::new());
        PackedMatrix::pack(Format::Q8_0, rows, cols, &src, &pool, &|range| {
            ranges.lock().unwrap().push(range);
        })
        .unwrap();
        let mut ranges = ranges.into_inner().unwrap();
        ranges.sort_by_key(|r| r.start);
        assert!(ranges.len() > 1);
        let mut end = 0;
        for range in ranges {
            assert_eq!(range.start, end);
            end = range.end;
        }
        assert_eq!(end, src.len());
    }
}

#[test]
fn errors_name_the_place() {
    let pool = Pool::new(2);
    let mut random = Random(14);
    let error = |format, rows, cols, src: &[u8]| {
        PackedMatrix::pack(format, rows, cols, src, &pool, &|_| {}).unwrap_err()
    };
    assert!(matches!(
        error(Format::Q4_K, 1, 255, &[]),
        PackError::Columns {
            cols: 255,
            block_len: 256,
            ..
        }
    ));
    assert!(matches!(
        error(Format::Q4_0, 2, 64, &[0; 71]),
        PackError::Size {
            expected: 72,
            actual: 71,
            ..
        }
    ));
    assert!(matches!(
        error(Format::F32, usize::MAX, usize::MAX, &[0; 71]),
        PackError::Size { actual: 71, .. }
    ));
    for format in Format::ALL {
        let (rows, cols) = (50, 512);
        let mut src = random_weights(format, rows, cols, &mut random, Scales::Usual);
        for (row, block) in [(37, 1), (19, 1), (20, 0)] {
            let at = row * row_bytes(format, cols) + block * format.block_bytes();
            matmul_naive::spoil(format, &mut src[at..at + format.block_bytes()]);
        }
        let PackError::NotFinite { row, block, .. } = error(format, rows, cols, &src) else {
            panic!("{} is packed though not finite", format.name());
        };
        assert_eq!((row, block), (19, 1), "{}", format.name());
    }
}

#[test]
fn nothing_is_a_matrix_too() {
    let pool = Pool::new(2);
    for (rows, cols) in [(0, 256), (3, 0), (0, 0), (0, usize::MAX / 256 * 256)] {
        let packed = pack(Format::Q4_K, rows, cols, &[], &pool);
        if cols < 1000 {
            let x = vec![1.0; 2 * cols];
            let out = product(Some(Isa::best()), &pool, &[&packed], &x, 2).remove(0);
            assert_eq!(out, vec![0.0; 2 * rows]);
        }
    }
}
