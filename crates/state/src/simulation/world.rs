//! Tables, what is in their pages, and what should be.

use std::collections::HashMap;
use std::sync::Arc;

use kernels::pages::{PAGE_POSITIONS, PageId};

use super::Fault;
use crate::layout::Place;
use crate::sequence::{first, last};
use crate::tree::NodeId;
use crate::{
    Full, LayerState, Move, Policy, SequenceId, StateError, StateSpec, StoreSpec, Table,
    TableOptions, TenantId, Totals, Window,
};

const CONTEXT: usize = 520;
const PAGE_BYTES: usize = 512;

/// Which layers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    Windowed,
    Recurrent,
    Hybrid,
    All,
}

impl Kind {
    fn layers(self) -> Vec<LayerState> {
        let full = |store| layer(PAGED, store, Arc::new(Full));
        let window = |positions, store| layer(PAGED, store, Arc::new(Window { positions }));
        let fixed = |store| layer(StateSpec::Fixed { bytes: PAGE_BYTES }, store, Arc::new(Full));
        let shared = layer(StateSpec::Shared { layer: 0 }, 0, Arc::new(Full));
        let none = layer(StateSpec::None, 0, Arc::new(Full));
        match self {
            Self::Full => vec![full(0), full(1)],
            Self::Windowed => vec![window(70, 0), full(0), window(130, 1)],
            Self::Recurrent => vec![fixed(0), fixed(1)],
            Self::Hybrid => vec![full(0), fixed(1)],
            Self::All => vec![
                full(0),
                window(1, 0),
                shared,
                fixed(2),
                none,
                window(100, 1),
                full(1),
                fixed(2),
            ],
        }
    }
}

const PAGED: StateSpec = StateSpec::Paged {
    bytes_per_position: 8,
};

fn layer(spec: StateSpec, store: usize, policy: Arc<dyn Policy>) -> LayerState {
    LayerState {
        spec,
        store,
        policy,
    }
}

/// What a page has in it.
type Cells = [u64; PAGE_POSITIONS];

/// A sequence as it should be.
#[derive(Clone, Debug)]
struct Live {
    id: SequenceId,
    tenant: TenantId,
    /// What is still to be run of its prompt.
    pending: Vec<u32>,
    tokens: Vec<u32>,
    /// For each position, all that it was made from.
    marks: Vec<u64>,
    /// Positions that were made from tokens alone.
    known: usize,
}

pub(super) struct World {
    table: Table,
    cells: Vec<Vec<Cells>>,
    host: HashMap<(SequenceId, u64), Cells>,
    live: Vec<Live>,
    scripts: Vec<Vec<u32>>,
    published: Vec<(TenantId, Vec<u32>)>,
    /// Times the cache was cleared.
    cleared: u64,
    random: u64,
    fault: Option<Fault>,
    /// Whether the books are not looked at.
    pub(super) trusts_books: bool,
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x632b_e59b_d9b4_e019);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn next_mark(marks: &[u64], tenant: TenantId, token: u32) -> u64 {
    let before = marks.last().copied().unwrap_or(mix(77, tenant.0));
    mix(before, u64::from(token))
}

fn say<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

impl World {
    pub(super) fn new(seed: u64, kind: Kind, fault: Option<Fault>) -> Self {
        let mut random = mix(seed, 1);
        let mut dice = || {
            random = mix(random, 2);
            random as usize
        };
        let layers = kind.layers();
        let stores = layers.iter().map(|l| l.store).max().unwrap_or(0) + 1;
        let stores = (0..stores).map(|_| StoreSpec {
            pages: [9, 14, 30, 80, 400][dice() % 5],
            page_bytes: PAGE_BYTES,
        });
        let stores: Vec<_> = stores.collect();
        let cells = stores.iter().map(|s| vec![[0; PAGE_POSITIONS]; s.pages]);
        let cells = cells.collect();
        let options = TableOptions {
            layers,
            stores,
            sequences: 6,
            context: CONTEXT,
            swap_bytes: [0, 40 * PAGE_BYTES as u64, 1 << 30][dice() % 3],
            checkpoint_every: [64, 128][dice() % 2],
        };
        let mut table = Table::new(options).expect("a table");
        table.fault = fault;
        Self {
            table,
            cells,
            host: HashMap::new(),
            live: Vec::new(),
            scripts: vec![vec![1; 100]],
            published: Vec::new(),
            cleared: 0,
            random,
            fault,
            trusts_books: false,
        }
    }

