//! Ids of the tokenizers of real models against the reference libraries'
//! (`tools/oracle_text/models.py`).
#![allow(clippy::print_stderr)]

mod common;

use common::{PLAIN, SPECIAL, check_cases, json, model_tokenizer, strings, texts};
use text::{DetokenizerOptions, EncodeOptions, Tokenizer};
use unicode_normalization::UnicodeNormalization;

fn compare(name: &str) {
    let expected = json(&format!("ids/{name}.json"));
    let texts = texts();
    for file in strings(&expected["files"]) {
        if let Some(tokenizer) = model_tokenizer(&file) {
            check_cases(&tokenizer, &texts, &expected["cases"], &file);
            round_trip(&tokenizer, &texts, name == "qwen2");
            eprintln!("compared: {} texts with {file}", texts.len());
        }
    }
}

/// Decoding gives the text back, less what the vocabulary can't write.
fn round_trip(tokenizer: &Tokenizer, texts: &[String], nfc: bool) {
    let shown = DetokenizerOptions {
        show_control: true,
        ..Default::default()
    };
    for text in texts {
        let mut wanted = text.clone();
        while let Some(lost) = tokenizer.lost_character(&wanted) {
            assert_eq!(wanted[lost.offset..].chars().next(), Some(lost.character));
            wanted.remove(lost.offset);
        }
        // Spaces and their SentencePiece sign are one.
        if tokenizer.decode(&tokenizer.encode("▁", PLAIN), shown) == " " {
            wanted = wanted.replace('▁', " ");
        }
        for options in [PLAIN, SPECIAL] {
            let decoded = tokenizer.decode(&tokenizer.encode(text, options), shown);
            if nfc {
                // Parts on both sides of a token are normalized apart.
                let decoded: String = decoded.nfc().collect();
                assert_eq!(decoded, wanted.nfc().collect::<String>(), "{text:?}");
            } else {
                assert_eq!(decoded, wanted, "{text:?}");
            }
        }
    }
}

#[test]
fn smollm2() {
    compare("smollm2");
}

#[test]
fn gemma3() {
    compare("gemma3");
}

#[test]
fn qwen2() {
    compare("qwen2");
}

#[test]
fn what_files_say_about_special_tokens_is_kept() {
    let special = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    if let Some(gemma) = model_tokenizer("gemma-3-270m-q4_k_m.gguf") {
        assert_eq!((gemma.bos(), gemma.eos()), (Some(2), Some(1)));
        assert_eq!(gemma.end_of_generation_tokens(), [1, 106]);
        assert_eq!(gemma.encode("", special), [2]);
        let chat = "<bos><start_of_turn>user\nHi<end_of_turn>\n";
        assert_eq!(gemma.encode_chat(chat), gemma.encode(chat, SPECIAL));
        assert_eq!(gemma.encode_chat(&chat[5..]), gemma.encode(chat, SPECIAL));
        assert_eq!(gemma.token_bytes(138), b"  ");
        assert_eq!(gemma.token_bytes(248), b"\n");
        assert_eq!(gemma.vocab_size(), 262_144);
    }
    if let Some(smollm) = model_tokenizer("SmolLM2-135M-Instruct.Q4_1.gguf") {
        assert_eq!((smollm.bos(), smollm.eos()), (Some(1), Some(2)));
        assert_eq!(smollm.end_of_generation_tokens(), [0, 2]);
        assert!(smollm.encode("", special).is_empty());
        assert!(smollm.is_control(1) && !smollm.is_control(17) && smollm.is_control(u32::MAX));
        assert_eq!(smollm.token_bytes(u32::MAX), b"");
        let lost = smollm
            .lost_character("é\x04")
            .map(|l| (l.offset, l.character));
        assert_eq!(lost, Some((2, '\x04')));
    }
    if let Some(qwen) = model_tokenizer("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf") {
        assert_eq!(qwen.end_of_generation_tokens(), [151_643, 151_645]);
        assert_eq!(qwen.lost_character("\0\x04"), None);
    }
}
