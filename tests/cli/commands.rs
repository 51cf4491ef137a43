//! `inspect`, `tokenize`, `perplexity`, `bench`.

use std::fs;

use kernels::formats::Format;
use kernels::isa::Isa;
use serde_json::{Value, json};

use crate::support::{Outcome, TINY, list, plainchant, run, run_with, tiny};

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn inspect_shows_what_the_file_holds() {
    let shown = run(&["inspect", &tiny("llama-untied"), "--json"]).json();
    assert_eq!(shown["metadata"]["general.architecture"], "llama");
    let tokens = &shown["metadata"]["tokenizer.ggml.tokens"];
    assert_eq!(
        (&tokens["length"], &tokens["array_of"]),
        (&json!(280), &json!("string"))
    );
    assert_eq!(tokens["first"].as_array().unwrap().len(), 8);
    let tensors = shown["tensors"].as_array().unwrap();
    let embedding = tensors
        .iter()
        .find(|t| t["name"] == "token_embd.weight")
        .unwrap();
    assert_eq!(
        (&embedding["shape"], &embedding["type"]),
        (&json!([280, 64]), &json!("F32"))
    );
    assert_eq!(shown["types"][0]["tensors"], json!(tensors.len()));
    assert_eq!(shown["tokenizer"]["tokens"], 280);
    assert!(
        shown["chat_template"]
            .as_str()
            .unwrap()
            .contains("im_start")
    );
    let text = run(&["inspect", &tiny("llama-untied")]).success();
    for part in [
        "general.architecture = \"llama\"",
        "… 280 in all",
        "Tensors (",
        "Memory",
        "im_start",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn inspect_knows_the_memory_that_running_takes() {
    for name in TINY {
        let model = tiny(name);
        let memory = |args: &[&str]| {
            run(&[&["inspect", &model, "--json"], args].concat()).json()["memory"].clone()
        };
        let row = &lines(
            &run(&[
                "bench",
                "--model",
                &model,
                "--prefill",
                "4",
                "--decode",
                "0",
                "--repeat",
                "1",
                "--json",
            ])
            .success(),
        )[0];
        let small = memory(&["--ctx", "64"]);
        assert_eq!(small["weights_bytes"], row["weight_bytes"], "{name}");
        // Four pages for one, of values twice as wide.
        let large = memory(&["--ctx", "256", "--kv", "f32"]);
        let bytes = |m: &Value| m["kv_bytes"].as_u64().unwrap();
        assert_eq!(bytes(&large), 8 * bytes(&small), "{name}");
        let total = small["weights_bytes"].as_u64().unwrap() + bytes(&small);
        assert_eq!(small["total_bytes"].as_u64().unwrap(), total);
    }
}

#[test]
fn tokenize_gives_ids_and_pieces_that_make_the_text() {
    let text = "Hello, wörld!\n 中 <|im_end|> x";
    for name in ["llama-tied", "qwen2", "gemma3"] {
        let model = tiny(name);
        let plain = run(&[
            "tokenize",
            "--model",
            &model,
            "--no-special",
            "--json",
            text,
        ])
        .json();
        let tokens = plain["tokens"].as_array().unwrap();
        assert_eq!(plain["count"], tokens.len());
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|t| list::<u8>(&t["bytes"]))
            .collect();
        assert_eq!(
            String::from_utf8(bytes).unwrap().trim_start(),
            text,
            "{name}"
        );
        let ids: Vec<String> = tokens.iter().map(|t| t["id"].to_string()).collect();
        let printed =
            run(&["tokenize", "--model", &model, "--no-special", "--ids", text]).success();
        assert_eq!(printed, format!("{}\n", ids.join(" ")));
        let piped = run_with(
            &["tokenize", "--model", &model, "--no-special", "--ids"],
            text.as_bytes(),
        );
        assert_eq!(piped.success(), printed);
        let table = run(&["tokenize", "--model", &model, "--no-special", text]).success();
        assert_eq!(table.lines().count(), tokens.len());
    }
    // Read as a control token it is one token, and llama's BOS goes before.
    let ids = |args: &[&str]| {
        let model = tiny("llama-tied");
        let printed = run(&[
            &["tokenize", "--model", &model, "--ids", "<|im_end|>"],
            args,
        ]
        .concat());
        printed.success().split_whitespace().count()
    };
    assert_eq!(ids(&[]), 2);
    assert!(ids(&["--no-special"]) > 5);
}

#[test]
fn an_empty_text_has_no_tokens() {
    let model = tiny("qwen2");
    assert_eq!(
        run_with(&["tokenize", "--model", &model], b"").success(),
        ""
    );
    assert_eq!(
        run_with(&["tokenize", "--model", &model, "--ids"], b"").success(),
        "\n"
    );
}

#[test]
fn perplexity_is_the_same_by_text_ids_and_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, ids) = (path("text"), path("ids.json"));
    let words = "It was the best of times, it was the worst of times. ".repeat(20);
    fs::write(&text, format!("{words}\n")).unwrap();
    for name in ["llama-tied", "gemma3"] {
        let model = tiny(name);
        let score = |source: &[&str], args: &[&str]| {
            let common = ["perplexity", "--model", &model, "--json", "--ctx", "64"];
            run(&[&common[..], source, args].concat()).json()
        };
        let three = ["--chunks", "3"];
        let expected = score(&[&text], &three);
        assert_eq!(
            (&expected["windows"], &expected["tokens_scored"]),
            (&json!(3), &json!(93))
        );
        let (nll, perplexity) = (
            expected["mean_negative_log_likelihood"].as_f64(),
            expected["perplexity"].as_f64(),
        );
        assert!((nll.unwrap().exp() - perplexity.unwrap()).abs() < 1e-9 * perplexity.unwrap());
        assert!(expected["perplexity_standard_error"].as_f64().unwrap() > 0.0);
        let tokens =
            run_with(&["tokenize", "--model", &model, "--ids"], words.as_bytes()).success();
        fs::write(&ids, format!("[{}]", tokens.trim().replace(' ', ","))).unwrap();
        for other in [
            score(&["--token-ids", &ids], &three),
            score(&[&text, "--prefill-chunk", "5", "--threads", "1"], &three),
            score(&[&text, "--threads", "2"], &three),
        ] {
            assert_eq!(other["perplexity"], expected["perplexity"], "{name}");
            assert_eq!(other["text_tokens"], expected["text_tokens"], "{name}");
        }
        assert_ne!(
            score(&[&text, "--kv", "f32"], &three)["perplexity"],
            expected["perplexity"]
        );
        let whole = score(&[&text], &["--chunks", "0"]);
        assert_eq!(
            whole["windows"],
            json!(whole["text_tokens"].as_u64().unwrap() / 64)
        );
        let shown = run(&[
            "perplexity",
            &text,
            "--model",
            &model,
            "--ctx",
            "64",
            "--chunks",
            "3",
        ]);
        assert!(
            shown
                .success()
                .starts_with(&format!("perplexity {:.4} ± ", perplexity.unwrap()))
        );
    }
}

