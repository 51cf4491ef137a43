//! Signals that ask for an end: they end a generation or a download in good order where one runs, and the
//! program otherwise.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use anyhow::{Context, Result};

/// The exit status after Ctrl-C, as shells count it: 128 and the number of the signal.
#[cfg(not(unix))]
const INTERRUPTED: u8 = 130;

/// Whether somebody looks at [`requested`] from time to time.
static GRACEFUL: AtomicBool = AtomicBool::new(false);
/// The exit status of the signal that came; 0 before one comes.
static STATUS: AtomicU8 = AtomicU8::new(0);

/// Takes over Ctrl-C and what else asks for an end. Until [`set_graceful`] it ends the program at once, as
/// before.
///
/// # Errors
/// When the system refuses a handler.
pub(crate) fn install() -> Result<()> {
    watch().context("can't handle Ctrl-C")
}

#[cfg(unix)]
fn watch() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut wanted = vec![SIGINT, SIGTERM];
    if cfg!(target_os = "linux") && !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    let take = move || {
        for signal in signals.forever() {
            caught(u8::try_from(128 + signal).unwrap_or(u8::MAX));
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(take)?;
    Ok(())
}

/// Whether the process was started to ignore a signal, as nohup does with SIGHUP.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(not(unix))]
fn watch() -> std::result::Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| caught(INTERRUPTED))
}

fn caught(status: u8) {
    let again = STATUS.swap(status, Ordering::Relaxed) != 0;
    if again || !GRACEFUL.load(Ordering::Relaxed) {
        // Exiting unwinds nothing: pip would go on, and half of a file stay.
        weights::source::abandon_fetches();
        std::process::exit(status.into());
    }
}

/// Says whether [`requested`] is looked at, so that the first signal need not end the program. The second
/// always does.
pub(crate) fn set_graceful(graceful: bool) {
    GRACEFUL.store(graceful, Ordering::Relaxed);
}

/// Whether a signal came.
pub(crate) fn requested() -> bool {
    exit_status().is_some()
}

/// The exit status of a command that a signal ended.
pub(crate) fn exit_status() -> Option<u8> {
    Some(STATUS.load(Ordering::Relaxed)).filter(|&status| status != 0)
}

/// The command was interrupted before it had anything to give.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
