//! Shared by the tests: fixtures and the models on this machine.
#![allow(dead_code, unreachable_pub, clippy::print_stderr)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use text::{EncodeOptions, TokenId, Tokenizer, TokenizerSpec};

/// Reading as text what control tokens look like.
pub const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

/// Reading control tokens.
pub const SPECIAL: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

/// The folder of the fixtures; another one can be named to compare on more texts.
pub fn fixtures() -> PathBuf {
    std::env::var_os("PLAINCHANT_TEXT_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"),
        PathBuf::from,
    )
}

/// A fixture as JSON.
pub fn json(name: &str) -> Value {
    let path = fixtures().join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All texts that tokenizers are compared on.
pub fn texts() -> Vec<String> {
    ["corpus.json", "fuzz.json"]
        .iter()
        .flat_map(|name| strings(&json(name)))
        .collect()
}

/// An array of strings.
pub fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .map(|v| {
            v.as_str()
                .unwrap_or_else(|| panic!("not a string: {v}"))
                .to_owned()
        })
        .collect()
}

/// An array of ids.
pub fn ids(value: &Value) -> Vec<TokenId> {
    let items = value.as_array().into_iter().flatten();
    items
        .map(|v| {
            v.as_u64()
                .and_then(|v| v.try_into().ok())
                .unwrap_or_else(|| panic!("not an id: {v}"))
        })
        .collect()
}

/// An id, if it is one.
pub fn id(value: &Value) -> Option<TokenId> {
    value.as_u64().and_then(|id| id.try_into().ok())
}

/// The vocabulary of a fixture of tiny vocabularies.
pub fn spec(fixture: &Value) -> TokenizerSpec {
    let spec = &fixture["spec"];
    let scores = spec["scores"].as_array().into_iter().flatten();
    TokenizerSpec {
        model: spec["model"].as_str().unwrap_or_default().to_owned(),
        pre: spec["pre"].as_str().map(str::to_owned),
        tokens: strings(&spec["tokens"])
            .into_iter()
            .map(String::into_bytes)
            .collect(),
        #[allow(clippy::cast_possible_truncation)]
        scores: scores.filter_map(|v| Some(v.as_f64()? as f32)).collect(),
        types: ids(&spec["types"])
            .iter()
            .map(|t| t.cast_signed())
            .collect(),
        merges: strings(&spec["merges"]),
        bos: id(&spec["bos"]),
        eos: id(&spec["eos"]),
        unk: id(&spec["unk"]),
        add_space_prefix: spec["add_space_prefix"].as_bool(),
        ..Default::default()
    }
}

/// The processor time this thread has used, where the system tells; else the time since `start`. A busy
/// machine stretches the latter without any fault of the code.
pub fn work_since(start: &Work) -> Duration {
    match (start.used, thread_time()) {
        (Some(before), Some(now)) => now.saturating_sub(before),
        _ => start.at.elapsed(),
    }
}

/// When some work began.
pub struct Work {
    at: Instant,
    used: Option<Duration>,
}

impl Work {
    pub fn start() -> Self {
        Self {
            at: Instant::now(),
            used: thread_time(),
        }
    }
}

fn thread_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = text.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Folders that models may lie in.
fn model_folders() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let from_env = std::env::var_os("PLAINCHANT_DEV_MODELS").map(PathBuf::from);
    let cache = home.map(|h| h.join(".cache"));
    let default = cache.as_ref().map(|c| c.join("plainchant-dev-models"));
    let own = cache.map(|c| c.join("plainchant"));
    [from_env.or(default), own].into_iter().flatten().collect()
}

/// A file of that name in the folder or at most three levels below.
fn find(folder: &Path, name: &str, levels: usize) -> Option<PathBuf> {
    let path = folder.join(name);
    if path.is_file() {
        return Some(path);
    }
    if levels == 0 {
        return None;
    }
    let mut folders: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders.iter().find_map(|f| find(f, name, levels - 1))
}

/// The tokenizer of a model on this machine; says so where it isn't there.
pub fn model_tokenizer(name: &str) -> Option<Tokenizer> {
    let found = model_folders().iter().find_map(|f| find(f, name, 3));
    let Some(path) = found else {
        eprintln!(
            "skipped: {name} is not on this machine (PLAINCHANT_DEV_MODELS names the folder)"
        );
        return None;
    };
    let file = weights::gguf::Gguf::open(&path).unwrap_or_else(|e| panic!("{e}"));
    Some(Tokenizer::from_gguf(&file).unwrap_or_else(|e| panic!("{e}")))
}

/// Compares every text's ids, with and without control tokens, with the reference's.
pub fn check_cases(tokenizer: &Tokenizer, texts: &[String], cases: &Value, what: &str) {
    let cases = cases.as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(cases.len(), texts.len(), "{what}");
    for (text, case) in texts.iter().zip(cases) {
        let plain = tokenizer.encode(text, PLAIN);
        let special = tokenizer.encode(text, SPECIAL);
        let last = case.as_array().map_or(0, |c| c.len() - 1);
        assert_eq!(plain, ids(&case[0]), "{what}: {text:?} as plain text");
        assert_eq!(
            special,
            ids(&case[last]),
            "{what}: {text:?} with control tokens"
        );
    }
}
