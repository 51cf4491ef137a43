//! The runner of a real model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Decoder, Logits, Memory, Model, ModelError, Step};
use state::{SequenceId, Started, StateError, TenantId};

use crate::error::EngineError;
use crate::runner::{Pages, Runner};

/// A decoder, its memory, and the time.
#[derive(Debug)]
pub(crate) struct ModelRunner {
    decoder: Decoder,
    memory: Memory,
    page_bytes: u64,
    start: Instant,
}

impl ModelRunner {
    pub(crate) fn new(decoder: Decoder, memory: Memory, state_bytes: u64) -> Self {
        let pages = memory.table().stats().pages_total.max(1);
        Self {
            page_bytes: state_bytes / pages as u64,
            decoder,
            memory,
            start: Instant::now(),
        }
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        self.decoder.model()
    }
}

impl Runner for ModelRunner {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn start(
        &mut self,
        tenant: TenantId,
        tokens: &[u32],
        shares: bool,
    ) -> Result<Started, EngineError> {
        if shares {
            return Ok(self.memory.start(tenant, tokens)?);
        }
        let sequence = self.memory.create(tenant)?;
        Ok(Started {
            sequence,
            cached: 0,
        })
    }

    fn reserve(&mut self, sequence: SequenceId, len: usize) -> Result<(), EngineError> {
        Ok(self.memory.reserve(sequence, len)?)
    }

    fn forward(
        &mut self,
        step: Step<'_>,
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<(), EngineError> {
        Ok(self.decoder.forward(&mut self.memory, step, sink)?)
    }

    fn publish(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        Ok(self.memory.publish(sequence)?)
    }

    fn end(&mut self, sequence: SequenceId, shares: bool) -> Result<(), EngineError> {
        if shares {
            Ok(self.memory.finish(sequence)?)
        } else {
            Ok(self.memory.release(sequence)?)
        }
    }

    fn swap_out(&mut self, sequence: SequenceId) -> Result<bool, EngineError> {
        match self.memory.swap_out(sequence) {
            Ok(_) => Ok(true),
            Err(ModelError::State(
                StateError::SwapFull { .. } | StateError::OutOfMemory { .. },
            )) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn swap_in(&mut self, sequence: SequenceId) -> Result<bool, EngineError> {
        match self.memory.swap_in(sequence) {
            Ok(()) => Ok(true),
            Err(ModelError::State(StateError::OutOfPages { .. })) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn swap_bytes_of(&self, sequence: SequenceId) -> Result<u64, EngineError> {
        Ok(self.memory.table().swap_bytes_of(sequence)?)
    }

    fn pages_needed(&self, sequence: SequenceId, len: usize) -> Result<usize, EngineError> {
        Ok(self.memory.table().pages_needed(sequence, len)?)
    }

    fn fits(&self, len: usize, chunk: usize) -> Result<(), EngineError> {
        self.memory
            .table()
            .fits(len, chunk)
            .map_err(EngineError::from_fit)
    }

    fn chunk_end(&self, position: usize, end: usize) -> usize {
        self.memory.table().chunk_end(position, end)
    }

    fn pages(&self) -> Pages {
        Pages::from(self.memory.table().stats())
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn check(&self) -> Result<(), String> {
        self.memory
            .table()
            .check_integrity()
            .map_err(|error| error.to_string())
    }
}
