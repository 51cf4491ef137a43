//! The promise, on a real model: a logits hash over prompt and answer, and the text of a seeded answer, are
//! the same whatever the threads, the chunks and the instruction set.
//!
//! SmolLM2 is tested wherever its file is found; `PLAINCHANT_ORACLE=all` adds a covering set for the others.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::sampling::Sampling;
use engine::{Engine, EngineOptions, Event, Request};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::Model;
use text::Tokenizer;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const OTHERS: [&str; 3] = [
    "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
];

fn find(file: &str) -> Option<PathBuf> {
    let env = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = env("HOME").unwrap_or_default();
    let folders = [
        env("PLAINCHANT_DEV_MODELS").unwrap_or_else(|| home.join(".cache/plainchant-dev-models")),
        env("PLAINCHANT_CACHE").unwrap_or_else(|| home.join(".cache/plainchant/models")),
    ];
    let found = folders
        .iter()
        .map(|folder| folder.join(file))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: {file} was not found");
    }
    found
}

struct Loaded {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
}

fn load(path: &Path) -> Loaded {
    let file = Gguf::open(path).unwrap();
    let pool = Pool::new(kernels::topology::default_threads());
    let model = Arc::new(Model::load(&file, &pool, LoadOptions::default()).unwrap());
    Loaded {
        model,
        tokenizer: Arc::new(Tokenizer::from_gguf(&file).unwrap()),
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    isa: Isa,
    threads: usize,
    chunk: usize,
    /// Requests that run beside the one looked at.
    company: usize,
}

/// The text, token ids and hash of an answer of `len` tokens to `prompt`, and its text.
fn answer(loaded: &Loaded, prompt: &[u32], len: usize, way: Way) -> (String, Vec<u32>, String) {
    let options = EngineOptions {
        kv_type: KvType::F16,
        context: 1024,
        sequences: 1 + way.company,
        prefill_chunk: way.chunk,
        ..EngineOptions::default()
    };
    let (model, tokenizer) = (Arc::clone(&loaded.model), Arc::clone(&loaded.tokenizer));
    let mut engine =
        Engine::new(model, tokenizer, way.isa, Pool::new(way.threads), options).unwrap();
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        seed: 42,
        ..Sampling::default()
    };
    for i in 0..way.company {
        let prompt = prompt[i..prompt.len() / 3].to_vec();
        engine
            .submit(Request {
                prompt,
                max_tokens: Some(len / 2),
                ..Request::default()
            })
            .unwrap();
    }
    let request = Request {
        prompt: prompt.to_vec(),
        sampling,
        max_tokens: Some(len),
        ignore_end: true,
        logits_hash: true,
        ..Request::default()
    };
    let id = engine.submit(request).unwrap();
    let (mut text, mut tokens, mut hash) = (String::new(), Vec::new(), None);
    while !engine.is_idle() {
        let mut events = Vec::new();
        engine.step(&mut events).unwrap();
        for event in events {
            match event {
                Event::Token(token) if token.request == id => {
                    text.push_str(&token.text);
                    tokens.push(token.token);
                }
                Event::Finished(finished) if finished.request == id => {
                    text.push_str(&finished.text);
                    hash = finished.logits_hash;
                }
                _ => {}
            }
        }
    }
    assert_eq!(tokens.len(), len);
    (text, tokens, hash.unwrap())
}

/// The first `len` tokens of a fixed text.
fn prompt(loaded: &Loaded, len: usize) -> Vec<u32> {
    let text = include_str!("fixtures/logits/perplexity.txt");
    let options = text::EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let mut tokens = loaded.tokenizer.encode(&text[..8 * len], options);
    tokens.truncate(len);
    assert_eq!(tokens.len(), len);
    tokens
}

fn fast() -> Vec<Isa> {
    Isa::supported()
        .into_iter()
        .filter(|isa| *isa != Isa::Scalar)
        .collect()
}

#[test]
fn a_real_model_answers_the_same_in_every_way() {
    let Some(path) = find(SMOLLM2) else { return };
    let loaded = load(&path);
    let long = prompt(&loaded, 600);
    let mut ways = Vec::new();
    for isa in fast() {
        for threads in [1, 2, 3] {
            for chunk in [1, 7, 64, 512] {
                ways.push(Way {
                    isa,
                    threads,
                    chunk,
                    company: 0,
                });
            }
        }
        ways.push(Way {
            isa,
            threads: 2,
            chunk: 100,
            company: 3,
        });
    }
    let Some(&first) = ways.first() else {
        eprintln!("skipped: this CPU has the scalar reference only");
        return;
    };
    let expected = answer(&loaded, &long, 64, first);
    eprintln!("{} ways, hash {}", ways.len(), expected.2);
    for way in ways {
        assert_eq!(answer(&loaded, &long, 64, way), expected, "{way:?}");
    }
}

#[test]
fn the_scalar_reference_gives_the_same_answer() {
    let Some(path) = find(SMOLLM2) else { return };
    let loaded = load(&path);
    let short = prompt(&loaded, 40);
    let scalar = Way {
        isa: Isa::Scalar,
        threads: 2,
        chunk: 64,
        company: 0,
    };
    let expected = answer(&loaded, &short, 8, scalar);
    for isa in fast() {
        for (threads, chunk) in [(1, 1), (2, 7), (3, 64)] {
            let way = Way {
                isa,
                threads,
                chunk,
                company: 0,
            };
            assert_eq!(answer(&loaded, &short, 8, way), expected, "{way:?}");
        }
    }
}

#[test]
fn the_other_models_answer_the_same_over_a_covering_set() {
    if std::env::var("PLAINCHANT_ORACLE").is_ok_and(|v| v == "all") {
        for path in OTHERS.iter().filter_map(|file| find(file)) {
            let loaded = load(&path);
            let long = prompt(&loaded, 600);
            let short = &long[..24];
            let of = |isa, threads, chunk, company| Way {
                isa,
                threads,
                chunk,
                company,
            };
            let expected = answer(&loaded, &long, 16, of(Isa::best(), 2, 512, 0));
            for isa in fast() {
                for (threads, chunk, company) in [(1, 64, 0), (2, 7, 0), (3, 512, 0), (2, 100, 2)] {
                    let way = of(isa, threads, chunk, company);
                    assert_eq!(
                        answer(&loaded, &long, 16, way),
                        expected,
                        "{path:?}: {way:?}"
                    );
                }
            }
            let scalar = answer(&loaded, short, 2, of(Isa::Scalar, 2, 64, 0));
            assert_eq!(
                answer(&loaded, short, 2, of(Isa::best(), 1, 1, 0)),
                scalar,
                "{path:?}: scalar"
            );
        }
    } else {
        eprintln!("skipped: the other models (PLAINCHANT_ORACLE=all tests them)");
    }
}
