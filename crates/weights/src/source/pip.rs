//! Runs pip to download a wheel. The user's own configuration of package indexes applies.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    SourceError,
    child::{Ended, Running},
    disk,
    error::io_error,
};

/// The environment variable with the command that runs pip.
pub(super) const PIP_VARIABLE: &str = "PLAINCHANT_PIP";

/// How long pip may take to say its version.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// How many lines of pip's error output are shown, and of how many characters at most.
const SHOWN_LINES: usize = 12;
const SHOWN_CHARACTERS: usize = 300;

/// A command that runs pip: program and first arguments.
#[derive(Clone, Debug)]
pub(super) struct Pip(Vec<OsString>);

/// Why a command is no pip.
enum NoPip {
    /// It can't be started.
    NotStarted(io::Error),
    /// It can, and says something else than its version.
    Failed(String),
}

/// What to download, and the room it takes.
pub(super) struct Wanted<'a> {
    /// A package, with its version or without.
    pub(super) requirement: &'a str,
    /// An empty folder of ours.
    pub(super) folder: &'a Path,
    /// The bytes that are still to be written, where known: for the message when the disk is full.
    pub(super) needed: Option<u64>,
}

impl Pip {
    /// The command in `PLAINCHANT_PIP`, or else the first of the usual ones that runs. `meanwhile` may
    /// refuse to go on.
    pub(super) fn find(
        meanwhile: &mut dyn FnMut() -> Result<(), SourceError>,
    ) -> Result<Self, SourceError> {
        let is_blank = |value: &OsString| value.to_str().is_some_and(|v| v.trim().is_empty());
        if let Some(value) = env::var_os(PIP_VARIABLE).filter(|v| !is_blank(v)) {
            let pip = Self(split_command(&value));
            return match pip.try_version(meanwhile)? {
                Ok(()) => Ok(pip),
                Err(why) => Err(SourceError::PipUnusable {
                    command: value.to_string_lossy().into_owned(),
                    why: pip.in_words(&why),
                }),
            };
        }
        let mut tried = Vec::new();
        for words in usual_commands() {
            let pip = Self(words);
            match pip.try_version(meanwhile)? {
                Ok(()) => return Ok(pip),
                Err(NoPip::NotStarted(error)) => tried.push(format!("`{}`: {error}", pip.shown())),
                Err(NoPip::Failed(why)) => tried.push(format!("`{}`: {why}", pip.shown())),
            }
        }
        Err(SourceError::PipMissing { tried })
    }

    /// Downloads a wheel; `downloaded` gets the bytes there so far and may refuse to go on. Gives the wheel's
    /// path.
    pub(super) fn download(
        &self,
        wanted: &Wanted<'_>,
        downloaded: &mut dyn FnMut(u64) -> Result<(), SourceError>,
    ) -> Result<PathBuf, SourceError> {
        let folder = wanted.folder;
        let temporary = folder.join("tmp");
        let wheels = folder.join("wheels");
        for folder in [&temporary, &wheels] {
            fs::create_dir_all(folder).map_err(io_error("create the folder", folder))?;
        }
        let mut command = self.command();
        command
            .args([
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--no-cache-dir",
                "--no-input",
            ])
            .args(["--disable-pip-version-check", "--quiet", "-d"])
            .arg(&wheels)
            .arg(wanted.requirement)
            // pip builds its download up in the folder for temporary files: having it in ours shows how
            // far it has come, and lets leftovers be cleaned.
            .envs(["TMPDIR", "TEMP", "TMP"].map(|v| (v, &temporary)));
        let running = Running::start(&mut command).map_err(io_error("run", &self.0[0]))?;
        // At its end pip copies the wheel from the one to the other.
        let bytes = || bytes_under(&temporary, 3).max(bytes_under(&wheels, 0));
        let ended = running.wait(&mut || downloaded(bytes()))?;
        if !ended.status.success() {
            return Err(self.failed(wanted, &ended));
        }
        let found = fs::read_dir(&wheels).map_err(io_error("read the folder", &wheels))?;
        let mut found: Vec<PathBuf> = found.filter_map(|e| Some(e.ok()?.path())).collect();
        found.retain(|p| p.extension().is_some_and(|e| e == "whl"));
        match found.as_slice() {
            [wheel] => Ok(wheel.clone()),
            _ => Err(SourceError::NoWheel {
                command: self.shown(),
                requirement: wanted.requirement.to_owned(),
                found: found.len(),
            }),
        }
    }

