//! A sequence that begins with what another left, was forked, or went to the host's memory and came back has
//! the logits of one that ran alone, bit for bit.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{TINY, Way, fixture, load, logits};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Model, ModelError, Ops, Rows, Span, Step};
use state::{SequenceId, Started, StateError, TenantId};

const WAY: Way = Way {
    isa: Isa::Scalar,
    threads: 1,
    chunk: 64,
    kv_type: KvType::F16,
};

const TENANT: TenantId = TenantId(7);

/// A decoder and its memory.
struct Bench {
    decoder: Decoder,
    memory: Memory,
}

type Logits = Vec<Vec<f32>>;

fn tokens(model: &Model, seed: u64, len: usize) -> Vec<u32> {
    let vocabulary = model.architecture.vocabulary as u64;
    let mut x = seed;
    let next = || {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((x >> 33) % vocabulary) as u32
    };
    std::iter::repeat_with(next).take(len).collect()
}

impl Bench {
    fn new(model: &Arc<Model>, state_bytes: Option<u64>) -> Self {
        let options = MemoryOptions {
            kv_type: WAY.kv_type,
            context: 256,
            sequences: 8,
            state_bytes,
            swap_bytes: 1 << 24,
        };
        let memory = Memory::new(&model.architecture, options).unwrap();
        let ops = Ops::new(Isa::best(), Pool::new(2));
        let decoder = Decoder::new(Arc::clone(model), ops, 64, 256).unwrap();
        Self { decoder, memory }
    }

    /// Runs `tokens` behind what the sequence has, `chunk` at a time.
    fn run(&mut self, id: SequenceId, tokens: &[u32], chunk: usize) -> Result<Logits, ModelError> {
        let mut rows = Vec::new();
        for part in tokens.chunks(chunk) {
            let position = self.memory.table().len(id)?;
            let spans = [Span::tokens(id, position, part, Rows::All)];
            let step = Step { spans: &spans };
            self.decoder.forward(&mut self.memory, step, &mut |l| {
                rows.push(l.values.to_vec())
            })?;
            self.memory.table().check_integrity().unwrap();
        }
        Ok(rows)
    }

