//! `pull`: fetches a model.

use std::path::PathBuf;

use anyhow::Result;
use weights::gguf::Gguf;
use weights::source::{Cache, CachedModel, Reference, Verification};

use crate::cli::PullArgs;
use crate::session::Found;
use crate::{report, session};

/// Fetches the model and prints where it is. One that is there already is checked, and fetched again if damaged.
///
/// # Errors
/// When it can't be fetched, or is a local file that is no sound GGUF file.
pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let found = session::find_or_fetch(&args.model)?;
    let path = match Reference::parse(&args.model)? {
        Reference::Path(path) => {
            Gguf::open(&found.path)?;
            report::note(&format!(
                "{} is a local file and needs no pull: give its path to --model",
                path.display()
            ));
            found.path
        }
        _ => checked(found)?,
    };
    report::print(&format!("{}\n", path.display()))
}

/// A sound file: the one found, or one fetched in its place.
fn checked(found: Found) -> Result<PathBuf> {
    let cache = Cache::from_env()?;
    let is_it = |model: &CachedModel| found.was_there && model.path == found.path;
    let Some(model) = cache.list()?.into_iter().find(is_it) else {
        return Ok(found.path);
    };
    let path = found.path.display();
    match (session::verify(&cache, &model)?, &model.reference) {
        (Verification::Damaged { .. }, Some(reference)) => {
            report::note(&format!(
                "{path} is damaged: its SHA-256 is not the expected one"
            ));
            cache.remove(&model)?;
            // Of the version that it was, whatever version was asked for.
            session::fetch(reference)
        }
        (Verification::Unknown { .. }, _) => {
            report::note(&format!(
                "{path}: nothing says what its SHA-256 should be; not checked"
            ));
            Ok(found.path)
        }
        _ => Ok(found.path),
    }
}
