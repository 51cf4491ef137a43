use super::twins::{Random, Twin, for_each_shape, same_on_all};
use super::*;

const EDGES: [f32; 20] = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    8_388_607.5,
    8_388_608.0,
    -4_194_304.5,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    f32::MAX,
    f32::MIN,
    65504.0,
    65519.996,
    65520.0,
    2.980_232_2e-8,
    -5.960_464_5e-8,
];

/// One call of every float operation.
struct Everything<'a> {
    a: &'a [f32; LANES],
    b: &'a [f32; LANES],
    c: &'a [f32; LANES],
    mask: u16,
}

impl LaneKernel for Everything<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Vec<f32> {
        let (a, b, c) = (V::load(self.a), V::load(self.b), V::load(self.c));
        let mut out = Vec::new();
        for lanes in [
            a.add(b),
            a.sub(b),
            a.mul(b),
            a.div(b),
            V::sqrt(a.abs()),
            a.fma(b, c),
            a.max(b),
            b.max(a),
            a.min(b),
            b.min(a),
            a.abs(),
            a.neg(),
            a.round_even(),
            V::select(a.gt(b), a, c),
            V::select(V::mask(self.mask), a, b),
            V::splat(self.c[3]),
            V::load_part(&self.a[..usize::from(self.mask % 17)], self.b[0]),
        ] {
            out.extend(lanes.to_array());
        }
        out.push(a.sum());
        out.push(a.largest());
        let mut part = vec![7.0; usize::from(self.mask % 17)];
        a.store_part(&mut part);
        out.extend(part);
        out
    }
}

/// The same by the definitions in the trait's documentation.
fn defined(a: &[f32; LANES], b: &[f32; LANES], c: &[f32; LANES], mask: u16) -> Vec<f32> {
    let each = |f: &dyn Fn(f32, f32, f32) -> f32| (0..LANES).map(|i| f(a[i], b[i], c[i])).collect();
    let part = usize::from(mask % 17);
    let rows: [Vec<f32>; 17] = [
        each(&|a, b, _| a + b),
        each(&|a, b, _| a - b),
        each(&|a, b, _| a * b),
        each(&|a, b, _| a / b),
        each(&|a, _, _| a.abs().sqrt()),
        each(&f32::mul_add),
        each(&|a, b, _| if a > b { a } else { b }),
        each(&|a, b, _| if b > a { b } else { a }),
        each(&|a, b, _| if a < b { a } else { b }),
        each(&|a, b, _| if b < a { b } else { a }),
        each(&|a, _, _| a.abs()),
        each(&|a, _, _| -a),
        each(&|a, _, _| a.round_ties_even()),
        each(&|a, b, c| if a > b { a } else { c }),
        (0..LANES)
            .map(|i| if mask >> i & 1 == 1 { a[i] } else { b[i] })
            .collect(),
        vec![c[3]; LANES],
        (0..LANES)
            .map(|i| if i < part { a[i] } else { b[0] })
            .collect(),
    ];
    let mut out = rows.concat();
    let tree = |f: &dyn Fn(f32, f32) -> f32| {
        let mut x = a.to_vec();
        while x.len() > 1 {
            let half = x.len() / 2;
            x = (0..half).map(|i| f(x[i], x[i + half])).collect();
        }
        x[0]
    };
    out.push(tree(&|a, b| a + b));
    out.push(tree(&|a, b| if a > b { a } else { b }));
    out.extend(&a[..part]);
    out
}

fn sixteen(random: &mut Random, round: usize) -> [f32; LANES] {
    std::array::from_fn(|_| match round % 3 {
        0 => random.unit() * 4.0,
        1 => random.finite(),
        _ => EDGES[random.below(EDGES.len())],
    })
}

