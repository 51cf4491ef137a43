//! What is known of one request and its answer.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::report::{milliseconds, thousandths};

/// Why a request failed, as far as failures are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FailureKind {
    /// No connection could be made.
    Connection,
    /// It took too long.
    Timeout,
    /// The connection ended before the answer.
    Cut,
    /// What came is not what OpenAI's servers send.
    Malformed,
    /// The server told of an error amid its stream.
    Server,
    /// An HTTP status other than success.
    Status(u16),
    /// As many requests as there may be were under way.
    TooMany,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection => f.write_str("connection"),
            Self::Timeout => f.write_str("timeout"),
            Self::Cut => f.write_str("cut"),
            Self::Malformed => f.write_str("malformed"),
            Self::Server => f.write_str("server"),
            Self::Status(status) => write!(f, "http_{status}"),
            Self::TooMany => f.write_str("too_many"),
        }
    }
}

impl Serialize for FailureKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A request failed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }

    /// What the HTTP library tells of a request that may take as long as `timeout`.
    pub(super) fn of(error: ureq::Error, timeout: Duration) -> Self {
        use io::ErrorKind as Io;
        let kind = match &error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed => FailureKind::Connection,
            ureq::Error::Timeout(_) => {
                let problem = format!("no whole answer within {timeout:?}");
                return Self::new(FailureKind::Timeout, problem);
            }
            ureq::Error::Io(error) => match error.kind() {
                Io::UnexpectedEof
                | Io::ConnectionReset
                | Io::ConnectionAborted
                | Io::BrokenPipe => FailureKind::Cut,
                Io::TimedOut | Io::WouldBlock => FailureKind::Timeout,
                _ => FailureKind::Connection,
            },
            _ => FailureKind::Malformed,
        };
        Self::new(kind, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Where the number of an answer's tokens is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Counted {
    /// The server's usage.
    Usage,
    /// The answer ended at the length asked for.
    Length,
    /// Nothing better than the pieces of text.
    Chunks,
}

/// One request and its answer. Times are in milliseconds since it was due.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) index: usize,
    /// When it was due, since the first was.
    pub(super) due_ms: f64,
    /// To the first text; to the end of an answer without any.
    pub(super) ttft_ms: Option<f64>,
    /// Of each token after the first, on average.
    pub(super) tpot_ms: Option<f64>,
    pub(super) end_to_end_ms: f64,
    /// When each piece of text came.
    pub(super) chunks_ms: Vec<f64>,
    /// As the server counts them.
    pub(super) prompt_tokens: Option<usize>,
    /// Of them those that were in its cache.
    pub(super) cached_tokens: Option<usize>,
    pub(super) output_tokens: usize,
    pub(super) counted_by: Counted,
    pub(super) finish_reason: Option<String>,
    pub(super) failure: Option<Failure>,
    #[serde(skip)]
    pub(super) usage_tokens: Option<usize>,
}

impl Sample {
    /// Before anything came.
    pub(super) fn new(output_tokens: usize) -> Self {
        Self {
            index: 0,
            due_ms: 0.0,
            ttft_ms: None,
            tpot_ms: None,
            end_to_end_ms: 0.0,
            chunks_ms: Vec::with_capacity(output_tokens),
            prompt_tokens: None,
            cached_tokens: None,
            output_tokens: 0,
            counted_by: Counted::Chunks,
            finish_reason: None,
            failure: None,
            usage_tokens: None,
        }
    }

    /// A request that was not sent.
    pub(super) fn unsent(failure: Failure) -> Self {
        Self {
            failure: Some(failure),
            ..Self::new(0)
        }
    }

    /// All has come that comes.
    pub(super) fn finish(
        &mut self,
        elapsed: Duration,
        asked_tokens: usize,
        failure: Option<Failure>,
    ) {
        self.end_to_end_ms = milliseconds(elapsed);
        let is_full = self.finish_reason.as_deref() == Some("length");
        (self.output_tokens, self.counted_by) = match self.usage_tokens {
            Some(tokens) => (tokens, Counted::Usage),
            None if is_full => (asked_tokens, Counted::Length),
            None => (self.chunks_ms.len(), Counted::Chunks),
        };
        self.failure = failure;
        if self.failure.is_some() {
            return;
        }
        self.ttft_ms = self.chunks_ms.first().copied().or(Some(self.end_to_end_ms));
        let gaps = self.output_tokens.saturating_sub(1);
        if let (Some(first), Some(last), 1..) =
            (self.chunks_ms.first(), self.chunks_ms.last(), gaps)
        {
            let has_spread = self.chunks_ms.len() > 1;
            self.tpot_ms = has_spread.then(|| thousandths((last - first) / gaps as f64));
        }
    }

    /// Whether it was answered.
    pub(super) fn is_answered(&self) -> bool {
        self.failure.is_none()
    }

    /// The times between pieces of text.
    pub(super) fn gaps_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.chunks_ms
            .windows(2)
            .map(|pair| thousandths(pair[1] - pair[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(edit: impl FnOnce(&mut Sample), failure: Option<Failure>) -> Sample {
        let mut sample = Sample::new(8);
        sample.chunks_ms = vec![10.0, 20.0, 50.0];
        edit(&mut sample);
        sample.finish(Duration::from_millis(60), 8, failure);
        sample
    }

    #[test]
    fn tokens_are_counted_by_the_best_there_is() {
        let usage = finished(
            |s| {
                s.usage_tokens = Some(5);
                s.finish_reason = Some("length".into());
            },
            None,
        );
        assert_eq!((usage.output_tokens, usage.counted_by), (5, Counted::Usage));
        assert_eq!((usage.ttft_ms, usage.tpot_ms), (Some(10.0), Some(10.0)));
        let length = finished(|s| s.finish_reason = Some("length".into()), None);
        assert_eq!(
            (length.output_tokens, length.counted_by),
            (8, Counted::Length)
        );
        assert_eq!(length.tpot_ms, Some(5.714));
        let chunks = finished(|s| s.finish_reason = Some("stop".into()), None);
        assert_eq!(
            (chunks.output_tokens, chunks.counted_by),
            (3, Counted::Chunks)
        );
        assert_eq!(chunks.tpot_ms, Some(20.0));
        assert_eq!(chunks.gaps_ms().collect::<Vec<_>>(), [10.0, 30.0]);
    }

    #[test]
    fn failures_and_single_tokens_have_no_times_they_can_not_have() {
        let failed = finished(|_| {}, Some(Failure::new(FailureKind::Cut, "cut")));
        assert_eq!((failed.ttft_ms, failed.tpot_ms), (None, None));
        let one = finished(|s| s.chunks_ms.truncate(1), None);
        assert_eq!((one.ttft_ms, one.tpot_ms), (Some(10.0), None));
        let empty = finished(|s| s.chunks_ms.clear(), None);
        assert_eq!((empty.ttft_ms, empty.output_tokens), (Some(60.0), 0));
    }
}
