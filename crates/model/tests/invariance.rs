//! One order of arithmetic: the logits of a sequence are the same bits whatever the way they are computed.
//!
//! The hashes of `golden.txt` pin them for this version of the contract: when a kernel's order changes,
//! they change, and `CONTRACT_VERSION` must too. `PLAINCHANT_BLESS=1` writes the file anew.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/synthetic.rs"]
mod synthetic;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use common::{TINY, Way, fixture, load, logits};
use kernels::formats::Format;
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Model, Ops, Rows, Span, Step};
use state::TenantId;
use synthetic::Random;

/// Every model: the tiny ones of each family, and one of each block format.
fn models() -> Vec<(String, Arc<Model>)> {
    let tiny = TINY.map(|name| (name.to_owned(), load(&fixture(&format!("{name}.gguf")))));
    let folder = tempfile::tempdir().unwrap();
    let made = Format::ALL.map(|format| {
        let path = folder.path().join(format.name());
        std::fs::write(&path, synthetic::llama(format)).unwrap();
        (format!("synthetic-{}", format.name()), load(&path))
    });
    tiny.into_iter().chain(made).collect()
}

fn tokens(model: &Model, seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..len)
        .map(|_| (random.next() % model.architecture.vocabulary as u64) as u32)
        .collect()
}

fn hash(rows: &[Vec<f32>]) -> String {
    let mut hasher = blake3::Hasher::new();
    rows.iter().flatten().for_each(|x| {
        hasher.update(&x.to_bits().to_le_bytes());
    });
    hasher.finalize().to_hex().to_string()
}

const REFERENCE: Way = Way {
    isa: Isa::Scalar,
    threads: 1,
    chunk: 64,
    kv_type: KvType::F16,
};

