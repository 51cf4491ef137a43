//! The promise, as far as the command line can ask for it: the same tokens and logits on every path.

use serde_json::Value;

use crate::support::{Outcome, TINY, plainchant, run_args, run_json, tiny};

/// A prompt longer than a page, so that chunks and pages are cut in different places.
const PROMPT: &str =
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.";

fn hash_of(report: &Value) -> String {
    report["logits_hash"].as_str().unwrap().to_owned()
}

#[test]
fn threads_and_chunks_change_nothing() {
    for model in TINY {
        let with = |args: &[&str]| {
            let common = [PROMPT, "--max-tokens", "12", "--logits-hash"];
            run_json(model, &[&common[..], args].concat())
        };
        let expected = with(&["--threads", "1"]);
        assert!(expected["prompt_tokens"].as_u64().unwrap() > 64);
        for args in [
            &["--threads", "2"][..],
            &["--threads", "3", "--prefill-chunk", "7"],
            &["--threads", "1", "--prefill-chunk", "1"],
            &["--ctx", "150", "--prefill-chunk", "65"],
        ] {
            let report = with(args);
            assert_eq!(
                report["token_ids"], expected["token_ids"],
                "{model} {args:?}"
            );
            assert_eq!(hash_of(&report), hash_of(&expected), "{model} {args:?}");
        }
        // What does change the logits changes the hash: it can fail.
        assert_ne!(
            hash_of(&with(&["--kv", "f32"])),
            hash_of(&with(&["--kv", "f16"]))
        );
        assert_ne!(hash_of(&with(&["--raw"])), hash_of(&expected));
    }
}

#[test]
fn instruction_sets_change_nothing() {
    for model in TINY {
        let path = tiny(model);
        let hashes: Vec<(String, Value)> = kernels::isa::Isa::supported()
            .into_iter()
            .map(|isa| {
                let args = [PROMPT, "--max-tokens", "8", "--logits-hash", "--json"];
                let mut command = plainchant(&run_args(&path, &args));
                command.env("PLAINCHANT_ISA", isa.name());
                let report = Outcome::from(command.output().unwrap()).json();
                assert_eq!(report["isa"], isa.name());
                (hash_of(&report), report["token_ids"].clone())
            })
            .collect();
        assert!(
            hashes.windows(2).all(|w| w[0] == w[1]),
            "{model}: {hashes:?}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_answer_and_another_gives_another() {
    let with = |seed: &str, threads: &str| {
        let args = [
            PROMPT,
            "--max-tokens",
            "16",
            "--temperature",
            "1.5",
            "--top-k",
            "50",
            "--seed",
            seed,
        ];
        run_json("llama-tied", &[&args[..], &["--threads", threads]].concat())["token_ids"].clone()
    };
    assert_eq!(with("1", "1"), with("1", "2"));
    assert_ne!(with("1", "1"), with("2", "1"));
}

#[test]
fn every_sampling_parameter_reaches_the_sampler() {
    let base = &["Hello", "--max-tokens", "24", "--ignore-eos"][..];
    let ids = |args: &[&str]| run_json("llama-untied", &[base, args].concat())["token_ids"].clone();
    let greedy = ids(&[]);
    let drawn = ids(&["--temperature", "3"]);
    assert_ne!(greedy, drawn);
    // With one token left to draw from, the draw is greedy.
    for one in [["--top-k", "1"], ["--top-p", "0.000001"], ["--min-p", "1"]] {
        assert_eq!(
            ids(&[&["--temperature", "3"][..], &one].concat()),
            greedy,
            "{one:?}"
        );
    }
    for penalty in [
        "--repetition-penalty",
        "--frequency-penalty",
        "--presence-penalty",
    ] {
        assert_ne!(ids(&[penalty, "5"]), greedy, "{penalty}");
    }
    let first = greedy[0].as_u64().unwrap();
    let without = ids(&["--logit-bias", &format!("{first}=-inf")]);
    assert!(
        without
            .as_array()
            .unwrap()
            .iter()
            .all(|id| id.as_u64() != Some(first))
    );
}
