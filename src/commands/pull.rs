//! `pull`: fetches a model.

use anyhow::Result;
use weights::gguf::Gguf;
use weights::source::Reference;

use crate::cli::PullArgs;
use crate::{report, session};

/// Fetches the model and prints where it is.
///
/// # Errors
/// When it can't be fetched, or is a local file that is no sound GGUF file.
pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let path = session::fetch(&args.model)?;
    if matches!(Reference::parse(&args.model)?, Reference::Path(_)) {
        Gguf::open(&path)?;
        report::note(&format!(
            "{} is a local file and needs no pull: give its path to --model",
            path.display()
        ));
    }
    report::print(&format!("{}\n", path.display()))
}
