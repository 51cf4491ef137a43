//! What the tests of this crate share.
#![allow(clippy::unwrap_used, missing_docs, dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Model, Ops, Rows, Span, Step};
use state::TenantId;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

pub const TINY: [&str; 6] = [
    "llama-untied",
    "llama-tied",
    "qwen2",
    "qwen2-tied",
    "gemma3",
    "gemma3-linear",
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/tiny")
        .join(name)
}

pub fn load(path: &Path) -> Arc<Model> {
    let file = Gguf::open(path).unwrap();
    Arc::new(Model::load(&file, &Pool::new(2), LoadOptions::default()).unwrap())
}

/// How a run is cut up.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub isa: Isa,
    pub threads: usize,
    pub chunk: usize,
    pub kv_type: KvType,
}

/// The logits of every position of `tokens`.
pub fn logits(model: &Arc<Model>, tokens: &[u32], way: Way) -> Vec<Vec<f32>> {
    logits_in(model, tokens, way, model.architecture.context.min(1024))
}

/// The same in a context of that many positions.
pub fn logits_in(model: &Arc<Model>, tokens: &[u32], way: Way, context: usize) -> Vec<Vec<f32>> {
    let options = MemoryOptions {
        kv_type: way.kv_type,
        context,
        sequences: 1,
        state_bytes: None,
        swap_bytes: 0,
    };
    let mut memory = Memory::new(&model.architecture, options).unwrap();
    let ops = Ops::new(way.isa, Pool::new(way.threads));
    let mut decoder = Decoder::new(Arc::clone(model), ops, way.chunk, context).unwrap();
    let sequence = memory.create(TenantId::LOCAL).unwrap();
    let mut rows = Vec::new();
    for part in tokens.chunks(way.chunk) {
        let spans = [Span::tokens(sequence, rows.len(), part, Rows::All)];
        let step = Step { spans: &spans };
        decoder
            .forward(&mut memory, step, &mut |l| rows.push(l.values.to_vec()))
            .unwrap();
    }
    rows
}
