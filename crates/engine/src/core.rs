//! The loop: requests in, steps, events out, over any runner.

use std::sync::Arc;
use std::time::Duration;

use model::{Rows, Span, Step};
use state::SequenceId;
use text::{StopStrings, Tokenizer};

use crate::answer::{Answer, Outcome};
use crate::engine::SEQUENCES_MAX;
use crate::error::EngineError;
use crate::fault::Fault;
use crate::request::{Event, FinishReason, Request, RequestId, TenantId};
use crate::runner::Runner;
use crate::sampling::Sampler;
use crate::scheduler::{Item, Limits, Plan, Scheduler};
use crate::stats::{Ends, EngineStats};
use crate::task::{Place, Task};

/// What a core is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreOptions {
    pub(crate) limits: Limits,
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    /// Requests that may wait.
    pub(crate) queue: usize,
}

/// Runs requests on `R`.
#[derive(Debug)]
pub(crate) struct Core<R> {
    pub(crate) runner: R,
    pub(crate) scheduler: Scheduler<Answer>,
    tokenizer: Arc<Tokenizer>,
    options: CoreOptions,
    sampler: Sampler,
    next_id: u64,
    stats: EngineStats,
    ends: Ends,
}

impl<R: Runner> Core<R> {
    pub(crate) fn new(runner: R, tokenizer: Arc<Tokenizer>, options: CoreOptions) -> Self {
        Self {
            runner,
            scheduler: Scheduler::new(options.limits),
            tokenizer,
            options,
            sampler: Sampler::new(options.vocabulary),
            next_id: 0,
            stats: EngineStats::default(),
            ends: Ends::default(),
        }
    }

    pub(crate) fn submit(&mut self, mut request: Request) -> Result<RequestId, EngineError> {
        let stops = self.check(&request)?;
        let (prompt_len, context) = (request.prompt.len(), self.options.context);
        let answer_max = request.answer_max(context);
        self.check_room(request.tenant, prompt_len, answer_max)?;
        // All at once, so that no step has to make room for a token.
        let reserved = request.prompt.try_reserve_exact(answer_max);
        reserved.map_err(|_| EngineError::OutOfMemory {
            bytes: (prompt_len + answer_max) * size_of::<u32>(),
        })?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.stats.submitted += 1;
        let submitted = self.runner.now();
        let answer = Answer::new(
            id,
            &request,
            stops,
            &self.tokenizer,
            (answer_max, submitted),
        );
        let rows_end = match (request.logits_hash, request.prompt_log_probs) {
            (true, _) => usize::MAX,
            // The last row of the prompt is that of the answer's first token.
            (false, Some(_)) => prompt_len - 1,
            (false, None) => 0,
        };
        let task = Task {
            id,
            tenant: request.tenant,
            priority: request.priority,
            tokens: request.prompt,
            prompt_len,
            longest: longest(prompt_len, answer_max),
            rows_end,
            shares: request.cache_prompt,
            done: 0,
            next_row: 0,
            place: Place::Nowhere,
            idle_steps: 0,
            preemptions: 0,
            cached: 0,
        };
        self.scheduler.push(task, answer);
        Ok(id)
    }