    fn start(&mut self, tokens: &[u32]) -> Started {
        self.memory.start(TENANT, tokens).unwrap()
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let row = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect();
    rows.iter().map(row).collect()
}

fn assert_same(found: &[Vec<f32>], cold: &[Vec<f32>], what: &str) {
    assert_eq!(found.len(), cold.len(), "{what}");
    assert!(bits(found) == bits(cold), "{what}: other bits");
}

#[test]
fn a_cached_prefix_gives_the_bits_of_a_cold_one() {
    for name in TINY {
        let model = load(&fixture(&format!("{name}.gguf")));
        let first = tokens(&model, 1, 170);
        let expected = logits(&model, &first, WAY);
        let mut bench = Bench::new(&model, None);
        let cold = bench.start(&first);
        assert_eq!(cold.cached, 0);
        let found = bench.run(cold.sequence, &first, 64).unwrap();
        assert_same(&found, &expected, name);
        bench.memory.finish(cold.sequence).unwrap();

        // The same again, and others that part from it within a page and at a page's end. Each is published
        // too, so the later ones meet a tree of several branches; twice, so that each meets itself.
        for keep in [170, 150, 128, 127, 65, 64, 3, 150, 127] {
            let mut other = first[..keep].to_vec();
            other.extend(tokens(&model, 2 + keep as u64, 200 - keep));
            let expected = logits(&model, &other, WAY);
            let warm = bench.start(&other);
            assert!(
                warm.cached >= keep,
                "{name}: {} of {keep} cached",
                warm.cached
            );
            let found = bench.run(warm.sequence, &other[warm.cached..], 7).unwrap();
            assert_same(
                &found,
                &expected[warm.cached..],
                &format!("{name}, {keep} kept"),
            );
            bench.memory.finish(warm.sequence).unwrap();
        }
        let warm = bench.start(&first);
        assert_eq!(warm.cached, 169, "{name}: one row is left to run");
        let stats = bench.memory.table().stats();
        assert!(stats.totals.copies > 0, "{name}: {stats:?}");
        bench.memory.release(warm.sequence).unwrap();
        let stats = bench.memory.table().stats();
        assert_eq!((stats.pages_owned, stats.sequences), (0, 0));
    }
}

#[test]
fn another_tenant_finds_nothing() {
    let model = load(&fixture("qwen2.gguf"));
    let input = tokens(&model, 1, 100);
    let mut bench = Bench::new(&model, None);
    let one = bench.start(&input);
    bench.run(one.sequence, &input, 64).unwrap();
    bench.memory.finish(one.sequence).unwrap();
    let other = bench.memory.start(TenantId(8), &input).unwrap();
    assert_eq!(other.cached, 0);
    assert_eq!(bench.start(&input).cached, 99);
    bench.memory.set_model_key([1; 32]);
    assert_eq!(bench.start(&input).cached, 0, "the key changed");
}

#[test]
fn forks_go_their_own_ways() {
    for name in TINY {
        let model = load(&fixture(&format!("{name}.gguf")));
        let prompt = tokens(&model, 3, 90);
        let mut bench = Bench::new(&model, None);
        let one = bench.memory.create(TENANT).unwrap();
        bench.run(one, &prompt, 64).unwrap();
        let two = bench.memory.fork(one).unwrap();
        let three = bench.memory.fork(two).unwrap();
        let ways =
            [(one, 10), (two, 11), (three, 12)].map(|(id, seed)| (id, tokens(&model, seed, 60)));
        let mut found = [const { Vec::new() }; 3];
        for at in 0..60 {
            for ((id, way), rows) in ways.iter().zip(&mut found) {
                rows.extend(bench.run(*id, &way[at..=at], 1).unwrap());
            }
        }
        for ((_, way), rows) in ways.iter().zip(&found) {
            let whole: Vec<u32> = prompt.iter().chain(way).copied().collect();
            assert_same(rows, &logits(&model, &whole, WAY)[90..], name);
        }
    }
}

#[test]
fn preempted_sequences_go_on_with_the_same_bits() {
    for name in TINY {
        let model = load(&fixture(&format!("{name}.gguf")));
        let input = tokens(&model, 4, 200);
        let expected = logits(&model, &input, WAY);
        let mut bench = Bench::new(&model, None);
        let id = bench.memory.create(TENANT).unwrap();
        bench.run(id, &input[..150], 64).unwrap();
        let bytes = bench.memory.swap_out(id).unwrap();
        assert!(bytes > 0);
        assert_eq!(bench.memory.table().stats().pages_owned, 0);
        assert!(
            bench.run(id, &input[150..151], 1).is_err(),
            "{name}: it is swapped out"
        );
        // Another takes the pages meanwhile.
        let other = bench.memory.create(TENANT).unwrap();
        let others = tokens(&model, 5, 250);
        bench.run(other, &others, 64).unwrap();
        bench.memory.swap_in(id).unwrap();
        let found = bench.run(id, &input[150..180], 7).unwrap();
        assert_same(&found, &expected[150..180], name);
        // Dropped, to be computed again from what is still cached.
        bench.memory.finish(id).unwrap();
        let again = bench.start(&input);
        assert_eq!(again.cached, 180, "{name}");
        let found = bench.run(again.sequence, &input[180..], 7).unwrap();
        assert_same(&found, &expected[180..], name);
    }
}

#[test]
fn a_tiny_budget_evicts_and_gives_the_same_bits() {
    for name in ["gemma3", "llama-tied"] {
        let model = load(&fixture(&format!("{name}.gguf")));
        let one = Memory::bytes_per_sequence(&model.architecture, WAY.kv_type, 256) as u64;
        let mut bench = Bench::new(&model, Some(one));
        bench.memory.table().fits(256, 64).unwrap();
        for seed in [1, 2, 1, 3, 2, 1] {
            let input = tokens(&model, seed, 130 + 20 * seed as usize);
            let started = bench.start(&input);
            let found = bench
                .run(started.sequence, &input[started.cached..], 64)
                .unwrap();
            let expected = &logits(&model, &input, WAY)[started.cached..];
            assert_same(&found, expected, name);
            bench.memory.finish(started.sequence).unwrap();
        }
        assert!(bench.memory.table().stats().totals.evictions > 0);
        let refused = bench.memory.table().fits(257, 64);
        assert_eq!(
            refused,
            Err(StateError::TooLong {
                len: 257,
                context: 256
            })
        );
        let mut half = Bench::new(&model, Some(one / 4));
        let error = half.memory.table().fits(250, 64);
        let id = half.memory.create(TENANT).unwrap();
        let ran = half.run(id, &tokens(&model, 1, 250), 64);
        // A model all of whose layers but one see a window only may fit in a quarter.
        assert_eq!(error.is_err(), ran.is_err(), "{name}: {error:?}");
    }
}
