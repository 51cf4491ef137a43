//! Any bytes as the body of a request: reading it may fail, never panic. The first byte says which endpoint.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((first, body)) = bytes.split_first() {
        let _ = server::read_request(body, first & 1 == 1);
    }
});
