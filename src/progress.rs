//! Progress bars. They go to standard error, and only where that is a terminal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What takes less than this needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(120);

/// What turns while something is looked for, drawn where standard error is a terminal.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let spinner = with_style(ProgressBar::new_spinner(), message, "{spinner} {msg}");
    spinner.enable_steady_tick(TURN);
    spinner
}

/// A bar that counts bytes, to be drawn where standard error is a terminal.
pub(crate) fn bytes(message: &str, total: Option<u64>) -> ProgressBar {
    bytes_on(ProgressDrawTarget::stderr(), message, total)
}

fn bytes_on(target: ProgressDrawTarget, message: &str, total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{msg} [{wide_bar}] {decimal_bytes}/{decimal_total_bytes} {eta}",
        None => "{msg} {spinner} {decimal_bytes} {decimal_bytes_per_sec}",
    };
    with_style(
        ProgressBar::with_draw_target(total, target),
        message,
        template,
    )
}

/// A bar that counts pieces of work.
pub(crate) fn steps(message: &str, total: usize) -> ProgressBar {
    with_style(
        ProgressBar::new(total as u64),
        message,
        "[{bar:30}] {pos}/{len} {msg} {eta}",
    )
}

fn with_style(bar: ProgressBar, message: &str, template: &str) -> ProgressBar {
    // The templates are those above; one that can't be read would leave the plain style.
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(message.to_owned());
    bar
}

/// A bar that appears only once the work has taken a while. Can be told from any thread.
#[derive(Debug)]
pub(crate) struct LateBar {
    bar: ProgressBar,
    start: Instant,
    shown: AtomicBool,
}

impl LateBar {
    /// A bar that counts bytes.
    pub(crate) fn bytes(message: &str, total: u64) -> Self {
        let bar = bytes_on(ProgressDrawTarget::hidden(), message, Some(total));
        Self {
            bar,
            start: Instant::now(),
            shown: AtomicBool::new(false),
        }
    }

    /// So much is done.
    pub(crate) fn set(&self, done: u64) {
        if self.start.elapsed() < PATIENCE {
            return;
        }
        if !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }

    /// All is done: the bar goes away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
