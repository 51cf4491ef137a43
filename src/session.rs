//! From a model reference to a model in memory.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use engine::EngineError;
use indicatif::ProgressBar;
use kernels::isa::Isa;
use kernels::pool::Pool;
use model::{Model, ModelError};
use text::{ChatTemplate, TemplateError, Tokenizer};
use weights::gguf::Gguf;
use weights::load::{LoadOptions, LoadProgress};
use weights::source::{
    Cache, CachedModel, FetchProgress, FetchStage, Reference, SourceError, Verification, resolve,
};

use crate::cli::DEFAULT_CONTEXT;
use crate::interrupt::{self, Interrupted};
use crate::progress::{self, LateBar};
use crate::report::{self, Usage};

/// The local file of a model, fetched if need be, with a progress bar.
///
/// # Errors
/// When there is no such model, or it can't be fetched.
pub(crate) fn fetch(reference: &str) -> Result<PathBuf> {
    Ok(find_or_fetch(reference)?.path)
}

/// The local file of a model.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// Whether it was there before.
    pub(crate) was_there: bool,
}

/// As [`fetch`]; says whether the file was there before.
///
/// # Errors
/// As [`fetch`].
pub(crate) fn find_or_fetch(reference: &str) -> Result<Found> {
    // A path needs no cache: it is an error for others only where its folder can't be known.
    let cache = match (Reference::parse(reference)?, Cache::from_env()) {
        (Reference::Path(_), cache) => cache.unwrap_or_else(|_| Cache::new("")),
        (_, cache) => cache?,
    };
    let mut display = FetchDisplay::new(reference);
    interrupt::set_graceful(true);
    let result = resolve(reference, &cache, &mut |progress| {
        display.show(progress);
        match interrupt::requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    interrupt::set_graceful(false);
    display.clear();
    match result {
        Ok(path) => Ok(Found {
            path,
            was_there: display.stage.is_none(),
        }),
        Err(_) if interrupt::requested() => Err(Interrupted.into()),
        Err(SourceError::Cancelled) => Err(Interrupted.into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a file of the cache is as it was fetched, by its SHA-256, with a progress bar.
///
/// # Errors
/// When it can't be read, or the user interrupts.
pub(crate) fn verify(cache: &Cache, model: &CachedModel) -> Result<Verification> {
    let bar = LateBar::bytes("checking", model.bytes);
    interrupt::set_graceful(true);
    let result = cache.verify(model, |done| {
        bar.set(done);
        !interrupt::requested()
    });
    interrupt::set_graceful(false);
    bar.finish();
    match result {
        Err(SourceError::Cancelled) => Err(Interrupted.into()),
        result => Ok(result?),
    }
}

/// How far a fetch has come: a spinner until something comes and then a bar, or, where standard error is no
/// terminal, one line when it begins.
struct FetchDisplay<'a> {
    reference: &'a str,
    stage: Option<FetchStage>,
    told: bool,
    bar: ProgressBar,
}

impl<'a> FetchDisplay<'a> {
    fn new(reference: &'a str) -> Self {
        Self {
            reference,
            stage: None,
            told: false,
            bar: ProgressBar::hidden(),
        }
    }

    fn show(&mut self, progress: FetchProgress) {
        if self.stage != Some(progress.stage) {
            self.stage = Some(progress.stage);
            self.begin(progress);
        }
        self.bar.set_position(progress.done);
    }

    /// A stage begins.
    fn begin(&mut self, progress: FetchProgress) {
        self.clear();
        let reference = self.reference;
        self.bar = match progress.stage {
            FetchStage::Waiting => {
                report::note(&format!(
                    "{reference} is being fetched by another process; waiting"
                ));
                return;
            }
            FetchStage::Looking => progress::spinner(&format!("looking for {reference}")),
            FetchStage::Downloading => {
                progress::bytes(&format!("fetching {reference}"), progress.total)
            }
        };
        if self.bar.is_hidden() && !self.told {
            let size = progress.total.map(|n| format!(" ({})", report::bytes(n)));
            report::note(&format!("fetching {reference}{}", size.unwrap_or_default()));
            self.told = true;
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
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

/// The chat template of a model, where it has one; `complaint` is what is said of one that can't be used.
///
/// # Errors
/// When it can't be compiled.
pub(crate) fn chat_template(
    tokenizer: &Tokenizer,
    complaint: &'static str,
) -> Result<Option<ChatTemplate>> {
    match ChatTemplate::of(tokenizer) {
        // Not the model's fault.
        Err(error @ TemplateError::NoThread(_)) => Err(error.into()),
        template => template.context(complaint),
    }
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
    match model {
        Ok(model) => Ok(Arc::new(model)),
        // These name the file themselves.
        Err(error @ (ModelError::File(_) | ModelError::Load(_))) => Err(error.into()),
        Err(error) => Err(error).with_context(|| format!("can't load {}", file.path().display())),
    }
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

/// The instruction set to compute with: what `PLAINCHANT_ISA` asks for, or the best there is.
///
/// # Errors
/// When the variable names none that this CPU has.
pub(crate) fn isa() -> Result<Isa> {
    Isa::from_env().map_err(|error| Usage(error.to_string()).into())
}

/// Those of an instruction set that are to be measured: the one that `PLAINCHANT_ISA` asks for, or all there are.
///
/// # Errors
/// As [`isa`].
pub(crate) fn isas() -> Result<Vec<Isa>> {
    let isa = isa()?;
    let is_asked_for = std::env::var_os("PLAINCHANT_ISA").is_some_and(|name| !name.is_empty());
    Ok(if is_asked_for {
        vec![isa]
    } else {
        Isa::supported()
    })
}

/// Whether a prompt of so many tokens leaves room for an answer.
///
/// # Errors
/// When it doesn't: with the context raised it would, or nothing but a shorter prompt does.
pub(crate) fn check_prompt(prompt: usize, context: usize, trained: usize) -> Result<()> {
    if prompt < context {
        return Ok(());
    }
    if prompt < trained {
        return Err(EngineError::PromptTooLong { prompt, context }.into());
    }
    bail!(
        "the prompt has {}, and the context holds {context}; at least one more is needed for an answer: shorten the \
         prompt, since no context can hold more than the {trained} that the model was trained for",
        report::counted(prompt, "token")
    )
}

/// The context to run with: what was asked for, or the default.
///
/// # Errors
/// When more was asked for than the model was trained for.
pub(crate) fn context(asked: Option<usize>, trained: usize) -> Result<usize> {
    positions(asked, (1, DEFAULT_CONTEXT), trained)
}

/// What `--ctx` asks for, at least `least`, or else `default`, less where the model was trained for less.
///
/// # Errors
/// When more was asked for than the model was trained for.
pub(crate) fn positions(
    asked: Option<usize>,
    (least, default): (usize, usize),
    trained: usize,
) -> Result<usize> {
    match asked {
        Some(asked) if asked > trained => {
            let message = format!(
                "--ctx is {asked}: it must be from {least} to {trained}, the positions that the model was trained for"
            );
            Err(Usage(message).into())
        }
        Some(asked) => Ok(asked),
        None => Ok(trained.min(default)),
    }
}
