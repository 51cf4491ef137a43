//! What the sequences of a model remember: the pages' bytes and the books on them.

use std::collections::HashMap;
use std::sync::Arc;

use kernels::pages::{KvShape, KvType, PageStore};
use state::{
    Budget, Full, LayerState, Move, Policy, SequenceId, Started, StateError, StateSpec, Table,
    TableOptions, TenantId, Window,
};

use crate::architecture::{Architecture, AttentionSpec};
use crate::error::ModelError;

/// Positions from one checkpoint of recurrent layers to the next.
const CHECKPOINT_EVERY: usize = 1024;

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The type of keys and values.
    pub kv_type: KvType,
    /// Positions per sequence at most.
    pub context: usize,
    /// Sequences at most.
    pub sequences: usize,
    /// Bytes for keys and values. None: as many as all sequences take at full length.
    pub state_bytes: Option<u64>,
    /// Bytes beside them for sequences that are swapped out.
    pub swap_bytes: u64,
}

/// Page stores and the books on who holds which page.
///
/// The books are kept by [`state::Table`]; what has to be done with bytes is done here: of a reservation
/// before the pass it is for, of a swap at once.
#[derive(Debug)]
pub struct Memory {
    pub(crate) stores: Vec<PageStore>,
    table: Table,
    /// For each layer, its store.
    pub(crate) store_of: Vec<usize>,
    /// What sequences that are swapped out left.
    host: HashMap<SequenceId, Vec<u8>>,
}

impl Memory {
    /// Room for sequences of `options.context` positions each. The operating system hands out the memory as
    /// pages are first written.
    ///
    /// # Errors
    /// When the memory can't be had, or the budget is too small.
    pub fn new(architecture: &Architecture, options: MemoryOptions) -> Result<Self, ModelError> {
        let (layers, shapes) = plan(architecture, options.kv_type);
        let budget = Budget {
            sequences: options.sequences,
            context: options.context,
            state_bytes: options.state_bytes,
        };
        let specs = budget.stores(&layers, &page_bytes(&shapes))?;
        let stores = shapes.iter().zip(&specs);
        let stores = stores.map(|(&shape, spec)| PageStore::new(shape, spec.pages));
        let stores = stores.collect::<Result<_, _>>()?;
        let store_of = layers.iter().map(|layer| layer.store).collect();
        let table = Table::new(TableOptions {
            layers,
            stores: specs,
            sequences: options.sequences,
            context: options.context,
            swap_bytes: options.swap_bytes,
            checkpoint_every: CHECKPOINT_EVERY,
        })?;
        Ok(Self {
            stores,
            table,
            store_of,
            host: HashMap::new(),
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
        Budget::bytes_per_sequence(&layers, &page_bytes(&shapes), context)
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

    /// The books, to ask: lengths, what fits, numbers to watch, whether all adds up.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// As [`Table::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(&mut self, tenant: TenantId) -> Result<SequenceId, StateError> {
        self.table.create(tenant)
    }

    /// As [`Table::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start(&mut self, tenant: TenantId, tokens: &[u32]) -> Result<Started, StateError> {
        self.table.start(tenant, tokens)
    }

    /// As [`Table::reserve`]. A forward pass reserves what it needs itself.
    ///
    /// # Errors
    /// As there.
    pub fn reserve(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        self.table.reserve(id, len)
    }

    /// As [`Table::publish`].
    ///
    /// # Errors
    /// As there.
    pub fn publish(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.publish(id)
    }

    /// As [`Table::publish_all`].
    ///
    /// # Errors
    /// As there.
    pub fn publish_all(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.publish_all(id)
    }

    /// As [`Table::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.finish(id)?;
        self.host.remove(&id);
        Ok(())
    }

    /// As [`Table::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.table.release(id)?;
        self.host.remove(&id);
        Ok(())
    }

    /// As [`Table::truncate`].
    ///
    /// # Errors
    /// As there.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        self.table.truncate(id, len)
    }

    /// As [`Table::fork`].
    ///
    /// # Errors
    /// As there.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StateError> {
        self.table.fork(id)
    }

    /// As [`Table::swap_out`]; the bytes are in the host's memory afterwards.
    ///
    /// # Errors
    /// As there, and when that memory can't be had.
    pub fn swap_out(&mut self, id: SequenceId) -> Result<u64, ModelError> {
        let bytes = self.table.swap_bytes_of(id)?;
        let mut saved = Vec::new();
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let out_of_memory = StateError::OutOfMemory { bytes: len };
        saved.try_reserve_exact(len).map_err(|_| out_of_memory)?;
        let bytes = self.table.swap_out(id)?;
        self.host.insert(id, saved);
        self.move_bytes()?;
        Ok(bytes)
    }

    /// As [`Table::swap_in`]; the bytes are in their pages afterwards.
    ///
    /// # Errors
    /// As there.
    pub fn swap_in(&mut self, id: SequenceId) -> Result<(), ModelError> {
        self.table.swap_in(id)?;
        self.move_bytes()?;
        self.host.remove(&id);
        Ok(())
    }

    /// As [`Table::set_model_key`].
    pub fn set_model_key(&mut self, key: [u8; 32]) {
        self.table.set_model_key(key);
    }

    /// As [`Table::clear_cache`].
    pub fn clear_cache(&mut self) {
        self.table.clear_cache();
    }

    /// Says that these tokens are written.
    pub(crate) fn commit(&mut self, id: SequenceId, tokens: &[u32]) -> Result<(), StateError> {
        self.table.commit(id, tokens)
    }

    /// Says that positions are written that were not made from tokens.
    pub(crate) fn commit_vectors(&mut self, id: SequenceId, n: usize) -> Result<(), StateError> {
        self.table.commit_vectors(id, n)
    }

    /// Does all moves that wait. Comes before anything is written.
    pub(crate) fn move_bytes(&mut self) -> Result<(), ModelError> {
        for &step in self.table.moves() {
            match step {
                Move::Copy { store, from, to } => self.stores[store].copy_page(from, to)?,
                Move::Clear { store, page } => self.stores[store].bytes_mut(page)?.fill(0),
                Move::Save {
                    store,
                    page,
                    sequence,
                    ..
                } => {
                    let saved = self.host.entry(sequence).or_default();
                    saved.extend_from_slice(self.stores[store].bytes(page)?);
                }
                Move::Load {
                    store,
                    page,
                    sequence,
                    offset,
                } => {
                    let bytes = self.stores[store].bytes_mut(page)?;
                    let saved = self.host.get(&sequence).map_or(&[][..], Vec::as_slice);
                    let start = usize::try_from(offset).unwrap_or(usize::MAX);
                    let saved = saved.get(start..).and_then(|rest| rest.get(..bytes.len()));
                    bytes.copy_from_slice(saved.ok_or(StateError::NotSwapped(sequence))?);
                }
            }
        }
        self.table.clear_moves();
        Ok(())
    }
}

/// The sizes of the pages of the stores, in bytes.
fn page_bytes(shapes: &[KvShape]) -> Vec<usize> {
    let sizes = shapes.iter().map(KvShape::page_bytes);
    sizes.map(|size| size.unwrap_or(usize::MAX)).collect()
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
