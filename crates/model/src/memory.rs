//! What the sequences of a model remember: the pages' bytes and the books on them.

use std::sync::Arc;

use kernels::pages::{KvShape, KvType, PageStore};
use state::{
    Budget, Full, IntegrityError, LayerState, Policy, SequenceId, Started, StateError, StateSpec, Stats,
    Table, TableOptions, TenantId, Window,
};

use crate::architecture::{Architecture, AttentionSpec};
use crate::error::ModelError;

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The type of keys and values.
    pub kv_type: KvType,
    /// Positions per sequence at most.
    pub context: usize,
    /// Sequences at most.
    pub sequences: usize,
    /// Bytes for all of it.
    pub state_bytes: Option<u64>,
    /// Bytes for sequences that are swapped out.
    pub swap_bytes: u64,
}

/// Page stores and the table of who holds which page.
#[derive(Debug)]
pub struct Memory {
    pub(crate) stores: Vec<PageStore>,
    pub(crate) table: Table,
    /// For each layer, its store.
    pub(crate) store_of: Vec<usize>,
}

impl Memory {
    /// Room for `options.sequences` sequences of `options.context` positions each. The operating system
    /// hands out the memory as pages are first written.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn new(architecture: &Architecture, options: MemoryOptions) -> Result<Self, ModelError> {
        let (layers, shapes) = plan(architecture, options.kv_type);
        let sizes: Vec<usize> = shapes.iter().map(|s| s.page_bytes().unwrap_or(usize::MAX)).collect();
        let budget = Budget {
            sequences: options.sequences,
            context: options.context,
            state_bytes: options.state_bytes,
        };
        let specs = budget.stores(&layers, &sizes)?;
        let stores = shapes
            .iter()
            .zip(&specs)
            .map(|(&shape, spec)| PageStore::new(shape, spec.pages));
        let stores = stores.collect::<Result<_, _>>()?;
        let store_of = layers.iter().map(|layer| layer.store).collect();
        let table = Table::new(TableOptions {
            layers,
            stores: specs,
            sequences: options.sequences,
            context: options.context,
            swap_bytes: 0,
            checkpoint_every: 512,
        })?;
        Ok(Self {
            stores,
            table,
            store_of,
        })
    }

    /// Bytes that one sequence of `context` positions takes.
    #[must_use]
    pub fn bytes_per_sequence(
        architecture: &Architecture,
        kv_type: KvType,
        context: usize,
    ) -> usize {
        let (layers, shapes) = plan(architecture, kv_type);
        let sizes: Vec<usize> = shapes.iter().map(|s| s.page_bytes().unwrap_or(usize::MAX)).collect();
        Budget::bytes_per_sequence(&layers, &sizes, context)
    }

    /// Bytes of keys and values that a token at `position` reads: those of all positions it sees, its own
    /// included.
    #[must_use]
    pub fn bytes_read_at(architecture: &Architecture, kv_type: KvType, position: usize) -> usize {
        let layers = architecture.attentions().map(|(_, attention)| {
            let seen = (position + 1).min(attention.window.unwrap_or(usize::MAX));
            seen * bytes_per_position(attention, kv_type)
        });
        layers.sum()
    }

    /// The books.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn create(&mut self, tenant: TenantId) -> Result<SequenceId, StateError> {
        self.table.create(tenant)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn start(&mut self, tenant: TenantId, _: &[u32]) -> Result<Started, StateError> {
        Ok(Started { sequence: self.table.create(tenant)?, cached: 0 })
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn reserve(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        self.table.reserve(id, len)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn publish(&mut self, _: SequenceId) -> Result<(), StateError> {
        Ok(())
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn finish(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.release(id)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn release(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.release(id)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn swap_out(&mut self, id: SequenceId) -> Result<u64, StateError> {
        self.table.swap_out(id)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn swap_in(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.swap_in(id)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn swap_bytes_of(&self, id: SequenceId) -> Result<u64, StateError> {
        self.table.swap_bytes_of(id)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn pages_needed(&self, id: SequenceId, len: usize) -> Result<usize, StateError> {
        self.table.pages_needed(id, len)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn fits(&self, len: usize, chunk: usize) -> Result<(), StateError> {
        self.table.fits(len, chunk)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn chunk_end(&self, position: usize, end: usize) -> usize {
        self.table.chunk_end(position, end)
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn stats(&self) -> Stats {
        self.table.stats()
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        self.table.check_integrity()
    }
}

/// For each layer what it remembers, and the shapes of the stores they share.
fn plan(architecture: &Architecture, kv_type: KvType) -> (Vec<LayerState>, Vec<KvShape>) {
    let mut shapes: Vec<KvShape> = Vec::new();
    let layers = architecture.attentions().map(|(_, attention)| {
        let shape = shape_of(attention, kv_type);
        let known = shapes.iter().position(|&s| s == shape);
        let store = known.unwrap_or_else(|| {
            shapes.push(shape);
            shapes.len() - 1
        });
        let bytes_per_position = bytes_per_position(attention, kv_type);
        let policy: Arc<dyn Policy> = match attention.window {
            Some(positions) => Arc::new(Window { positions }),
            None => Arc::new(Full),
        };
        LayerState {
            spec: StateSpec::Paged { bytes_per_position },
            store,
            policy,
        }
    });
    let layers = layers.collect();
    (layers, shapes)
}

/// Bytes of the keys and values of one position in one layer.
fn bytes_per_position(attention: &AttentionSpec, kv_type: KvType) -> usize {
    let values = attention.kv_heads * (attention.head_dim + attention.value_dim);
    values * kv_type.bytes_per_value()
}

fn shape_of(attention: &AttentionSpec, kv_type: KvType) -> KvShape {
    KvShape {
        kv_heads: attention.kv_heads,
        head_dim: attention.head_dim,
        value_dim: attention.value_dim,
        kv_type,
    }
}
