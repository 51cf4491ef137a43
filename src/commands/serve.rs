//! `serve`: answers requests over HTTP.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use engine::{Engine, EngineOptions};
use kernels::CONTRACT_VERSION;
use kernels::pages::KvType;
use model::{Memory, Model};
use server::{ApiKeys, Options, Served, Shutdown};
use weights::gguf::Gguf;
use weights::source::Reference;

use crate::cli::{LogArgs, LogFormat, ServeArgs};
use crate::{interrupt, session};

/// How often it is looked whether a signal came.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Serves until a signal asks for an end.
///
/// # Errors
/// When an argument is out of range, the model can't be had or run, or the address not be listened at.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let options = options(args)?;
    let isa = session::isa()?;
    let path = session::fetch(&args.model.model)?;
    let file = Gguf::open(&path)?;
    let trained = model::arch::read(&file)?.context;
    let context = session::context(args.ctx.asked(), trained)?;
    // Before the model is loaded, so that a port that is taken is told at once.
    let address = SocketAddr::new(args.host, args.port);
    let listener =
        TcpListener::bind(address).with_context(|| format!("can't listen at {address}"))?;
    let tokenizer = session::tokenizer(&file)?;
    let template = session::chat_template(&tokenizer, "the model's chat template can't be used")?;
    log(&args.log);

    let pool = session::pool(args.thread_count())?;
    let threads = pool.threads();
    let model = session::load(&file, &pool)?;
    let engine_options = engine_options(args, &model, context);
    let engine = Engine::new(model, Arc::clone(&tokenizer), isa, pool, engine_options)?;
    let served = Served {
        id: model_id(args, &path),
        created_s: modified_s(&path),
        system_fingerprint: fingerprint(&path, engine_options.kv_type, context)?,
        tokenizer,
        template,
    };
    tracing::info!(
        model = served.id,
        fingerprint = served.system_fingerprint,
        isa = isa.name(),
        threads,
        ctx = context,
        sequences = engine_options.sequences,
        state_bytes = engine_options.state_bytes,
        keys = !options.keys.is_empty(),
        "listening at http://{}",
        listener.local_addr()?
    );
    let shutdown = Shutdown::default();
    watch(shutdown.clone())?;
    Ok(server::serve(engine, served, options, listener, &shutdown)?)
}

fn options(args: &ServeArgs) -> Result<Options> {
    let [read_timeout, write_timeout, drain] = args.limits.times();
    let keys = args.access.api_key_file.as_deref().map(ApiKeys::read);
    Ok(Options {
        keys: keys.transpose()?.unwrap_or_default(),
        cors_origins: args.access.cors_origin.clone(),
        body_bytes_max: args.limits.max_request_bytes as usize,
        connections_max: args.limits.max_connections as usize,
        requests_per_minute: args.limits.rate_limit,
        read_timeout,
        write_timeout,
        drain,
        log_prompts: args.log.log_prompts,
        ..Options::default()
    })
}

fn engine_options(args: &ServeArgs, model: &Model, context: usize) -> EngineOptions {
    let (kv_type, sequences) = (args.kv.kv_type(), args.sequences as usize);
    let mib = |mib: u32| u64::from(mib) << 20;
    let state_bytes = args.state_mib.map_or_else(
        || default_state_bytes(model, kv_type, context, sequences),
        mib,
    );
    EngineOptions {
        kv_type,
        context,
        sequences,
        prefill_chunk: (args.step_tokens as usize).min(context),
        state_bytes: Some(state_bytes),
        queue: args.queue as usize,
        swap_bytes: mib(args.swap_mib),
        ..EngineOptions::default()
    }
}

/// Room for all sequences, but no more than half of the memory that is free, and at least for one.
fn default_state_bytes(model: &Model, kv_type: KvType, context: usize, sequences: usize) -> u64 {
    let one = Memory::bytes_per_sequence(&model.architecture, kv_type, context) as u64;
    let all = one.saturating_mul(sequences as u64);
    let free = kernels::topology::available_memory_bytes(Path::new("/"));
    let half = free.map_or(u64::MAX, |bytes| (bytes / 2.0) as u64);
    all.min(half).max(one)
}

/// The model's name in requests.
fn model_id(args: &ServeArgs, path: &Path) -> String {
    if let Some(id) = &args.model_id {
        return id.clone();
    }
    match Reference::parse(&args.model.model) {
        Ok(Reference::Path(_)) | Err(_) => {
            let stem = path.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        }
        Ok(_) => args.model.model.clone(),
    }
}

/// When a file was last changed, in seconds since 1970; 0 where that isn't known.
fn modified_s(path: &Path) -> u64 {
    let modified = std::fs::metadata(path).and_then(|facts| facts.modified());
    let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
    modified
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Names what logits depend on: the order of arithmetic, the model (its file's name and size), the type of keys
/// and values, and the context, which rope may depend on.
fn fingerprint(path: &Path, kv_type: KvType, context: usize) -> Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let kv = kv_type.name();
    let facts = format!("{CONTRACT_VERSION}\n{name}\n{bytes}\n{kv}\n{context}");
    let hash = blake3::hash(facts.as_bytes()).to_hex();
    Ok(format!("fp_{CONTRACT_VERSION}_{}", &hash[..16]))
}

/// Begins the log on standard error.
fn log(args: &LogArgs) {
    let level = match args.log_level.as_str() {
        "error" => tracing::Level::ERROR,
        "warn" => tracing::Level::WARN,
        "debug" => tracing::Level::DEBUG,
        _ => tracing::Level::INFO,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false);
    match args.log_format {
        LogFormat::Text => log.with_ansi(crate::report::colours()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Asks for the end when a signal comes.
fn watch(shutdown: Shutdown) -> Result<()> {
    interrupt::set_graceful(true);
    let look = move || {
        while !interrupt::requested() {
            std::thread::sleep(LOOK_EVERY);
        }
        shutdown.request();
    };
    let thread = std::thread::Builder::new().name("shutdown".into());
    thread.spawn(look).context("can't start a thread")?;
    Ok(())
}
