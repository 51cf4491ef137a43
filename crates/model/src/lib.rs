//! Architectures as tables, and the one decoder that runs them.
//!
//! [`Model::load`] reads a GGUF file into an [`architecture::Architecture`] and packed weights;
//! [`Decoder::forward`] runs a [`Step`] (spans of many sequences) over a [`Memory`] and hands back logits.
//! Nothing here knows about requests.

pub mod arch;
pub mod architecture;
mod decoder;
mod error;
mod linear;
mod memory;
mod mixer;
mod model;
mod norm;
mod ops;
mod profile;
mod step;
mod workspace;

pub use decoder::{Decoder, Logits};
pub use error::ModelError;
pub use memory::{Memory, MemoryOptions};
pub use model::Model;
pub use ops::Ops;
pub use profile::{OpKind, OpTotals, Profile};
pub use step::{Input, LayerRange, Mask, Rows, SPANS_MAX, Span, Step, Want, Write};
