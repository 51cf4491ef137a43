//! Writes the logits at every position of given token sequences, as little-endian f32, row after row.
//!
//! `cargo run --release -p plainchant-engine --example logits -- MODEL.gguf IDS.json OUT.f32 [dequantize] [kv=f32]`
//!
//! The JSON file holds `[[id, …], …]`; each sequence starts on an empty cache. `bench/peers/llamacpp_logits.py` writes
//! llama.cpp's in the same form, and `tools/oracle/distance.py` compares either with the reference.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Model, Ops, Rows, Span, Step};
use state::TenantId;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

/// Tokens of a step.
const CHUNK: usize = 256;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, ids, out, options @ ..] = args.as_slice() else {
        panic!("usage: logits MODEL.gguf IDS.json OUT.f32 [dequantize] [kv=f32]");
    };
    let (mut dequantize, mut kv_type) = (false, KvType::F16);
    for option in options {
        match option.as_str() {
            "dequantize" => dequantize = true,
            "kv=f32" => kv_type = KvType::F32,
            other => panic!("unknown option {other:?}"),
        }
    }
    let sequences: Vec<Vec<u32>> = serde_json::from_reader(File::open(ids).unwrap()).unwrap();
    let context = sequences.iter().map(Vec::len).max().unwrap();

    let pool = Pool::new(kernels::topology::default_threads());
    let options = LoadOptions {
        dequantize,
        ..LoadOptions::default()
    };
    let model = Model::load(&Gguf::open(Path::new(file)).unwrap(), &pool, options).unwrap();
    let options = MemoryOptions {
        kv_type,
        context,
        sequences: 1,
        state_bytes: None,
        swap_bytes: 0,
    };
    let mut memory = Memory::new(&model.architecture, options).unwrap();
    let ops = Ops::new(Isa::from_env().unwrap(), pool);
    let mut decoder = Decoder::new(Arc::new(model), ops, CHUNK, context).unwrap();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(out).unwrap());
    for tokens in &sequences {
        write(&mut decoder, &mut memory, tokens, &mut out);
    }
    out.flush().unwrap();
}

/// Writes the rows of one sequence in order of positions.
fn write(decoder: &mut Decoder, memory: &mut Memory, tokens: &[u32], out: &mut impl Write) {
    let id = memory.create(TenantId::LOCAL).unwrap();
    let mut done = 0;
    for part in tokens.chunks(CHUNK) {
        let wanted: Vec<usize> = (0..part.len()).collect();
        let spans = [Span::tokens(id, done, part, Rows::Some(&wanted))];
        let mut next = done;
        let each = &mut |logits: model::Logits<'_>| {
            assert_eq!(logits.position, next);
            next += 1;
            for value in logits.values {
                out.write_all(&value.to_le_bytes()).unwrap();
            }
        };
        decoder
            .forward(memory, Step { spans: &spans }, each)
            .unwrap();
        done += part.len();
    }
    memory.release(id).unwrap();
}
