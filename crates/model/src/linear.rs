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
                    let weights: Vec<&PackedMatrix> = maps.iter().map(|map| &*map.weight).collect();
                    openings(threads, &weights)
                })
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