#[test]
fn a_dash_is_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    let text = "It was the best of times. ".repeat(20);
    fs::write(&path, &text).unwrap();
    let (path, model) = (path.to_str().unwrap(), tiny("llama-tied"));
    let score = |file: &[&str], input: &str| {
        let args = [
            &["perplexity", "--model", &model, "--json", "--ctx", "64"],
            file,
        ]
        .concat();
        run_with(&args, input.as_bytes()).json()["perplexity"].clone()
    };
    let expected = score(&[path], "");
    assert_eq!(score(&["-"], &text), expected);
    assert_eq!(score(&[], &text), expected);
    let tokenize = |text: &[&str], input: &str| {
        let args = [&["tokenize", "--model", &model, "--ids"], text].concat();
        run_with(&args, input.as_bytes()).success()
    };
    assert_eq!(tokenize(&["-"], &text), tokenize(&[&text], ""));
    let ids = format!("[{}]", tokenize(&[&text], "").trim().replace(' ', ","));
    assert_eq!(score(&["--token-ids", "-"], &ids), expected);
    let answer = |prompt: &[&str], input: &str| {
        let args = [&["run", "--model", &model, "--max-tokens", "4"], prompt].concat();
        run_with(&args, input.as_bytes()).success()
    };
    assert_eq!(answer(&["-"], "Hello"), answer(&["Hello"], ""));
    run(&["run", "-", "--model", &model]).failure(2, &["no prompt"]);
    run(&["perplexity", "--model", &model]).failure(1, &["has ", "4 or more"]);
}

