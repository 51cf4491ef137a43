//! Arithmetic in one order.
//!
//! Block formats, packed matmul, attention, norms, rope, activations, the worker pool. Everything here
//! knows slices of numbers and nothing else. Every kernel has a scalar reference that defines its order
//! of arithmetic, and twins for each instruction set that equal it bit for bit.
#![allow(unsafe_code)]

pub mod attention;
pub mod bounds;
pub mod buffer;
pub mod formats;
pub mod fpenv;
pub mod gate;
pub mod isa;
pub mod lanes;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod packed;
pub mod pages;
pub mod pool;
mod prefetch;
pub mod reduce;
mod region;
pub mod rope;
pub mod rows;
pub mod topology;

/// The version of the order of arithmetic. It changes whenever any kernel's result may change.
pub const CONTRACT_VERSION: u32 = 1;
