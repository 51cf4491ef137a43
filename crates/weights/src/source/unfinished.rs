//! What this process has begun and not ended: children that run, files and folders that must not stay.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How often removing a folder is tried: what a killed child was doing may still come to its end.
const REMOVALS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

static UNFINISHED: Mutex<Unfinished> = Mutex::new(Unfinished {
    groups: Vec::new(),
    paths: Vec::new(),
});

struct Unfinished {
    /// The process groups of children.
    groups: Vec<u32>,
    paths: Vec<PathBuf>,
}

fn unfinished() -> MutexGuard<'static, Unfinished> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every pip that runs, with all that it started, and removes what is half fetched. For a program that
/// is about to exit without unwinding: otherwise all of this is done where a fetch ends, however it ends.
pub fn abandon_fetches() {
    let mut unfinished = unfinished();
    for group in unfinished.groups.drain(..) {
        kill_group(group);
    }
    for path in unfinished.paths.drain(..) {
        remove(&path);
    }
}

/// A process group that runs, until dropped.
#[derive(Debug)]
pub(super) struct Group(u32);

impl Group {
    /// The group that the process with this id leads.
    pub(super) fn new(leader: u32) -> Self {
        unfinished().groups.push(leader);
        Self(leader)
    }

    /// Ends every process of it. (On Windows there are no groups: the caller ends the leader.)
    pub(super) fn kill(&self) {
        kill_group(self.0);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        unfinished().groups.retain(|&group| group != self.0);
    }
}

#[cfg(unix)]
fn kill_group(leader: u32) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let leader = i32::try_from(leader).ok().and_then(Pid::from_raw);
    // It fails where all of them have ended, which is as wanted.
    let _ = leader.map(|leader| kill_process_group(leader, Signal::KILL));
}

#[cfg(not(unix))]
fn kill_group(_leader: u32) {}

/// A file or folder that is removed when dropped.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// Takes charge of what is there.
    pub(super) fn new(path: PathBuf) -> Self {
        unfinished().paths.push(path.clone());
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        remove(&self.0);
        unfinished().paths.retain(|path| *path != self.0);
    }
}

fn remove(path: &Path) {
    for _ in 0..REMOVALS {
        let result = match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
        if result.is_ok() || fs::symlink_metadata(path).is_err() {
            return;
        }
        thread::sleep(PAUSE);
    }
}
