//! The end of a server.

use std::sync::Arc;

use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are taken.
    Serving,
    /// No new ones are; those that run may end.
    Draining,
    /// Time is over: connections are cut.
    Closing,
}

/// Asks a server to end. Clones ask the same server.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<Phase>>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Serving)))
    }
}

impl Shutdown {
    /// Asks: no new requests are taken from now on, and those that run have some time to end.
    pub fn request(&self) {
        self.advance(Phase::Draining);
    }

    /// Goes on to a later phase.
    pub(crate) fn advance(&self, to: Phase) {
        self.0.send_if_modified(|phase| {
            let goes_on = *phase < to;
            if goes_on {
                *phase = to;
            }
            goes_on
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }
}
