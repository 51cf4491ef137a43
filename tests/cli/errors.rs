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
        &["run", "hi", "--stop", ""],
        &["run", "hi", "--logit-bias", "five"],
        &["run", "hi", "--logit-bias", "5=a"],
        &["run", "hi", "--raw", "--system", "x"],
        &["run", "hi", "there"],
        &["pull"],
        &["bench", "--batch", "65"],
        &["bench", "--kernels", "--kernel-size", "3x3"],
        &["bench", "--kernels", "--kernel-tokens", "0"],
        &["bench", "--kernels", "--kernel-formats", "q9"],
        &["bench", "--kernels", "--kernel-isas", "none"],
        &["bench", "--kernels", "--bounds"],
        &["bench", "--bounds", "--bounds-mib", "0"],
    ] {
        let message = run(args).failure(2, &[]);
        assert!(message.lines().count() > 1, "no advice in {message}");
    }
    assert_eq!(run(&[]).code, Some(2));
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let model = tiny("qwen2");
    let of_rows = [
        &["--prefill", "8"][..],
        &["--decode", "8"],
        &["--depth", "8"],
        &["--batch", "2"],
        &["--kv", "f32"],
        &["--prefill-chunk", "8"],
        &["--profile"],
    ];
    let mut refused: Vec<(&str, Vec<&str>)> = Vec::new();
    for flag in of_rows {
        refused.push(("--kernels", flag.to_vec()));
        refused.push(("--bounds", flag.to_vec()));
    }
    refused.push(("--kernels", vec!["--model", &model]));
    refused.push(("--kernels", vec!["--bounds"]));
    for (other, flag) in refused {
        run(&[&["bench", other], &flag[..]].concat()).failure(2, &[other, flag[0]]);
    }
    for (other, flag) in [
        ("--kernels", ["--kernel-size", "32x256"]),
        ("--kernels", ["--kernel-tokens", "1"]),
        ("--kernels", ["--kernel-formats", "q4_0"]),
        ("--kernels", ["--kernel-isas", "scalar"]),
        ("--bounds", ["--bounds-ms", "1"]),
        ("--bounds", ["--bounds-mib", "1"]),
    ] {
        run(&["bench", flag[0], flag[1]]).failure(2, &[other, flag[0]]);
    }
    run(&["bench", "--bounds", "--bounds-mib", "1", "--model", &model])
        .failure(2, &["--bounds-mib", "--model"]);
}

#[test]
fn whole_numbers_out_of_range_are_told_with_the_flag_and_the_range() {
    let most = u32::MAX;
    for (command, flag, value, range) in [
        (
            "run",
            "--seed",
            "-1",
            "0 to 18446744073709551615".to_owned(),
        ),
        (
            "run",
            "--seed",
            "1e3",
            "0 to 18446744073709551615".to_owned(),
        ),
        ("run", "--top-k", "-1", format!("0 to {most}")),
        ("run", "--threads", "-2", "1 to 1024".to_owned()),
        ("run", "-t", "-2", "1 to 1024".to_owned()),
        ("run", "--ctx", "-1", format!("1 to {most}")),
        ("run", "--max-tokens", "-1", format!("1 to {most}")),
        ("run", "--max-tokens", "4294967296", format!("1 to {most}")),
        ("run", "--logprobs", "-1", "0 to 1000".to_owned()),
        ("run", "--prefill-chunk", "-1", "1 to 8192".to_owned()),
        ("run", "--prefill-chunk", "8193", "1 to 8192".to_owned()),
        ("bench", "--prefill", "-1", format!("0 to {most}")),
        ("bench", "--prefill", "8,-1", format!("0 to {most}")),
        ("bench", "--decode", "-1", format!("0 to {most}")),
        ("bench", "--depth", "-1,8", format!("0 to {most}")),
        ("bench", "--batch", "-1", "1 to 64".to_owned()),
        ("bench", "--threads", "-1", "1 to 1024".to_owned()),
        ("bench", "--repeat", "-1", "1 to 1000".to_owned()),
        ("bench", "--bounds-ms", "-1", "1 to 10000".to_owned()),
        ("bench", "--bounds-mib", "64,-1", "1 to 1048576".to_owned()),
        ("perplexity", "--ctx", "3", format!("4 to {most}")),
        ("perplexity", "--chunks", "-1", format!("0 to {most}")),
        ("inspect", "--ctx", "-1", format!("1 to {most}")),
    ] {
        let range = format!("it must be a whole number from {range}");
        let typed = if flag == "-t" { "--threads" } else { flag };
        run(&[command, flag, value]).failure(2, &[typed, &range]);
    }
    run(&["run", "hi", "--logit-bias", "-1=2"])
        .failure(2, &["--logit-bias", "`-1` is no token id"]);
}

