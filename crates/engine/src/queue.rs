//! Requests that have not begun.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use crate::request::{RequestId, TenantId};
use crate::task::Task;
use crate::tenants::Tenants;

/// Requests of one tenant that are looked at before its turn passes to the next.
const LOOK_AHEAD: usize = 32;

/// A request that has not begun.
#[derive(Debug)]
pub(crate) struct Waiting<P> {
    pub(crate) task: Task,
    pub(crate) payload: P,
    /// It begins with what this one is reading: it waits until that one has read so many tokens.
    pub(crate) held: Option<(RequestId, usize)>,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    line: Line,
    at: usize,
}

/// By priority, then by tenant.
type Line = (Reverse<i32>, TenantId);

/// One line for each priority and tenant, in order of arrival.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    lines: BTreeMap<Line, VecDeque<Waiting<P>>>,
    /// Of each request, its line.
    index: BTreeMap<RequestId, Line>,
}

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            index: BTreeMap::new(),
        }
    }
}

impl<P> Queue<P> {
    /// Requests in it.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether `tenant` has less waiting than its equal part of `limit` among all that wait.
    pub(crate) fn has_share(&self, tenant: TenantId, limit: usize) -> bool {
        let mut counts = BTreeMap::from([(tenant, 0)]);
        for ((_, of), waiting) in &self.lines {
            *counts.entry(*of).or_default() += waiting.len();
        }
        counts[&tenant] < limit / counts.len()
    }

    /// Adds one; ids ascend.
    pub(crate) fn push(&mut self, task: Task, payload: P) {
        let line = (Reverse(task.priority), task.tenant);
        self.index.insert(task.id, line);
        let waiting = Waiting {
            task,
            payload,
            held: None,
        };
        self.lines.entry(line).or_default().push_back(waiting);
    }

    /// Takes out the request `id`, where it is there.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting<P>> {
        let line = *self.index.get(&id)?;
        let waiting = self.lines.get(&line)?;
        let at = waiting.binary_search_by_key(&id, |w| w.task.id).ok()?;
        self.take(Place { line, at })
    }

    /// The next to begin: of the highest priority, of the tenant that has had least (or came first), the first that may:
    /// `may` is asked for each in turn.
    pub(crate) fn next(
        &mut self,
        tenants: &Tenants,
        may: &mut dyn FnMut(&mut Waiting<P>) -> bool,
    ) -> Option<Place> {
        let first = |waiting: &VecDeque<Waiting<P>>| waiting.front().map(|waiting| waiting.task.id);
        let lines = self.lines.iter().map(|(&(priority, tenant), waiting)| {
            (priority, tenants.had(tenant), first(waiting), tenant)
        });
        let mut order: Vec<_> = lines.collect();
        order.sort_unstable();
        order.into_iter().find_map(|(priority, _, _, tenant)| {
            let line = (priority, tenant);
            let waiting = self.lines.get_mut(&line)?;
            let at = waiting.iter_mut().take(LOOK_AHEAD).position(&mut *may)?;
            Some(Place { line, at })
        })
    }

    /// The one at `place`.
    pub(crate) fn get(&self, place: Place) -> Option<&Waiting<P>> {
        self.lines.get(&place.line)?.get(place.at)
    }

    /// Takes out the one at `place`.
    pub(crate) fn take(&mut self, place: Place) -> Option<Waiting<P>> {
        let line = self.lines.get_mut(&place.line)?;
        let waiting = line.remove(place.at)?;
        if line.is_empty() {
            self.lines.remove(&place.line);
        }
        self.index.remove(&waiting.task.id);
        Some(waiting)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::task::tests::task;

    fn queue(requests: &[(u64, u64, i32)]) -> Queue<()> {
        let mut queue = Queue::default();
        for &(id, tenant, priority) in requests {
            queue.push(task(id, TenantId(tenant), priority), ());
        }
        queue
    }

    fn order(queue: &mut Queue<()>, tenants: &Tenants) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(place) = queue.next(tenants, &mut |_| true) {
            order.push(queue.take(place).unwrap().task.id.0);
        }
        assert!(queue.is_empty() && queue.lines.is_empty());
        order
    }

    #[test]
    fn priority_then_what_the_tenant_had_then_arrival() {
        let mut tenants = Tenants::default();
        (1..=3).for_each(|tenant| tenants.enter(TenantId(tenant)));
        tenants.charge(TenantId(1), 10);
        let of = [(0, 1, 0), (1, 3, 0), (2, 2, 0), (3, 1, 5), (4, 2, 0)];
        assert_eq!(order(&mut queue(&of), &tenants), [3, 1, 2, 4, 0]);
    }

    #[test]
    fn a_tenant_that_fills_the_queue_does_not_keep_others_out() {
        let many: Vec<_> = (0..10).map(|id| (id, 1, 0)).collect();
        let mut queue = queue(&many);
        assert!(!queue.has_share(TenantId(1), 10) && queue.has_share(TenantId(2), 10));
        (10..15).for_each(|id| queue.push(task(id, TenantId(2), 0), ()));
        assert!(!queue.has_share(TenantId(2), 10) && queue.has_share(TenantId(3), 10));
    }

    #[test]
    fn anyone_can_be_taken_out() {
        let mut queue = queue(&[(0, 1, 0), (1, 1, 0), (2, 1, 3), (3, 1, 0)]);
        assert_eq!(queue.remove(RequestId(1)).unwrap().task.id, RequestId(1));
        assert!(queue.remove(RequestId(1)).is_none());
        assert_eq!(order(&mut queue, &Tenants::default()), [2, 0, 3]);
    }
}
