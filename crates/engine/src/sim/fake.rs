//! A model whose logits are a pure function of the tokens, over the real books of pages.
//!
//! Its pages hold a number for each position, which only writing it there puts there; logits are made of
//! what is read back from all pages that a position sees. So a wrong page, a lost one, or one that is written
//! to by two, gives other tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kernels::pages::{PAGE_POSITIONS, PageId};
use model::{Input, Logits, ModelError, Step};
use state::{
    Full, LayerState, Move, Policy, SequenceId, Started, StateError, StateSpec, StoreSpec, Table,
    TableOptions, TenantId, Window,
};

use crate::error::EngineError;
use crate::runner::{Pages, Runner};

/// Entries of the vocabulary: that of the tokenizer.
pub(super) const VOCABULARY: usize = 280;

/// A model fails on a span that holds this token.
pub(super) const POISON: u32 = 13;

/// What the fake model's layers remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Full,
    Window(usize),
    Recurrent,
}

/// Something the fake does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FakeFault {
    /// Copies of shared pages are not made.
    Copies,
    /// Swapped pages come back empty.
    Swaps,
    /// A sequence's pages are not taken back when it ends.
    Ends,
}

#[derive(Debug)]
pub(super) struct Fake {
    pub(super) table: Table,
    layers: Vec<(Layer, usize)>,
    stores: Vec<Vec<[u64; PAGE_POSITIONS]>>,
    swapped: BTreeMap<(SequenceId, u64), [u64; PAGE_POSITIONS]>,
    pub(super) now: Duration,
    /// Steps of more than one span that fail next.
    pub(super) failures: usize,
    pub(super) fault: Option<FakeFault>,
    /// What each sequence that runs had in the cache when it began.
    pub(super) cached: BTreeMap<SequenceId, usize>,
    /// Sequences that have begun and not ended.
    pub(super) alive: BTreeSet<SequenceId>,
    /// Rows that ran, all steps together.
    pub(super) rows: u64,
    logits: Vec<f32>,
}

/// How a fake is set up.
#[derive(Clone, Debug)]
pub(super) struct FakeOptions {
    pub(super) layers: Vec<Layer>,
    pub(super) sequences: usize,
    pub(super) context: usize,
    /// Pages of each paged layer.
    pub(super) pages: usize,
    pub(super) swap_bytes: u64,
}

const PAGE_BYTES: usize = 8 * PAGE_POSITIONS;

impl Fake {
    pub(super) fn new(options: &FakeOptions) -> Self {
        let layer = |(store, layer): (usize, &Layer)| {
            let (spec, policy): (_, Arc<dyn Policy>) = match *layer {
                Layer::Full => (paged(), Arc::new(Full)),
                Layer::Window(positions) => (paged(), Arc::new(Window { positions })),
                Layer::Recurrent => (StateSpec::Fixed { bytes: PAGE_BYTES }, Arc::new(Full)),
            };
            LayerState {
                spec,
                store,
                policy,
            }
        };
        let stores = options.layers.iter().map(|layer| StoreSpec {
            pages: match layer {
                Layer::Recurrent => options.sequences * 4,
                Layer::Full | Layer::Window(_) => options.pages,
            },
            page_bytes: PAGE_BYTES,
        });
        let stores: Vec<StoreSpec> = stores.collect();
        let of_table = TableOptions {
            layers: options.layers.iter().enumerate().map(layer).collect(),
            stores: stores.clone(),
            sequences: options.sequences,
            context: options.context,
            swap_bytes: options.swap_bytes,
            checkpoint_every: 2 * PAGE_POSITIONS,
        };
        Self {
            table: Table::new(of_table).unwrap(),
            layers: options.layers.iter().copied().zip(0..).collect(),
            stores: stores
                .iter()
                .map(|s| vec![[u64::MAX; PAGE_POSITIONS]; s.pages])
                .collect(),
            swapped: BTreeMap::new(),
            now: Duration::ZERO,
            failures: 0,
            fault: None,
            cached: BTreeMap::new(),
            alive: BTreeSet::new(),
            rows: 0,
            logits: vec![0.0; VOCABULARY],
        }
    }