    fn failed(&self, wanted: &Wanted<'_>, ended: &Ended) -> SourceError {
        let cause = Cause::of(&ended.said);
        let reason = match cause {
            Cause::Unreachable => {
                "the package index could not be reached; is there a network, and are pip's settings right?"
                    .to_owned()
            }
            Cause::NoSuchPackage => {
                "the package index has no such package or version, or none for this machine".to_owned()
            }
            Cause::DiskFull => {
                let needed = wanted
                    .needed
                    .map_or_else(String::new, |n| format!("{n} bytes are needed, "));
                let folder = wanted.folder.parent().unwrap_or(wanted.folder);
                format!(
                    "the disk is full: {needed}{} in {}; free some space, or set PLAINCHANT_CACHE to a \
                     folder on another disk",
                    disk::free_in_words(wanted.folder),
                    folder.display()
                )
            }
            Cause::Unknown => format!("pip failed ({})", ended.status),
        };
        SourceError::PipFailed {
            requirement: wanted.requirement.to_owned(),
            reason,
            command: self.shown(),
            said: cause.lines_that_matter(&ended.said),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }

    /// The command, for messages.
    fn shown(&self) -> String {
        let words: Vec<_> = self.0.iter().map(|w| w.to_string_lossy()).collect();
        words.join(" ")
    }

    fn try_version(
        &self,
        meanwhile: &mut dyn FnMut() -> Result<(), SourceError>,
    ) -> Result<Result<(), NoPip>, SourceError> {
        let running = match Running::start(self.command().arg("--version")) {
            Ok(running) => running,
            Err(error) => return Ok(Err(NoPip::NotStarted(error))),
        };
        let (start, mut late) = (Instant::now(), false);
        let ended = running.wait(&mut || {
            late = start.elapsed() > VERSION_LIMIT;
            match late {
                true => Err(SourceError::Cancelled),
                false => meanwhile(),
            }
        });
        let ended = match ended {
            Err(_) if late => {
                let seconds = VERSION_LIMIT.as_secs();
                let why = format!("no answer to --version within {seconds} seconds");
                return Ok(Err(NoPip::Failed(why)));
            }
            ended => ended?,
        };
        if ended.status.success() {
            return Ok(Ok(()));
        }
        let last = ended.said.lines().rfind(|line| !line.trim().is_empty());
        let why = last.map_or_else(|| ended.status.to_string(), |line| shortened(line.trim()));
        Ok(Err(NoPip::Failed(why)))
    }

    fn in_words(&self, why: &NoPip) -> String {
        let program = self.0[0].to_string_lossy();
        match why {
            NoPip::NotStarted(error) => format!("`{program}` can't be started: {error}"),
            NoPip::Failed(why) => format!("`{} --version` failed: {why}", self.shown()),
        }
    }
}

fn usual_commands() -> Vec<Vec<OsString>> {
    let words: &[&[&str]] = if cfg!(windows) {
        &[&["py", "-m", "pip"], &["python", "-m", "pip"], &["pip"]]
    } else {
        &[
            &["python3", "-m", "pip"],
            &["pip3"],
            &["pip"],
            &["python", "-m", "pip"],
        ]
    };
    words
        .iter()
        .map(|w| w.iter().map(Into::into).collect())
        .collect()
}

/// A path with spaces is one program; otherwise spaces separate words.
fn split_command(command: &OsString) -> Vec<OsString> {
    match command.to_str() {
        Some(text) if !Path::new(command).is_file() => {
            text.split_whitespace().map(Into::into).collect()
        }
        _ => vec![command.clone()],
    }
}

/// Why pip failed, as far as its words tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Unreachable,
    NoSuchPackage,
    DiskFull,
    Unknown,
}

/// What pip and the libraries in it say where an index can't be reached.
const UNREACHABLE: [&str; 14] = [
    "after connection broken by",
    "NewConnectionError",
    "NameResolutionError",
    "Name or service not known",
    "failure in name resolution",
    "Connection refused",
    "Network is unreachable",
    "No route to host",
    "Max retries exceeded",
    "timed out",
    "ProxyError",
    "SSLError",
    "Could not fetch URL",
    "secure host and is being ignored",
];

