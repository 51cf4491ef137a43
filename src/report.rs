//! What goes to standard output, errors, and numbers for reports.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::flags;
use crate::interrupt::{self, Interrupted};

/// Whoever read standard output has gone: no reason to go on, and no error.
#[derive(Debug)]
struct OutputClosed;

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for OutputClosed {}

/// The command was called in a way that makes no sense, or with a value out of range.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Writes to standard output at once.
///
/// # Errors
/// When it can't be written to.
pub(crate) fn print(text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        Err(e) => Err(e).context("can't write to standard output"),
    }
}

/// Writes one JSON object and a line break to standard output: on one line, or over several.
///
/// # Errors
/// When it can't be written to.
pub(crate) fn print_json(value: &impl Serialize, on_one_line: bool) -> Result<()> {
    let text = match on_one_line {
        true => serde_json::to_string(value)?,
        false => serde_json::to_string_pretty(value)?,
    };
    print(&format!("{text}\n"))
}

/// Writes a line to standard error. Where even that fails nobody is left to tell.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Reports why a command failed, and gives the exit status.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    if error.is::<OutputClosed>() {
        return ExitCode::SUCCESS;
    }
    let (begin, end) = match colours() {
        true => ("\x1b[1;31m", "\x1b[0m"),
        false => ("", ""),
    };
    let out_of_range = flags::out_of_range(error);
    let message = match (&out_of_range, flags::remedy(error)) {
        (Some(message), _) => message.clone(),
        (None, Some(flag)) => format!("{} with {flag}", with_causes(error)),
        (None, None) => with_causes(error),
    };
    note(&format!("{begin}error:{end} {message}"));
    if let Some(status) = interrupt::exit_status().filter(|_| error.is::<Interrupted>()) {
        return ExitCode::from(status);
    }
    let is_usage = error.is::<Usage>() || out_of_range.is_some();
    ExitCode::from(if is_usage { 2 } else { 1 })
}

/// The error and its causes; a cause that an error already tells is not told again.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether standard error takes colours.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    io::stderr().is_terminal() && !refused
}

/// The most memory this process ever had resident, in bytes, where the system tells.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A number of things, `noun` being the word for one of them.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    indicatif::DecimalBytes(n).to_string()
}

/// To a thousandth: more digits of a measured time or rate mean nothing.
pub(crate) fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Milliseconds, to a thousandth.
pub(crate) fn milliseconds(duration: std::time::Duration) -> f64 {
    thousandths(duration.as_secs_f64() * 1000.0)
}

/// `count` things a second, where both are above nothing.
pub(crate) fn per_second(count: usize, duration: std::time::Duration) -> Option<f64> {
    let seconds = duration.as_secs_f64();
    (count > 0 && seconds > 0.0).then(|| thousandths(count as f64 / seconds))
}

/// Whether a share of what is possible at most is more than samples that vary explain.
pub(crate) fn is_too_high(share: f64) -> bool {
    share > 1.05
}

/// A share for people, with a mark where it is too high; nothing where it isn't known.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| {
        let mark = if is_too_high(share) { "!" } else { "" };
        format!("{:.1} %{mark}", 100.0 * share)
    })
}

/// The least and the greatest; of nothing, 0 and 0.
pub(crate) fn extremes(samples: &[f64]) -> (f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |sample: Option<&f64>| sample.copied().unwrap_or(0.0);
    (at(sorted.first()), at(sorted.last()))
}

/// The median; nothing of nothing is 0.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The bytes of a token as text that can't be misread: quoted, escapes for what is not printable.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn shares_above_what_is_possible_are_marked() {
        assert_eq!(percent(Some(1.05)), "105.0 %");
        assert_eq!(percent(Some(14.5)), "1450.0 %!");
        assert_eq!(percent(None), "");
    }

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::anyhow!("c").context("b: c").context("a");
        assert_eq!(with_causes(&error), "a: b: c");
    }

    #[test]
    fn bytes_that_are_no_text_are_escaped() {
        assert_eq!(quoted("a\n\"é".as_bytes()), r#""a\n\"é""#);
        assert_eq!(quoted(&[b'a', 0xE2, 0x82]), r#""a\xe2\x82""#);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_of_memory_is_known() {
        assert!(peak_rss_bytes().is_some_and(|n| n > 100_000));
    }
}
