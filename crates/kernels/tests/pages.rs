//! Pages of K and V: what is written is what is read, rounded once, whoever writes it.

use kernels::isa::Isa;
use kernels::pages::{
    KvPart, KvShape, KvSlot, KvType, PAGE_POSITIONS, PageError, PageId, PageStore,
};
use kernels::pool::Pool;

const SHAPE: KvShape = KvShape {
    kv_heads: 3,
    head_dim: 20,
    value_dim: 36,
    kv_type: KvType::F16,
};

/// Values of all sizes that f16 can hold, denormal and halfway ones among them.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let unit = (state >> 8) as f32 / 8_388_608.0 - 1.0;
            match i % 5 {
                0 => unit,
                1 => unit * 65_000.0,
                2 => unit * 1e-6,
                3 => (state % 4096) as f32 + 0.5,
                _ => -0.0 * unit,
            }
        })
        .collect()
}

fn rows(shape: KvShape, rows: usize) -> (Vec<f32>, Vec<f32>) {
    (
        values(rows * shape.kv_heads * shape.head_dim, 3),
        values(rows * shape.kv_heads * shape.value_dim, 5),
    )
}

/// Slots of a few pages in disorder, each once.
fn slots(rows: usize) -> Vec<KvSlot> {
    (0..rows)
        .map(|row| row * 37 % (4 * PAGE_POSITIONS))
        .map(|at| KvSlot {
            page: PageId((at / PAGE_POSITIONS) as u32),
            slot: at % PAGE_POSITIONS,
        })
        .collect()
}

fn all_bytes(store: &PageStore) -> Vec<Vec<u8>> {
    (0..store.pages())
        .map(|page| store.bytes(PageId(page as u32)).expect("a page").to_vec())
        .collect()
}

#[test]
fn values_are_rounded_to_nearest_even_once() {
    for kv_type in [KvType::F16, KvType::F32] {
        let shape = KvShape { kv_type, ..SHAPE };
        let (k, v) = rows(shape, 100);
        for isa in Isa::supported() {
            let mut store = PageStore::new(shape, 4).expect("a store");
            let places = slots(100);
            store
                .write_rows(isa, &Pool::new(1), &places, &k, &v)
                .expect("values that fit");
            let kept = |x: &f32| match kv_type {
                KvType::F16 => half::f16::from_f32(*x).to_f32().to_bits(),
                KvType::F32 => x.to_bits(),
            };
            for (row, place) in places.iter().enumerate() {
                let (k_read, v_read) = store.read(place.page, place.slot).expect("a position");
                let (k_width, v_width) = (k.len() / 100, v.len() / 100);
                let k_row: Vec<u32> = k[row * k_width..][..k_width].iter().map(kept).collect();
                let v_row: Vec<u32> = v[row * v_width..][..v_width].iter().map(kept).collect();
                assert_eq!(
                    k_read.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                    k_row
                );
                assert_eq!(
                    v_read.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                    v_row
                );
            }
        }
    }
}

#[test]
fn one_at_a_time_equals_many_on_every_instruction_set_and_number_of_threads() {
    for kv_type in [KvType::F16, KvType::F32] {
        let shape = KvShape { kv_type, ..SHAPE };
        let (k, v) = rows(shape, 200);
        let places = slots(200);
        let mut reference = PageStore::new(shape, 4).expect("a store");
        let (k_width, v_width) = (k.len() / 200, v.len() / 200);
        for (row, place) in places.iter().enumerate() {
            let k = &k[row * k_width..][..k_width];
            let v = &v[row * v_width..][..v_width];
            reference
                .write(Isa::Scalar, place.page, place.slot, k, v)
                .expect("values that fit");
        }
        let reference = all_bytes(&reference);
        assert!(reference.iter().flatten().any(|byte| *byte != 0));
        for isa in Isa::supported() {
            for threads in [1, 2, 3] {
                let mut store = PageStore::new(shape, 4).expect("a store");
                store
                    .write_rows(isa, &Pool::new(threads), &places, &k, &v)
                    .expect("values that fit");
                assert!(all_bytes(&store) == reference, "{isa}, {threads} threads");
            }
        }
    }
}

#[test]
fn the_largest_f16_fits_and_what_rounds_beyond_it_is_an_error() {
    let pool = Pool::new(2);
    let below = f32::from_bits(65520_f32.to_bits() - 1);
    for isa in Isa::supported() {
        for sign in [1.0, -1.0] {
            let mut store = PageStore::new(SHAPE, 1).expect("a store");
            let (mut k, v) = (vec![0.0; 60], vec![0.0; 108]);
            k[59] = sign * below;
            store.write(isa, PageId(0), 9, &k, &v).expect("65504");
            let (read, _) = store.read(PageId(0), 9).expect("a position");
            assert_eq!(read[59], sign * 65504.0);
            k[59] = sign * 65520.0;
            let expected = PageError::Overflow {
                part: KvPart::Key,
                row: 0,
                head: 2,
                index: 19,
                value: sign * 65520.0,
                kv_type: KvType::F16,
            };
            assert_eq!(store.write(isa, PageId(0), 9, &k, &v), Err(expected));
        }
        // Of several the first row is named, whichever thread came upon it first.
        let (mut k, mut v) = (vec![0.0; 40 * 60], vec![0.0; 40 * 108]);
        k[39 * 60] = 1e6;
        v[20 * 108 + 36 + 35] = -1e6;
        let mut store = PageStore::new(SHAPE, 4).expect("a store");
        let error = store.write_rows(isa, &pool, &slots(40), &k, &v);
        let expected = PageError::Overflow {
            part: KvPart::Value,
            row: 20,
            head: 1,
            index: 35,
            value: -1e6,
            kv_type: KvType::F16,
        };
        assert_eq!(error, Err(expected));
    }
}

