//! The server over loopback, with a tiny model.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

#[path = "http/aborts.rs"]
mod aborts;
#[path = "http/access.rs"]
mod access;
#[path = "http/bad_http.rs"]
mod bad_http;
#[path = "http/bad_input.rs"]
mod bad_input;
#[path = "http/endpoints.rs"]
mod endpoints;
#[path = "http/fuzz.rs"]
mod fuzz;
#[path = "http/streaming.rs"]
mod streaming;
#[path = "http/support.rs"]
mod support;
