//! The only way to a matmul.

use std::sync::Arc;

use kernels::buffer::{Buffer, OutOfMemory};
use kernels::matmul::{QuantizedRows, openings};
use kernels::packed::PackedMatrix;
use kernels::pool::Stretch;

use crate::model::Model;

/// A linear map `y = W x + b`.
///
/// Input transforms, scales and adapters will join here; there are none yet.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// W, packed.
    pub(crate) weight: Arc<PackedMatrix>,
    /// b.
    pub(crate) bias: Option<Vec<f32>>,
}

/// With more rows than this a call is bound by arithmetic, not by reading weights.
const AHEAD_ROWS: usize = 8;

/// What linear maps work in, and the order in which they come.
#[derive(Debug)]
pub(crate) struct LinearScratch {
    /// rows × the widest input of any map, where some weights are floats: computed activations. Those of
    /// quantised weights never exist as a whole.
    pub(crate) values: Buffer<f32>,
    pub(crate) quantized: QuantizedRows,
    /// For each call of a forward pass, in order, what each thread reads first.
    openings: Vec<Vec<Stretch>>,
    /// The weights of each call, for a test of that order.
    #[cfg(test)]
    order: Vec<Vec<Arc<PackedMatrix>>>,
    /// How many calls of this pass have been made.
    calls: usize,
}

impl LinearScratch {
    /// For passes of at most `capacity` rows with so many threads.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub(crate) fn new(model: &Model, capacity: usize, threads: usize) -> Result<Self, OutOfMemory> {
        let width = model.widest_input();
        let values = if model.has_float_maps() {
            capacity.saturating_mul(width)
        } else {
            0
        };
        Ok(Self {
            values: Buffer::zeroed(values)?,
            quantized: QuantizedRows::with_threads(capacity, width, threads)?,
            openings: model
                .linear_calls()
                .map(|maps| {
                    // Weights of another kind are the business of a job of their own, which comes later.
                    let kind = maps[0].weight.input_kind();
                    let weights = maps.iter().map(|map| &*map.weight);
                    let weights: Vec<_> = weights.filter(|w| w.input_kind() == kind).collect();
                    openings(threads, &weights)
                })
                .collect(),
            #[cfg(test)]
            order: model
                .linear_calls()
                .map(|maps| maps.iter().map(|map| Arc::clone(&map.weight)).collect())
                .collect(),
            calls: 0,
        })
    }

    /// A forward pass begins.
    pub(crate) fn begin(&mut self) {
        self.calls = 0;
    }

    /// A call with `rows` rows begins: gives what the threads will read first in the call after it (after
    /// the last, in the next pass), where that is worth fetching.
    pub(crate) fn after_this_call(&mut self, rows: usize) -> Option<&[Stretch]> {
        self.calls += 1;
        if rows > AHEAD_ROWS {
            return None;
        }
        let next = self.calls % self.openings.len();
        Some(&self.openings[next])
    }
}

#[cfg(test)]
impl LinearScratch {
    /// Checks that the call that began last is the one that was expected in its place.
    pub(crate) fn check_order(&self, weights: &[&Arc<PackedMatrix>]) {
        let expected = &self.order[self.calls - 1];
        assert_eq!(expected.len(), weights.len(), "call {}", self.calls - 1);
        for (expected, weight) in expected.iter().zip(weights) {
            assert!(Arc::ptr_eq(expected, weight), "call {}", self.calls - 1);
        }
    }

    /// How many calls of this pass have been made, of how many.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.calls, self.order.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use kernels::isa::Isa;
    use kernels::pages::KvType;
    use kernels::pool::Pool;
    use weights::gguf::Gguf;
    use weights::load::LoadOptions;

    use super::*;
    use crate::{Decoder, Memory, MemoryOptions, Ops, Rows, Span, Step};

    /// Another order would have waiting threads fetch what nobody reads, and change no result.
    #[test]
    fn linear_maps_are_called_in_the_order_in_which_their_weights_are_fetched() {
        for name in ["llama-tied", "llama-untied", "qwen2", "gemma3"] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny/");
            let file = Gguf::open(format!("{folder}{name}.gguf")).unwrap();
            let model = Model::load(&file, &Pool::new(1), LoadOptions::default()).unwrap();
            let options = MemoryOptions {
                kv_type: KvType::F32,
                context: 64,
                sequences: 1,
                state_bytes: None,
                swap_bytes: 0,
            };
            let mut memory = Memory::new(&model.architecture, options).unwrap();
            let ops = Ops::new(Isa::Scalar, Pool::new(2));
            let mut decoder = Decoder::new(Arc::new(model), ops, 1, 64).unwrap();
            let sequence = memory.create(state::TenantId::LOCAL).unwrap();
            let spans = [Span::tokens(sequence, 0, &[1], Rows::Last)];
            let step = Step { spans: &spans };
            decoder.forward(&mut memory, step, &mut |_| ()).unwrap();
            let (calls, expected) = decoder.linear_progress();
            assert_eq!(calls, expected, "{name}");
        }
    }
}
