//! Who runs in a step: queue, fairness, budgets, memory.
//!
//! Requests that have begun are kept in order of rank: priority, then who began first. A step takes one
//! token of every running answer and fills the rest of its budget with prompts. Room in memory is made in
//! order of rank: where there is none, the request of the lowest rank makes room (it is preempted), never one
//! of a higher rank than the one in need. The first in rank can so always go on, since alone it fits. Nothing
//! new begins while someone waits for memory.

use std::time::Duration;

use kernels::pages::PAGE_POSITIONS;
use state::{Started, StateError};

use crate::engine::{Preemption, SEQUENCES_MAX};
use crate::error::EngineError;
use crate::fault::Fault;
use crate::pace::{Pace, whole_pages};
use crate::queue::{Queue, Waiting};
use crate::request::{RequestId, TenantId};
use crate::runner::Runner;
use crate::task::{Place, Task};
use crate::tenants::Tenants;

/// Steps after which a prompt goes before all others.
pub(crate) const PATIENCE_STEPS: u64 = 32;

/// What moving a byte takes until it was measured: 4 GB/s.
const SWAP_MS_PER_BYTE: f64 = 0.25e-6;

/// What a scheduler may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests that have begun and not ended, at most.
    pub(crate) sequences: usize,
    /// Prompt tokens in a step at most.
    pub(crate) prefill_chunk: usize,
    pub(crate) preemption: Preemption,
}

/// What one request runs in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its place among those that have begun.
    pub(crate) at: usize,
    /// Tokens.
    pub(crate) run: usize,
}

/// What runs in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    items: [Item; SEQUENCES_MAX],
    len: usize,
    decodes: usize,
}

impl Plan {
    pub(crate) fn items(&self) -> &[Item] {
        &self.items[..self.len]
    }

    /// Of these, those that answer.
    pub(crate) fn decodes(&self) -> usize {
        self.decodes
    }

    fn push(&mut self, item: Item, is_decoding: bool) {
        self.items[self.len] = item;
        self.len += 1;
        self.decodes += usize::from(is_decoding);
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            items: [Item::default(); SEQUENCES_MAX],
            len: 0,
            decodes: 0,
        }
    }
}

/// Totals of what the scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u64,
    pub(crate) prefix_hit_tokens: u64,
    pub(crate) swaps: u64,
    pub(crate) recomputes: u64,
}

