//! Loading: what is packed is what the file holds, and errors name the tensor.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use kernels::{formats::Format, pool::Pool};
use weights::{
    gguf::{Gguf, TensorType, writer::Writer},
    load::{LoadOptions, LoadProgress, Loader, load_matrix, load_vector},
};

const ROWS: usize = 37;
const COLS: usize = 512;

/// Bytes that are valid blocks of any format: every f16 scale has a small exponent, so is finite.
fn block_bytes(format: Format, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The high nibble is kept below 0x3c: neither an f16 nor an f32 nor a bf16 made of such bytes
        // has all exponent bits set.
        (state >> 33) as u8 & 0x3b
    };
    let bytes = count / format.block_len() * format.block_bytes();
    (0..bytes).map(|_| next()).collect()
}

fn file_of_all_formats() -> (Gguf, Vec<(String, Format, Vec<u8>)>) {
    let mut writer = Writer::new();
    let tensors: Vec<(String, Format, Vec<u8>)> = (0_u64..)
        .zip(Format::ALL)
        .map(|(i, f)| {
            (
                format!("blk.{i}.{}", f.name()),
                f,
                block_bytes(f, ROWS * COLS, i),
            )
        })
        .collect();
    for (name, format, _) in &tensors {
        writer.declare(name, &[COLS, ROWS], *format);
    }
    let data: Vec<&[u8]> = tensors.iter().map(|t| t.2.as_slice()).collect();
    let bytes = writer.write(Vec::new(), &data).unwrap();
    (
        Gguf::from_bytes("all-formats.gguf", bytes).unwrap(),
        tensors,
    )
}

#[test]
fn packed_rows_are_the_dequantised_rows_of_the_file() {
    let (gguf, tensors) = file_of_all_formats();
    let pool = Pool::new(2);
    for dequantize in [false, true] {
        let seen = Mutex::new(Vec::new());
        let progress = |p: LoadProgress| seen.lock().unwrap().push(p);
        let options = LoadOptions {
            dequantize,
            progress: Some(&progress),
        };
        let loader = Loader::new(&gguf, &pool, options);
        for (name, format, bytes) in &tensors {
            let packed = loader.matrix(name, [ROWS, COLS]).unwrap();
            let mut expected = vec![0.0; ROWS * COLS];
            format.dequantize(bytes, &mut expected);
            let mut row = vec![0.0; COLS];
            for (r, expected) in expected.chunks_exact(COLS).enumerate() {
                packed.row(r, &mut row);
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&row), bits(expected), "{name} row {r}");
            }
            assert_eq!(
                packed.format(),
                if dequantize { Format::F32 } else { *format }
            );
        }
        let seen = seen.into_inner().unwrap();
        let total = gguf.facts().tensor_bytes;
        assert_eq!(seen.iter().map(|p| p.done).max(), Some(total));
        assert!(seen.iter().all(|p| p.total == total && p.done <= total));
    }
}

#[test]
fn vectors_of_every_float_format_widen_exactly() {
    let values = [0.0_f32, -1.5, 0.25, 96.0];
    let f16: Vec<u8> = values
        .iter()
        .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
        .collect();
    let bf16: Vec<u8> = values
        .iter()
        .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
        .collect();
    let f32: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut writer = Writer::new();
    writer.declare("f32", &[4], Format::F32);
    writer.declare("f16", &[4], Format::F16);
    // A leading dimension of 1 doesn't count.
    writer.declare("bf16", &[4, 1], Format::BF16);
    let gguf = writer.write(Vec::new(), &[&f32, &f16, &bf16]).unwrap();
    let gguf = Gguf::from_bytes("vectors.gguf", gguf).unwrap();
    for name in ["f32", "f16", "bf16"] {
        assert_eq!(load_vector(&gguf, name, 4).unwrap(), values, "{name}");
    }
}

#[test]
fn errors_name_the_file_the_tensor_and_both_shapes() {
    let mut writer = Writer::new();
    writer.declare("m", &[32, 4], Format::F32);
    writer.declare("nan", &[2], Format::F32);
    writer.declare("inf", &[32, 1], Format::Q8_0);
    writer.declare("q2", &[256, 2], TensorType::from_number(10));
    let nan: Vec<u8> = [1.0_f32, f32::NAN]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let mut inf = vec![0; 34];
    inf[1] = 0x7c;
    let bytes = writer
        .write(Vec::new(), &[&[0; 512], &nan, &inf, &[0; 168]])
        .unwrap();
    let gguf = Gguf::from_bytes("dir/some.gguf", bytes).unwrap();
    let pool = Pool::new(1);
    let matrix = |name, shape| {
        load_matrix(&gguf, name, shape, &pool)
            .unwrap_err()
            .to_string()
    };
    let vector = |name, len| load_vector(&gguf, name, len).unwrap_err().to_string();
    for (error, needles) in [
        (matrix("m", [32, 4]), ["tensor `m`", "[4, 32]", "[32, 4]"]),
        (
            matrix("absent", [1, 1]),
            ["tensor `absent`", "missing", "4 tensors"],
        ),
        (
            matrix("q2", [2, 256]),
            ["Q2_K", "not supported", "F32, F16, Q4_0"],
        ),
        (
            matrix("inf", [1, 32]),
            ["tensor `inf`", "Q8_0", "not finite"],
        ),
        (vector("nan", 2), ["tensor `nan`", "value 1", "NaN"]),
        (vector("nan", 3), ["tensor `nan`", "[2]", "[3]"]),
        (vector("inf", 32), ["tensor `inf`", "Q8_0", "BF16"]),
    ] {
        assert!(error.starts_with("dir/some.gguf: "), "{error}");
        for needle in needles {
            assert!(error.contains(needle), "{error} should contain {needle}");
        }
    }
}
