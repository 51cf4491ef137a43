//! How fast packed products are, for each format, instruction set and number of threads.
//!
//! `cargo run --release --example matmul_speed -- [format…] [isa…]` prints, as the best of many runs: GB/s of
//! weights for one token (the matrix is larger than the caches of most CPUs), then thousands of millions of
//! multiply-adds per second for more tokens.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use kernels::formats::Format;
use kernels::isa::Isa;
use kernels::matmul::{Input, Product, QuantizedRows, matmul};
use kernels::packed::{InputKind, PackedMatrix};
use kernels::pool::Pool;

/// For one token: more bytes than caches hold.
const ROWS: usize = 8192;
/// For more: short runs, so that other work on the machine spoils fewer of them.
const FEWER_ROWS: usize = 512;
/// For many.
const FEWEST_ROWS: usize = 256;
const COLS: usize = 4096;
const TOKENS: [usize; 7] = [1, 2, 4, 7, 8, 32, 192];
/// Runs are repeated for this long.
const BUDGET: Duration = Duration::from_millis(600);

/// Bytes that are finite numbers in every format and look random enough.
fn weights(format: Format, rows: usize) -> Vec<u8> {
    let len = rows * COLS / format.block_len() * format.block_bytes();
    let mut state = 1_u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    if format.block_len() == 1 {
        // 0x3c in the high byte: a number near one in f16, a small one in bf16 and f32.
        let size = format.block_bytes();
        return (0..len)
            .map(|i| if i % size == size - 1 { 0x3c } else { next() })
            .collect();
    }
    let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for at in [0, 2, block.len() - 2] {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
        }
    }
    bytes
}

/// Seconds of the fastest run of quantising and of the product.
fn best(isa: Isa, pool: &Pool, weight: &PackedMatrix, tokens: usize) -> [f64; 2] {
    let x: Vec<f32> = (0..tokens * COLS)
        .map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0)
        .collect();
    let mut out = vec![0.0; tokens * weight.rows()];
    let mut quantized = QuantizedRows::with_capacity(tokens, COLS).unwrap();
    let start = Instant::now();
    let mut best = [f64::MAX; 2];
    while start.elapsed() < BUDGET || best[1] == f64::MAX {
        let begin = Instant::now();
        let input = match weight.input_kind() {
            InputKind::Float => Input::Float {
                x: &x,
                rows: tokens,
            },
            InputKind::Quantized => {
                quantized.quantize(isa, pool, &x, tokens, COLS);
                Input::Quantized(&quantized)
            }
        };
        let middle = Instant::now();
        let mut products = [Product {
            weight,
            out: &mut out,
        }];
        matmul(isa, pool, input, &mut products);
        best[0] = best[0].min((middle - begin).as_secs_f64());
        best[1] = best[1].min(middle.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str, all: &[&str]| {
        let any = asked.iter().any(|a| all.contains(&a.as_str()));
        !any || asked.iter().any(|a| a == name)
    };
    let formats: Vec<&str> = Format::ALL.iter().map(|f| f.name()).collect();
    let isas: Vec<&str> = Isa::ALL.iter().map(|i| i.name()).collect();
    let pools = [Pool::new(1), Pool::new(2)];
    print!("{:7} {:7} {:>7}", "format", "isa", "threads");
    for tokens in TOKENS {
        print!(
            " {:>9}",
            format!("{tokens}{}", if tokens == 1 { " GB/s" } else { " G/s" })
        );
    }
    println!();
    for format in Format::ALL {
        if !wanted(format.name(), &formats) {
            continue;
        }
        let src = weights(format, ROWS);
        let mut packing = f64::MAX;
        let mut pack = |rows: usize| {
            let src = &src[..src.len() / ROWS * rows];
            let start = Instant::now();
            let packed = PackedMatrix::pack(format, rows, COLS, src, &pools[1], &|_| {}).unwrap();
            packing = packing.min(start.elapsed().as_secs_f64() / src.len() as f64 * 1e9);
            packed
        };
        let sizes = [ROWS, FEWER_ROWS, FEWEST_ROWS].map(&mut pack);
        pack(ROWS);
        println!("{}: packed at {:.2} GB/s", format.name(), 1.0 / packing);
        for isa in Isa::supported().into_iter().rev() {
            if !wanted(isa.name(), &isas) {
                continue;
            }
            for pool in &pools {
                print!("{:7} {:7} {:>7}", format.name(), isa.name(), pool.threads());
                let mut quantising = 0.0;
                for tokens in TOKENS {
                    let weight = &sizes[usize::from(tokens > 1) + usize::from(tokens > 8)];
                    if isa == Isa::Scalar && tokens > 8 {
                        print!(" {:>9}", "-");
                        continue;
                    }
                    let [quantised, multiplied] = best(isa, pool, weight, tokens);
                    let amount = if tokens == 1 {
                        weight.bytes()
                    } else {
                        weight.rows() * COLS * tokens
                    };
                    print!(" {:9.2}", amount as f64 / multiplied / 1e9);
                    quantising = (tokens * COLS) as f64 / quantised / 1e9;
                }
                if format.is_float() {
                    println!();
                } else {
                    println!(" {quantising:9.2}");
                }
            }
        }
    }
}