/// Decides who runs. `P` is what else belongs to a request.
#[derive(Debug)]
pub(crate) struct Scheduler<P> {
    limits: Limits,
    pub(crate) queue: Queue<P>,
    /// Those that have begun, in order of rank; and beside them what belongs to them.
    tasks: Vec<Task>,
    payloads: Vec<P>,
    tenants: Tenants,
    pub(crate) pace: Pace,
    swap_ms_per_byte: f64,
    /// Someone could not run in the last step because of memory.
    is_short: bool,
    /// Nothing was given back since the next in line did not fit.
    is_blocked: bool,
    /// Those whose state could not be had for reasons other than room.
    lost: Vec<(RequestId, EngineError)>,
    pub(crate) totals: Totals,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

impl<P> Scheduler<P> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            queue: Queue::default(),
            tasks: Vec::with_capacity(limits.sequences),
            payloads: Vec::with_capacity(limits.sequences),
            tenants: Tenants::default(),
            pace: Pace::default(),
            swap_ms_per_byte: SWAP_MS_PER_BYTE,
            is_short: false,
            is_blocked: false,
            lost: Vec::new(),
            totals: Totals::default(),
            #[cfg(test)]
            fault: None,
        }
    }

    /// Those that have begun, in order of rank.
    pub(crate) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Those that have begun, and what belongs to them.
    pub(crate) fn parts(&mut self) -> (&mut [Task], &mut [P]) {
        (&mut self.tasks, &mut self.payloads)
    }

    /// Whether a request of `tenant` may wait where `limit` may: as long as fewer do; and where they don't, as
    /// long as the tenant has less than its share of that, so that no other can keep it out. Never more than
    /// twice the limit.
    pub(crate) fn may_wait(&self, tenant: TenantId, limit: usize) -> bool {
        let waiting = self.queue.len();
        waiting < limit || (waiting < 2 * limit && self.queue.has_share(tenant, limit))
    }

    /// Lets a request wait its turn.
    pub(crate) fn push(&mut self, task: Task, payload: P) {
        self.tenants.enter(task.tenant);
        self.queue.push(task, payload);
        self.is_blocked = false;
    }

    /// Takes out a request that has not begun.
    pub(crate) fn withdraw(&mut self, id: RequestId) -> Option<Waiting<P>> {
        let waiting = self.queue.remove(id)?;
        self.tenants.leave(waiting.task.tenant);
        self.is_blocked = false;
        Some(waiting)
    }

    /// The place of a request that has begun.
    pub(crate) fn find(&self, id: RequestId) -> Option<usize> {
        self.tasks.iter().position(|task| task.id == id)
    }

    /// Takes out a request that has begun; its pages have to be given back.
    pub(crate) fn remove(&mut self, at: usize) -> (Task, P) {
        (self.tasks.remove(at), self.payloads.remove(at))
    }

    /// Takes back the pages of a request that was removed. What it computed stays in the cache where it
    /// shares and `is_sound`.
    pub(crate) fn give_back(
        &mut self,
        task: &Task,
        runner: &mut impl Runner,
        is_sound: bool,
    ) -> Result<(), EngineError> {
        self.tenants.leave(task.tenant);
        self.is_blocked = false;
        match task.place {
            _ if self.has(Fault::Leak) && task.id.0 % 7 == 3 => Ok(()),
            Place::Memory(sequence) => runner.end(sequence, task.shares && is_sound),
            Place::Swapped(sequence) => runner.end(sequence, false),
            Place::Nowhere => Ok(()),
        }
    }

    /// Whether someone who has begun could not run in the last step because of memory.
    #[cfg(test)]
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Those lost since it was last asked.
    pub(crate) fn take_lost(&mut self) -> Vec<(RequestId, EngineError)> {
        std::mem::take(&mut self.lost)
    }

    /// What runs next, with room made for it. Places hold until the next call that begins or ends a request.
    /// `begun` is told of each that begins.
    pub(crate) fn plan(
        &mut self,
        runner: &mut impl Runner,
        begun: &mut dyn FnMut(&Task, &mut P),
    ) -> Plan {
        self.resume(runner);
        self.admit(runner, begun);
        let mut wanted = self.wanted(runner);
        let mut plan = Plan::default();
        self.is_short = self.tasks.iter().any(|task| task.running().is_none());
        for at in 0..self.tasks.len() {
            let run = wanted[at];
            if run > 0 && self.make_room(at, run, runner, &mut wanted) {
                plan.push(Item { at, run }, self.tasks[at].is_decoding());
            }
        }
        self.tasks.iter_mut().for_each(|task| task.idle_steps += 1);
        plan
    }

    /// The step ran `item`.
    pub(crate) fn ran(&mut self, item: Item, runner: &mut impl Runner) -> Result<(), EngineError> {
        let is_fair = !self.has(Fault::Unfair);
        let task = &mut self.tasks[item.at];
        let (before, was_decoding) = (task.done, task.is_decoding());
        task.advance(item.run);
        if is_fair {
            self.tenants.charge(task.tenant, item.run);
        }
        let (after, shares) = (task.done, task.shares);
        match task.running() {
            Some(sequence)
                if shares && !was_decoding && whole_pages(after) > whole_pages(before) =>
            {
                runner.publish(sequence)
            }
            _ => Ok(()),
        }
    }

    /// Brings back those that made room, in order of rank, while there is room.
    fn resume(&mut self, runner: &mut impl Runner) {
        for at in 0..self.tasks.len() {
            if self.is_blocked {
                return;
            }
            match self.bring_back(at, runner) {
                Ok(has_room) => self.is_blocked = !has_room,
                Err(error) => self.lost.push((self.tasks[at].id, error)),
            }
        }
    }

    fn bring_back(&mut self, at: usize, runner: &mut impl Runner) -> Result<bool, EngineError> {
        let task = &self.tasks[at];
        match task.place {
            Place::Memory(_) => Ok(true),
            Place::Swapped(sequence) => {
                let bytes = runner.swap_bytes_of(sequence)?;
                let pages = bytes.div_ceil(runner.page_bytes().max(1)) as usize;
                if !self.has_room(pages, ahead_of(task), runner)? {
                    return Ok(false);
                }
                let start = runner.now();
                let is_in = runner.swap_in(sequence)?;
                if is_in {
                    self.swap_took(runner.now().saturating_sub(start), bytes);
                    self.tasks[at].place = Place::Memory(sequence);
                }
                Ok(is_in)
            }
            Place::Nowhere => {
                let started = runner.start(task.tenant, task.reusable(), task.shares)?;
                let ahead = ahead_of(task);
                let pages = runner.pages_needed(started.sequence, task.len_in(ahead))?;
                if !self.has_room(pages, ahead, runner)? {
                    runner.end(started.sequence, false)?;
                    return Ok(false);
                }
                let forgets = !self.has(Fault::ForgetPreemption);
                let task = &mut self.tasks[at];
                task.place = Place::Memory(started.sequence);
                if forgets {
                    task.done = started.cached;
                }
                Ok(true)
            }
        }
    }

    /// Begins waiting requests while there is room.
    fn admit(&mut self, runner: &mut impl Runner, begun: &mut dyn FnMut(&Task, &mut P)) {
        while !self.is_blocked && !self.queue.is_empty() && self.tasks.len() < self.limits.sequences
        {
            if self.is_short || self.tasks.iter().any(|task| task.running().is_none()) {
                return;
            }
            let Self {
                queue,
                tenants,
                tasks,
                ..
            } = self;
            let Some(place) = queue.next(tenants, &mut |waiting| !is_held(waiting, tasks)) else {
                return;
            };
            let Some(task) = self.queue.get(place).map(|waiting| &waiting.task) else {
                return;
            };
            let started = match self.try_start(task, runner) {
                Ok(Some(started)) => Ok(started),
                Ok(None) => {
                    self.is_blocked = true;
                    return;
                }
                Err(error) => Err(error),
            };
            let Some(Waiting { task, payload, .. }) = self.queue.take(place) else {
                return;
            };
            let at = self.insert(task, payload);
            match started {
                Ok(started) => {
                    let task = &mut self.tasks[at];
                    task.place = Place::Memory(started.sequence);
                    (task.done, task.cached) = (started.cached, started.cached);
                    if self.has(Fault::WrongHit) && started.cached > 0 {
                        self.tasks[at].cached += 1;
                    }
                    self.totals.prompt_tokens += self.tasks[at].prompt_len as u64;
                    self.totals.prefix_hit_tokens += started.cached as u64;
                }
                Err(error) => self.lost.push((self.tasks[at].id, error)),
            }
            begun(&self.tasks[at], &mut self.payloads[at]);
        }
    }

    /// A sequence for a request that would begin; none where there is no room now.
    fn try_start(
        &self,
        task: &Task,
        runner: &mut impl Runner,
    ) -> Result<Option<Started>, EngineError> {
        let started = runner.start(task.tenant, task.reusable(), task.shares)?;
        let ahead = ahead_of(task);
        let pages = runner.pages_needed(started.sequence, task.len_in(ahead))?;
        if self.has_room(pages, ahead, runner)? {
            return Ok(Some(started));
        }
        runner.end(started.sequence, false)?;
        Ok(None)
    }

    /// Puts a request where its rank is.
    fn insert(&mut self, task: Task, payload: P) -> usize {
        let at = self
            .tasks
            .partition_point(|other| other.priority >= task.priority);
        self.tasks.insert(at, task);
        self.payloads.insert(at, payload);
        at
    }

    /// Whether so many more pages leave those that run the room for `ahead` more tokens. Where nothing runs
    /// there is always room, since nothing was taken that never fits.
    fn has_room(
        &self,
        pages: usize,
        ahead: usize,
        runner: &impl Runner,
    ) -> Result<bool, EngineError> {
        let running = self
            .tasks
            .iter()
            .filter_map(|task| Some((task, task.running()?)));
        let (mut needed, mut count) = (pages, 0);
        for (task, sequence) in running {
            needed += runner.pages_needed(sequence, task.len_in(ahead))?;
            count += 1;
        }
        let pages = runner.pages();
        Ok(count == 0 || needed <= pages.free + pages.cached)
    }

    /// For each that has begun, the tokens it would run: one for each answer, and prompts for the rest.
    fn wanted(&self, runner: &impl Runner) -> [usize; SEQUENCES_MAX] {
        let mut wanted = [0; SEQUENCES_MAX];
        let mut prompts = [0; SEQUENCES_MAX];
        let (mut count, mut decodes) = (0, 0);
        for (at, task) in self.tasks.iter().enumerate() {
            if task.running().is_none() {
                continue;
            }
            if task.is_decoding() {
                wanted[at] = usize::from(!(self.has(Fault::SkipDecode) && decodes == 1));
                decodes += 1;
            } else {
                prompts[count] = at;
                count += 1;
            }
        }
        let prompts = &mut prompts[..count];
        if count == 0 {
            return wanted;
        }
        prompts.sort_unstable_by_key(|&at| self.turn(at));
        let mut budget = self.pace.prompt_budget(decodes, self.limits.prefill_chunk);
        if self.has(Fault::OverBudget) {
            budget = self.limits.prefill_chunk + 1;
        }
        for &at in &*prompts {
            let task = &self.tasks[at];
            let end = task.done + task.pending().min(budget);
            wanted[at] = runner.chunk_end(task.done, end).min(end) - task.done;
            budget -= wanted[at];
        }
        wanted
    }

    /// When a prompt's turn comes: who waited too long, then by priority, then whose tenant had least, then
    /// who began first; by rank alone where memory is short, so that who can make room does.
    fn turn(&self, at: usize) -> (bool, std::cmp::Reverse<i32>, u64, usize) {
        let task = &self.tasks[at];
        let is_patient = task.idle_steps < PATIENCE_STEPS && !self.has(Fault::Starve);
        let had = if self.is_short {
            0
        } else {
            self.tenants.had(task.tenant)
        };
        let place = if self.has(Fault::Starve) {
            usize::MAX - at
        } else {
            at
        };
        (
            is_patient && !self.is_short,
            std::cmp::Reverse(task.priority),
            had,
            place,
        )
    }

    /// Makes room for `run` more tokens of the request at `at`: whoever is last in rank makes room. Gives
    /// whether there is room now.
    fn make_room(
        &mut self,
        at: usize,
        run: usize,
        runner: &mut impl Runner,
        wanted: &mut [usize; SEQUENCES_MAX],
    ) -> bool {
        let task = &self.tasks[at];
        let (id, end) = (task.id, task.done + run);
        let Some(sequence) = task.running() else {
            return false;
        };
        loop {
            let Err(error) = runner.reserve(sequence, end) else {
                return true;
            };
            self.is_short |= is_room(&error);
            let runs = |task: &Task| task.running().is_some();
            let last = self.tasks.iter().rposition(runs).filter(|&last| last > at);
            let Some(last) = last.filter(|_| is_room(&error)) else {
                // It waits until whoever is before it in rank ends; where there is none, it can't go on.
                if !is_room(&error) || !self.tasks[..at].iter().any(runs) {
                    self.lost.push((id, error));
                }
                return false;
            };
            wanted[last] = 0;
            if let Err(error) = self.preempt(last, runner) {
                self.tasks[last].place = Place::Nowhere;
                self.lost.push((self.tasks[last].id, error));
            }
        }
    }

    /// Takes the pages of the request at `at`.
    fn preempt(&mut self, at: usize, runner: &mut impl Runner) -> Result<(), EngineError> {
        let task = &mut self.tasks[at];
        let Some(sequence) = task.running() else {
            return Ok(());
        };
        task.preemptions += 1;
        self.is_blocked = false;
        let bytes = runner.swap_bytes_of(sequence)?;
        // Out and back.
        let swap_ms = 2.0 * bytes as f64 * self.swap_ms_per_byte;
        let swaps = match self.limits.preemption {
            Preemption::Auto => swap_ms < self.pace.recompute_ms(task.done),
            Preemption::Swap => true,
            Preemption::Recompute => false,
        };
        let start = runner.now();
        if swaps && runner.swap_out(sequence)? {
            task.place = Place::Swapped(sequence);
            self.totals.swaps += 1;
            self.swap_took(runner.now().saturating_sub(start), bytes);
            return Ok(());
        }
        task.place = Place::Nowhere;
        self.totals.recomputes += 1;
        runner.end(sequence, task.shares)
    }

    fn swap_took(&mut self, time: Duration, bytes: u64) {
        if bytes > 0 {
            let ms_per_byte = time.as_secs_f64() * 1e3 / bytes as f64;
            self.swap_ms_per_byte += (ms_per_byte - self.swap_ms_per_byte) * 0.25;
        }
    }

    /// Whether this fault is planted, which only tests do.
    #[cfg(test)]
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    pub(crate) fn has(&self, _: Fault) -> bool {
        false
    }
}

