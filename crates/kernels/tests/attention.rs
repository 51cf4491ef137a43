//! Attention: every path gives the bits of the contract.

mod attention_oracle;

use attention_oracle::{By, CONTRACT, Contract, Fault, Random, Setting, World, bits, textbook};
use kernels::attention::RowRef;
use kernels::isa::Isa;
use kernels::pages::{KvShape, KvType, PageId};
use proptest::prelude::*;

fn setting(heads: usize, kv_heads: usize, dim: usize, kv_type: KvType) -> Setting {
    Setting {
        shape: KvShape {
            kv_heads,
            head_dim: dim,
            value_dim: dim,
            kv_type,
        },
        heads,
        scale: 0.37,
        softcap: None,
    }
}

fn causal(
    positions: impl IntoIterator<Item = u32>,
    window: Option<u32>,
    table: u32,
) -> Vec<RowRef> {
    positions
        .into_iter()
        .map(|position| RowRef::causal(position, window, table))
        .collect()
}

/// Every instruction set, and the reference without FMA where that is not too slow, on 1 to 3 threads.
fn assert_contract(world: &World, rows: &[RowRef], what: &str) {
    let q = world.queries(rows.len(), 77);
    let expected = bits(&world.expect(CONTRACT, rows, &q));
    for by in By::all() {
        let work: usize = rows.iter().map(|row| (row.end - row.first) as usize).sum();
        if by == By::Soft && work > 1000 {
            continue;
        }
        for threads in [1, 2, 3] {
            let found = bits(&world.run(by, threads, rows, &q));
            assert!(found == expected, "{what}: {by:?}, {threads} threads");
        }
    }
}

#[test]
fn a_prompt_from_its_start() {
    for kv_type in [KvType::F16, KvType::F32] {
        let world = World::new(setting(3, 1, 32, kv_type), &[150], 1);
        assert_contract(&world, &causal(0..150, None, 0), kv_type.name());
    }
}

#[test]
fn group_sizes() {
    for (heads, kv_heads) in [
        (1, 1),
        (2, 2),
        (3, 1),
        (6, 2),
        (4, 1),
        (7, 1),
        (14, 2),
        (130, 1),
    ] {
        let world = World::new(setting(heads, kv_heads, 16, KvType::F16), &[100], 2);
        let rows = causal([0, 62, 63, 64, 65, 99], None, 0);
        assert_contract(&world, &rows, &format!("{heads} heads on {kv_heads}"));
    }
}

#[test]
fn head_dimensions() {
    for dim in [1, 16, 20, 48, 64, 80, 96, 100, 128, 256] {
        for kv_type in [KvType::F16, KvType::F32] {
            let world = World::new(setting(2, 1, dim, kv_type), &[90], 3);
            let rows = causal([5, 63, 64, 86, 87, 88, 89], None, 0);
            assert_contract(&world, &rows, &format!("{dim} dimensions of {kv_type}"));
        }
    }
    for (head_dim, value_dim) in [(192, 128), (16, 48), (40, 8)] {
        let mut setting = setting(4, 2, head_dim, KvType::F16);
        setting.shape.value_dim = value_dim;
        let world = World::new(setting, &[70], 3);
        let rows = causal(60..70, None, 0);
        assert_contract(&world, &rows, &format!("{head_dim} and {value_dim}"));
    }
}

#[test]
fn contexts_across_splits() {
    for kv_type in [KvType::F16, KvType::F32] {
        let world = World::new(setting(3, 1, 16, kv_type), &[2200], 4);
        let rows = causal([1022, 1023, 1024, 1025, 2047, 2048, 2199], None, 0);
        assert_contract(&world, &rows, "rows at the edges of splits");
        for position in [1023, 1024, 2199] {
            assert_contract(&world, &causal([position], None, 0), "one row");
        }
        // More rows than share out their splits over threads.
        let rows = causal(2040..2056, None, 0);
        assert_contract(&world, &rows, "a chunk across an edge");
    }
}

#[test]
fn windows() {
    let world = World::new(setting(3, 1, 16, KvType::F16), &[2200], 5);
    for window in [1, 7, 63, 64, 65, 100, 1024, 1500] {
        let rows = causal(
            [0, 5, 63, 64, 70, 127, 128, 1023, 1024, 1030, 2199],
            Some(window),
            0,
        );
        assert_contract(&world, &rows, &format!("window {window}"));
        let rows = causal(120..136, Some(window), 0);
        assert_contract(&world, &rows, &format!("window {window}, neighbours"));
    }
}

