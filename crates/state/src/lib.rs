//! What a sequence remembers.
//!
//! This crate owns page *ids* and policy; the bytes live in [`kernels::pages::PageStore`]s. It knows how
//! many pages there are, who holds which, and which may go; it does no arithmetic.
//!
//! A [`Table`] keeps, for each sequence and each layer, the list of pages that hold its keys and values.
//! Entry `b` of a list covers the absolute positions `64 b ..= 64 b + 63`.

mod policy;
mod spec;
mod table;

pub use policy::{Full, Policy, Window};
pub use spec::{LayerState, StateSpec};
pub use table::{IntegrityError, SequenceId, StateError, Table};