#[test]
fn one_token_has_no_standard_error() {
    let model = tiny("llama-tied");
    let score = |args: &[&str]| {
        let common = ["perplexity", "--model", &model, "--ctx", "4"];
        run_with(&[&common, args].concat(), b"some words to score")
    };
    let one = score(&["--chunks", "1", "--json"]).json();
    assert_eq!(one["tokens_scored"], json!(1));
    assert!(one["perplexity_standard_error"].is_null(), "{one}");
    let two = score(&["--chunks", "2", "--json"]).json();
    assert!(two["perplexity_standard_error"].is_f64(), "{two}");
    assert!(!score(&["--chunks", "1"]).success().contains('±'));
}

#[test]
fn the_window_is_no_more_than_the_model_was_trained_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, model) = (path("text"), path("short.gguf"));
    fs::write(&text, "It was the best of times. ".repeat(20)).unwrap();
    let mut file = fs::read(tiny("llama-tied")).unwrap();
    let key = b"llama.context_length";
    let at = file.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    // A number of 32 bits.
    assert_eq!(file[at..at + 8], [4, 0, 0, 0, 0, 2, 0, 0]);
    file[at + 4..at + 8].copy_from_slice(&50_u32.to_le_bytes());
    fs::write(&model, file).unwrap();
    let score =
        |args: &[&str]| run(&[&["perplexity", &text, "--model", &model, "--json"], args].concat());
    assert_eq!(score(&[]).json()["ctx"], json!(50));
    score(&["--ctx", "51"]).failure(2, &["--ctx is 51", "from 4 to 50"]);
}

#[test]
fn perplexity_says_what_is_wrong_with_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short");
    fs::write(&path, "few").unwrap();
    let (path, model) = (path.to_str().unwrap(), tiny("qwen2"));
    run(&["perplexity", path, "--model", &model, "--ctx", "64"]).failure(1, &["has ", "4 or more"]);
    fs::write(path, "few words, and not more").unwrap();
    run(&["perplexity", path, "--model", &model, "--ctx", "64"])
        .failure(1, &["one window of 64", "a smaller window with --ctx"]);
    run(&["perplexity", "--token-ids", path, "--model", &model]).failure(1, &[path, "JSON"]);
    run(&["perplexity", "/absent", "--model", &model]).failure(1, &["/absent"]);
    fs::write(path, format!("[{}]", ["999"; 64].join(","))).unwrap();
    run(&[
        "perplexity",
        "--token-ids",
        path,
        "--model",
        &model,
        "--ctx",
        "64",
    ])
    .failure(1, &["999", "280"]);
}