const DISK_FULL: [&str; 3] = ["No space left on device", "Disk quota exceeded", "Errno 28"];

const NO_SUCH_PACKAGE: [&str; 2] = [
    "No matching distribution found",
    "Could not find a version that satisfies",
];

impl Cause {
    fn of(said: &str) -> Self {
        let says = |words: &[&str]| words.iter().any(|w| said.contains(w));
        if says(&DISK_FULL) {
            Self::DiskFull
        } else if says(&UNREACHABLE) {
            Self::Unreachable
        } else if says(&NO_SUCH_PACKAGE) {
            Self::NoSuchPackage
        } else {
            Self::Unknown
        }
    }

    /// What pip said, without what is repeated and what only follows from the cause.
    fn lines_that_matter(self, said: &str) -> String {
        let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut lines: Vec<&str> = lines.collect();
        let has = |line: &str, words: &[&str]| words.iter().any(|w| line.contains(w));
        match self {
            // One of the retries is enough; that no version was found is because none could be looked for.
            Self::Unreachable => {
                lines.retain(|line| has(line, &UNREACHABLE));
                lines = lines.split_off(lines.len().saturating_sub(1));
            }
            Self::DiskFull => lines.retain(|line| has(line, &DISK_FULL)),
            Self::NoSuchPackage if lines.iter().any(|line| line.starts_with("ERROR")) => {
                lines.retain(|line| line.starts_with("ERROR"));
            }
            Self::NoSuchPackage | Self::Unknown => {}
        }
        let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        if shown.is_empty() {
            return "(nothing)".into();
        }
        let shown: Vec<String> = shown.iter().map(|line| shortened(line)).collect();
        shown.join("\n")
    }
}

/// The beginning and the end of a long line.
fn shortened(line: &str) -> String {
    let count = line.chars().count();
    if count <= SHOWN_CHARACTERS {
        return line.to_owned();
    }
    let half = SHOWN_CHARACTERS / 2;
    let start: String = line.chars().take(half).collect();
    let end: String = line.chars().skip(count - half).collect();
    format!("{start} … {end}")
}

/// The bytes of all files under a folder, down to a depth. Files may come and go meanwhile.
fn bytes_under(folder: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(m) if m.is_dir() && depth > 0 => bytes_under(&entry.path(), depth - 1),
            Ok(m) if m.is_file() => m.len(),
            _ => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: &str = "WARNING: Retrying (Retry(total=4)) after connection broken by \
                         'NewConnectionError': /simple/a/";
    const NONE: &str = "ERROR: No matching distribution found for a==1";

    #[test]
    fn what_pip_says_is_understood_and_shortened() {
        let offline = format!("{RETRY}\n{RETRY}\nWARNING: other\n{NONE}\n");
        let cause = Cause::of(&offline);
        assert_eq!(cause, Cause::Unreachable);
        assert_eq!(cause.lines_that_matter(&offline), RETRY);
        let absent = format!("WARNING: old pip\n{NONE}\n");
        assert_eq!(Cause::of(&absent), Cause::NoSuchPackage);
        assert_eq!(Cause::NoSuchPackage.lines_that_matter(&absent), NONE);
        let full = "a\nERROR: [Errno 28] No space left on device\nb";
        assert_eq!(Cause::of(full), Cause::DiskFull);
        assert_eq!(
            Cause::DiskFull.lines_that_matter(full),
            "ERROR: [Errno 28] No space left on device"
        );
        assert_eq!(Cause::of("odd"), Cause::Unknown);
        assert_eq!(Cause::Unknown.lines_that_matter(" \n"), "(nothing)");
        let many = "line\n".repeat(100) + &"x".repeat(1000);
        let shown = Cause::Unknown.lines_that_matter(&many);
        assert_eq!(shown.lines().count(), SHOWN_LINES);
        assert!(shown.chars().count() < 400, "{shown}");
    }

    #[test]
    fn a_command_is_words_unless_it_is_a_file() {
        let words = |text: &str| split_command(&text.into());
        assert_eq!(words("python3 -m  pip"), ["python3", "-m", "pip"]);
        assert_eq!(words(env!("CARGO_MANIFEST_DIR")).len(), 1);
    }
}
