//! Every algorithm against the reference libraries, on tiny vocabularies trained with them
//! (`tools/oracle_text/tiny.py`).

mod common;

use std::collections::BTreeSet;

use common::{PLAIN, check_cases, fixtures, id, json, spec, strings, texts};
use serde_json::Value;
use text::{DetokenizerOptions, EncodeOptions, Tokenizer, TokenizerSpec};

const NAMES: [&str; 6] = [
    "gpt-2",
    "smollm",
    "qwen2",
    "llama-bpe",
    "spm",
    "spm-unknown",
];

fn tokenizer(spec: TokenizerSpec) -> Tokenizer {
    Tokenizer::new(spec).unwrap_or_else(|e| panic!("{e}"))
}

fn texts_for(fixture: &Value) -> Vec<String> {
    let mut all = texts();
    all.extend(strings(&fixture["extra"]));
    all
}

#[test]
fn ids_equal_the_reference() {
    for name in NAMES {
        let fixture = json(&format!("tiny/{name}.json"));
        check_cases(
            &tokenizer(spec(&fixture)),
            &texts_for(&fixture),
            &fixture["cases"],
            name,
        );
    }
}

#[test]
fn every_fixture_is_compared() {
    let folder = fixtures().join("tiny");
    let found: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{e}"))
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .collect();
    assert_eq!(found, NAMES.iter().map(ToString::to_string).collect());
}

/// Another pre-tokenizer's rules must give other ids: the comparison can fail.
#[test]
fn the_pre_tokenizers_can_be_told_apart() {
    let texts = texts();
    for of in &NAMES[..4] {
        let fixture = json(&format!("tiny/{of}.json"));
        let own = tokenizer(spec(&fixture));
        for other in NAMES[..4].iter().filter(|n| *n != of) {
            let changed = tokenizer(TokenizerSpec {
                pre: Some((*other).to_owned()),
                ..spec(&fixture)
            });
            let differ = texts
                .iter()
                .any(|t| own.encode(t, PLAIN) != changed.encode(t, PLAIN));
            assert!(differ, "{of} and {other} give the same ids");
        }
    }
}

#[test]
fn sentencepiece_decodes_as_the_reference() {
    let start = DetokenizerOptions {
        at_text_start: true,
        ..Default::default()
    };
    let fixture = json("tiny/spm.json");
    let tokenizer = tokenizer(spec(&fixture));
    let decoded = strings(&fixture["decoded"]);
    for (text, wanted) in texts_for(&fixture).iter().zip(decoded) {
        assert_eq!(
            tokenizer.decode(&tokenizer.encode(text, PLAIN), start),
            wanted,
            "{text:?}"
        );
    }
}

#[test]
fn the_space_prefix_is_dropped_at_the_start_only() {
    let tokenizer = tokenizer(spec(&json("tiny/spm.json")));
    let ids = tokenizer.encode("  two", PLAIN);
    let start = DetokenizerOptions {
        at_text_start: true,
        ..Default::default()
    };
    assert_eq!(tokenizer.decode(&ids, start), "  two");
    assert_eq!(
        tokenizer.decode(&ids, DetokenizerOptions::default()),
        "   two"
    );
}

#[test]
fn bos_and_eos_are_added_as_the_file_says() {
    let special = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let fixture = json("tiny/llama-bpe.json");
    let (bos, eos) = (id(&fixture["spec"]["bos"]), id(&fixture["spec"]["eos"]));
    let of = |add_bos, add_eos| {
        tokenizer(TokenizerSpec {
            add_bos,
            add_eos,
            ..spec(&fixture)
        })
    };
    let ends = |t: &Tokenizer| {
        let ids = t.encode("a", special);
        (ids.first() == bos.as_ref(), ids.last() == eos.as_ref())
    };
    // Where the file does not say: the Llama 3 family adds BOS.
    assert_eq!(ends(&of(None, None)), (true, false));
    assert_eq!(ends(&of(Some(false), Some(true))), (false, true));
    let both = of(Some(true), Some(true));
    assert_eq!(ends(&both), (true, true));
    let ids = both.encode_chat("<|endoftext|>a");
    assert_eq!((ids.len(), ids.first()), (2, bos.as_ref()));
    assert_eq!(both.encode_chat("a"), ids);
}

#[test]
fn gpt2_can_put_a_space_first() {
    let fixture = json("tiny/gpt-2.json");
    let with = tokenizer(TokenizerSpec {
        add_space_prefix: Some(true),
        ..spec(&fixture)
    });
    let without = tokenizer(spec(&fixture));
    for (text, same_as) in [
        ("the", " the"),
        (" the", " the"),
        ("", " "),
        ("\nx", " \nx"),
    ] {
        let wanted = if text.is_empty() { "" } else { same_as };
        assert_eq!(
            with.encode(text, PLAIN),
            without.encode(wanted, PLAIN),
            "{text:?}"
        );
    }
}
