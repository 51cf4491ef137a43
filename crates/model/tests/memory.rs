//! Memory that can't be had is an error that says how many bytes were asked for and what to reduce.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{fixture, load};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, ModelError, Ops};

#[test]
fn steps_too_large_are_refused() {
    let model = load(&fixture("gemma3.gguf"));
    let new = |rows, context| {
        let ops = Ops::new(Isa::best(), Pool::new(1));
        Decoder::new(Arc::clone(&model), ops, rows, context)
    };
    // Until the memory of any machine is too small, so that each kind of buffer is the first to fail or
    // comes after those that didn't. What isn't touched costs nothing.
    let errors = (16..usize::BITS).filter_map(|log2| new(1 << log2, 128).err());
    let mut activations = 0;
    for error in errors.chain(new(usize::MAX, 128).err()) {
        let text = error.to_string();
        assert!(
            text.contains(" bytes for ") && text.contains("a smaller prefill chunk"),
            "{text}"
        );
        activations += usize::from(matches!(error, ModelError::Activations(_)));
    }
    assert!(
        activations > 0,
        "the buffers of attention were the first to fail"
    );
    for context in [1 << 56, usize::MAX] {
        let text = new(32, context).unwrap_err().to_string();
        assert!(text.contains("a shorter context"), "{text}");
    }
}

#[test]
fn contexts_too_long_are_refused() {
    let model = load(&fixture("gemma3.gguf"));
    for (context, sequences) in [(1 << 50, 1), (1 << 40, 1 << 20), (usize::MAX, usize::MAX)] {
        let options = MemoryOptions {
            kv_type: KvType::F16,
            context,
            sequences,
            state_bytes: None,
            swap_bytes: 0,
        };
        let error = Memory::new(&model.architecture, options).unwrap_err();
        assert!(matches!(error, ModelError::Page(_)), "{error}");
    }
}
