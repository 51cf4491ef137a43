//! What is wrong is said, with what was found and what would be right, and never a panic.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use weights::gguf::writer::Writer;

use crate::support::{Outcome, plainchant, run, run_args, run_with, tiny};

#[test]
fn usage_errors_end_with_2() {
    for args in [
        &["sing"][..],
        &["run", "--tempo", "3"],
        &["run", "hi", "--threads", "0"],
        &["run", "hi", "--threads", "1025"],
        &["run", "hi", "--ctx", "0"],
        &["run", "hi", "--max-tokens", "0"],
        &["run", "hi", "--max-tokens", "many"],
        &["run", "hi", "--prefill-chunk", "0"],
        &["run", "hi", "--kv", "q8"],
        &["run", "hi", "--seed", "-1"],
        &["run", "hi", "--stop", ""],
        &["run", "hi", "--logit-bias", "five"],
        &["run", "hi", "--logit-bias", "5=a"],
        &["run", "hi", "--raw", "--system", "x"],
        &["run", "hi", "there"],
        &["pull"],
        &["perplexity"],
        &["bench", "--batch", "65"],
        &["bench", "--kernels", "--kernel-size", "3x3"],
    ] {
        let message = run(args).failure(2, &[]);
        assert!(message.lines().count() > 1, "no advice in {message}");
    }
    assert_eq!(run(&[]).code, Some(2));
}

#[test]
fn no_prompt_is_an_error() {
    run(&["run", "--model", &tiny("qwen2")]).failure(2, &["there is no prompt"]);
    run_with(&["run", "--model", &tiny("qwen2")], b"\n").failure(2, &["there is no prompt"]);
}

#[test]
fn parameters_out_of_range_are_named_with_value_and_range() {
    // The model is not there: ranges are checked before it is looked for.
    for (flag, value, parts) in [
        (
            "--temperature",
            "-1",
            &["temperature", "-1", "0 to 100"][..],
        ),
        (
            "--temperature",
            "100.5",
            &["temperature", "100.5", "0 to 100"],
        ),
        ("--temperature", "nan", &["temperature", "NaN", "0 to 100"]),
        ("--top-p", "0", &["top_p", "0", "above 0 up to 1"]),
        ("--top-p", "1.5", &["top_p", "1.5", "above 0 up to 1"]),
        ("--min-p", "-0.5", &["min_p", "-0.5", "0 to 1"]),
        (
            "--repetition-penalty",
            "0",
            &["repetition_penalty", "0", "0.01 to 100"],
        ),
        (
            "--frequency-penalty",
            "101",
            &["frequency_penalty", "101", "-100 to 100"],
        ),
        (
            "--presence-penalty",
            "-101",
            &["presence_penalty", "-101", "-100 to 100"],
        ),
        ("--logit-bias", "1=inf", &["logit_bias", "inf"]),
    ] {
        run(&["run", "hi", "--model", "/absent.gguf", flag, value]).failure(1, parts);
    }
    let model = tiny("llama-tied");
    run(&run_args(&model, &["hi", "--logit-bias", "280=1"])).failure(1, &["280"]);
}

#[test]
fn a_context_beyond_the_models_names_both_numbers() {
    let model = tiny("llama-tied");
    run(&run_args(&model, &["hi", "--ctx", "513"])).failure(1, &["513", "512"]);
    run(&["inspect", &model, "--ctx", "513"]).failure(1, &["513", "512"]);
    run(&["perplexity", file!(), "--model", &model, "--ctx", "513"]).failure(1, &["513", "512"]);
    run(&[
        "bench",
        "--model",
        &model,
        "--prefill",
        "0",
        "--decode",
        "8",
        "--depth",
        "505",
    ])
    .failure(1, &["513", "512"]);
}

#[test]
fn a_prompt_longer_than_the_context_names_both_numbers() {
    let model = tiny("llama-tied");
    let message = run(&run_args(
        &model,
        &["--raw", "aaaaaaaaaaaaaaaaaaaaaa", "--ctx", "8"],
    ))
    .failure(1, &["context holds 8"]);
    let tokens: usize = message
        .split(" tokens")
        .next()
        .unwrap()
        .split(' ')
        .next_back()
        .unwrap()
        .parse()
        .unwrap();
    assert!(tokens > 8, "{message}");
    let long = "word ".repeat(2000);
    run_with(&run_args(&model, &[]), long.as_bytes()).failure(1, &["context holds 512"]);
}

