//! The default model, where a developer has it. Skipped, visibly, where not.

use serde_json::Value;

use crate::support::{real_model, run};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn the_default_model_knows_the_capital_of_france() {
    let Some(model) = real_model(FILE) else {
        return;
    };
    let ask = |args: &[&str]| -> Value {
        let question = "What is the capital of France? Answer in one sentence.";
        let common = [
            "run",
            question,
            "--model",
            &model,
            "--json",
            "--logits-hash",
            "--max-tokens",
            "12",
        ];
        run(&[&common[..], args].concat()).json()
    };
    let answer = ask(&[]);
    assert!(
        answer["text"].as_str().unwrap().contains("Paris"),
        "{answer}"
    );
    let other = ask(&["--threads", "1", "--prefill-chunk", "5"]);
    assert_eq!(answer["logits_hash"], other["logits_hash"]);
    assert_eq!(answer["ctx"], 4096);
}

#[test]
fn the_memory_of_a_real_model_is_known_before_it_is_loaded() {
    let Some(model) = real_model(FILE) else {
        return;
    };
    let memory = run(&["inspect", &model, "--json"]).json()["memory"].clone();
    let bench = [
        "bench",
        "--model",
        &model,
        "--prefill",
        "0",
        "--decode",
        "1",
        "--repeat",
        "1",
        "--json",
    ];
    let row: Value = run(&bench).json();
    assert_eq!(memory["weights_bytes"], row["weight_bytes"]);
}

/// The reference's tokens of the whole text; its windows are their beginning.
#[test]
fn a_real_text_has_the_tokens_of_the_reference() {
    let Some(model) = real_model(FILE) else {
        return;
    };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logits");
    let text = std::fs::read_to_string(folder.join("perplexity.txt")).unwrap();
    let expected: Vec<u64> = std::fs::read(folder.join("perplexity.smollm2.u32"))
        .unwrap()
        .chunks_exact(4)
        .map(|bytes| u64::from(u32::from_le_bytes(bytes.try_into().unwrap())))
        .collect();
    let report = run(&["tokenize", "--model", &model, "--json", text.trim_end()]).json();
    let tokens = report["tokens"].as_array().unwrap();
    let ids: Vec<u64> = tokens.iter().map(|t| t["id"].as_u64().unwrap()).collect();
    assert_eq!(ids[..expected.len()], expected);
}
