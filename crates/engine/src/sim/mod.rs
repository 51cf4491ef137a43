//! A simulator: the real loop, scheduler and books of pages, with a fake model, virtual time, and clients that
//! come, go and break things, all from one seed. After every step it is checked that
//!
//! - the books of pages add up, and each sequence belongs to a request that has begun;
//! - no step takes more of prompts than it may, and none leaves out an answer (unless memory is short);
//! - everyone who has begun goes on within a number of steps;
//! - each request ends exactly once, with the reason, the counts, the logits hash and the prompt's
//!   log-probabilities that it has alone, and every token is the one it has alone;
//!
//! and when nobody is left, that every page came back. Each check is seen to fail on a planted fault.
//!
//! `PLAINCHANT_SIM_STEPS` sets the number of steps, `PLAINCHANT_SIM_SEED` the one seed to run.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod fake;
mod world;

use state::TenantId;

use crate::engine::Preemption;
use crate::fault::Fault;
use crate::request::Request;
use fake::{FakeFault, FakeOptions, Layer};
use world::{Config, Random, World};

/// Steps of the normal test.
const STEPS: u64 = 200_000;

/// Steps with one seed.
const STEPS_PER_SEED: u64 = 1_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One world from beginning to end.
fn run(seed: u64, faults: (Option<Fault>, Option<FakeFault>)) -> Result<World, String> {
    let config = Config::random(&mut Random(seed));
    run_config(config, seed, faults)
}

fn run_config(
    config: Config,
    seed: u64,
    (fault, fake_fault): (Option<Fault>, Option<FakeFault>),
) -> Result<World, String> {
    let mut world = World::new(config, seed);
    world.core.scheduler.fault = fault;
    world.core.runner.fault = fake_fault;
    let result = (0..STEPS_PER_SEED)
        .try_for_each(|_| world.step())
        .and_then(|()| world.drain());
    match result {
        Ok(()) => Ok(world),
        Err(why) => Err(format!(
            "{why}\nat step {} of seed {seed}: {:?}",
            world.steps, world.config
        )),
    }
}

#[test]
fn whatever_happens_the_invariants_hold() {
    let steps = from_env("PLAINCHANT_SIM_STEPS").unwrap_or(STEPS);
    let seeds = match from_env("PLAINCHANT_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..steps.div_ceil(STEPS_PER_SEED),
    };
    let (mut ran, mut requests, mut seen) = (0, 0, [0u64; 6]);
    for seed in seeds.clone() {
        let world = run(seed, (None, None)).unwrap_or_else(|why| panic!("{why}"));
        let stats = world.core.stats();
        ran += world.steps;
        requests += world.submitted;
        let kinds = [
            stats.swaps,
            stats.recomputes,
            stats.failed,
            stats.cancelled,
            stats.rejected,
            stats.prefix_hit_tokens,
        ];
        seen.iter_mut().zip(kinds).for_each(|(sum, n)| *sum += n);
    }
    // A world where nothing happens would show nothing.
    if seeds.end - seeds.start >= 100 {
        assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
    }
    println!(
        "{ran} steps, {requests} requests; swaps, recomputes, failed, cancelled, rejected, hits: {seen:?}"
    );
}

/// Each planted fault is found with one of a few seeds, by a check that is about it.
#[test]
fn planted_faults_are_found() {
    let faults = [
        (Fault::SkipDecode, "left out of a step"),
        (Fault::OverBudget, "prompt tokens"),
        (Fault::Leak, "sequences for"),
        (Fault::WrongHit, "tokens were cached"),
        (Fault::EndTwice, "of a request that has ended"),
        (Fault::EndNever, ""),
        (Fault::ForgetPreemption, "expected was"),
        (Fault::IgnoreFailure, ""),
    ];
    for (fault, told) in faults {
        found(
            told,
            |seed| run(seed, (Some(fault), None)),
            &format!("{fault:?}"),
        );
    }
    let faults = [
        (FakeFault::Copies, "token"),
        (FakeFault::Swaps, "token"),
        (FakeFault::Ends, "sequences for"),
    ];
    for (fault, told) in faults {
        found(
            told,
            |seed| run(seed, (None, Some(fault))),
            &format!("{fault:?}"),
        );
    }
    found(
        "has not gone on",
        |seed| run_config(busy(), seed, (Some(Fault::Starve), None)),
        "Starve",
    );
    run_config(busy(), 0, (None, None)).unwrap_or_else(|why| panic!("{why}"));
}

