//! What sequences remember.
//!
//! This crate owns page *ids* and policy; the bytes live in [`kernels::pages::PageStore`]s. It knows how
//! many pages there are, who holds which, and which may go; it does no arithmetic.
//!
//! A [`Table`] keeps, for each sequence and each layer, the list of pages that hold its keys and values:
//! entry `b` of a list covers the absolute positions `64 b ..= 64 b + 63`. A recurrent layer has one state
//! instead, kept in a page of a store of its own. A tree of prefixes holds pages that were written once, so
//! that a later sequence with the same first tokens, of the same tenant, begins with them.
//!
//! One rule runs through all: *a page may be written to only by the one sequence that holds it, and only if
//! the tree doesn't.* [`Table::reserve`] makes copies first where that isn't so, of a partly filled last
//! page as of a recurrent state. So a fork, a checkpoint and a hit copy nothing; they only share.
//!
//! What has to be done with bytes is given as [`Move`]s, in order.

mod budget;
mod error;
mod evict;
mod fit;
mod integrity;
mod layout;
mod moves;
mod policy;
mod pool;
mod prefix;
mod sequence;
#[cfg(test)]
mod simulation;
mod spec;
mod stats;
mod swap;
mod table;
mod tree;
mod trim;

pub use budget::{Budget, STATES_PER_SEQUENCE};
pub use error::StateError;
pub use integrity::IntegrityError;
pub use moves::Move;
pub use policy::{Full, Policy, Window};
pub use sequence::{SequenceId, Started};
pub use spec::{LayerState, StateSpec};
pub use stats::{Stats, Totals};
pub use table::{StoreSpec, Table, TableOptions};
pub use tree::TenantId;