#[test]
fn bench_prints_a_row_for_each_combination() {
    let model = tiny("gemma3");
    let args = [
        "bench",
        "--model",
        &model,
        "--prefill",
        "16,40",
        "--decode",
        "6",
        "--depth",
        "0,70",
        "--batch",
        "1,3",
        "--threads",
        "1,2",
        "--repeat",
        "2",
        "--prefill-chunk",
        "32",
    ];
    let rows = lines(&run(&[&args[..], &["--json"]].concat()).success());
    assert_eq!(rows.len(), 2 * 2 * (2 + 2));
    for row in &rows {
        let samples: Vec<f64> = list(&row["samples_tokens_per_second"]);
        assert!(
            samples.len() == 2 && samples.iter().all(|&s| s > 0.0),
            "{row}"
        );
        let median = row["tokens_per_second"].as_f64().unwrap();
        assert!(
            (median - (samples[0] + samples[1]) / 2.0).abs() < 0.01,
            "{row}"
        );
        assert_eq!((&row["kv"], row["isa"].is_string()), (&json!("f16"), true));
        assert_eq!(row["model"], json!(model));
        // In steps of at most 32 tokens, unless there are fewer in all.
        let key = if row["work"] == "prefill" {
            "tokens"
        } else {
            "depth"
        };
        let prompt = row[key].as_u64().unwrap() * row["batch"].as_u64().unwrap();
        assert_eq!(row["prefill_chunk"], prompt.min(32), "{row}");
    }
    let seen = |work: &str, key: &str| -> Vec<u64> {
        let of_work = rows.iter().filter(|r| r["work"] == work);
        let mut values: Vec<u64> = of_work.map(|r| r[key].as_u64().unwrap()).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    assert_eq!(
        (seen("prefill", "tokens"), seen("decode", "tokens")),
        (vec![16, 40], vec![6])
    );
    assert_eq!(
        (seen("prefill", "depth"), seen("decode", "depth")),
        (vec![0], vec![0, 70])
    );
    assert_eq!(
        (seen("decode", "batch"), seen("prefill", "threads")),
        (vec![1, 3], vec![1, 2])
    );
    let table = run(&args);
    assert_eq!(
        (table.code, table.stdout.lines().count()),
        (Some(0), rows.len() + 1)
    );
    // Once, and not for each number of threads.
    assert_eq!(
        table.stderr.matches("bench --bounds").count(),
        1,
        "{table:?}"
    );
    run(&[
        "bench",
        "--model",
        &model,
        "--prefill",
        "0",
        "--decode",
        "0",
    ])
    .failure(2, &["nothing"]);
}

/// What is measured with little effort.
const QUICK: [&str; 6] = ["--bounds-ms", "1", "--bounds-mib", "2,8", "--repeat", "2"];

/// What it printed; it may say on standard error that samples differ.
fn measured(outcome: Outcome) -> String {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

/// A row of each kind.
fn short_rows(model: &str) -> [&str; 6] {
    ["--model", model, "--prefill", "32", "--decode", "8"]
}

#[test]
fn bench_measures_bounds_and_then_knows_shares() {
    let cache = tempfile::tempdir().unwrap();
    let bench = |args: &[&str]| -> Outcome {
        let mut command = plainchant(&[&["bench", "--json"], args].concat());
        let command = command.env("PLAINCHANT_CACHE", cache.path());
        command.output().unwrap().into()
    };
    let model = tiny("llama-untied");
    let rows = [&short_rows(&model)[..], &["--repeat", "2"]].concat();
    let two = ["--threads", "2"];
    let before = lines(&bench(&[&rows[..], &two].concat()).success());
    assert_eq!(before.len(), 2);
    for row in &before {
        assert!(row.get("bandwidth_share").is_none(), "{row}");
        assert!(row.get("multiply_adds_share").is_none(), "{row}");
    }

    let bounds = lines(&measured(bench(
        &[&["--bounds"], &QUICK[..], &["--threads", "1,2"]].concat(),
    )));
    let pages = kernels::bounds::Pages::ALL.len();
    let of = |name: &str| {
        bounds
            .iter()
            .filter(|b| b["bound"] == name)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("barrier_nanoseconds").len(), 2);
    assert_eq!(
        of("integer_multiply_adds_per_second").len(),
        2 * Isa::supported().len()
    );
    assert_eq!(
        of("float_multiply_adds_per_second").len(),
        2 * Isa::supported().len()
    );
    let reading = of("read_bytes_per_second");
    assert_eq!(reading.len(), 2 * 3 * pages);
    let sizes: Vec<u64> = reading
        .iter()
        .map(|b| b["bytes"].as_u64().unwrap() >> 20)
        .collect();
    assert!(
        [1, 2, 8].iter().all(|size| sizes.contains(size)),
        "{sizes:?}"
    );
    for bound in &bounds {
        let samples: Vec<f64> = list(&bound["samples"]);
        assert!(
            samples.len() == 2 && samples.iter().all(|&s| s > 0.0),
            "{bound}"
        );
        assert!(bound["median"].as_f64().unwrap() > 0.0, "{bound}");
    }

    // With as many threads as were measured, and with no other number.
    let profiled = [&rows[..], &["--threads", "2", "--profile"]].concat();
    for row in lines(&bench(&profiled).success()) {
        assert!(row["bandwidth_share"].is_f64(), "{row}");
        assert!(row["multiply_adds_share"].is_f64(), "{row}");
        for line in row["profile"].as_array().unwrap() {
            let is_product = line["operation"] == "matmul";
            assert_eq!(line["bandwidth_share"].is_f64(), is_product, "{row}");
            assert_eq!(line["multiply_adds_share"].is_f64(), is_product, "{row}");
        }
    }
    for row in lines(&bench(&[&rows[..], &["--threads", "3"]].concat()).success()) {
        assert!(row.get("bandwidth_share").is_none(), "{row}");
    }

    // What is damaged is told, and not overwritten.
    let file = cache.path().join("bounds.json");
    fs::write(&file, "{").unwrap();
    bench(&[&["--bounds"], &QUICK[..]].concat())
        .failure(1, &["bounds.json is damaged", "remove it"]);
    let outcome = bench(&[&rows[..], &two].concat());
    assert!(
        outcome.code == Some(0) && outcome.stderr.contains("is damaged"),
        "{outcome:?}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "{");
}

#[test]
fn bounds_that_are_too_low_are_told_and_better_ones_stay() {
    let cache = tempfile::tempdir().unwrap();
    let bench = |args: &[&str]| -> Outcome {
        let mut command = plainchant(&[&["bench", "--threads", "1"], args].concat());
        let command = command.env("PLAINCHANT_CACHE", cache.path());
        command.output().unwrap().into()
    };
    let file = cache.path().join("bounds.json");
    // All samples of what is kept, times a factor.
    let scale = |factor: f64| {
        let mut kept: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for bound in kept["machines"][0]["bounds"].as_array_mut().unwrap() {
            let samples: Vec<f64> = list(&bound["samples"]);
            bound["samples"] = samples.iter().map(|s| s * factor).collect();
        }
        fs::write(&file, kept.to_string()).unwrap();
        kept
    };
    let bounds = [&["--bounds"], &QUICK[..]].concat();
    measured(bench(&bounds));
    scale(1e-6);
    let model = tiny("llama-untied");
    let table = bench(&short_rows(&model)).success();
    assert!(table.contains(" %!\n"), "{table}");
    assert!(
        table
            .lines()
            .last()
            .unwrap()
            .starts_with("! more than can be"),
        "{table}"
    );

    let better = scale(1e12);
    let outcome = bench(&bounds);
    assert!(
        outcome.stderr.contains("measured better before"),
        "{outcome:?}"
    );
    let kept: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    // To so many digits that reading and writing them doesn't change them.
    let rates = |kept: &Value| -> Vec<String> {
        let all = kept["machines"][0]["bounds"].as_array().unwrap();
        let rates = all.iter().filter(|b| b["bound"] != "barrier_nanoseconds");
        let samples = rates.flat_map(|b| list::<f64>(&b["samples"]));
        samples.map(|s| format!("{s:.6e}")).collect()
    };
    assert_eq!(rates(&kept), rates(&better));

    let mut command = plainchant(&[&["bench", "--json", "--threads", "1"], &bounds[..]].concat());
    command
        .env("PLAINCHANT_CACHE", cache.path())
        .env("PLAINCHANT_ISA", "scalar");
    for row in lines(&measured(command.output().unwrap().into())) {
        assert!(row["isa"].is_null() || row["isa"] == "scalar", "{row}");
    }
}

#[test]
fn bounds_that_could_not_be_kept_are_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("file");
    fs::write(&taken, "").unwrap();
    let mut command = plainchant(&["bench", "--bounds"]);
    let outcome: Outcome = command
        .env("PLAINCHANT_CACHE", taken)
        .output()
        .unwrap()
        .into();
    outcome.failure(
        1,
        &["is a file and a folder is needed", "set PLAINCHANT_CACHE"],
    );
}

#[test]
fn bench_measures_the_bound_of_a_row_in_turn_with_it() {
    let model = tiny("gemma3");
    let args = [&short_rows(&model)[..], &["--threads", "2"]].concat();
    let quick = ["--bounds-ms", "1", "--repeat", "2"];
    let rows =
        lines(&run(&[&["bench", "--json", "--bounds"], &args[..], &quick].concat()).success());
    assert_eq!(rows.len(), 2);
    for row in rows {
        let (bound, share) = match row["work"] == "decode" {
            true => ("read_bytes_per_second", "bandwidth_share"),
            false => ("_multiply_adds_per_second", "multiply_adds_share"),
        };
        assert!(row["bound"].as_str().unwrap().ends_with(bound), "{row}");
        let samples: Vec<f64> = list(&row["samples_bound"]);
        assert_eq!(samples.len(), 3, "{row}");
        let dropped = row["rounds_dropped"].as_u64().unwrap();
        assert!(dropped <= 2, "{row}");
        // A share of the rounds that are left, if any is.
        assert_eq!(row[share].is_f64(), dropped < 2, "{row}");
    }
}

#[test]
fn bench_measures_every_format_with_every_instruction_set() {
    let args = [
        "bench",
        "--kernels",
        "--kernel-size",
        "32x256",
        "--repeat",
        "1",
        "--threads",
        "1",
    ];
    let rows = lines(&run(&[&args[..], &["--json"]].concat()).success());
    for format in Format::ALL {
        for isa in Isa::supported() {
            for tokens in [1, 64] {
                let wanted = |r: &&Value| {
                    r["format"] == format.name() && r["isa"] == isa.name() && r["tokens"] == tokens
                };
                let row = rows.iter().find(wanted).unwrap();
                // Not above 0: on a machine that is busy enough it may round to that.
                assert!(row["gigabytes_per_second"].is_f64(), "{row}");
                assert!(row["giga_multiply_adds_per_second"].is_f64(), "{row}");
            }
        }
    }
    assert_eq!(rows.len(), Format::ALL.len() * Isa::supported().len() * 2);

    let mut command = plainchant(&[&args[..], &["--json"]].concat());
    let outcome: Outcome = command
        .env("PLAINCHANT_ISA", "scalar")
        .output()
        .unwrap()
        .into();
    let rows = lines(&outcome.success());
    assert_eq!(rows.len(), Format::ALL.len() * 2);
    assert!(rows.iter().all(|row| row["isa"] == "scalar"), "{rows:?}");
}

#[test]
fn bench_measures_only_the_kernels_asked_for() {
    let args = "bench --kernels --kernel-size 32x256 --repeat 1 --threads 1 --json \
                --kernel-tokens 3,1 --kernel-formats q8_0,F16 --kernel-isas scalar";
    let rows = lines(&run(&args.split_whitespace().collect::<Vec<_>>()).success());
    let found = rows.iter().map(|row| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        (text("format"), text("isa"), row["tokens"].as_u64().unwrap())
    });
    let wanted = [("Q8_0", 3), ("Q8_0", 1), ("F16", 3), ("F16", 1)];
    let wanted = wanted.map(|(format, tokens)| (format.to_owned(), "scalar".to_owned(), tokens));
    assert_eq!(found.collect::<Vec<_>>(), wanted);
}
