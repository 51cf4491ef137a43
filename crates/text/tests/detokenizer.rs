//! Streaming detokenisation: whole characters only, nothing held back longer than needed, and in all the
//! lossy decoding of the bytes.

mod common;

use common::{PLAIN, SPECIAL, json, spec};
use proptest::prelude::*;
use text::{DetokenizerOptions, TokenId, Tokenizer, TokenizerSpec};

/// A vocabulary of the 256 bytes (ids 1 to 256) and of a few longer pieces.
fn bytes_and_pieces() -> Tokenizer {
    let pieces: [&[u8]; 6] = [
        "▁".as_bytes(),
        "é中".as_bytes(),
        b"ab",
        b"\xF0\x9F",
        b"\x99\x82x",
        b"",
    ];
    let mut spec = TokenizerSpec {
        model: "llama".into(),
        tokens: vec![b"<unk>".to_vec()],
        types: vec![2],
        unk: Some(0),
        ..Default::default()
    };
    for byte in 0..=255 {
        spec.tokens.push(format!("<0x{byte:02X}>").into_bytes());
        spec.types.push(6);
    }
    for piece in pieces {
        spec.tokens.push(piece.to_vec());
        spec.types.push(1);
    }
    spec.tokens.push(b"<|end|>".to_vec());
    spec.types.push(3);
    spec.scores = vec![0.0; spec.tokens.len()];
    Tokenizer::new(spec).unwrap_or_else(|e| panic!("{e}"))
}

/// Whether `bytes` could be the start of one character.
fn begins_a_character(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.is_empty(),
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_parts_make_the_lossy_decoding(
        // Bytes that matter to UTF-8 are drawn often.
        ids in proptest::collection::vec(
            prop_oneof![
                0_u32..264,
                prop::sample::select(vec![
                    0x61, 0x80, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xC3, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4,
                    0xF5, 0xFF,
                ]).prop_map(|byte: u32| byte + 1),
            ],
            0..24,
        ),
        show_control: bool,
    ) {
        let tokenizer = bytes_and_pieces();
        let options = DetokenizerOptions { show_control, at_text_start: false };
        let mut detokenizer = tokenizer.detokenizer(options);
        let mut bytes = Vec::new();
        let mut text = String::new();
        for &id in &ids {
            if show_control || !tokenizer.is_control(id) {
                bytes.extend_from_slice(tokenizer.token_bytes(id));
            }
            text.push_str(detokenizer.push(id));
            // What is missing begins a character, and nothing else is.
            let held = (0..=3).find(|&n| {
                n <= bytes.len() && String::from_utf8_lossy(&bytes[..bytes.len() - n]) == text
                    && begins_a_character(&bytes[bytes.len() - n..])
            });
            prop_assert!(held.is_some(), "{bytes:02x?} gave {text:?}");
        }
        text.push_str(detokenizer.finish());
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
        prop_assert_eq!(text, tokenizer.decode(&ids, options));
    }
}

#[test]
fn control_tokens_have_no_text_unless_asked() {
    let tokenizer =
        Tokenizer::new(spec(&json("tiny/qwen2.json"))).unwrap_or_else(|e| panic!("{e}"));
    let text = "<|im_start|>a<tool_call>b<|im_end|>";
    let ids: Vec<TokenId> = tokenizer.encode(text, SPECIAL);
    let shown = DetokenizerOptions {
        show_control: true,
        ..Default::default()
    };
    assert_eq!(tokenizer.decode(&ids, shown), text);
    assert_eq!(
        tokenizer.decode(&ids, DetokenizerOptions::default()),
        "a<tool_call>b"
    );
    let plain = tokenizer.encode(text, PLAIN);
    assert!(plain.len() > ids.len());
    assert_eq!(
        tokenizer.decode(&plain, DetokenizerOptions::default()),
        text
    );
}

#[test]
fn a_character_over_several_tokens_comes_out_whole() {
    let tokenizer = bytes_and_pieces();
    let mut detokenizer = tokenizer.detokenizer(DetokenizerOptions::default());
    // 🙂 is F0 9F 99 82.
    assert_eq!(detokenizer.push(260), "");
    assert_eq!(detokenizer.push(261), "🙂x");
    assert_eq!(detokenizer.push(0xF0 + 1), "");
    assert_eq!(detokenizer.push(0x61 + 1), "\u{FFFD}a");
    assert_eq!(detokenizer.push(0xE4 + 1), "");
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
    assert_eq!(detokenizer.finish(), "");
}
