//! Any bytes as a GGUF file: reading it and all in it may fail, never panic.
#![no_main]

#[path = "../../crates/weights/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = support::parse_any(bytes.to_vec());
});
