//! Products of many rows, where some instruction sets have a kernel of their own: every twin gives the
//! reference's bits.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code)]
mod matmul_naive;

use kernels::formats::Format;
use kernels::isa::Isa;
use kernels::matmul::{Input, Product, QuantizedRows, TILES_FROM, matmul};
use kernels::packed::PackedMatrix;
use kernels::pool::Pool;
use matmul_naive::{Random, Scales, bits, random_weights, row_bytes, set_scales};

/// Weight rows: a whole group, and one row of the next.
const ROWS: usize = 17;

fn quantised_formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|f| !f.is_float())
}

fn product(isa: Isa, pool: &Pool, weight: &PackedMatrix, x: &[f32], tokens: usize) -> Vec<u32> {
    let mut quantized = QuantizedRows::with_capacity(tokens, weight.cols()).unwrap();
    quantized.quantize(isa, pool, x, tokens, weight.cols());
    let mut out = vec![f32::NAN; tokens * weight.rows()];
    let products = &mut [Product {
        weight,
        out: &mut out,
    }];
    matmul(isa, pool, Input::Quantized(&quantized), products);
    bits(&out)
}

#[track_caller]
fn check(what: &str, pool: &Pool, weight: &PackedMatrix, x: &[f32]) {
    let tokens = x.len() / weight.cols();
    let expected = product(Isa::Scalar, pool, weight, x, tokens);
    for isa in Isa::supported() {
        assert_eq!(
            product(isa, pool, weight, x, tokens),
            expected,
            "{what}: {isa}, {} {ROWS}×{}, {tokens} tokens",
            weight.format().name(),
            weight.cols()
        );
    }
}

#[test]
fn every_number_of_blocks_and_of_tokens() {
    let mut random = Random(11);
    let pool = Pool::new(1);
    for format in quantised_formats() {
        for blocks in 1..=17_usize {
            let cols = blocks * 32;
            if !cols.is_multiple_of(format.block_len()) {
                continue;
            }
            let src = random_weights(format, ROWS, cols, &mut random, Scales::Usual);
            let weight = PackedMatrix::pack(format, ROWS, cols, &src, &pool, &|_| {}).unwrap();
            for tokens in (TILES_FROM - 1..=TILES_FROM + 17).chain([2 * TILES_FROM]) {
                let x = random.vector(tokens * cols, 2.0);
                check("random", &pool, &weight, &x);
            }
        }
    }
}

#[test]
fn the_largest_integers() {
    let mut random = Random(12);
    let pool = Pool::new(2);
    let (cols, tokens) = (512, TILES_FROM + 5);
    for format in quantised_formats() {
        for scales in [Scales::Usual, Scales::Tiny, Scales::Huge] {
            for fill in [0x00, 0xff, 0x80, 0x7f] {
                let mut src = vec![fill; ROWS * row_bytes(format, cols)];
                set_scales(format, &mut src, &mut random, scales);
                let weight = PackedMatrix::pack(format, ROWS, cols, &src, &pool, &|_| {}).unwrap();
                for value in [0.0, 1.5, -1.5, 1e-40, 7.9e-31, 1e20] {
                    let x = vec![value; tokens * cols];
                    check("all the same", &pool, &weight, &x);
                }
                let x = random.vector(tokens * cols, 1.0);
                check("random", &pool, &weight, &x);
            }
        }
    }
}

/// More groups than are multiplied at a time, and an odd number of them, of which no two threads get as many.
#[test]
fn many_groups_on_several_threads() {
    let mut random = Random(13);
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    let (rows, cols) = (70, 512);
    for format in quantised_formats() {
        let src = random_weights(format, rows, cols, &mut random, Scales::Usual);
        let weight = PackedMatrix::pack(format, rows, cols, &src, &pools[0], &|_| {}).unwrap();
        for tokens in [TILES_FROM - 1, TILES_FROM + 2, 3 * TILES_FROM] {
            let x = random.vector(tokens * cols, 2.0);
            for pool in &pools {
                check("groups", pool, &weight, &x);
            }
        }
    }
}
