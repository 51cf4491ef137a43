//! A steady decode step allocates nothing but the texts of its tokens. (Without the test harness, whose own
//! threads allocate now and then.)
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../../model/tests/common/counting.rs"]
mod counting;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use counting::ALLOCATIONS;
use engine::{Engine, EngineOptions, Event, Request};
use kernels::isa::Isa;
use kernels::pool::Pool;
use model::Model;
use text::Tokenizer;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

const THREADS: usize = 2;
const SEQUENCES: usize = 8;

fn main() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny/llama-tied.gguf");
    let file = Gguf::open(path).unwrap();
    let model = Model::load(&file, &Pool::new(1), LoadOptions::default()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let options = EngineOptions {
        context: 512,
        sequences: SEQUENCES,
        prefill_chunk: 64,
        ..EngineOptions::default()
    };
    let (model, tokenizer, pool) = (Arc::new(model), Arc::new(tokenizer), Pool::new(THREADS));
    let mut engine = Engine::new(model, tokenizer, Isa::best(), pool, options).unwrap();
    for i in 0..SEQUENCES as u32 {
        let request = Request {
            prompt: vec![i + 1; 10],
            ignore_end: true,
            ..Request::default()
        };
        engine.submit(request).unwrap();
    }
    let mut events = Vec::with_capacity(4 * SEQUENCES);
    let (mut extra, mut steps) = (0, 0);
    for step in 0..480 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        engine.step(&mut events).unwrap();
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        let has_text =
            |event: &&Event| matches!(event, Event::Token(token) if !token.text.is_empty());
        let texts = events.iter().filter(has_text).count();
        assert!(
            !events
                .iter()
                .any(|event| matches!(event, Event::Finished(_)))
        );
        events.clear();
        // Buffers of texts grow in the first steps.
        if step >= 40 && engine.stats().last_step_decodes == SEQUENCES {
            extra += allocations.saturating_sub(texts);
            steps += 1;
        }
    }
    assert!(steps > 400);
    // A thread of the pool makes what it keeps when it first gets work, whenever that is on a busy machine.
    assert!(
        extra <= THREADS,
        "{extra} allocations in {steps} steps beside the texts"
    );
    println!("test a_steady_step_allocates_nothing_but_texts ... ok");
}
