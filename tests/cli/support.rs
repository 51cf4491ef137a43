//! Runs the command and looks at what came of it.

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// All tiny models.
pub(crate) const TINY: [&str; 6] = [
    "llama-tied",
    "llama-untied",
    "qwen2",
    "qwen2-tied",
    "gemma3",
    "gemma3-linear",
];

/// The path of a tiny model, as text for arguments.
pub(crate) fn tiny(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny");
    folder
        .join(format!("{name}.gguf"))
        .to_str()
        .unwrap()
        .to_owned()
}

/// The command, in an environment that is the same on every machine: no cache, no pip.
pub(crate) fn plainchant(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plainchant"));
    command
        .args(args)
        .env_remove("PLAINCHANT_ISA")
        .env_remove("NO_COLOR")
        .env("PLAINCHANT_CACHE", "/absent/cache")
        .env("PLAINCHANT_PIP", "/absent/pip")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Outcome {
    /// That it worked, and said nothing on standard error.
    pub(crate) fn success(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self.stdout
    }

    /// That it failed with this exit status and nothing on standard output; gives the message, which must
    /// have all of these parts.
    pub(crate) fn failure(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(
            (self.code, self.stdout.as_str()),
            (Some(code), ""),
            "{self:?}"
        );
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:?}");
        }
        self.stderr
    }

    /// That it worked and printed one JSON value.
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.success()).unwrap()
    }
}

/// Runs the command without standard input.
pub(crate) fn run(args: &[&str]) -> Outcome {
    plainchant(args).output().unwrap().into()
}

/// Runs the command with these bytes on standard input.
pub(crate) fn run_with(args: &[&str], input: &[u8]) -> Outcome {
    let mut child = plainchant(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that fails early closes its end.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap().into()
}

/// `args` after those of `run` for a tiny model.
pub(crate) fn run_args<'a>(model: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--model", model], args].concat()
}

/// A report of `run --json` on a tiny model.
pub(crate) fn run_json(model: &str, args: &[&str]) -> Value {
    let model = tiny(model);
    run(&run_args(&model, &[args, &["--json"]].concat())).json()
}

/// A file of the developers' models, where it is there; says so where it isn't.
pub(crate) fn real_model(file: &str) -> Option<String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let developers = std::env::var_os("PLAINCHANT_DEV_MODELS").map(PathBuf::from);
    let folders = [
        std::env::var_os("PLAINCHANT_CACHE").map(PathBuf::from),
        developers.or_else(|| Some(home.clone()?.join(".cache/plainchant-dev-models"))),
        home.map(|home| home.join(".cache/plainchant/models")),
    ];
    let found = folders
        .into_iter()
        .flatten()
        .map(|folder| folder.join(file))
        .find(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: {file} is neither in the cache nor in $PLAINCHANT_DEV_MODELS");
    }
    found.map(|path| path.to_str().unwrap().to_owned())
}

/// The strings or numbers of a JSON array.
pub(crate) fn list<T: serde::de::DeserializeOwned + Debug>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Sends a signal to a process alone.
pub(crate) fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
}