#[test]
fn what_is_not_finite_is_an_error_in_both_types() {
    for kv_type in [KvType::F16, KvType::F32] {
        let shape = KvShape { kv_type, ..SHAPE };
        for isa in Isa::supported() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut store = PageStore::new(shape, 1).expect("a store");
                let (k, mut v) = (vec![1.0; 60], vec![1.0; 108]);
                v[107] = bad;
                let error = store
                    .write(isa, PageId(0), 0, &k, &v)
                    .expect_err("it must not be kept");
                let text = error.to_string();
                assert!(text.starts_with("V value"), "{text}");
                assert!(text.contains("(row 0, kv head 2, index 35)"), "{text}");
                assert!(text.ends_with("already not finite"), "{text}");
            }
        }
    }
    let mut store = PageStore::new(SHAPE, 1).expect("a store");
    let error = store.write(Isa::Scalar, PageId(0), 0, &[7e4; 60], &[0.0; 108]);
    let text = error.expect_err("too large for f16").to_string();
    assert!(text.ends_with("KV type f16; use the KV type f32"), "{text}");
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let mut store = PageStore::new(SHAPE, 2).expect("a store");
    let (k, v) = ([0.0; 60], [0.0; 108]);
    let pool = Pool::new(1);
    assert_eq!(
        store.write(Isa::Scalar, PageId(2), 0, &k, &v),
        Err(PageError::Page { page: 2, pages: 2 })
    );
    assert_eq!(
        store.write(Isa::Scalar, PageId::NONE, 0, &k, &v),
        Err(PageError::Page {
            page: u32::MAX,
            pages: 2
        })
    );
    assert_eq!(
        store.write(Isa::Scalar, PageId(1), 64, &k, &v),
        Err(PageError::Slot { slot: 64 })
    );
    assert_eq!(
        store.write(Isa::Scalar, PageId(1), 0, &k[1..], &v),
        Err(PageError::Length {
            part: KvPart::Key,
            rows: 1,
            expected: 60,
            found: 59
        })
    );
    assert_eq!(
        store.write_rows(Isa::Scalar, &pool, &[], &[], &v),
        Err(PageError::Length {
            part: KvPart::Value,
            rows: 0,
            expected: 0,
            found: 108
        })
    );
    assert_eq!(store.write_rows(Isa::Scalar, &pool, &[], &[], &[]), Ok(()));
    assert!(store.bytes(PageId(2)).is_err());
    assert!(store.copy_page(PageId(0), PageId(2)).is_err());
    assert!(store.read(PageId(0), 64).is_err());
}

#[test]
fn impossible_stores_are_errors() {
    let shape = |kv_heads, head_dim, value_dim| KvShape {
        kv_heads,
        head_dim,
        value_dim,
        kv_type: KvType::F32,
    };
    for (shape, pages) in [
        (shape(0, 64, 64), 1),
        (shape(1, 0, 64), 1),
        (shape(1, 64, 0), 1),
        (shape(usize::MAX, 64, 64), 1),
        (shape(1, usize::MAX, 64), 1),
        (shape(1, 64, usize::MAX), 1),
        (shape(1 << 20, 1 << 20, 64), 1 << 24),
        (shape(1, 64, 64), u32::MAX as usize),
    ] {
        let error = PageStore::new(shape, pages).expect_err("it cannot be");
        assert_eq!(error, PageError::Shape { shape, pages });
    }
    let error = PageStore::new(shape(1 << 20, 1 << 12, 64), 1 << 22).expect_err("2^62 bytes");
    assert!(matches!(error, PageError::Memory { pages, .. } if pages == 1 << 22));
}

#[test]
fn pages_are_aligned_and_copied_whole() {
    for value_dim in [1, 16, 20, 64] {
        let shape = KvShape { value_dim, ..SHAPE };
        let mut store = PageStore::new(shape, 3).expect("a store");
        let stride = value_dim.next_multiple_of(16);
        assert_eq!(store.page_bytes(), 3 * 64 * (20 + stride) * 2);
        assert_eq!(store.page_bytes(), shape.page_bytes().expect("small"));
        let (k, v) = rows(shape, 64);
        let places: Vec<KvSlot> = (0..64)
            .map(|slot| KvSlot {
                page: PageId(0),
                slot,
            })
            .collect();
        store
            .write_rows(Isa::best(), &Pool::new(1), &places, &k, &v)
            .expect("values that fit");
        store.copy_page(PageId(0), PageId(2)).expect("two pages");
        let bytes = all_bytes(&store);
        assert!(bytes[0].iter().any(|byte| *byte != 0));
        assert!(bytes[1].iter().all(|byte| *byte == 0));
        assert!(bytes[0] == bytes[2]);
        let saved = bytes[0].clone();
        store
            .bytes_mut(PageId(1))
            .expect("a page")
            .copy_from_slice(&saved);
        assert_eq!(
            store.read(PageId(1), 63).expect("a position"),
            store.read(PageId(0), 63).expect("a position")
        );
        for page in 0..3 {
            let start = store.bytes(PageId(page)).expect("a page").as_ptr();
            assert_eq!(start.align_offset(64), 0);
        }
    }
}