#[test]
fn every_operation_is_as_defined_on_all_twins() {
    let mut random = Random(1);
    for round in 0..30_000 {
        let a = sixteen(&mut random, round);
        let b = sixteen(&mut random, round / 3);
        let c = sixteen(&mut random, round / 9);
        let mask = random.bits() as u16;
        let expected = defined(&a, &b, &c, mask);
        for twin in Twin::all() {
            let result = twin.run(Everything {
                a: &a,
                b: &b,
                c: &c,
                mask,
            });
            assert_eq!(result.len(), expected.len());
            for (i, (result, expected)) in result.iter().zip(&expected).enumerate() {
                // 0/0 and ∞ − ∞ are outside the contract: a NaN may have any sign and payload.
                let same = result.to_bits() == expected.to_bits()
                    || (result.is_nan() && expected.is_nan());
                assert!(
                    same,
                    "operation {}, lane {}, {twin:?}: {result:e}, not {expected:e}\n{a:?}\n{b:?}\n{c:?}",
                    i / LANES,
                    i % LANES
                );
            }
        }
    }
}

struct WidenF16<'a>(&'a [u16; LANES]);

impl LaneKernel for WidenF16<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<V: Lanes>(self) -> [f32; LANES] {
        V::load_f16(self.0).to_array()
    }
}

struct WidenBf16<'a>(&'a [u16; LANES]);

impl LaneKernel for WidenBf16<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<V: Lanes>(self) -> [f32; LANES] {
        V::load_bf16(self.0).to_array()
    }
}

struct NarrowF16<'a>(&'a [f32; LANES]);

impl LaneKernel for NarrowF16<'_> {
    type Output = [u16; LANES];

    #[inline(always)]
    fn run<V: Lanes>(self) -> [u16; LANES] {
        let mut out = [0; LANES];
        V::load(self.0).store_f16(&mut out);
        out
    }
}

/// The value of an f16, by the meaning of its bits.
fn f16_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    match exponent {
        0 => sign * fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

#[test]
fn all_halves_widen_exactly_and_come_back() {
    for start in (0..=u16::MAX).step_by(LANES) {
        let patterns: [u16; LANES] = std::array::from_fn(|i| start + i as u16);
        for twin in Twin::all() {
            let (f16, bf16) = (
                twin.run(WidenF16(&patterns)),
                twin.run(WidenBf16(&patterns)),
            );
            let back = twin.run(NarrowF16(&f16));
            for i in 0..LANES {
                assert_eq!(bf16[i].to_bits(), u32::from(patterns[i]) << 16);
                let exact = f16_value(patterns[i]);
                if exact.is_nan() {
                    assert!(f16[i].is_nan(), "{twin:?}, {:#06x}", patterns[i]);
                } else {
                    assert_eq!(f64::from(f16[i]).to_bits(), exact.to_bits(), "{twin:?}");
                    assert_eq!(back[i], patterns[i], "{twin:?}");
                }
            }
        }
    }
}

#[test]
fn narrowing_rounds_to_the_nearest_half_and_ties_to_even() {
    // Between each two neighbouring halves: the middle, and the floats beside it.
    for low in 0..0x7bff_u16 {
        let (below, above) = (f16_value(low), f16_value(low + 1));
        let middle = ((below + above) / 2.0) as f32;
        let even = low + (low & 1);
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[
            middle,
            middle.next_down(),
            middle.next_up(),
            -middle,
            -middle.next_down(),
            -middle.next_up(),
        ]);
        let sign = 0x8000;
        let expected = [
            even,
            low,
            low + 1,
            even | sign,
            low | sign,
            (low + 1) | sign,
        ];
        for twin in Twin::all() {
            assert_eq!(
                twin.run(NarrowF16(&x))[..6],
                expected,
                "{twin:?}, {middle:e}"
            );
        }
    }
    let x = std::array::from_fn(|i| [65519.996, 65520.0, f32::MAX, -65520.0][i % 4]);
    for twin in Twin::all() {
        assert_eq!(
            twin.run(NarrowF16(&x))[..4],
            [0x7bff, 0x7c00, 0x7c00, 0xfc00],
            "{twin:?}"
        );
    }
}