#[test]
fn rows_that_see_all_and_softcaps() {
    let mut setting = setting(4, 2, 24, KvType::F16);
    for softcap in [None, Some(1.5), Some(30.0)] {
        setting.softcap = softcap;
        let world = World::new(setting, &[130, 1100], 6);
        let mut rows: Vec<RowRef> = (0..12).map(|_| RowRef::full(130, 0)).collect();
        rows.extend((0..3).map(|_| RowRef::full(1100, 1)));
        rows.extend(causal(100..110, None, 0));
        assert_contract(&world, &rows, &format!("softcap {softcap:?}"));
    }
}

#[test]
fn weights_below_the_cut_of_the_exponential() {
    let mut setting = setting(3, 1, 32, KvType::F32);
    setting.scale = 40.0;
    let world = World::new(setting, &[1200], 7);
    let rows = causal([10, 500, 1100, 1199], None, 0);
    assert_contract(&world, &rows, "scores far apart");
}

#[test]
fn company_changes_nothing() {
    let world = World::new(setting(6, 2, 32, KvType::F16), &[1300, 400, 64, 1], 8);
    // A chunk of a prompt, decoding rows of three others, and another chunk.
    let mut rows = causal(1236..1300, None, 0);
    rows.extend(causal([399], None, 1));
    rows.extend(causal([63], None, 2));
    rows.extend(causal([0], None, 3));
    rows.extend(causal(300..307, Some(50), 1));
    let q = world.queries(rows.len(), 9);
    let width = 6 * 32;
    for isa in Isa::supported() {
        for threads in [1, 2, 4] {
            let together = world.run(By::Isa(isa), threads, &rows, &q);
            for (row, place) in rows.iter().enumerate() {
                let q = &q[row * width..][..width];
                let alone = world.run(By::Isa(isa), 2, &[*place], q);
                let found = &together[row * width..][..width];
                assert!(
                    bits(found) == bits(&alone),
                    "{isa}, {threads} threads, row {row}"
                );
            }
        }
    }
    let reversed: Vec<RowRef> = rows.iter().rev().copied().collect();
    let q_reversed: Vec<f32> = q.chunks(width).rev().flatten().copied().collect();
    let forward = world.run(By::Isa(Isa::best()), 2, &rows, &q);
    let backward = world.run(By::Isa(Isa::best()), 2, &reversed, &q_reversed);
    let backward: Vec<f32> = backward.chunks(width).rev().flatten().copied().collect();
    assert!(bits(&forward) == bits(&backward));
}

#[test]
fn chunks_of_a_prompt_change_nothing() {
    let setting = setting(3, 1, 32, KvType::F16);
    let whole = World::new(setting, &[1100], 10);
    let rows = causal(0..1100, None, 0);
    let q = whole.queries(1100, 11);
    let expected = whole.run(By::Isa(Isa::best()), 2, &rows, &q);
    for step in [1, 37, 64, 500] {
        // The same sequence, but nothing is written ahead of the chunk that is computed.
        let mut world = World::new(setting, &[1100], 10);
        for page in world.sequences[0].pages.clone() {
            world.store.bytes_mut(page).expect("a page").fill(0);
        }
        for start in (0..1100).step_by(step) {
            let end = (start + step).min(1100);
            world.write(0, start..end);
            if step == 1 && !end.is_multiple_of(50) {
                continue;
            }
            let width = 3 * 32;
            let q = &q[start * width..end * width];
            let found = world.run(By::Isa(Isa::best()), 2, &rows[start..end], q);
            let expected = &expected[start * width..end * width];
            assert!(
                bits(&found) == bits(expected),
                "chunks of {step}, at {start}"
            );
        }
    }
}

/// Overwrites what a row does not see with NaN, and has its unseen pages removed.
fn poison(world: &mut World, row: &RowRef) -> Vec<PageId> {
    let (first, end) = (row.first as usize, row.end as usize);
    let shape = world.setting.shape;
    assert_eq!(shape.kv_type, KvType::F32);
    let mut table = world.sequences[0].pages.clone();
    for (block, page) in table.iter_mut().enumerate() {
        let start = block * 64;
        if start + 64 <= first || start >= end {
            *page = PageId::NONE;
            continue;
        }
        let (bytes, _) = world
            .store
            .bytes_mut(*page)
            .expect("a page")
            .as_chunks_mut::<4>();
        for slot in (0..64).filter(|slot| !(first..end).contains(&(start + slot))) {
            // One kv head, value_dim a multiple of 16.
            for d in 0..shape.head_dim {
                bytes[d * 64 + slot] = f32::NAN.to_le_bytes();
            }
            for d in 0..shape.value_dim {
                bytes[shape.head_dim * 64 + slot * shape.value_dim + d] = f32::NAN.to_le_bytes();
            }
        }
    }
    table
}