    pub(super) fn totals(&self) -> Totals {
        self.table.stats().totals
    }

    fn dice(&mut self, sides: usize) -> usize {
        self.random = mix(self.random, 3);
        (self.random >> 16) as usize % sides
    }

    pub(super) fn run(&mut self, operations: usize) -> Result<(), String> {
        for i in 0..operations {
            let what = self.step().map_err(|e| format!("operation {i}, {e}"))?;
            if i >= operations / 2 {
                self.plant();
            }
            self.check().map_err(|e| format!("operation {i}, {what}: {e}"))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<&'static str, String> {
        let kind = self.dice(20);
        if self.live.is_empty() || kind < 3 {
            self.start()?;
            return Ok("start");
        }
        let at = self.dice(self.live.len());
        let id = self.live[at].id;
        let is_swapped = self.table.is_swapped(id).map_err(say("is_swapped"))?;
        match kind {
            _ if is_swapped && kind < 15 => self.swap_in(at).map(|()| "swap in"),
            3..=11 => self.grow(at).map(|()| "grow"),
            12 => self.publish(at).map(|()| "publish"),
            13 => self.fork(at).map(|()| "fork"),
            14 => self.truncate(at).map(|()| "truncate"),
            15 => self.swap_out(at).map(|()| "swap out"),
            16 | 17 => self.finish(at).map(|()| "finish"),
            18 => {
                self.table.release(id).map_err(say("release"))?;
                self.live.remove(at);
                Ok("release")
            }
            _ if is_swapped => Ok("nothing"),
            _ if self.dice(4) == 0 => {
                self.table.clear_cache();
                self.published.clear();
                self.cleared += 1;
                Ok("clear")
            }
            _ => self.grow_opaque(at).map(|()| "grow opaque"),
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let tenant = TenantId(self.dice(3) as u64);
        let script = self.dice(self.scripts.len());
        let cut = self.dice(self.scripts[script].len() + 1);
        let mut tokens = self.scripts[script][..cut.min(CONTEXT - 140)].to_vec();
        for _ in 0..=self.dice(120) {
            tokens.push(self.dice(3) as u32);
        }
        let started = match self.table.start(tenant, &tokens) {
            Ok(started) => started,
            Err(StateError::TooManySequences(_)) => return Ok(()),
            Err(error) => return Err(format!("start: {error}")),
        };
        let cached = started.cached;
        if cached >= tokens.len() {
            return Err(format!("{cached} of {} tokens are cached", tokens.len()));
        }
        self.check_found(tenant, &tokens, cached)?;
        let mut marks = Vec::new();
        for &token in &tokens[..cached] {
            marks.push(next_mark(&marks, tenant, token));
        }
        self.scripts.push(tokens.clone());
        let pending = tokens.split_off(cached);
        self.live.push(Live {
            id: started.sequence,
            tenant,
            pending,
            tokens,
            marks,
            known: cached,
        });
        Ok(())
    }

    /// While nothing was evicted, exactly what was published is found.
    fn check_found(&self, tenant: TenantId, tokens: &[u32], cached: usize) -> Result<(), String> {
        let totals = self.totals();
        let forgets = self.table.layout.paged.iter().any(|l| l.policy.forgets());
        let lost = totals.evictions + totals.forgotten + totals.swap_outs + self.cleared;
        if self.table.layout.is_recurrent() || lost > 0 && (forgets || totals.evictions > 0) {
            return Ok(());
        }
        let mine = self.published.iter().filter(|(of, _)| *of == tenant);
        let common = mine.map(|(_, known)| known.iter().zip(tokens).take_while(|(a, b)| a == b).count());
        let expected = common.max().unwrap_or(0).min(tokens.len() - 1);
        if cached == expected {
            Ok(())
        } else {
            Err(format!("{cached} tokens are cached instead of {expected}"))
        }
    }

    fn grow(&mut self, at: usize) -> Result<(), String> {
        let most = [1, 1, 20, 150][self.dice(4)];
        let live = &self.live[at];
        let (id, len) = (live.id, live.tokens.len());
        let wanted = most.min(live.pending.len().max(1)).min(CONTEXT - len);
        if wanted == 0 {
            return Ok(());
        }
        let end = self.table.chunk_end(len, len + wanted);
        if !self.reserve(id, end)? {
            return Ok(());
        }
        let mut tokens: Vec<u32> = self.live[at].pending.iter().copied().take(end - len).collect();
        self.live[at].pending.drain(..tokens.len());
        while tokens.len() < end - len {
            tokens.push(self.dice(3) as u32);
        }
        for &token in &tokens {
            let live = &mut self.live[at];
            live.marks.push(next_mark(&live.marks, live.tenant, token));
        }
        self.write(at, len)?;
        self.live[at].tokens.extend(&tokens);
        self.table.commit(id, &tokens).map_err(say("commit"))?;
        let is_known = self.live[at].known == len;
        if is_known {
            self.live[at].known = end;
            let every = self.table.checkpoint_every;
            if self.table.layout.is_recurrent() && end.is_multiple_of(every) {
                self.note_published(at, end);
            }
        }
        Ok(())
    }

    fn grow_opaque(&mut self, at: usize) -> Result<(), String> {
        let (id, len) = (self.live[at].id, self.live[at].tokens.len());
        if len == CONTEXT || !self.reserve(id, len + 1)? {
            return Ok(());
        }
        let mark = self.dice(usize::MAX) as u64;
        self.live[at].marks.push(mark);
        self.write(at, len)?;
        self.live[at].tokens.push(u32::MAX);
        self.table.commit_vectors(id, 1).map_err(say("commit_vectors"))
    }

    /// Reserves, if it can be done, and does the moves.
    fn reserve(&mut self, id: SequenceId, len: usize) -> Result<bool, String> {
        let can = self.table.can_reserve(id, len).map_err(say("can_reserve"))?;
        let reserved = self.table.reserve(id, len);
        self.do_moves();
        match (can, reserved) {
            (true, Ok(())) => Ok(true),
            (false, Err(StateError::OutOfPages { .. })) => Ok(false),
            (_, reserved) => Err(format!("can_reserve is {can}, reserve gives {reserved:?}")),
        }
    }

    /// What a forward pass does to the pages.
    fn write(&mut self, at: usize, from: usize) -> Result<(), String> {
        let live = &self.live[at];
        for layer in 0..self.table.layout.places.len() {
            let pages = self.table.pages(live.id, layer).map_err(say("pages"))?;
            match self.table.layout.places[layer] {
                Place::Paged(i) => {
                    let store = self.table.layout.paged[i].store;
                    for position in from..live.marks.len() {
                        let page = pages[position / PAGE_POSITIONS].0 as usize;
                        let mark = mix(live.marks[position], i as u64);
                        self.cells[store][page][position % PAGE_POSITIONS] = mark;
                    }
                }
                Place::Fixed(i) => {
                    let state = &mut self.cells[self.table.layout.fixed[i].store][pages[0].0 as usize][0];
                    *state = fold(*state, &live.marks[from..], i);
                }
                Place::None => {}
            }
        }
        Ok(())
    }

    fn do_moves(&mut self) {
        for &step in self.table.moves() {
            match step {
                Move::Copy { store, from, to } => {
                    self.cells[store][to.0 as usize] = self.cells[store][from.0 as usize];
                }
                Move::Clear { store, page } => {
                    self.cells[store][page.0 as usize] = [0; PAGE_POSITIONS];
                }
                Move::Save {
                    store,
                    page,
                    sequence,
                    offset,
                } => {
                    let cells = self.cells[store][page.0 as usize];
                    self.host.insert((sequence, offset), cells);
                }
                Move::Load {
                    store,
                    page,
                    sequence,
                    offset,
                } => {
                    let cells = self.host.remove(&(sequence, offset));
                    self.cells[store][page.0 as usize] = cells.expect("it was saved");
                }
            }
        }
        self.table.clear_moves();
    }

    fn note_published(&mut self, at: usize, end: usize) {
        let live = &self.live[at];
        self.published.push((live.tenant, live.tokens[..end].to_vec()));
    }

    fn publish(&mut self, at: usize) -> Result<(), String> {
        let (id, known) = (self.live[at].id, self.live[at].known);
        if self.dice(2) == 0 {
            self.note_published(at, known / PAGE_POSITIONS * PAGE_POSITIONS);
            self.table.publish(id).map_err(say("publish"))
        } else {
            self.note_published(at, known);
            self.table.publish_all(id).map_err(say("publish_all"))
        }
    }

    fn finish(&mut self, at: usize) -> Result<(), String> {
        let (id, known) = (self.live[at].id, self.live[at].known);
        if !self.table.is_swapped(id).map_err(say("is_swapped"))? {
            self.note_published(at, known);
        }
        self.scripts.push(self.live[at].tokens[..known].to_vec());
        self.live.remove(at);
        self.table.finish(id).map_err(say("finish"))
    }

    fn fork(&mut self, at: usize) -> Result<(), String> {
        match self.table.fork(self.live[at].id) {
            Ok(id) => {
                let live = self.live[at].clone();
                self.live.push(Live { id, ..live });
                Ok(())
            }
            Err(StateError::TooManySequences(_)) => Ok(()),
            Err(error) => Err(format!("fork: {error}")),
        }
    }

    fn truncate(&mut self, at: usize) -> Result<(), String> {
        let len = self.dice(self.live[at].tokens.len() + 1);
        match self.table.truncate(self.live[at].id, len) {
            Ok(()) => {
                let live = &mut self.live[at];
                live.tokens.truncate(len);
                live.marks.truncate(len);
                live.known = live.known.min(len);
                live.pending.clear();
                Ok(())
            }
            Err(StateError::Forgotten { .. }) => Ok(()),
            Err(error) => Err(format!("truncate: {error}")),
        }
    }

    fn swap_out(&mut self, at: usize) -> Result<(), String> {
        let id = self.live[at].id;
        match self.table.swap_out(id) {
            Ok(_) => self.do_moves(),
            Err(StateError::SwapFull { .. } | StateError::Swapped(_)) => {}
            Err(error) => return Err(format!("swap out: {error}")),
        }
        Ok(())
    }

    fn swap_in(&mut self, at: usize) -> Result<(), String> {
        let id = self.live[at].id;
        let can = self.table.can_swap_in(id).map_err(say("can_swap_in"))?;
        let returned = self.table.swap_in(id);
        self.do_moves();
        match (can, returned) {
            (true, Ok(())) | (false, Err(StateError::OutOfPages { .. })) => Ok(()),
            (_, returned) => Err(format!("can_swap_in is {can}, swap_in gives {returned:?}")),
        }
    }

    /// Breaks the books, where the fault is of that kind.
    fn plant(&mut self) {
        let held = self.table.sequences.iter().flatten();
        let mut held = held.filter_map(|s| s.pages.first()?.first().copied());
        let held = held.find(|&page| page != PageId::NONE);
        let pool = &mut self.table.pools[0];
        match (self.fault, held) {
            (Some(Fault::PageLeaked), _) if pool.free() > 0 => drop(pool.free.pop()),
            (Some(Fault::PageFreedTwice), Some(page)) => pool.release(page),
            (Some(Fault::ReferencedEvicted), Some(page)) => {
                pool.refs[page.0 as usize] = 0;
                pool.nodes[page.0 as usize] = NodeId::NONE;
                pool.free.push(page);
            }
            _ => return,
        }
        self.fault = None;
    }

    fn check(&self) -> Result<(), String> {
        if !self.trusts_books {
            self.table.check_integrity().map_err(|e| e.to_string())?;
        }
        for live in &self.live {
            if self.table.len(live.id) != Ok(live.tokens.len()) {
                return Err(format!("sequence {} has another length", live.id.0));
            }
            if self.table.is_swapped(live.id) == Ok(false) {
                self.check_sequence(live)?;
            }
        }
        self.check_tree()
    }

    fn check_sequence(&self, live: &Live) -> Result<(), String> {
        let len = live.marks.len();
        for (layer, place) in self.table.layout.places.iter().enumerate() {
            let pages = self.table.pages(live.id, layer).map_err(say("pages"))?;
            match *place {
                Place::Paged(i) => {
                    let state = &self.table.layout.paged[i];
                    for (position, &mark) in live.marks.iter().enumerate() {
                        let b = position / PAGE_POSITIONS;
                        if state.policy.evictable(first(b), last(b), len) {
                            continue;
                        }
                        let cells = &self.cells[state.store][pages[b].0 as usize];
                        if cells[position % PAGE_POSITIONS] != mix(mark, i as u64) {
                            return Err(format!(
                                "sequence {} sees at position {position} of layer {layer} what it did not write",
                                live.id.0
                            ));
                        }
                    }
                }
                Place::Fixed(i) if len > 0 => {
                    let cells = &self.cells[self.table.layout.fixed[i].store];
                    if cells[pages[0].0 as usize][0] != fold(0, &live.marks, i) {
                        return Err(format!(
                            "sequence {} has a wrong state in layer {layer}",
                            live.id.0
                        ));
                    }
                }
                Place::Fixed(_) | Place::None => {}
            }
        }
        Ok(())
    }

    fn check_tree(&self) -> Result<(), String> {
        for (&tenant, &root) in &self.table.tree.roots {
            let mut waiting = vec![(root, Vec::new())];
            while let Some((id, marks)) = waiting.pop() {
                for &child in &self.table.tree.node(id).children {
                    let marks = self.check_node(child, tenant, marks.clone())?;
                    waiting.push((child, marks));
                }
            }
        }
        Ok(())
    }

    fn check_node(&self, id: NodeId, tenant: TenantId, mut marks: Vec<u64>) -> Result<Vec<u64>, String> {
        let (node, layout) = (self.table.tree.node(id), &self.table.layout);
        let start = marks.len();
        for &token in &node.tokens {
            marks.push(next_mark(&marks, tenant, token));
        }
        for (i, (layer, &page)) in layout.paged.iter().zip(&node.pages).enumerate() {
            let Some(cells) = self.cells[layer.store].get(page.0 as usize) else {
                continue;
            };
            let mut found = cells.iter().zip(&marks[start..]);
            if found.any(|(&cell, &mark)| cell != mix(mark, i as u64)) {
                return Err(format!("node {} holds what its tokens do not give", id.0));
            }
        }
        for checkpoint in &node.checkpoints {
            for (i, (layer, slot)) in layout.fixed.iter().zip(&checkpoint.slots).enumerate() {
                let state = self.cells[layer.store][slot.0 as usize][0];
                if state != fold(0, &marks[..checkpoint.len], i) {
                    return Err(format!("node {} has a wrong checkpoint", id.0));
                }
            }
        }
        Ok(marks)
    }

    /// Ends all sequences: every page comes back.
    pub(super) fn end(&mut self) -> Result<(), String> {
        while !self.live.is_empty() {
            self.finish(0)?;
            self.check()?;
        }
        let stats = self.table.stats();
        if (stats.pages_owned, stats.sequences, stats.swapped_bytes) != (0, 0, 0) {
            return Err(format!("something is left: {stats:?}"));
        }
        self.table.clear_cache();
        let stats = self.table.stats();
        if stats.pages_free != stats.pages_total || stats.nodes != 0 {
            return Err(format!("something is left in the tree: {stats:?}"));
        }
        self.table.check_integrity().map_err(|e| e.to_string())
    }
}

/// The state of recurrent layer `i` after more positions.
fn fold(state: u64, marks: &[u64], i: usize) -> u64 {
    marks.iter().fold(state, |state, &mark| mix(mix(state, mark), i as u64))
}
