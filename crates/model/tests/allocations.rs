//! A steady decode step allocates nothing. (Without the test harness, whose own threads allocate now and then.)
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{fixture, load};
use counting::ALLOCATIONS;
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Ops, Rows, Span, Step};
use state::TenantId;

const THREADS: usize = 2;

fn main() {
    let model = load(&fixture("gemma3.gguf"));
    let options = MemoryOptions {
        kv_type: KvType::F16,
        context: 640,
        sequences: 2,
        state_bytes: None,
        swap_bytes: 0,
    };
    let mut memory = Memory::new(&model.architecture, options).unwrap();
    let ops = Ops::new(Isa::best(), Pool::new(THREADS));
    let mut decoder = Decoder::new(Arc::clone(&model), ops, 8, 512).unwrap();
    let ids = [0, 1].map(|_| memory.create(TenantId::LOCAL).unwrap());
    let mut sum = 0.0;
    let mut step = |position: usize| {
        let spans = ids.map(|id| Span::tokens(id, position, &[7], Rows::Last));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let take = &mut |logits: model::Logits<'_>| sum += logits.values[0];
        decoder
            .forward(&mut memory, Step { spans: &spans }, take)
            .unwrap();
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    step(0);
    step(1);
    // Past a page's end, too. A thread of the pool makes what it keeps when it first gets work, whenever
    // that is on a busy machine.
    let allocations: usize = (2..500).map(&mut step).sum();
    assert!(
        allocations <= THREADS,
        "{allocations} allocations in 498 steps"
    );
    println!("test a_decode_step_allocates_nothing ... ok");
}
