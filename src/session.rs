//! From a model reference to a model in memory.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use kernels::pool::Pool;
use model::Model;
use text::{ChatTemplate, Tokenizer};
use weights::gguf::Gguf;
use weights::load::{LoadOptions, LoadProgress};
use weights::source::{Cache, FetchProgress, FetchStage, Reference, SourceError, resolve};

use crate::cli::DEFAULT_CONTEXT;
use crate::interrupt::{self, Interrupted};
use crate::progress::{self, LateBar};
use crate::report;

/// The local file of a model, fetched if need be, with a progress bar.
///
/// # Errors
/// When there is no such model, or it can't be fetched.
pub(crate) fn fetch(reference: &str) -> Result<PathBuf> {
    // A path needs no cache, so that one is not asked for where its folder can't be known.
    let cache = match Reference::parse(reference)? {
        Reference::Path(_) => Cache::new(""),
        _ => Cache::from_env()?,
    };
    let mut bar: Option<ProgressBar> = None;
    let mut told_waiting = false;
    let mut show = |progress: FetchProgress| {
        if progress.stage == FetchStage::Waiting {
            if !told_waiting {
                report::note(&format!(
                    "{reference} is being fetched by another process; waiting"
                ));
            }
            told_waiting = true;
            return ControlFlow::Continue(());
        }
        interrupt::set_graceful(true);
        let bar = bar.get_or_insert_with(|| announce(reference, progress.total));
        bar.set_position(progress.done);
        match interrupt::requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let result = resolve(reference, &cache, &mut show);
    interrupt::set_graceful(false);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    match result {
        Ok(path) => Ok(path),
        // Ctrl-C reaches pip as well, which may fail before we ask it to stop.
        Err(_) if interrupt::requested() => Err(Interrupted.into()),
        Err(SourceError::Cancelled) => Err(Interrupted.into()),
        Err(error) => Err(error.into()),
    }
}

/// Says that a download begins.
fn announce(reference: &str, total: Option<u64>) -> ProgressBar {
    let bar = progress::bytes(&format!("fetching {reference}"), total);
    if bar.is_hidden() {
        let size = total
            .map(|n| format!(" ({})", report::bytes(n)))
            .unwrap_or_default();
        report::note(&format!("fetching {reference}{size}"));
    }
    bar
}

/// Opens the file of a model, fetched if need be.
///
/// # Errors
/// When it can't be had or is no sound GGUF file.
pub(crate) fn open(reference: &str) -> Result<Gguf> {
    Ok(Gguf::open(fetch(reference)?)?)
}

/// The tokenizer of a file.
///
/// # Errors
/// When it is missing or not supported.
pub(crate) fn tokenizer(file: &Gguf) -> Result<Arc<Tokenizer>> {
    Ok(Arc::new(Tokenizer::from_gguf(file)?))
}

/// The chat template of a model, where it has one.
///
/// # Errors
/// When it can't be compiled.
pub(crate) fn chat_template(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
    let name = |id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    let (bos, eos) = (tokenizer.bos().map(name), tokenizer.eos().map(name));
    let template = tokenizer
        .chat_template()
        .map(|source| ChatTemplate::new(source, bos.as_deref(), eos.as_deref()));
    template
        .transpose()
        .context("the model's chat template can't be used; --raw does without it")
}

/// Loads the weights on the threads of `pool`, with a progress bar if that takes long.
///
/// # Errors
/// When the model is not supported or damaged.
pub(crate) fn load(file: &Gguf, pool: &Pool) -> Result<Arc<Model>> {
    let bar = LateBar::bytes("loading", file.facts().tensor_bytes);
    let progress = |progress: LoadProgress| bar.set(progress.done);
    let options = LoadOptions {
        progress: Some(&progress),
        ..LoadOptions::default()
    };
    let model = Model::load(file, pool, options);
    bar.finish();
    Ok(Arc::new(model.with_context(|| {
        format!("can't load {}", file.path().display())
    })?))
}

/// A pool of so many threads.
///
/// # Errors
/// When the system refuses some of them.
pub(crate) fn pool(threads: usize) -> Result<Pool> {
    let pool = Pool::new(threads);
    match pool.threads() {
        started if started == threads => Ok(pool),
        started => bail!("--threads is {threads}, but the system started only {started}"),
    }
}

/// The context to run with: what was asked for, or the default.
///
/// # Errors
/// When more was asked for than the model was trained for.
pub(crate) fn context(asked: Option<usize>, trained: usize) -> Result<usize> {
    match asked {
        Some(asked) if asked > trained => {
            bail!("--ctx is {asked}, but the model was trained for {trained} positions at most")
        }
        Some(asked) => Ok(asked),
        None => Ok(trained.min(DEFAULT_CONTEXT)),
    }
}
