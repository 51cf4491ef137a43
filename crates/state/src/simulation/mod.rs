//! Random lives of sequences against a naive model of what each of them wrote.
//!
//! Every page's content is a number per position that stands for the tenant, the layer and all tokens up to
//! there; moves are done on these numbers. After each operation the books must add up, every sequence must
//! see at each position what it, or an equal prefix of its tenant, wrote there, and every page of the tree
//! must hold what its path says.

mod world;

use world::{Kind, World};

/// Something broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Shared pages are written to without a copy.
    CopySkipped,
    /// All tenants share one tree.
    TenantsMixed,
    /// A page that nobody holds isn't free.
    PageLeaked,
    /// A page is given back twice.
    PageFreedTwice,
    /// A page is taken that a sequence still holds.
    ReferencedEvicted,
}

const FAULTS: [Fault; 5] = [
    Fault::CopySkipped,
    Fault::TenantsMixed,
    Fault::PageLeaked,
    Fault::PageFreedTwice,
    Fault::ReferencedEvicted,
];

const KINDS: [Kind; 5] = [
    Kind::Full,
    Kind::Windowed,
    Kind::Recurrent,
    Kind::Hybrid,
    Kind::All,
];

fn seeds() -> u64 {
    let asked = std::env::var("PLAINCHANT_SIMULATION_SEEDS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(30)
}

const OPERATIONS: usize = 400;

#[test]
fn every_sequence_sees_what_it_wrote() {
    let mut totals = crate::Totals::default();
    for kind in KINDS {
        for seed in 0..seeds() {
            let mut world = World::new(seed, kind, None);
            if let Err(what) = world.run(OPERATIONS).and_then(|()| world.end()) {
                panic!("{kind:?}, seed {seed}: {what}");
            }
            let found = world.totals();
            totals.hits += found.hits;
            totals.evictions += found.evictions;
            totals.forgotten += found.forgotten;
            totals.copies += found.copies;
            totals.checkpoints += found.checkpoints;
            totals.swap_ins += found.swap_ins;
        }
    }
    // Nothing was shown where nothing happened.
    let counts = [
        totals.hits,
        totals.evictions,
        totals.forgotten,
        totals.copies,
        totals.checkpoints,
        totals.swap_ins,
    ];
    assert!(counts.iter().all(|&n| n > 100), "{totals:?}");
}

#[test]
fn each_fault_is_caught() {
    for fault in FAULTS {
        let caught = (0..20).filter(|&seed| {
            let mut world = World::new(seed, Kind::All, Some(fault));
            world.run(OPERATIONS).and_then(|()| world.end()).is_err()
        });
        assert_eq!(caught.count(), 20, "{fault:?}");
    }
}

#[test]
fn what_sequences_see_gives_faults_away_even_when_the_books_do_not() {
    for fault in [Fault::CopySkipped, Fault::TenantsMixed] {
        let caught = (0..20).filter(|&seed| {
            let mut world = World::new(seed, Kind::Full, Some(fault));
            world.trusts_books = true;
            world.run(OPERATIONS).is_err()
        });
        assert!(caught.count() > 10, "{fault:?}");
    }
}