struct FromI32<'a>(&'a [i32; LANES]);

impl LaneKernel for FromI32<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Vec<f32> {
        V::from_i32(self.0).to_array().to_vec()
    }
}

#[test]
fn integers_convert_to_the_nearest_float() {
    let edges = [
        0,
        1,
        -1,
        127,
        -128,
        16_777_216,
        16_777_217,
        16_777_219,
        -16_777_217,
        33_554_434,
        33_554_438,
        i32::MAX,
        i32::MIN,
        i32::MAX - 63,
        i32::MAX - 64,
        i32::MIN + 64,
    ];
    let mut random = Random(2);
    for round in 0..10_000 {
        let x: [i32; LANES] = if round == 0 {
            edges
        } else {
            std::array::from_fn(|_| random.bits() as i32 >> (round % 24))
        };
        let result = same_on_all("from_i32", |twin| twin.run(FromI32(&x)));
        for i in 0..LANES {
            let error = (f64::from(result[i]) - f64::from(x[i])).abs();
            let neighbours = [result[i].next_down(), result[i].next_up()];
            for neighbour in neighbours {
                let other = (f64::from(neighbour) - f64::from(x[i])).abs();
                let even = result[i].to_bits() & 1 == 0;
                assert!(
                    error < other || (error == other && even),
                    "{} → {}",
                    x[i],
                    result[i]
                );
            }
        }
    }
}

struct FromBytes<'a>(&'a [u8; LANES]);

impl LaneKernel for FromBytes<'_> {
    type Output = ([f32; LANES], [f32; LANES]);

    #[inline(always)]
    fn run<V: Lanes>(self) -> Self::Output {
        let signed = self.0.map(u8::cast_signed);
        (
            V::from_u8(self.0).to_array(),
            V::from_i8(&signed).to_array(),
        )
    }
}

#[test]
fn all_bytes_convert_exactly() {
    for start in (0..=u8::MAX).step_by(LANES) {
        let bytes: [u8; LANES] = std::array::from_fn(|i| start + i as u8);
        for twin in Twin::all() {
            let (unsigned, signed) = twin.run(FromBytes(&bytes));
            for i in 0..LANES {
                assert_eq!(unsigned[i], f32::from(bytes[i]), "{twin:?}");
                assert_eq!(signed[i], f32::from(bytes[i].cast_signed()), "{twin:?}");
            }
        }
    }
}

struct Exp2<'a>(&'a [f32; LANES]);

impl LaneKernel for Exp2<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Vec<f32> {
        V::load(self.0).exp2_integral().to_array().to_vec()
    }
}

#[test]
fn powers_of_two_are_exact_over_their_range() {
    for start in (-126..=127).step_by(LANES) {
        let n: [f32; LANES] = std::array::from_fn(|i| (start + i as i32).min(127) as f32);
        let result = same_on_all("exp2_integral", |twin| twin.run(Exp2(&n)));
        for (n, result) in n.iter().zip(&result) {
            assert_eq!(f64::from(*result), 2_f64.powi(*n as i32));
        }
    }
}

struct Pair<'a>(&'a [f32], &'a mut [f32]);

impl LaneKernel for Pair<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        V::load_part(self.0, -1.0).store_part(self.1);
    }
}

#[test]
fn parts_are_copied_and_no_more() {
    for_each_shape(|random, kind, len| {
        let x = random.row(kind, len.min(LANES));
        let result = same_on_all("parts", |twin| {
            let mut out = vec![9.0; x.len()];
            twin.run(Pair(&x, &mut out));
            out
        });
        assert_eq!(result, x);
    });
}

#[test]
#[should_panic(expected = "planted: element 0 is")]
fn a_twin_that_differs_in_one_bit_is_noticed() {
    let result = same_on_all("planted", |twin| {
        let wrong = u32::from(twin == *Twin::all().last().expect("a twin"));
        vec![f32::from_bits(1_f32.to_bits() + wrong)]
    });
    assert_eq!(result, [1.0]);
}