#[test]
fn every_way_gives_the_same_bits() {
    for (name, model) in models() {
        let input = tokens(&model, 1, 70);
        let expected = hash(&logits(&model, &input, REFERENCE));
        for isa in Isa::supported() {
            for threads in [1, 2, 3] {
                for chunk in [1, 7, 64, 70] {
                    let way = Way {
                        isa,
                        threads,
                        chunk,
                        ..REFERENCE
                    };
                    assert_eq!(
                        hash(&logits(&model, &input, way)),
                        expected,
                        "{name}: {way:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_bits_are_those_of_this_version_of_the_contract() {
    let mut found = format!("contract {}\n", kernels::CONTRACT_VERSION);
    for (name, model) in models() {
        let input = tokens(&model, 1, 70);
        for kv_type in [KvType::F32, KvType::F16] {
            let way = Way {
                isa: Isa::best(),
                threads: 2,
                kv_type,
                ..REFERENCE
            };
            let hash = hash(&logits(&model, &input, way));
            writeln!(found, "{name} {} {hash}", kv_type.name()).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt");
    if std::env::var_os("PLAINCHANT_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        found, expected,
        "if the order of arithmetic changed on purpose, raise CONTRACT_VERSION"
    );
}

/// Several sequences together, at different lengths, joining and leaving, against each alone.
#[test]
fn a_sequence_in_a_batch_is_a_sequence_alone() {
    for (name, model) in models() {
        let inputs: Vec<_> = (0..5)
            .map(|i| tokens(&model, i, 20 + 9 * i as usize))
            .collect();
        let alone: Vec<_> = inputs
            .iter()
            .map(|t| hash(&logits(&model, t, REFERENCE)))
            .collect();
        for isa in Isa::supported() {
            let found = batched(&model, &inputs, isa);
            let found: Vec<_> = found.iter().map(|rows| hash(rows)).collect();
            assert_eq!(found, alone, "{name} on {isa}");
        }
    }
}

/// Runs all inputs in common steps: sequence i joins at step i with a prompt of 5 + i tokens and then goes
/// on one token a step.
fn batched(model: &Arc<Model>, inputs: &[Vec<u32>], isa: Isa) -> Vec<Vec<Vec<f32>>> {
    let options = MemoryOptions {
        kv_type: REFERENCE.kv_type,
        context: 128,
        sequences: inputs.len(),
        state_bytes: None,
        swap_bytes: 0,
    };
    let mut memory = Memory::new(&model.architecture, options).unwrap();
    let ops = Ops::new(isa, Pool::new(2));
    let mut decoder = Decoder::new(Arc::clone(model), ops, 64, 128).unwrap();
    let ids: Vec<_> = inputs
        .iter()
        .map(|_| memory.create(TenantId::LOCAL).unwrap())
        .collect();
    let mut rows: Vec<Vec<Vec<f32>>> = vec![Vec::new(); inputs.len()];
    for step in 0.. {
        let mut spans = Vec::new();
        let mut owners = Vec::new();
        for (i, input) in inputs.iter().enumerate().filter(|(i, _)| *i <= step) {
            let done = rows[i].len();
            let n = if done == 0 { 5 + i } else { 1 };
            if done < input.len() {
                spans.push(Span::tokens(
                    ids[i],
                    done,
                    &input[done..done + n],
                    Rows::All,
                ));
                owners.push(i);
            }
        }
        if spans.is_empty() {
            return rows;
        }
        let take = &mut |l: model::Logits<'_>| rows[owners[l.span]].push(l.values.to_vec());
        decoder
            .forward(&mut memory, Step { spans: &spans }, take)
            .unwrap();
    }
    unreachable!("every input ends")
}

/// Cutting a sequence back and going on is going on from there.
#[test]
fn a_sequence_cut_back_is_as_if_never_longer() {
    let (_, model) = models().remove(4);
    let (first, second) = (tokens(&model, 3, 70), tokens(&model, 4, 40));
    let straight: Vec<u32> = first[..33].iter().chain(&second).copied().collect();
    let expected = hash(&logits(&model, &straight, REFERENCE)[33..]);
    let options = MemoryOptions {
        kv_type: REFERENCE.kv_type,
        context: 128,
        sequences: 1,
        state_bytes: None,
        swap_bytes: 0,
    };
    let mut memory = Memory::new(&model.architecture, options).unwrap();
    let ops = Ops::new(Isa::best(), Pool::new(2));
    let mut decoder = Decoder::new(Arc::clone(&model), ops, 128, 128).unwrap();
    let id = memory.create(TenantId::LOCAL).unwrap();
    let mut rows = Vec::new();
    let spans = [Span::tokens(id, 0, &first, Rows::None)];
    decoder
        .forward(&mut memory, Step { spans: &spans }, &mut |_| ())
        .unwrap();
    memory.truncate(id, 33).unwrap();
    let spans = [Span::tokens(id, 33, &second, Rows::All)];
    let step = Step { spans: &spans };
    decoder
        .forward(&mut memory, step, &mut |l| rows.push(l.values.to_vec()))
        .unwrap();
    assert_eq!(hash(&rows), expected);
}

/// A host may have other floating-point modes set; they change nothing.
#[cfg(target_arch = "x86_64")]
#[test]
#[allow(unsafe_code, deprecated)]
fn the_modes_of_the_host_change_nothing() {
    use std::arch::x86_64::{_mm_getcsr, _mm_setcsr};
    const FLUSH_AND_ROUND_DOWN: u32 = 0x8040 | 0x2000;
    let model = load(&fixture("qwen2.gguf"));
    let input = tokens(&model, 5, 40);
    let way = Way {
        chunk: 1,
        ..REFERENCE
    };
    for isa in Isa::supported() {
        let way = Way { isa, ..way };
        let expected = hash(&logits(&model, &input, way));
        // SAFETY: the modes are set back before anything else is computed.
        let modes = unsafe { _mm_getcsr() };
        // SAFETY: only rounding and denormals change, and no exception is unmasked.
        unsafe { _mm_setcsr(modes | FLUSH_AND_ROUND_DOWN) };
        let found = hash(&logits(&model, &input, way));
        // SAFETY: what they were.
        unsafe { _mm_setcsr(modes) };
        assert_eq!(found, expected, "{isa}");
    }
}

/// Beyond 1,024 positions attention works in splits, which threads share out.
#[test]
fn long_contexts_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.gguf");
    std::fs::write(&path, synthetic::llama(Format::Q4_0)).unwrap();
    let model = load(&path);
    let input = tokens(&model, 6, 1100);
    let options = |chunk, threads, isa| Way {
        isa,
        threads,
        chunk,
        kv_type: KvType::F16,
    };
    let expected = hash(&common::logits_in(
        &model,
        &input,
        options(1100, 1, Isa::best()),
        2048,
    ));
    for isa in Isa::supported()
        .into_iter()
        .filter(|isa| *isa != Isa::Scalar)
    {
        for (chunk, threads) in [(1, 3), (100, 2), (1030, 3)] {
            let way = options(chunk, threads, isa);
            assert_eq!(
                hash(&common::logits_in(&model, &input, way, 2048)),
                expected,
                "{way:?}"
            );
        }
    }
}