    /// Checks what doesn't depend on other requests.
    fn check(&self, request: &Request) -> Result<StopStrings, EngineError> {
        let (vocabulary, context) = (self.options.vocabulary, self.options.context);
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        if let Some(&token) = request.prompt.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(EngineError::NoSuchToken { token, vocabulary });
        }
        if request.max_tokens == Some(0) && request.prompt_log_probs.is_none() {
            let range = "1 or more, where the prompt's own log-probabilities are not asked for";
            return Err(EngineError::Option {
                name: "max_tokens",
                value: 0,
                range: range.to_owned(),
            });
        }
        request.sampling.validate(vocabulary)?;
        Ok(StopStrings::new(&request.stop)?)
    }

    /// Checks that a request can ever run, and that it may wait.
    fn check_room(
        &mut self,
        tenant: TenantId,
        prompt: usize,
        answer: usize,
    ) -> Result<(), EngineError> {
        let fits = self
            .runner
            .fits(longest(prompt, answer), self.options.limits.prefill_chunk);
        let (waiting, limit) = (self.scheduler.queue.len(), self.options.queue);
        if fits.is_ok() && self.scheduler.may_wait(tenant, limit) {
            return Ok(());
        }
        self.stats.rejected += 1;
        fits?;
        Err(EngineError::QueueFull {
            waiting,
            limit,
            retry_after_s: self.ends.retry_after_s(waiting),
        })
    }

    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<Option<Event>, EngineError> {
        let now = self.runner.now();
        let mut events = Vec::with_capacity(1);
        if let Some(mut waiting) = self.scheduler.withdraw(id) {
            self.tell_end(
                &waiting.task,
                &mut waiting.payload,
                (FinishReason::Cancelled, now),
                None,
                &mut events,
            );
        } else if let Some(at) = self.scheduler.find(id) {
            self.end(at, FinishReason::Cancelled, None, &mut events)?;
        }
        Ok(events.pop())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.queue.is_empty() && self.scheduler.tasks().is_empty()
    }

    /// Plans, runs, and tells what came of it.
    pub(crate) fn step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let start = self.runner.now();
        let vocabulary = self.options.vocabulary;
        let plan = self.scheduler.plan(&mut self.runner, &mut |task, answer| {
            events.push(answer.begin(task, vocabulary, start));
        });
        let planned = self.runner.now();
        let mut failed = self.run(&plan);
        let ran = self.runner.now();
        failed.extend(self.scheduler.take_lost());
        self.collect(&plan, &mut failed, events);
        let error = self.fail(failed, events);
        self.measure(&plan, [start, planned, ran, self.runner.now()]);
        debug_assert_eq!(self.runner.check(), Ok(()));
        error
    }

    /// One forward pass. Where it fails, each request runs alone, so that only those fail that do so alone.
    fn run(&mut self, plan: &Plan) -> Vec<(RequestId, EngineError)> {
        let items = plan.items();
        let mut failed = Vec::new();
        match self.forward(items) {
            Err(_) if self.scheduler.has(Fault::IgnoreFailure) => {
                failed.extend(items.iter().filter_map(|&item| self.ran(item)));
            }
            Ok(()) => {
                let errors = items.iter().filter_map(|&item| self.ran(item));
                failed.extend(errors);
            }
            Err(error) if items.len() == 1 => failed.push((self.id_at(items[0]), error)),
            Err(_) => {
                self.stats.failed_steps += 1;
                for item in items {
                    let error = match self.forward(&[*item]) {
                        Ok(()) => self.ran(*item),
                        Err(error) => Some((self.id_at(*item), error)),
                    };
                    failed.extend(error);
                }
            }
        }
        failed
    }

    fn id_at(&self, item: Item) -> RequestId {
        self.scheduler.tasks()[item.at].id
    }

    /// Notes that `item` ran; gives what went wrong with that.
    fn ran(&mut self, item: Item) -> Option<(RequestId, EngineError)> {
        let error = self.scheduler.ran(item, &mut self.runner).err()?;
        Some((self.id_at(item), error))
    }

    /// Runs `items` in one forward pass; their answers take the logits.
    fn forward(&mut self, items: &[Item]) -> Result<(), EngineError> {
        let (tasks, answers) = self.scheduler.parts();
        let none = Span::tokens(SequenceId(u32::MAX), 0, &[], Rows::None);
        let mut spans = [none; SEQUENCES_MAX];
        for (span, &Item { at, run }) in spans.iter_mut().zip(items) {
            let task = &tasks[at];
            let sequence = task.running().unwrap_or(SequenceId(u32::MAX));
            let tokens = &task.tokens[task.done..task.done + run];
            *span = Span::tokens(sequence, task.done, tokens, task.rows(run));
        }
        let step = Step {
            spans: &spans[..items.len()],
        };
        let sampler = &mut self.sampler;
        self.runner.forward(step, &mut |logits| {
            let at = items[logits.span].at;
            answers[at].take(sampler, logits.values, logits.position, &tasks[at].tokens);
        })
    }

    /// Turns the chosen tokens into events.
    fn collect(
        &mut self,
        plan: &Plan,
        failed: &mut Vec<(RequestId, EngineError)>,
        events: &mut Vec<Event>,
    ) {
        let now = self.runner.now();
        // From the last on, so that an end moves none that is still to come.
        for item in plan.items().iter().rev() {
            let (tasks, answers) = self.scheduler.parts();
            let (task, answer) = (&mut tasks[item.at], &mut answers[item.at]);
            if task.pending() > 0 || failed.iter().any(|(id, _)| *id == task.id) {
                continue;
            }
            let (id, before) = (task.id, answer.generated());
            let outcome = answer.collect(now, events);
            self.stats.generated_tokens += (answer.generated() - before) as u64;
            let ended = match outcome {
                Ok(Some(Outcome::GoOn(token))) => {
                    task.tokens.push(token);
                    Ok(())
                }
                Ok(Some(Outcome::End(reason))) => self.end(item.at, reason, None, events),
                Ok(None) => Ok(()),
                Err(error) => Err(error.into()),
            };
            failed.extend(ended.err().map(|error| (id, error)));
        }
    }

    /// Ends those that failed, and gives the first error.
    fn fail(
        &mut self,
        failed: Vec<(RequestId, EngineError)>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let mut first = None;
        for (id, error) in failed {
            let told = Some(error.to_string());
            let ended = match self.scheduler.find(id) {
                Some(at) => self.end(at, FinishReason::Failed, told, events),
                None => Ok(()),
            };
            first = first.or(Some(error)).or(ended.err());
        }
        first.map_or(Ok(()), Err)
    }

    /// Takes a request out, its pages back, and tells of it.
    fn end(
        &mut self,
        at: usize,
        reason: FinishReason,
        error: Option<String>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let now = self.runner.now();
        // Told whatever becomes of the pages.
        let (task, mut answer) = self.scheduler.remove(at);
        self.tell_end(&task, &mut answer, (reason, now), error, events);
        self.scheduler
            .give_back(&task, &mut self.runner, reason != FinishReason::Failed)
    }

    fn tell_end(
        &mut self,
        task: &Task,
        answer: &mut Answer,
        (reason, now): (FinishReason, Duration),
        error: Option<String>,
        events: &mut Vec<Event>,
    ) {
        let finished = answer.finish(task, (reason, now), error);
        let count = match finished.reason {
            FinishReason::Stop => &mut self.stats.stopped,
            FinishReason::Length => &mut self.stats.reached_length,
            FinishReason::Cancelled => &mut self.stats.cancelled,
            FinishReason::Failed => &mut self.stats.failed,
        };
        *count += 1;
        self.ends.add(now);
        let copies = match () {
            () if self.scheduler.has(Fault::EndTwice) && reason == FinishReason::Length => 2,
            () if self.scheduler.has(Fault::EndNever) && task.id.0 % 5 == 4 => 0,
            () => 1,
        };
        events.extend(std::iter::repeat_n(Event::Finished(finished), copies));
    }

    /// Notes what the step took.
    fn measure(&mut self, plan: &Plan, [start, planned, ran, end]: [Duration; 4]) {
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let tokens = plan.items().iter().map(|item| item.run).sum::<usize>();
        if tokens == 0 {
            return;
        }
        let decodes = plan.decodes();
        let prompts = tokens - decodes;
        self.scheduler.pace.record(decodes, prompts, ms(start, end));
        let stats = &mut self.stats;
        stats.steps += 1;
        stats.computed_tokens += prompts as u64;
        (stats.last_step_tokens, stats.last_step_decodes) = (tokens, decodes);
        stats.last_step_ms = ms(start, end);
        stats.busy_ms += ms(planned, ran);
        stats.scheduling_ms += ms(start, planned) + ms(ran, end);
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let (tasks, totals) = (self.scheduler.tasks(), self.scheduler.totals);
        let running = tasks.iter().filter(|task| task.running().is_some());
        let decoding = running.clone().filter(|task| task.is_decoding()).count();
        let running = running.count();
        let preempted = tasks.len() - running;
        let pages = self.runner.pages();
        EngineStats {
            waiting: self.scheduler.queue.len() + preempted,
            running,
            prefilling: running - decoding,
            decoding,
            preempted,
            pages_total: pages.total,
            pages_free: pages.free,
            pages_held: pages.held,
            pages_cached: pages.cached,
            swapped_bytes: pages.swapped_bytes,
            state_bytes: pages.total as u64 * self.runner.page_bytes(),
            prompt_tokens: totals.prompt_tokens,
            prefix_hit_tokens: totals.prefix_hit_tokens,
            swaps: totals.swaps,
            recomputes: totals.recomputes,
            ..self.stats
        }
    }
}

/// Positions that have to be remembered at most: the last token of an answer is not run.
fn longest(prompt: usize, answer: usize) -> usize {
    prompt + answer.saturating_sub(1)
}
