//! Writes a GGUF file anew with every tensor as F32: `cargo run --example dequantize IN OUT`.
//!
//! The values are the same, so that implementations without quantised arithmetic can be compared with.

use std::{
    fs::File,
    io::{BufWriter, Write},
};

use kernels::formats::Format;
use weights::gguf::{Gguf, writer::Writer};

/// `general.file_type` for a file whose tensors are all F32.
const FILE_TYPE_F32: u32 = 0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [input, output] = args.as_slice() else {
        return Err("usage: dequantize IN OUT".into());
    };
    let gguf = Gguf::open(input)?;
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        match key {
            "general.file_type" => writer.set(key, FILE_TYPE_F32),
            "general.quantization_version" => {}
            "general.alignment" => writer.set_alignment(gguf.metadata().get_u32(key)?),
            _ => writer.set_value(key, value),
        }
    }
    for tensor in gguf.tensors() {
        writer.declare(tensor.name(), tensor.dims(), Format::F32);
    }
    let mut out = writer.begin(BufWriter::new(File::create_new(output)?))?;
    for tensor in gguf.tensors() {
        let format = gguf.tensor_format(tensor)?;
        let row_bytes = tensor.cols() / format.block_len() * format.block_bytes();
        let mut row = vec![0.0; tensor.cols()];
        for bytes in gguf.tensor_bytes(tensor).chunks_exact(row_bytes) {
            format.dequantize(bytes, &mut row);
            let row: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
            out.write(&row)?;
        }
        gguf.release(gguf.tensor_range(tensor));
    }
    out.finish()?.flush()?;
    Ok(())
}
