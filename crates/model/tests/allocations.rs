//! A steady decode step allocates nothing. (Without the test harness, whose own threads allocate now and then.)
#![allow(clippy::unwrap_used, clippy::print_stdout, unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{fixture, load};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Ops, Rows, Span, Step};
use state::TenantId;

const THREADS: usize = 2;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