#[test]
fn texts_that_begin_with_a_dash_are_values() {
    let model = tiny("qwen2");
    for extra in [["--stop", "---"], ["--logit-bias", "1=-inf"]] {
        let args = [&["hi", "--max-tokens", "1"][..], &extra].concat();
        run(&run_args(&model, &args)).success();
    }
    run(&["run", "hi", "--stop", ""]).failure(2, &["--stop <TEXT>", "it must not be empty"]);
}

#[test]
#[cfg(unix)]
fn an_argument_that_is_not_utf8_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let wrong = std::ffi::OsStr::from_bytes(b"m\xff.gguf");
    let outcome: Outcome = plainchant(&["inspect"]).arg(wrong).output().unwrap().into();
    outcome.failure(2, &["m\\xFF.gguf", "is not UTF-8"]);
}

#[test]
fn a_text_without_its_quotes_is_told_so() {
    for args in [
        &["run", "Why", "is", "the", "sky", "blue?"][..],
        &["run", "--raw", "Why", "--seed", "1", "is"],
        &["tokenize", "one", "two"],
    ] {
        run(args).failure(2, &["unexpected argument", "several words in quotes"]);
    }
    let other = run(&["run", "hi", "--tempo", "1"]).failure(2, &["--tempo"]);
    assert!(!other.contains("quotes"), "{other}");
    let other = run(&["models", "all"]).failure(2, &["all"]);
    assert!(!other.contains("quotes"), "{other}");
}

#[test]
fn no_prompt_is_an_error() {
    run(&["run", "--model", &tiny("qwen2")]).failure(2, &["there is no prompt"]);
    run_with(&["run", "--model", &tiny("qwen2")], b"\n").failure(2, &["there is no prompt"]);
}

#[test]
fn parameters_out_of_range_are_named_with_value_and_range() {
    // The model is not there: ranges are checked before it is looked for.
    for (flag, value, message) in [
        ("--temperature", "-1", "is -1: it must be from 0 to 100"),
        (
            "--temperature",
            "100.5",
            "is 100.5: it must be from 0 to 100",
        ),
        ("--temperature", "nan", "is NaN: it must be from 0 to 100"),
        ("--top-p", "0", "is 0: it must be above 0 and at most 1"),
        ("--top-p", "1.5", "is 1.5: it must be above 0 and at most 1"),
        ("--min-p", "-0.5", "is -0.5: it must be from 0 to 1"),
        (
            "--repetition-penalty",
            "0",
            "is 0: it must be from 0.01 to 100",
        ),
        (
            "--frequency-penalty",
            "101",
            "is 101: it must be from -100 to 100",
        ),
        (
            "--presence-penalty",
            "-101",
            "is -101: it must be from -100 to 100",
        ),
        (
            "--logit-bias",
            "1=inf",
            "is inf: it must be from -1000000 to 1000000, or -inf",
        ),
    ] {
        let error = run(&["run", "hi", "--model", "/absent.gguf", flag, value]).failure(2, &[]);
        assert_eq!(error, format!("error: {flag} {message}\n"));
    }
    run(&[
        "run",
        "hi",
        "--model",
        "/absent.gguf",
        "--logit-bias",
        "7=1",
        "--logit-bias",
        "7=2",
    ])
    .failure(2, &["--logit-bias is given twice for token 7"]);
    // What depends on the model is no less a matter of usage.
    let model = tiny("llama-tied");
    run(&run_args(&model, &["hi", "--logit-bias", "280=1"]))
        .failure(2, &["--logit-bias is for token 280: it must be below 280"]);
}

#[test]
fn a_context_beyond_the_models_names_both_numbers() {
    let model = tiny("llama-tied");
    let ctx = ["--ctx is 513: it must be from 1 to 512"];
    run(&run_args(&model, &["hi", "--ctx", "513"])).failure(2, &ctx);
    run(&["inspect", &model, "--ctx", "513"]).failure(2, &ctx);
    run(&["perplexity", file!(), "--model", &model, "--ctx", "513"])
        .failure(2, &["--ctx is 513", "from 4 to 512"]);
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
    .failure(
        2,
        &["decode row of 8 tokens", "513 positions", "at most 512"],
    );
}

