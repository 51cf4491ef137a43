//! Fairness between tenants: who had least goes first.
//!
//! Each tenant has a counter of the tokens that were run for it. A tenant that comes back after a pause
//! starts at the least of those that are there, so that it can't save up for a burst (the virtual token
//! counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

use std::collections::BTreeMap;

use crate::request::TenantId;

#[derive(Clone, Copy, Debug, Default)]
struct Service {
    tokens: u64,
    /// Requests waiting or running.
    requests: usize,
}

/// What each tenant has had.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenants {
    services: BTreeMap<TenantId, Service>,
}

impl Tenants {
    /// A request of `tenant` came.
    pub(crate) fn enter(&mut self, tenant: TenantId) {
        let present = self
            .services
            .values()
            .filter(|service| service.requests > 0);
        let least = present.map(|service| service.tokens).min().unwrap_or(0);
        // Who left and has had no more than those who are there is as if never seen.
        self.services
            .retain(|_, service| service.requests > 0 || service.tokens > least);
        let service = self.services.entry(tenant).or_default();
        if service.requests == 0 {
            service.tokens = service.tokens.max(least);
        }
        service.requests += 1;
    }

    /// A request of `tenant` ended.
    pub(crate) fn leave(&mut self, tenant: TenantId) {
        if let Some(service) = self.services.get_mut(&tenant) {
            service.requests = service.requests.saturating_sub(1);
        }
    }

    /// `tokens` were run for `tenant`.
    pub(crate) fn charge(&mut self, tenant: TenantId, tokens: usize) {
        if let Some(service) = self.services.get_mut(&tenant) {
            service.tokens += tokens as u64;
        }
    }

    /// Tokens that were run for `tenant`, as far as they count.
    pub(crate) fn had(&self, tenant: TenantId) -> u64 {
        self.services
            .get(&tenant)
            .map_or(0, |service| service.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[test]
    fn who_comes_back_starts_at_the_least_of_those_present() {
        let mut tenants = Tenants::default();
        tenants.enter(A);
        tenants.charge(A, 1000);
        tenants.enter(B);
        assert_eq!(tenants.had(B), 1000);
        tenants.charge(B, 500);
        tenants.leave(A);
        tenants.charge(B, 500);
        tenants.enter(A);
        assert_eq!((tenants.had(A), tenants.had(B)), (2000, 2000));
    }

    #[test]
    fn leaving_does_not_clear_what_one_has_had() {
        let mut tenants = Tenants::default();
        tenants.enter(A);
        tenants.enter(B);
        tenants.charge(A, 1000);
        tenants.leave(A);
        tenants.enter(A);
        assert_eq!((tenants.had(A), tenants.had(B)), (1000, 0));
    }

    #[test]
    fn those_who_left_are_forgotten_in_time() {
        let mut tenants = Tenants::default();
        for id in 0..1000 {
            tenants.enter(TenantId(id));
            tenants.leave(TenantId(id));
        }
        assert!(tenants.services.len() <= 1);
    }
}