/// Whether `waiting` begins with what a running request is about to read: it waits for that, rather than
/// read the same again.
fn is_held<P>(waiting: &mut Waiting<P>, tasks: &[Task]) -> bool {
    let leads = |task: &Task, need: usize| task.running().is_some() && task.done < need;
    if let Some((leader, need)) = waiting.held {
        let leader = tasks.iter().find(|task| task.id == leader);
        if leader.is_some_and(|task| leads(task, need)) {
            return true;
        }
    }
    let of = &waiting.task;
    // The last token is always run.
    let reusable = &of.reusable()[..of.reusable().len() - 1];
    let readers = tasks.iter().filter(|task| {
        let is_reading = task.done < task.prompt_len;
        is_reading && of.shares && task.shares && task.tenant == of.tenant
    });
    let needs = readers.filter_map(|task| {
        let same = reusable.iter().zip(&task.tokens[..task.prompt_len]);
        let need = whole_pages(same.take_while(|(a, b)| a == b).count());
        leads(task, need).then_some((task.id, need))
    });
    waiting.held = needs.max_by_key(|&(_, need)| need);
    waiting.held.is_some()
}

/// Tokens ahead for which there should be room where a request begins or comes back: more, the more often it
/// had to make room.
fn ahead_of(task: &Task) -> usize {
    PAGE_POSITIONS * (1 + task.preemptions.min(15) as usize)
}

/// Whether all that is missing is room.
fn is_room(error: &EngineError) -> bool {
    matches!(error, EngineError::State(StateError::OutOfPages { .. }))
}
