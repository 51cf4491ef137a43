//! Where weights come from.
//!
//! * [`gguf`]: reads GGUF files (versions 2 and 3) through a memory map, and writes version 3.
//! * [`load`]: packs tensors for the kernels, giving the file's pages back as it goes.
//! * [`source`] and [`catalogue`]: from a model reference (a path, a package, a name) to a local file.
//!
//! Nothing here knows layers or requests. A bad file is an error that names the file, the byte offset
//! or the key, what was found and what was expected; it never panics, loops or allocates more than the
//! file's own size accounts for.

pub mod catalogue;
pub mod gguf;
pub mod load;
mod map;
pub mod source;
