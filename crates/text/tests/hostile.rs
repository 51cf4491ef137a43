//! Vocabularies that don't fit together give errors that name what is wrong, and no text takes more than
//! n log n time.

mod common;

use std::time::Duration;

use common::{PLAIN, SPECIAL, Work, json, spec, work_since};
use text::{StopStrings, Tokenizer, TokenizerError, TokenizerSpec};

fn gpt2() -> TokenizerSpec {
    let tokens = ["a", "b", "ab", "<s>", "<u>", "[PAD]"];
    TokenizerSpec {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: tokens.iter().map(|t| t.as_bytes().to_vec()).collect(),
        types: vec![1, 1, 1, 3, 4, 5],
        merges: vec!["a b".into()],
        bos: Some(3),
        ..Default::default()
    }
}

fn llama() -> TokenizerSpec {
    let mut spec = TokenizerSpec {
        model: "llama".into(),
        tokens: vec![b"<unk>".to_vec(), b"a".to_vec(), b"aa".to_vec()],
        types: vec![2, 1, 1],
        unk: Some(0),
        ..Default::default()
    };
    for byte in 0..=255 {
        spec.tokens.push(format!("<0x{byte:02X}>").into_bytes());
        spec.types.push(6);
    }
    spec.scores = vec![0.0; spec.tokens.len()];
    spec
}

/// Something that breaks a spec.
type Change = fn(&mut TokenizerSpec);

/// The error of a spec after one change.
fn error(mut spec: TokenizerSpec, change: impl FnOnce(&mut TokenizerSpec)) -> String {
    change(&mut spec);
    Tokenizer::new(spec)
        .err()
        .map_or_else(|| panic!("it was accepted"), |e| e.to_string())
}

#[test]
fn the_unchanged_specs_are_fine() {
    for spec in [gpt2(), llama()] {
        let tokenizer = Tokenizer::new(spec).unwrap_or_else(|e| panic!("{e}"));
        assert!(!tokenizer.encode("aab", PLAIN).is_empty());
    }
}

#[test]
fn byte_level_specs_that_do_not_fit() {
    let cases: [(Change, &str); 14] = [
        (|s| s.tokens.clear(), "tokenizer.ggml.tokens is empty"),
        (|s| s.model = "bert".into(), "\"bert\""),
        (|s| s.pre = None, "tokenizer.ggml.pre is missing"),
        (
            |s| s.pre = Some("falcon".into()),
            "\"falcon\"; known are default, gpt-2, llama-bpe",
        ),
        (|s| s.types.truncate(2), "6 tokens, but 2 token types"),
        (|s| s.types[1] = 7, "token 1 has type 7"),
        (
            |s| s.tokens[1] = b"a".to_vec(),
            "tokens 0 and 1 are both \"a\"",
        ),
        (|s| s.bos = Some(6), "tokenizer.ggml.bos_token_id is 6"),
        (|s| s.eot = Some(u32::MAX), "eot_token_id is 4294967295"),
        (
            |s| s.merges[0] = "ab".into(),
            "merge 0 (\"ab\") is not two parts",
        ),
        (
            |s| s.merges[0] = "a b c".into(),
            "merge 0 (\"a b c\") is not two parts",
        ),
        (
            |s| s.merges.push("a z".into()),
            "merge 1 (\"a z\") has a part that is no token",
        ),
        (
            |s| s.merges.push("b a".into()),
            "merge 1 (\"b a\") makes no token",
        ),
        (
            |s| s.add_eos = Some(true),
            "tokenizer.ggml.eos_token_id is missing",
        ),
    ];
    for (change, wanted) in cases {
        let found = error(gpt2(), change);
        assert!(
            found.contains(wanted),
            "{found:?} should contain {wanted:?}"
        );
    }
}

#[test]
fn sentencepiece_specs_that_do_not_fit() {
    let cases: [(Change, &str); 9] = [
        (|s| s.scores.clear(), "259 tokens, but 0 scores"),
        (|s| s.scores[2] = f32::NAN, "token 2 has score NaN"),
        (
            |s| s.tokens[2] = b"a".to_vec(),
            "tokens 1 and 2 are both \"a\"",
        ),
        (
            |s| s.tokens[3] = b"<0xG0>".to_vec(),
            "token 3 has type 6 (byte) but its text is \"<0xG0>\"",
        ),
        (|s| s.tokens[3] = b"<0x-1>".to_vec(), "token 3 has type 6"),
        (
            |s| s.tokens[4] = b"<0x00>".to_vec(),
            "tokens 3 and 4 are both \"<0x00>\"",
        ),
        (|s| s.types[3] = 1, "255 of the 256 bytes"),
        (|s| s.has_charsmap = true, "precompiled_charsmap"),
        (
            |s| s.remove_extra_whitespaces = Some(true),
            "remove_extra_whitespaces",
        ),
    ];
    for (change, wanted) in cases {
        let found = error(llama(), change);
        assert!(
            found.contains(wanted),
            "{found:?} should contain {wanted:?}"
        );
    }
    let found = error(llama(), |s| {
        s.types.iter_mut().filter(|t| **t == 6).for_each(|t| *t = 5);
        s.unk = None;
    });
    assert_eq!(found, TokenizerError::NoFallback.to_string());
}

#[test]
fn plain_text_never_becomes_a_control_token() {
    let mut spec = gpt2();
    // A merge that would make a control token out of text.
    spec.types[2] = 3;
    let tokenizer = Tokenizer::new(spec).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(tokenizer.encode("ab", PLAIN), [0, 1]);
    assert_eq!(tokenizer.encode("ab", SPECIAL), [2]);
}

#[test]
fn a_megabyte_of_anything_is_read_in_bounded_time() {
    let whole = ["a", " "];
    let part = [
        "中",
        "\u{301}",
        "\n",
        "\t",
        "1",
        "!",
        "'",
        "é",
        "e\u{301}",
        "\0",
        "ab ",
        " \n",
        "<",
        "<|im_start|",
        "▁",
    ];
    let sizes = whole
        .map(|u| (u, 1 << 20))
        .into_iter()
        .chain(part.map(|u| (u, 1 << 16)));
    let texts: Vec<_> = sizes
        .map(|(unit, size)| (unit, unit.repeat(size / unit.len())))
        .collect();
    for name in [
        "gpt-2",
        "smollm",
        "qwen2",
        "llama-bpe",
        "spm",
        "spm-unknown",
    ] {
        let spec = spec(&json(&format!("tiny/{name}.json")));
        let tokenizer = Tokenizer::new(spec).unwrap_or_else(|e| panic!("{e}"));
        for (unit, text) in &texts {
            let start = Work::start();
            let ids = tokenizer.encode(text, SPECIAL);
            let took = work_since(&start);
            // About a second in a debug build; quadratic time would be hours.
            assert!(took < Duration::from_secs(60), "{name}, {unit:?}: {took:?}");
            assert!(!ids.is_empty(), "{name}, {unit:?}");
        }
    }
}

#[test]
fn a_long_stop_string_and_text_take_linear_time() {
    let stop = "a".repeat(1 << 16) + "b";
    let mut stops = StopStrings::new(&[stop]).unwrap_or_else(|e| panic!("{e}"));
    let start = Work::start();
    let mut shown = 0;
    for _ in 0..1 << 20 {
        shown += stops.push("a").emit.len();
    }
    assert_eq!(shown + stops.finish().len(), 1 << 20);
    assert!(work_since(&start) < Duration::from_secs(60));
}
