//! `bench --kernels`: the matrix product of each block format with each instruction set, side by side, so
//! that a twin that is no faster than the scalar reference can't go unseen.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kernels::bounds::seconds_per_pass;
use kernels::formats::Format;
use kernels::isa::Isa;
use kernels::matmul::{Input, Product, QuantizedRows, matmul};
use kernels::packed::{InputKind, PackedMatrix};
use kernels::pool::Pool;
use serde::Serialize;

use crate::cli::BenchArgs;
use crate::{progress, report, session};

/// A sample lasts at least so long, over as many products as that takes.
const SAMPLE: Duration = Duration::from_millis(20);

#[derive(Serialize)]
struct Row {
    work: &'static str,
    format: &'static str,
    isa: &'static str,
    tokens: usize,
    rows: usize,
    cols: usize,
    threads: usize,
    /// Bytes of packed weights read a second, once per product.
    samples_gigabytes_per_second: Vec<f64>,
    /// The median of the samples.
    gigabytes_per_second: f64,
    giga_multiply_adds_per_second: f64,
}

/// Measures the formats, instruction sets and numbers of tokens asked for and prints each row as it is done.
///
/// # Errors
/// When `PLAINCHANT_ISA` is wrong, or there is no memory for a matrix.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let isas = chosen(&args.kernel_isas, &session::isas()?);
    let formats = chosen(&args.kernel_formats, &Format::ALL);
    let thread_counts = args.thread_counts();
    let rows = thread_counts.len() * formats.len() * isas.len() * args.kernel_tokens.len();
    let bar = progress::steps("", rows);
    if !args.json {
        report::print("format  isa     tokens  threads       GB/s  G multiply-adds/s\n")?;
    }
    for threads in thread_counts {
        let pool = session::pool(threads)?;
        for &format in &formats {
            let matrix = matrix(format, args.kernel_size, &pool)?;
            for &isa in &isas {
                for tokens in args.kernel_tokens.iter().map(|&n| n as usize) {
                    let tokens_shown = report::counted(tokens, "token");
                    bar.set_message(format!("{} {isa}, {tokens_shown}", format.name()));
                    let row = measure(args, &matrix, isa, tokens, &pool)?;
                    bar.suspend(|| print_row(args, &row))?;
                    bar.inc(1);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// What was asked for, or all there are.
fn chosen<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    match asked.is_empty() {
        true => all.to_vec(),
        false => asked.to_vec(),
    }
}

/// A matrix of weights that are all finite and none of them denormal. (The time of a product doesn't depend on such.)
fn matrix(format: Format, (rows, cols): (usize, usize), pool: &Pool) -> Result<PackedMatrix> {
    let advice =
        || format!("--kernel-size is {rows}x{cols}: there is no memory for it; make it smaller");
    let count = rows * (cols / format.block_len()) * format.block_bytes();
    let mut bytes = room::<u8>(count).with_context(advice)?;
    // No byte above 0x3f or below 0x10, so that no exponent of a float, wherever it lies, is that of an infinity
    // or of a denormal, which would take a CPU a hundred times as long.
    bytes.extend((0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 0x3f | 0x10) as u8));
    PackedMatrix::pack(format, rows, cols, &bytes, pool, &|_| ()).with_context(advice)
}

/// An empty list with room for `count` values.
///
/// # Errors
/// When there is no memory for it.
fn room<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    let reserved = list.try_reserve_exact(count);
    reserved.map_err(|_| anyhow!("cannot allocate {bytes} bytes"))?;
    Ok(list)
}

fn measure(
    args: &BenchArgs,
    matrix: &PackedMatrix,
    isa: Isa,
    tokens: usize,
    pool: &Pool,
) -> Result<Row> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let advice = || {
        format!(
            "there is no memory for {} with a matrix of {rows}x{cols}; make --kernel-tokens or --kernel-size smaller",
            report::counted(tokens, "token")
        )
    };
    let mut activations = room::<f32>(tokens * cols).with_context(advice)?;
    activations.extend((0..tokens * cols).map(|i| (i % 61) as f32 / 61.0 - 0.5));
    let mut quantized = QuantizedRows::with_capacity(tokens, cols).with_context(advice)?;
    quantized.quantize(isa, pool, &activations, tokens, cols);
    let mut out = room::<f32>(tokens * rows).with_context(advice)?;
    out.resize(tokens * rows, 0.0);
    let mut product = || {
        let input = match matrix.input_kind() {
            InputKind::Quantized => Input::Quantized(&quantized),
            InputKind::Float => Input::Float {
                x: &activations,
                rows: tokens,
            },
        };
        matmul(
            isa,
            pool,
            input,
            &mut [Product {
                weight: matrix,
                out: &mut out,
            }],
        );
        black_box(&out);
    };
    product();
    let seconds: Vec<f64> = (0..args.repeat)
        .map(|_| seconds_per_pass(SAMPLE, &mut product))
        .collect();
    let giga = |amount: usize, seconds: f64| report::thousandths(amount as f64 / seconds / 1e9);
    let typical = report::median(&seconds);
    Ok(Row {
        work: "kernel",
        format: matrix.format().name(),
        isa: isa.name(),
        tokens,
        rows,
        cols,
        threads: pool.threads(),
        samples_gigabytes_per_second: seconds.iter().map(|&s| giga(matrix.bytes(), s)).collect(),
        gigabytes_per_second: giga(matrix.bytes(), typical),
        giga_multiply_adds_per_second: giga(rows * cols * tokens, typical),
    })
}

fn print_row(args: &BenchArgs, row: &Row) -> Result<()> {
    if args.json {
        return report::print_json(row, true);
    }
    let Row {
        format,
        isa,
        tokens,
        threads,
        ..
    } = row;
    let (bandwidth, rate) = (row.gigabytes_per_second, row.giga_multiply_adds_per_second);
    report::print(&format!(
        "{format:<7} {isa:<7} {tokens:>6} {threads:>8} {bandwidth:>10.3} {rate:>18.3}\n"
    ))
}
