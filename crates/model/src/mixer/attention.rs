//! Grouped-query attention over pages.

use kernels::attention::{AttentionArgs, AttentionLimits, AttentionScratch, RowRef};
use kernels::pages::{KvSlot, PAGE_POSITIONS, PageError, PageId};

use crate::architecture::{Architecture, AttentionSpec};
use crate::error::ModelError;
use crate::memory::Memory;
use crate::model::LoadedAttention;
use crate::norm::Norm;
use crate::ops::{Activations, Ops, Source};
use crate::step::{SPANS_MAX, Step};
use crate::workspace::Workspace;

/// Where in the model and the step an attention runs.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) layer: usize,
    pub(crate) step: Step<'a>,
    pub(crate) rows: usize,
}

/// The memory that the attention of any layer works in.
pub(crate) fn scratch(
    architecture: &Architecture,
    ops: &Ops,
    rows: usize,
    context: usize,
) -> Result<AttentionScratch, ModelError> {
    let widest = |width: fn(&AttentionSpec) -> usize| {
        architecture
            .attentions()
            .map(|(_, a)| width(a))
            .max()
            .unwrap_or(1)
    };
    Ok(AttentionScratch::new(AttentionLimits {
        rows,
        heads: widest(|a| a.heads),
        head_dim: widest(|a| a.head_dim),
        value_dim: widest(|a| a.value_dim),
        context,
        threads: ops.pool().threads(),
    })?)
}

/// `work.branch = attention(norm(work.stream))`; keys and values go to their pages on the way.
pub(crate) fn run(
    ops: &Ops,
    work: &mut Workspace,
    memory: &mut Memory,
    place: Place<'_>,
    (spec, norm, loaded): (&AttentionSpec, Option<&Norm>, &LoadedAttention),
) -> Result<(), ModelError> {
    let rows = place.rows;
    find_slots(work, memory, place)?;
    if let [slot] = work.slots[..] {
        // It comes while the weights of the projections stream by.
        memory.stores[memory.store_of[place.layer]].prefetch(slot);
    }
    project(ops, work, (spec, norm, loaded), rows);
    write(ops, work, memory, place, spec)?;
    let layer = place.layer;
    let mut tables: [&[PageId]; SPANS_MAX] = [&[]; SPANS_MAX];
    for (table, span) in tables.iter_mut().zip(place.step.spans) {
        *table = memory.table().pages(span.sequence, layer)?;
    }
    work.row_refs.clear();
    for (span, table) in place.step.spans.iter().zip(0u32..) {
        let window = spec.window.map(|w| w as u32);
        let first = work.row_refs.len();
        let positions = &work.positions[first..first + span.rows_of(work.hidden)];
        work.row_refs
            .extend(positions.iter().map(|&p| RowRef::causal(p, window, table)));
    }
    let args = AttentionArgs {
        store: &memory.stores[memory.store_of[layer]],
        q: &work.q[..rows * spec.q.rows],
        out: &mut work.mixed[..rows * spec.o.cols],
        heads: spec.heads,
        scale: spec.scale,
        softcap: spec.softcap,
        rows: &work.row_refs,
        page_tables: &tables[..place.step.spans.len()],
    };
    ops.attention(&mut work.attention, args)?;
    let x = Activations {
        source: Source::Values(&work.mixed[..rows * spec.o.cols]),
        rows,
        cols: spec.o.cols,
    };
    let maps = [(&loaded.o, &mut work.branch[..rows * spec.o.rows])];
    ops.linear(x, &mut work.linear, maps);
    Ok(())
}

/// Queries, keys and values of the normed stream, themselves normed where the model does, and turned.
fn project(
    ops: &Ops,
    work: &mut Workspace,
    (spec, norm, loaded): (&AttentionSpec, Option<&Norm>, &LoadedAttention),
    rows: usize,
) {
    let x = Activations {
        source: Source::normed(norm, &work.stream[..rows * spec.q.cols]),
        rows,
        cols: spec.q.cols,
    };
    let q = &mut work.q[..rows * spec.q.rows];
    let k = &mut work.k[..rows * spec.k.rows];
    let v = &mut work.v[..rows * spec.v.rows];
    let maps = [(&loaded.q, &mut *q), (&loaded.k, &mut *k), (&loaded.v, v)];
    ops.linear(x, &mut work.linear, maps);
    if let Some(norm) = &loaded.q_norm {
        ops.norm_in_place(norm, q);
    }
    if let Some(norm) = &loaded.k_norm {
        ops.norm_in_place(norm, k);
    }
    let (style, angles) = (work.rope_styles[spec.rope], &work.angles[spec.rope]);
    ops.rope(style, q, spec.head_dim, spec.heads, angles);
    ops.rope(style, k, spec.head_dim, spec.kv_heads, angles);
}

/// Where the keys and values of each row go.
fn find_slots(work: &mut Workspace, memory: &Memory, place: Place<'_>) -> Result<(), ModelError> {
    work.slots.clear();
    for span in place.step.spans {
        let pages = memory.table().pages(span.sequence, place.layer)?;
        let positions = span.position..span.position + span.rows_of(work.hidden);
        work.slots.extend(positions.map(|p| KvSlot {
            page: pages[p / PAGE_POSITIONS],
            slot: p % PAGE_POSITIONS,
        }));
    }
    Ok(())
}

/// Keys and values to their pages.
fn write(
    ops: &Ops,
    work: &mut Workspace,
    memory: &mut Memory,
    place: Place<'_>,
    spec: &AttentionSpec,
) -> Result<(), ModelError> {
    let Place { layer, rows, .. } = place;
    let store = &mut memory.stores[memory.store_of[layer]];
    let (k, v) = (&work.k[..rows * spec.k.rows], &work.v[..rows * spec.v.rows]);
    ops.write_kv(store, &work.slots, k, v).map_err(|source| {
        let position = match source {
            PageError::Overflow { row, .. } => work.positions.get(row).map(|&p| p as usize),
            _ => None,
        };
        ModelError::Pages {
            layer,
            position,
            source,
        }
    })
}