    /// Does what the books ask for.
    fn move_bytes(&mut self) {
        for &step in self.table.moves() {
            match step {
                Move::Copy { store, from, to } => {
                    if self.fault != Some(FakeFault::Copies) {
                        self.stores[store][to.0 as usize] = self.stores[store][from.0 as usize];
                    }
                }
                Move::Clear { store, page } => {
                    self.stores[store][page.0 as usize] = [0; PAGE_POSITIONS]
                }
                Move::Save {
                    store,
                    page,
                    sequence,
                    offset,
                } => {
                    let bytes = self.stores[store][page.0 as usize];
                    self.swapped.insert((sequence, offset), bytes);
                    self.now += Duration::from_micros(2);
                }
                Move::Load {
                    store,
                    page,
                    sequence,
                    offset,
                } => {
                    let bytes = self.swapped.remove(&(sequence, offset)).unwrap();
                    if self.fault != Some(FakeFault::Swaps) {
                        self.stores[store][page.0 as usize] = bytes;
                    }
                    self.now += Duration::from_micros(2);
                }
            }
        }
        self.table.clear_moves();
    }

    /// Writes one position of every layer and gives what the model makes of all it sees.
    fn run(&mut self, sequence: SequenceId, position: usize, token: u32) -> u64 {
        let mut seen = 0;
        for &(layer, store) in &self.layers {
            let pages = self.table.pages(sequence, store).unwrap();
            let bytes = &mut self.stores[store];
            let of_layer = match layer {
                Layer::Recurrent => {
                    let state = &mut bytes[pages[0].0 as usize][0];
                    *state = mix(*state, u64::from(token));
                    *state
                }
                Layer::Full | Layer::Window(_) => {
                    let page = pages[position / PAGE_POSITIONS];
                    assert_ne!(page, PageId::NONE, "no page to write to");
                    bytes[page.0 as usize][position % PAGE_POSITIONS] =
                        written(store, position, token);
                    let positions = visible(layer, position)..=position;
                    positions.fold(0u64, |sum, p| {
                        let page = pages[p / PAGE_POSITIONS];
                        assert_ne!(page, PageId::NONE, "position {p} was forgotten");
                        sum.wrapping_add(bytes[page.0 as usize][p % PAGE_POSITIONS])
                    })
                }
            };
            seen = mix(seen, of_layer);
        }
        seen
    }

    fn check_step(&mut self, step: Step<'_>) -> Result<(), EngineError> {
        for span in step.spans {
            let len = self.table.len(span.sequence)?;
            if len != span.position {
                let (sequence, position) = (span.sequence.0, span.position);
                let error = ModelError::WrongPosition {
                    sequence,
                    position,
                    len,
                };
                return Err(error.into());
            }
        }
        let rows: usize = step.spans.iter().map(|span| span.rows_of(1)).sum();
        self.now += step_time(step.spans.len(), rows);
        if self.failures > 0 && step.spans.len() > 1 {
            self.failures -= 1;
            return Err(failure());
        }
        let is_poisoned = |tokens: &[u32]| tokens.contains(&POISON);
        match step
            .spans
            .iter()
            .any(|span| matches!(span.input, Input::Tokens(t) if is_poisoned(t)))
        {
            true => Err(failure()),
            false => Ok(()),
        }
    }
}

fn paged() -> StateSpec {
    StateSpec::Paged {
        bytes_per_position: 8,
    }
}

/// What a model of some speed would take.
fn step_time(spans: usize, rows: usize) -> Duration {
    Duration::from_micros(200 + 20 * spans as u64 + 10 * rows as u64)
}

fn failure() -> EngineError {
    ModelError::NonFiniteLogit {
        token: 0,
        position: 0,
        value: f32::NAN,
    }
    .into()
}

impl Runner for Fake {
    fn now(&self) -> Duration {
        self.now
    }

    fn start(
        &mut self,
        tenant: TenantId,
        tokens: &[u32],
        shares: bool,
    ) -> Result<Started, EngineError> {
        let started = match shares {
            true => self.table.start(tenant, tokens)?,
            false => Started {
                sequence: self.table.create(tenant)?,
                cached: 0,
            },
        };
        self.cached.insert(started.sequence, started.cached);
        self.alive.insert(started.sequence);
        Ok(started)
    }

    fn reserve(&mut self, sequence: SequenceId, len: usize) -> Result<(), EngineError> {
        self.table.reserve(sequence, len)?;
        self.move_bytes();
        Ok(())
    }