#[test]
fn a_prompt_longer_than_the_context_names_both_numbers() {
    let model = tiny("llama-tied");
    let message = run(&run_args(
        &model,
        &["--raw", "aaaaaaaaaaaaaaaaaaaaaa", "--ctx", "8"],
    ))
    .failure(1, &["context holds 8", "raise the context with --ctx"]);
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
    // With the most that the model takes, or where that wouldn't do either, --ctx is no advice.
    for args in [&[][..], &["--ctx", "8"]] {
        let told = run_with(&run_args(&model, args), long.as_bytes()).failure(
            1,
            &[
                "shorten the prompt",
                "the 512 that the model was trained for",
            ],
        );
        assert!(!told.contains("--ctx"), "{told}");
    }
    run(&run_args(&model, &["--raw", "", "--ctx", "1"])).failure(2, &["no prompt"]);
    run(&run_args(&tiny("qwen2"), &["--raw", "a", "--ctx", "1"])).failure(1, &["has 1 token, "]);
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
    for (len, reading) in [
        (1, "first 1 byte of"),
        (3, "first 3 bytes of"),
        (5, "the version needs 4 bytes"),
        (8, "the number of tensors needs 8 bytes"),
        (20, "the number of tensors is"),
        (
            24,
            "the number of tensors is 21, which needs at least 693 bytes",
        ),
        (40, "but 24 are left"),
        (800, "the value of key `tokenizer.ggml.tokens` is 280"),
        (5000, "key 20 needs 27 bytes, but 1 is left"),
        (whole.len() / 2, "the data of tensor"),
        (whole.len() - 1, "the data of tensor"),
    ] {
        fs::write(&path, &whole[..len]).unwrap();
        let size = format!("{len} bytes");
        for args in [
            &["run", "hi", "--model", name][..],
            &["inspect", name],
            &["pull", name],
        ] {
            let error = run(args).failure(1, &[name, "truncated", reading]);
            assert!(len < 5 || error.contains(&size), "no {size} in {error}");
        }
    }
    fs::write(&path, "").unwrap();
    run(&["run", "hi", "--model", name]).failure(1, &[name, "an empty file"]);
    // The whole file is fine: it is the cut that was refused.
    fs::write(&path, &whole).unwrap();
    run(&["run", "hi", "--model", name, "--max-tokens", "1"]).success();
}

#[test]
fn what_is_no_model_is_told_by_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("README.md");
    let name = path.to_str().unwrap();
    fs::write(&path, "\n# A title\n\nText.\n").unwrap();
    for args in [
        &["run", "hi", "-m", name][..],
        &["inspect", name],
        &["pull", name],
    ] {
        run(args).failure(
            1,
            &[
                name,
                "a text that begins with \"# A title\"",
                "not a GGUF model",
            ],
        );
    }
}

#[test]
fn values_that_overflow_are_told_with_place_and_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.gguf");
    let name = path.to_str().unwrap();
    let whole = fs::read(tiny("llama-untied")).unwrap();
    let file = weights::gguf::Gguf::open(tiny("llama-untied")).unwrap();
    let damage = |tensor: &str| {
        let mut bytes = whole.clone();
        let range = file.tensor_range(file.tensor(tensor).unwrap());
        for value in bytes[range].chunks_exact_mut(4) {
            value.copy_from_slice(&3e38_f32.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        run(&["run", "--raw", "hi", "--model", name]).failure(1, &["at position "])
    };
    let hidden = damage("blk.1.ffn_down.weight");
    assert!(hidden.contains("hidden state after layer 1 is"), "{hidden}");
    assert!(hidden.contains("inf") || hidden.contains("NaN"), "{hidden}");
    let logit = damage("output.weight");
    assert!(logit.contains("logit of token 0"), "{logit}");
    assert!(logit.contains("inf") || logit.contains("NaN"), "{logit}");
}

#[test]
fn a_tensor_that_cannot_be_loaded_names_the_file_once() {
    const TENSOR: &str = "blk.1.ffn_down.weight";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.gguf");
    let name = path.to_str().unwrap();
    let mut bytes = fs::read(tiny("llama-untied")).unwrap();
    let file = weights::gguf::Gguf::open(tiny("llama-untied")).unwrap();
    let start = file.tensor_range(file.tensor(TENSOR).unwrap()).start;
    bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let told = run(&["run", "--raw", "hi", "--model", name]).failure(1, &[TENSOR, "NaN"]);
    assert_eq!(told.matches(name).count(), 1, "{told}");
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
    for name in ["sse9", " ", "avx 2"] {
        let outcome: Outcome = with(name).into();
        outcome.failure(2, &["PLAINCHANT_ISA", "scalar, avx2, avx512, amx"]);
    }
    // Wherever it would be used.
    for args in [
        &["bench", "--kernels"][..],
        &["bench", "--bounds"],
        &["bench", "--model", &model],
        &["perplexity", file!(), "--model", &model],
    ] {
        let outcome = plainchant(args).env("PLAINCHANT_ISA", "foo").output();
        Outcome::from(outcome.unwrap()).failure(2, &["PLAINCHANT_ISA", "foo"]);
    }
    for name in ["", "Scalar", "SCALAR"] {
        let outcome: Outcome = with(name).into();
        outcome.success();
    }
    for isa in kernels::isa::Isa::ALL {
        let outcome: Outcome = with(isa.name()).into();
        match isa.is_supported() {
            true => drop(outcome.success()),
            false => drop(outcome.failure(2, &[isa.name(), "supports only"])),
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