#[test]
fn what_a_row_does_not_see_is_not_read() {
    for (position, window) in [(3, None), (70, None), (200, Some(10)), (1030, Some(90))] {
        let row = RowRef::causal(position, window, 0);
        let mut world = World::new(setting(3, 1, 32, KvType::F32), &[1100], 12);
        let q = world.queries(1, 13);
        let expected = bits(&world.run(By::Isa(Isa::best()), 1, &[row], &q));
        let table = poison(&mut world, &row);
        for by in By::all() {
            let found = world.run_tables(by, 2, &[row], &q, &[&table]);
            assert!(bits(&found) == expected, "{by:?}, position {position}");
        }
        // The poison is there: who multiplies it by zero finds it.
        let times_zero = Contract {
            fault: Some(Fault::TimesZero),
            ..CONTRACT
        };
        let found = world.expect(times_zero, &[row], &q);
        assert!(found.iter().all(|x| x.is_nan()), "position {position}");
        assert!(bits(&world.expect(CONTRACT, &[row], &q)) == expected);
    }
}

#[test]
fn faults_show() {
    let mut setting = setting(3, 1, 32, KvType::F16);
    // Small scores: many keys count, and the maximum rises several times within a split.
    setting.scale = 0.05;
    let world = World::new(setting, &[2200], 14);
    let rows = causal([100, 700, 900, 1000, 1900, 2199], None, 0);
    let q = world.queries(rows.len(), 15);
    let kernel = bits(&world.run(By::Isa(Isa::best()), 2, &rows, &q));
    assert!(kernel == bits(&world.expect(CONTRACT, &rows, &q)));
    let differs = |contract: Contract| bits(&world.expect(contract, &rows, &q)) != kernel;
    for fault in [
        Fault::BeforeRounding,
        Fault::FusedRescale,
        Fault::UnfusedSum,
        Fault::Descending,
        Fault::DimsDescending,
        Fault::ScaledQuery,
        Fault::MergeDescending,
        Fault::Reciprocal,
    ] {
        let contract = Contract {
            fault: Some(fault),
            ..CONTRACT
        };
        assert!(differs(contract), "{fault:?} does not show");
    }
    for (block, split) in [(32, 1024), (128, 1024), (64, 512), (64, 2048), (64, 960)] {
        let contract = Contract {
            block,
            split,
            fault: None,
        };
        assert!(
            differs(contract),
            "blocks of {block}, splits of {split} do not show"
        );
    }
}

#[test]
fn a_textbook_agrees() {
    for softcap in [None, Some(20.0)] {
        let mut setting = setting(6, 2, 64, KvType::F16);
        setting.scale = 0.125;
        setting.softcap = softcap;
        let world = World::new(setting, &[1500], 16);
        let rows = causal([0, 63, 64, 700, 1023, 1024, 1499], None, 0);
        let q = world.queries(rows.len(), 17);
        let found = world.run(By::Isa(Isa::best()), 2, &rows, &q);
        let expected = textbook(&world, &rows, &q);
        for (found, expected) in found.iter().zip(&expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 3e-6, "{found} instead of {expected}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_mixture(
        seed in any::<u64>(),
        kv_heads in 1_usize..3,
        group in 1_usize..8,
        head_dim in 1_usize..70,
        value_dim in 1_usize..70,
        wide in any::<bool>(),
        softcap in any::<bool>(),
        threads in 1_usize..4,
    ) {
        let mut random = Random(seed | 1);
        let setting = Setting {
            shape: KvShape {
                kv_heads,
                head_dim,
                value_dim,
                kv_type: if wide { KvType::F32 } else { KvType::F16 },
            },
            heads: kv_heads * group,
            scale: 0.3,
            softcap: softcap.then_some(5.0),
        };
        let lens: Vec<usize> = (0..3).map(|_| 1 + random.bits() as usize % 300).collect();
        let world = World::new(setting, &lens, seed | 1);
        let mut rows = Vec::new();
        for _ in 0..4 {
            let table = random.bits() % 3;
            let len = lens[table as usize] as u32;
            let window = random.bits().is_multiple_of(2).then(|| 1 + random.bits() % 100);
            let start = random.bits() % len;
            let end = len.min(start + 1 + random.bits() % 6);
            rows.extend(causal(start..end, window, table));
        }
        let q = world.queries(rows.len(), seed | 1);
        let expected = bits(&world.expect(CONTRACT, &rows, &q));
        for isa in Isa::supported() {
            let found = bits(&world.run(By::Isa(isa), threads, &rows, &q));
            prop_assert!(found == expected, "{isa}");
        }
    }
}