/// Some seed finds the fault, and says so.
fn found(told: &str, run: impl Fn(u64) -> Result<World, String>, name: &str) {
    let whys = (0..60).filter_map(|seed| run(seed).err());
    let mut all = Vec::new();
    for why in whys {
        if why.contains(told) {
            return;
        }
        all.push(why);
    }
    panic!("{name} was not found; instead: {all:#?}");
}

/// Long prompts without end, and a small budget.
fn busy() -> Config {
    Config {
        fake: FakeOptions {
            layers: vec![Layer::Full],
            sequences: 6,
            context: 300,
            pages: 100,
            swap_bytes: 0,
        },
        prefill_chunk: 16,
        queue: 100,
        preemption: Preemption::Auto,
        tenants: 1,
        priorities: 1,
        prompt_most: 250,
        answer_most: 2,
        arrives_in: 2,
        cancelled_in: 0,
        fails_in: 0,
    }
}

/// A prompt that many ask for at the same time is computed once.
#[test]
fn the_same_prompt_is_read_once() {
    let mut config = busy();
    config.arrives_in = 0;
    let mut world = World::new(config, 1);
    let prompt: Vec<u32> = (20..220).collect();
    for seed in 0..6 {
        let request = Request {
            prompt: prompt.clone(),
            max_tokens: Some(3),
            sampling: crate::sampling::Sampling {
                temperature: 1.0,
                seed,
                ..crate::sampling::Sampling::default()
            },
            ..Request::default()
        };
        world.submit(request).unwrap();
    }
    world.drain().unwrap();
    // The first reads all; the others what is beyond the last whole page of all but the last token.
    let beyond = 200 - 192;
    assert_eq!(world.core.stats().computed_tokens, 200 + 5 * beyond);
    assert_eq!(world.core.stats().prefix_hit_tokens, 5 * 192);
}

/// Two tenants that both always ask get the same, however much more one asks.
#[test]
fn tenants_get_the_same() {
    let served = served(None);
    assert!(
        served[0] * 10 > served[1] * 9 && served[1] * 10 > served[0] * 9,
        "{served:?}"
    );
    let served = self::served(Some(Fault::Unfair));
    assert!(
        served[0] * 2 < served[1],
        "in order of arrival, who asks more gets more: {served:?}"
    );
}

/// The tokens that two tenants get, one of which asks three times as much.
fn served(fault: Option<Fault>) -> Vec<usize> {
    let mut config = busy();
    (config.answer_most, config.prompt_most, config.queue) = (20, 60, 50_000);
    let mut world = World::new(config, 2);
    world.core.scheduler.fault = fault;
    for step in 0..4_000 {
        if step % 8 == 0 {
            for n in 0..16 {
                let mut request = world.request();
                request.tenant = TenantId(u64::from(n % 4 > 0));
                world.submit(request).unwrap();
            }
        }
        world.run().unwrap();
    }
    world.served.values().copied().collect()
}

/// Ten thousand requests, three in ten of them cancelled, where two of them fill the memory.
#[test]
fn ten_thousand_requests_with_aborts_lose_nothing() {
    let mut random = Random(7);
    let mut config = Config::random(&mut random);
    config.fake = FakeOptions {
        layers: vec![Layer::Full, Layer::Window(70)],
        sequences: 8,
        context: 300,
        pages: 8,
        swap_bytes: 16_384,
    };
    (config.prefill_chunk, config.queue, config.fails_in) = (40, 64, 500);
    (config.prompt_most, config.answer_most) = (40, 250);
    let mut world = World::new(config, 7);
    while world.submitted < 10_000 {
        while world.core.scheduler.queue.len() < 20 && world.submitted < 10_000 {
            let request = world.request();
            world.submit(request).unwrap();
            if world.random.below(10) < 3 {
                world.cancel().unwrap();
            }
        }
        world.run().unwrap();
    }
    world.drain().unwrap();
    let stats = world.core.stats();
    assert_eq!((world.submitted, world.ended), (10_000, 10_000));
    assert!(
        stats.cancelled > 2_500 && stats.swaps + stats.recomputes > 50,
        "{stats:?}"
    );
}
