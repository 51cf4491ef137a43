//! What the scheduler knows of a request: its tokens, and how far the model has come with them.

use model::Rows;
use state::SequenceId;

use crate::request::{RequestId, TenantId};

/// Where a begun request's keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In pages: it runs.
    Memory(SequenceId),
    /// Elsewhere: it waits to be brought back.
    Swapped(SequenceId),
    /// Nowhere: it waits to be computed again.
    Nowhere,
}

/// A request, as the scheduler sees it.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: RequestId,
    pub(crate) tenant: TenantId,
    pub(crate) priority: i32,
    /// Prompt, then answer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Tokens that the model has to remember at most.
    pub(crate) longest: usize,
    /// The logits of every position below this one are wanted.
    pub(crate) rows_end: usize,
    /// Whether it may begin with what others computed, and others with what it does.
    pub(crate) shares: bool,
    /// Tokens the model has run and remembers.
    pub(crate) done: usize,
    /// The first position whose logits were not taken yet.
    pub(crate) next_row: usize,
    pub(crate) place: Place,
    /// Steps since it last ran.
    pub(crate) idle_steps: u64,
    /// Times it had to make room.
    pub(crate) preemptions: u32,
    /// Tokens of the prompt that were there when it began.
    pub(crate) cached: usize,
}

impl Task {
    /// Tokens not yet run.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.done
    }

    /// The length it has `ahead` tokens from now, as far as it may grow.
    pub(crate) fn len_in(&self, ahead: usize) -> usize {
        (self.tokens.len() + ahead).min(self.longest)
    }

    /// Whether it is one step from its next token, with at least one behind it.
    pub(crate) fn is_decoding(&self) -> bool {
        self.tokens.len() > self.prompt_len && self.pending() == 1
    }

    /// The sequence, where it runs.
    pub(crate) fn running(&self) -> Option<SequenceId> {
        match self.place {
            Place::Memory(sequence) => Some(sequence),
            Place::Swapped(_) | Place::Nowhere => None,
        }
    }

    /// The rows of logits wanted of the next `run` tokens.
    pub(crate) fn rows(&self, run: usize) -> Rows<'static> {
        let end = self.done + run;
        if self.next_row < self.rows_end && end > self.next_row {
            Rows::All
        } else if end == self.tokens.len() {
            Rows::Last
        } else {
            Rows::None
        }
    }

    /// The tokens that it may find in the cache: beyond them rows are wanted that only a run gives.
    pub(crate) fn reusable(&self) -> &[u32] {
        if self.next_row < self.rows_end {
            &self.tokens[..self.tokens.len().min(self.next_row + 1)]
        } else {
            &self.tokens
        }
    }

    /// The model ran `run` more.
    pub(crate) fn advance(&mut self, run: usize) {
        self.done += run;
        self.next_row = self.next_row.max(self.done);
        self.idle_steps = 0;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A task with ten tokens of prompt.
    pub(crate) fn task(id: u64, tenant: TenantId, priority: i32) -> Task {
        Task {
            id: RequestId(id),
            tenant,
            priority,
            tokens: (0..10).collect(),
            prompt_len: 10,
            longest: 20,
            rows_end: 0,
            shares: true,
            done: 0,
            next_row: 0,
            place: Place::Nowhere,
            idle_steps: 0,
            preemptions: 0,
            cached: 0,
        }
    }

    #[test]
    fn rows_are_wanted_once() {
        let mut all = task(0, TenantId::LOCAL, 0);
        all.rows_end = usize::MAX;
        assert_eq!((all.rows(4), all.reusable().len()), (Rows::All, 1));
        all.advance(4);
        // Computed again after a preemption: only what was not taken is wanted.
        all.done = 0;
        assert_eq!((all.rows(4), all.reusable().len()), (Rows::None, 5));
        assert_eq!(all.rows(5), Rows::All);
        let mut plain = task(0, TenantId::LOCAL, 0);
        assert_eq!((plain.rows(9), plain.rows(10)), (Rows::None, Rows::Last));
        assert_eq!(plain.reusable().len(), 10);
        plain.advance(10);
        plain.tokens.push(3);
        assert!(plain.is_decoding());
        plain.done = 4;
        assert!(!plain.is_decoding());
    }
}
