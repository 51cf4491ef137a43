//! `bench --profile`: where the time of a row went, by operation.

use model::{OpKind, OpTotals, Ops};
use serde::Serialize;

use super::bench_share::Shares;
use crate::bounds::{Peaks, Work};
use crate::report;

/// The waiting within the operations.
const WAITING: &str = "(waiting)";

/// What one kind of operation took of a row.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    operation: &'static str,
    calls_per_step: f64,
    microseconds_per_token: f64,
    /// Of the time of all operations.
    share: f64,
    /// Of matrix products.
    #[serde(skip_serializing_if = "Option::is_none")]
    multiply_adds_per_second: Option<f64>,
    /// Of matrix products: weights, each read counted once a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_bytes_per_second: Option<f64>,
    /// Of the bounds that are known.
    #[serde(flatten)]
    shares: Shares,
}

/// One line for each kind of operation that ran, for `tokens` tokens in `steps` steps.
///
/// A last line says how much of it all the calling thread waited for others.
pub(crate) fn lines(ops: &Ops, peaks: &Peaks, tokens: usize, steps: usize) -> Vec<Line> {
    let profile = ops.profile();
    let all: f64 = OpKind::ALL
        .iter()
        .map(|&kind| profile.totals(kind).time.as_secs_f64())
        .sum();
    let line = |kind: OpKind| {
        let totals = profile.totals(kind);
        let seconds = totals.time.as_secs_f64();
        let rate = |amount: u64| (amount > 0 && seconds > 0.0).then(|| amount as f64 / seconds);
        (totals != OpTotals::default()).then(|| Line {
            operation: kind.name(),
            calls_per_step: totals.calls as f64 / steps.max(1) as f64,
            microseconds_per_token: seconds * 1e6 / tokens.max(1) as f64,
            share: if all > 0.0 { seconds / all } else { 0.0 },
            multiply_adds_per_second: rate(totals.multiply_adds),
            weight_bytes_per_second: rate(totals.weight_bytes),
            shares: Shares::of_peaks(peaks, &Work::of_products(&totals), seconds),
        })
    };
    let waits = ops.pool().waits();
    let waiting = (waits.jobs > 0).then(|| Line {
        operation: WAITING,
        calls_per_step: waits.jobs as f64 / steps.max(1) as f64,
        microseconds_per_token: waits.time.as_secs_f64() * 1e6 / tokens.max(1) as f64,
        share: waits.time.as_secs_f64() / all,
        multiply_adds_per_second: None,
        weight_bytes_per_second: None,
        shares: Shares::default(),
    });
    let lines = OpKind::ALL.into_iter().filter_map(line);
    lines.chain(waiting).collect()
}

/// Whether a share of one of them is more than there can be.
pub(crate) fn are_too_high(lines: &[Line]) -> bool {
    lines.iter().any(|line| line.shares.are_too_high())
}

/// The lines as text, indented below their row.
pub(crate) fn table(lines: &[Line]) -> String {
    let mut text = "    operation    calls/step   µs/token   share      GB/s  of bound  G multiply-adds/s  of bound\n"
        .to_owned();
    for line in lines {
        let rate = |rate: Option<f64>| rate.map_or(String::new(), |r| format!("{:.1}", r / 1e9));
        let row = format!(
            "    {:<11} {:>11.1} {:>10.2} {:>6.1} % {:>9} {:>9} {:>18} {:>9}",
            line.operation,
            line.calls_per_step,
            line.microseconds_per_token,
            100.0 * line.share,
            rate(line.weight_bytes_per_second),
            report::percent(line.shares.bandwidth_share),
            rate(line.multiply_adds_per_second),
            report::percent(line.shares.multiply_adds_share),
        );
        text += row.trim_end();
        text += "\n";
    }
    text
}
