//! What the sequences of a model remember: the pages' bytes and the books on them.

use std::sync::Arc;

use kernels::pages::{KvShape, KvType, PageStore};
use state::{Full, LayerState, Policy, StateSpec, Table, Window};

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
        let mut pages = Table::pages_needed(&layers, shapes.len(), options.context);
        pages
            .iter_mut()
            .for_each(|n| *n = n.saturating_mul(options.sequences));
        let stores = shapes
            .iter()
            .zip(&pages)
            .map(|(&shape, &n)| PageStore::new(shape, n));
        let stores = stores.collect::<Result<_, _>>()?;
        let store_of = layers.iter().map(|layer| layer.store).collect();
        let table = Table::new(layers, &pages, options.sequences, options.context)?;
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
        let pages = Table::pages_needed(&layers, shapes.len(), context);
        shapes
            .iter()
            .zip(pages)
            .map(|(s, n)| s.page_bytes().unwrap_or(usize::MAX).saturating_mul(n))
            .sum()
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

    /// The books, to make, cut and end sequences.
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
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
