//! `pull`: fetches a model.

use anyhow::Result;

use crate::cli::PullArgs;
use crate::{report, session};

/// Fetches the model and prints where it is.
///
/// # Errors
/// When it can't be fetched.
pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let path = session::fetch(&args.model)?;
    report::print(&format!("{}\n", path.display()))
}