    fn forward(
        &mut self,
        step: Step<'_>,
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<(), EngineError> {
        self.check_step(step)?;
        for (index, span) in step.spans.iter().enumerate() {
            let Input::Tokens(tokens) = span.input else {
                continue;
            };
            for (i, &token) in tokens.iter().enumerate() {
                let position = span.position + i;
                let seen = self.run(span.sequence, position, token);
                if span.wants(i, tokens.len()) {
                    fill(&mut self.logits, seen);
                    sink(Logits {
                        span: index,
                        position,
                        values: &self.logits,
                    });
                }
            }
            self.table.commit(span.sequence, tokens)?;
            self.rows += tokens.len() as u64;
        }
        Ok(())
    }

    fn publish(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        Ok(self.table.publish(sequence)?)
    }

    fn end(&mut self, sequence: SequenceId, shares: bool) -> Result<(), EngineError> {
        if self.fault == Some(FakeFault::Ends) {
            return Ok(());
        }
        self.alive.remove(&sequence);
        self.swapped.retain(|&(of, _), _| of != sequence);
        match shares {
            true => Ok(self.table.finish(sequence)?),
            false => Ok(self.table.release(sequence)?),
        }
    }

    fn swap_out(&mut self, sequence: SequenceId) -> Result<bool, EngineError> {
        match self.table.swap_out(sequence) {
            Ok(_) => {
                self.move_bytes();
                Ok(true)
            }
            Err(StateError::SwapFull { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn swap_in(&mut self, sequence: SequenceId) -> Result<bool, EngineError> {
        match self.table.swap_in(sequence) {
            Ok(()) => {
                self.move_bytes();
                Ok(true)
            }
            Err(StateError::OutOfPages { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn swap_bytes_of(&self, sequence: SequenceId) -> Result<u64, EngineError> {
        Ok(self.table.swap_bytes_of(sequence)?)
    }

    fn pages_needed(&self, sequence: SequenceId, len: usize) -> Result<usize, EngineError> {
        Ok(self.table.pages_needed(sequence, len)?)
    }

    fn fits(&self, len: usize, chunk: usize) -> Result<(), EngineError> {
        self.table.fits(len, chunk).map_err(EngineError::from_fit)
    }

    fn chunk_end(&self, position: usize, end: usize) -> usize {
        self.table.chunk_end(position, end)
    }

    fn pages(&self) -> Pages {
        Pages::from(self.table.stats())
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES as u64
    }

    fn check(&self) -> Result<(), String> {
        self.table
            .check_integrity()
            .map_err(|error| error.to_string())
    }
}

/// The first position that one at `position` sees.
fn visible(layer: Layer, position: usize) -> usize {
    match layer {
        Layer::Window(positions) => (position + 1).saturating_sub(positions),
        Layer::Full | Layer::Recurrent => 0,
    }
}

/// What stands in a page for a token at a position.
fn written(store: usize, position: usize, token: u32) -> u64 {
    mix(mix(store as u64 + 1, position as u64), u64::from(token))
}

/// The logits made of what a position sees.
fn fill(logits: &mut [f32], seen: u64) {
    for (i, logit) in logits.iter_mut().enumerate() {
        let bits = mix(seen, i as u64);
        *logit = (bits >> 40) as f32 / (1u64 << 20) as f32;
    }
    // The poison is for prompts only.
    logits[POISON as usize] = -100.0;
}

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 32)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The same model without pages: the logits after each of a growing list of tokens.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    layers: Vec<Layer>,
    tokens: Vec<u32>,
    states: Vec<u64>,
    pub(super) logits: Vec<f32>,
}

impl Reference {
    pub(super) fn new(layers: &[Layer]) -> Self {
        Self {
            layers: layers.to_vec(),
            tokens: Vec::new(),
            states: vec![0; layers.len()],
            logits: vec![0.0; VOCABULARY],
        }
    }

    /// Adds a token; `logits` are those after it.
    pub(super) fn push(&mut self, token: u32) {
        let position = self.tokens.len();
        self.tokens.push(token);
        let mut seen = 0;
        for (store, (&layer, state)) in self.layers.iter().zip(&mut self.states).enumerate() {
            match layer {
                Layer::Recurrent => *state = mix(*state, u64::from(token)),
                Layer::Full | Layer::Window(_) => {
                    *state = state.wrapping_add(written(store, position, token));
                    let first = visible(layer, position);
                    if first > 0 {
                        *state =
                            state.wrapping_sub(written(store, first - 1, self.tokens[first - 1]));
                    }
                }
            }
            seen = mix(seen, *state);
        }
        fill(&mut self.logits, seen);
    }
}
