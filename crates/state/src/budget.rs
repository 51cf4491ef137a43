//! How many pages a number of bytes gives each store.

use kernels::pages::PAGE_POSITIONS;

use crate::error::StateError;
use crate::spec::{LayerState, StateSpec};
use crate::table::StoreSpec;

/// Pages at most in a store: an id must tell each from none.
const PAGES_MAX: u128 = u32::MAX as u128 - 1;

/// States that a recurrent layer has room for, per sequence: the running one and checkpoints.
pub const STATES_PER_SEQUENCE: usize = 8;

/// What the memory is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Sequences at most.
    pub sequences: usize,
    /// Positions per sequence at most.
    pub context: usize,
    /// Bytes for all stores together. None: as many as all sequences take at full length.
    pub state_bytes: Option<u64>,
}

impl Budget {
    /// The stores that the budget gives `layers`, whose pages have the sizes `page_bytes`. Each store gets
    /// its share of what one sequence of full length takes.
    ///
    /// # Errors
    /// When the bytes do not suffice for one page of each layer.
    pub fn stores(
        &self,
        layers: &[LayerState],
        page_bytes: &[usize],
    ) -> Result<Vec<StoreSpec>, StateError> {
        let one = pages_of(layers, page_bytes.len(), self.context);
        let spec = |pages: u128, page_bytes: usize| StoreSpec {
            pages: usize::try_from(pages).unwrap_or(usize::MAX),
            page_bytes,
        };
        let Some(bytes) = self.state_bytes else {
            let stores = one.iter().zip(page_bytes);
            let stores = stores.map(|(&n, &size)| spec(n as u128 * self.sequences as u128, size));
            return Ok(stores.collect());
        };
        let least = pages_of(layers, page_bytes.len(), 1);
        let cost = |pages: &[usize]| -> u128 {
            let pages = pages.iter().zip(page_bytes);
            pages.map(|(&n, &size)| n as u128 * size as u128).sum()
        };
        let (all, least_bytes) = (cost(&one), cost(&least));
        let mut stores = Vec::with_capacity(page_bytes.len());
        for ((&of_one, &least), &size) in one.iter().zip(&least).zip(page_bytes) {
            let pages = (u128::from(bytes) * of_one as u128).checked_div(all).unwrap_or(0);
            if pages < least as u128 {
                return Err(StateError::Budget {
                    bytes,
                    least: u64::try_from(least_bytes).unwrap_or(u64::MAX),
                });
            }
            stores.push(spec(pages.min(PAGES_MAX), size));
        }
        Ok(stores)
    }

    /// Bytes that one sequence of `context` positions takes.
    #[must_use]
    pub fn bytes_per_sequence(layers: &[LayerState], page_bytes: &[usize], context: usize) -> usize {
        let pages = pages_of(layers, page_bytes.len(), context);
        let pages = pages.iter().zip(page_bytes);
        pages.fold(0, |sum, (n, &size)| sum.saturating_add(n.saturating_mul(size)))
    }
}

/// Pages of each store that one sequence of that length takes, with nothing forgotten.
fn pages_of(layers: &[LayerState], stores: usize, len: usize) -> Vec<usize> {
    let mut pages = vec![0usize; stores];
    for layer in layers {
        let Some(pages) = pages.get_mut(layer.store) else {
            continue;
        };
        match layer.spec {
            StateSpec::Paged { .. } => *pages += len.div_ceil(PAGE_POSITIONS),
            StateSpec::Fixed { .. } => *pages += STATES_PER_SEQUENCE,
            StateSpec::Shared { .. } | StateSpec::None => {}
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::policy::Full;

    fn layer(spec: StateSpec, store: usize) -> LayerState {
        let policy = Arc::new(Full);
        LayerState {
            spec,
            store,
            policy,
        }
    }

    fn layers() -> Vec<LayerState> {
        let paged = StateSpec::Paged {
            bytes_per_position: 1,
        };
        vec![
            layer(paged, 0),
            layer(paged, 0),
            layer(paged, 1),
            layer(StateSpec::Fixed { bytes: 10 }, 2),
        ]
    }

    const SIZES: [usize; 3] = [100, 50, 10];

    fn pages(state_bytes: Option<u64>) -> Result<Vec<usize>, StateError> {
        let budget = Budget {
            sequences: 3,
            context: 129,
            state_bytes,
        };
        let stores = budget.stores(&layers(), &SIZES)?;
        Ok(stores.iter().map(|s| s.pages).collect())
    }

    #[test]
    fn without_a_budget_all_sequences_fit() {
        assert_eq!(pages(None), Ok(vec![18, 9, 24]));
        let one = Budget::bytes_per_sequence(&layers(), &SIZES, 129);
        assert_eq!(one, 6 * 100 + 3 * 50 + 8 * 10);
    }

    #[test]
    fn a_budget_is_shared_out_and_kept() {
        let found = pages(Some(5_000)).unwrap();
        let bytes: usize = found.iter().zip(SIZES).map(|(n, size)| n * size).sum();
        assert_eq!(found, [36, 18, 48]);
        assert!(bytes <= 5_000);
        assert_eq!(
            pages(Some(200)),
            Err(StateError::Budget {
                bytes: 200,
                least: 2 * 100 + 50 + 80
            })
        );
    }
}