#[test]
fn models_that_are_not_there_are_named() {
    run(&["run", "hi", "--model", "/absent/m.gguf"]).failure(1, &["/absent/m.gguf"]);
    run(&["run", "hi", "--model", "smollm2-135m-instuct"]).failure(
        1,
        &[
            "smollm2-135m-instuct",
            "did you mean `smollm2-135m-instruct`",
        ],
    );
    run(&["run", "hi", "--model", "https://example.org/m.gguf"]).failure(1, &["https://"]);
    run(&["inspect", "hf:owner/name"]).failure(1, &["hf:owner/name", "not supported"]);
    let folder = env!("CARGO_MANIFEST_DIR");
    run(&["run", "hi", "--model", &format!("{folder}/")]).failure(1, &[folder, "folder"]);
}

#[test]
fn a_truncated_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let name = path.to_str().unwrap();
    let whole = fs::read(tiny("llama-tied")).unwrap();
    for len in [0, 3, 8, 20, 24, 100, 5000, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        run(&["run", "hi", "--model", name]).failure(1, &[name]);
        run(&["inspect", name]).failure(1, &[name]);
    }
    // The whole file is fine: it is the cut that was refused.
    fs::write(&path, &whole).unwrap();
    run(&["run", "hi", "--model", name, "--max-tokens", "1"]).success();
}

#[test]
fn a_model_of_an_unknown_family_is_shown_but_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.gguf");
    let name = path.to_str().unwrap();
    let mut file = Writer::new();
    file.set("general.architecture", "babel");
    file.write(fs::File::create(&path).unwrap(), &[]).unwrap();
    run(&["run", "hi", "--model", name]).failure(1, &["babel", "llama"]);
    let shown = run(&["inspect", name, "--json"]).json();
    assert!(
        shown["not_supported"].as_str().unwrap().contains("babel"),
        "{shown}"
    );
    assert!(shown["memory"].is_null());
    assert!(run(&["inspect", name]).success().contains("can't be run: "));
}

#[test]
fn input_that_is_not_utf8_names_the_byte() {
    let model = tiny("llama-tied");
    for args in [run_args(&model, &[]), vec!["tokenize", "--model", &model]] {
        run_with(&args, b"good\xffbad").failure(1, &["standard input", "0xff", "offset 4"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, b"\xe2\x82").unwrap();
    let path = path.to_str().unwrap();
    run(&["perplexity", path, "--model", &model]).failure(1, &[path, "0xe2", "offset 0"]);
}

#[test]
fn instruction_sets_that_cannot_be_had_are_errors() {
    let model = tiny("qwen2");
    let with = |isa: &str| {
        let args = run_args(&model, &["hi", "--max-tokens", "1"]);
        plainchant(&args)
            .env("PLAINCHANT_ISA", isa)
            .output()
            .unwrap()
    };
    for name in ["sse9", "", "AVX2"] {
        let outcome: Outcome = with(name).into();
        outcome.failure(1, &["PLAINCHANT_ISA", "scalar, avx2, avx512, amx"]);
    }
    for isa in kernels::isa::Isa::ALL {
        let outcome: Outcome = with(isa.name()).into();
        match isa.is_supported() {
            true => drop(outcome.success()),
            false => drop(outcome.failure(1, &[isa.name(), "supports only"])),
        }
    }
}

#[test]
fn a_system_message_needs_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let bytes = fs::read(tiny("qwen2")).unwrap();
    // The same length, so that nothing moves.
    let (from, to) = (b"tokenizer.chat_template", b"tokenizer.chat_xemplate");
    let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
    fs::write(
        &path,
        [&bytes[..at], to, &bytes[at + from.len()..]].concat(),
    )
    .unwrap();
    let path = path.to_str().unwrap();
    run(&["run", "hi", "--model", path, "--system", "be kind"])
        .failure(1, &["--system", "template"]);
    let without = run(&["run", "hi", "--model", path, "--json", "--max-tokens", "3"]).json();
    let raw = run(&[
        "run",
        "hi",
        "--model",
        &tiny("qwen2"),
        "--raw",
        "--json",
        "--max-tokens",
        "3",
    ])
    .json();
    assert_eq!(without["token_ids"], raw["token_ids"]);
    assert_eq!(without["chat_template"], false);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_behind_standard_output_is_an_error() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open(Path::new("/dev/full"))
        .unwrap();
    let model = tiny("qwen2");
    let outcome: Outcome = plainchant(&run_args(&model, &["hi", "--max-tokens", "3"]))
        .stdout(Stdio::from(full))
        .output()
        .unwrap()
        .into();
    outcome.failure(1, &["can't write to standard output"]);
}
