//! Requests and answers as they go over the wire.
//!
//! Requests are read strictly: a field that is not here is an error, and so is a value that would have to be
//! ignored. Fields of the OpenAI API that are not supported are here where a client may send them at the one value
//! that changes nothing.

#![allow(
    dead_code,
    reason = "fields that may have one value only are read for that check alone"
)]

pub(crate) mod chat;
pub(crate) mod completion;
mod fields;
pub(crate) mod models;
pub(crate) mod tokens;

pub(crate) use fields::*;
