//! Ctrl-C: ends a generation or a download in good order where one runs, and the program otherwise.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// The exit status of an interrupted command, as shells count it: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Whether somebody looks at [`requested`] from time to time.
static GRACEFUL: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C. Until [`set_graceful`] it ends the program at once, as before.
///
/// # Errors
/// When the system refuses a handler.
pub(crate) fn install() -> Result<()> {
    let handler = || {
        let again = REQUESTED.swap(true, Ordering::Relaxed);
        if again || !GRACEFUL.load(Ordering::Relaxed) {
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        }
    };
    ctrlc::set_handler(handler).context("can't handle Ctrl-C")
}

/// Says whether [`requested`] is looked at, so that the first Ctrl-C need not end the program. The second
/// always does.
pub(crate) fn set_graceful(graceful: bool) {
    GRACEFUL.store(graceful, Ordering::Relaxed);
}

/// Whether Ctrl-C was pressed.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
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
