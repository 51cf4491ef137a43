//! The products as the contract words them, one value at a time, from the bytes of a file, sharing no code
//! with the kernels. Also the same in orders that break the contract.
#![allow(unreachable_pub)]

use kernels::formats::Format;

/// A small generator (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// Evenly between −1 and 1.
    pub fn unit(&mut self) -> f32 {
        self.bits() as f32 / 2_f32.powi(31) - 1.0
    }

    pub fn vector(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * size).collect()
    }
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// How large the scales of random weights are.
#[derive(Clone, Copy, Debug)]
pub enum Scales {
    Usual,
    /// Denormal f16 among them.
    Tiny,
    /// The largest f16.
    Huge,
}

impl Scales {
    fn draw(self, random: &mut Random) -> f32 {
        match self {
            Self::Usual => random.unit() * 0.1,
            Self::Tiny => random.unit() * 2e-6,
            Self::Huge => 65504.0 * random.unit().signum(),
        }
    }
}

pub fn row_bytes(format: Format, cols: usize) -> usize {
    cols / format.block_len() * format.block_bytes()
}

/// Where a block has f16 numbers.
fn f16_places(format: Format) -> &'static [usize] {
    match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q6_K => &[208],
        Format::F32 | Format::F16 | Format::BF16 => &[],
    }
}

pub fn set_scales(format: Format, src: &mut [u8], random: &mut Random, scales: Scales) {
    for block in src.chunks_exact_mut(format.block_bytes()) {
        for &at in f16_places(format) {
            let scale = half::f16::from_f32(scales.draw(random));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

pub fn random_weights(
    format: Format,
    rows: usize,
    cols: usize,
    random: &mut Random,
    scales: Scales,
) -> Vec<u8> {
    let len = rows * row_bytes(format, cols);
    let mut float = || scales.draw(random);
    match format {
        Format::F32 => (0..len / 4).flat_map(|_| float().to_le_bytes()).collect(),
        Format::F16 => (0..len / 2)
            .flat_map(|_| half::f16::from_f32(float()).to_le_bytes())
            .collect(),
        Format::BF16 => (0..len / 2)
            .flat_map(|_| half::bf16::from_f32(float()).to_le_bytes())
            .collect(),
        _ => {
            let mut src: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
            set_scales(format, &mut src, random, scales);
            src
        }
    }
}

/// Makes a block's last scale, or value, infinite or not a number.
pub fn spoil(format: Format, block: &mut [u8]) {
    match format {
        Format::F32 => block.copy_from_slice(&f32::INFINITY.to_le_bytes()),
        Format::F16 => block.copy_from_slice(&half::f16::NAN.to_le_bytes()),
        Format::BF16 => block.copy_from_slice(&half::bf16::NEG_INFINITY.to_le_bytes()),
        _ => {
            let at = *f16_places(format).last().unwrap();
            block[at..at + 2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
        }
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// One value of a quantised block: its integer, the integer scale of its half sub-block, the factor, and
/// what is added.
#[derive(Clone, Copy, Debug)]
struct Value {
    quant: i32,
    half_scale: i32,
    factor: f32,
    offset: Option<f32>,
}

/// The 6-bit scale (`which` = 0) or minimum (1) of sub-block `sub`, bit by bit from the 12 bytes.
fn six_bits(bytes: &[u8], sub: usize, which: usize) -> f32 {
    let value = match (sub < 4, which) {
        (true, _) => bytes[sub + 4 * which] % 64,
        (false, 0) => bytes[sub + 4] % 16 + bytes[sub - 4] / 64 * 16,
        (false, _) => bytes[sub + 4] / 16 + bytes[sub] / 64 * 16,
    };
    f32::from(value)
}

fn decode(format: Format, block: &[u8], k: usize) -> Value {
    let d = f16_at(block, if format == Format::Q6_K { 208 } else { 0 });
    let second = f16_at(block, 2);
    let bit = |at: usize, k: usize| i32::from(block[at + k / 8] >> (k % 8) & 1);
    let nibble =
        |at: usize, high: bool| i32::from(if high { block[at] >> 4 } else { block[at] & 15 });
    let plain = |quant, offset| Value {
        quant,
        half_scale: 1,
        factor: d,
        offset,
    };
    let (sub, within) = (k / 32, k % 32);
    match format {
        Format::Q4_0 => plain(nibble(2 + k % 16, k >= 16) - 8, None),
        Format::Q4_1 => plain(nibble(4 + k % 16, k >= 16), Some(second)),
        Format::Q5_0 => plain(nibble(6 + k % 16, k >= 16) + 16 * bit(2, k) - 16, None),
        Format::Q5_1 => plain(nibble(8 + k % 16, k >= 16) + 16 * bit(4, k), Some(second)),
        Format::Q8_0 => plain(i32::from(block[2 + k] as i8), None),
        Format::Q4_K | Format::Q5_K => {
            let five = format == Format::Q5_K;
            let start = if five { 48 } else { 16 };
            let fifth = if five {
                i32::from(block[16 + within] >> sub & 1)
            } else {
                0
            };
            let quant = nibble(start + sub / 2 * 32 + within, sub % 2 == 1) + 16 * fifth;
            Value {
                quant,
                half_scale: 1,
                factor: d * six_bits(&block[4..], sub, 0),
                offset: Some(-(second * six_bits(&block[4..], sub, 1))),
            }
        }
        Format::Q6_K => {
            let (half, quarter) = (k / 128, k / 32 % 4);
            let low = nibble(half * 64 + quarter % 2 * 32 + within, quarter >= 2);
            let high = i32::from(block[128 + half * 32 + within] >> (2 * quarter) & 3);
            Value {
                quant: low + 16 * high - 32,
                half_scale: i32::from(block[192 + k / 16] as i8),
                factor: d,
                offset: None,
            }
        }
        Format::F32 | Format::F16 | Format::BF16 => unreachable!(),
    }
}

fn widen(format: Format, bytes: &[u8]) -> f32 {
    match format {
        Format::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Format::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    }
}

/// All values, by GGUF's formula.
pub fn values(format: Format, src: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    for block in src.chunks_exact(format.block_bytes()) {
        if format.block_len() == 1 {
            values.push(widen(format, block));
            continue;
        }
        for k in 0..format.block_len() {
            let v = decode(format, block, k);
            let scaled = v.factor * v.half_scale as f32 * v.quant as f32;
            values.push(v.offset.map_or(scaled, |offset| scaled + offset));
        }
    }
    values
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the contract has it.
    Contract,
    /// Last column or block first.
    Descending,
    /// Two halves of the columns summed apart, then added.
    SplitK,
    /// Products rounded before they are added.
    Unfused,
}

fn fma(order: Order, a: f32, b: f32, c: f32) -> f32 {
    if order == Order::Unfused {
        a * b + c
    } else {
        a.mul_add(b, c)
    }
}

/// A block of 32 activations: integers, scale, scaled sum.
fn quantize(x: &[f32]) -> ([i32; 32], f32, f32) {
    let amax = x.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
    if amax < 2_f32.powi(-100) {
        return ([0; 32], 0.0, 0.0);
    }
    let id = 127.0 / amax;
    let mut q = [0; 32];
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * id).round_ties_even().clamp(-127.0, 127.0) as i32;
    }
    let scale = amax / 127.0;
    (q, scale, q.iter().sum::<i32>() as f32 * scale)
}

fn float_row(format: Format, w: &[u8], x: &[f32], order: Order, acc: f32) -> f32 {
    let size = format.block_bytes();
    let mut columns: Vec<usize> = (0..x.len()).collect();
    if order == Order::Descending {
        columns.reverse();
    }
    columns.into_iter().fold(acc, |acc, k| {
        fma(
            order,
            widen(format, &w[k * size..(k + 1) * size]),
            x[k],
            acc,
        )
    })
}

/// `weights`: of each column. `activations`: of each block of 32.
fn quantized_row(weights: &[Value], activations: &[([i32; 32], f32, f32)], order: Order) -> f32 {
    let mut blocks: Vec<usize> = (0..activations.len()).collect();
    if order == Order::Descending {
        blocks.reverse();
    }
    blocks.into_iter().fold(0.0, |acc, b| {
        let w = &weights[32 * b..32 * (b + 1)];
        let (q, dx, sx) = &activations[b];
        let dot: i32 = w
            .iter()
            .zip(q)
            .map(|(w, q)| w.half_scale * w.quant * q)
            .sum();
        let acc = fma(order, dot as f32, w[0].factor * dx, acc);
        w[0].offset
            .map_or(acc, |offset| fma(order, offset, *sx, acc))
    })
}

/// Tokens × rows products.
pub fn naive(
    format: Format,
    src: &[u8],
    rows: usize,
    cols: usize,
    x: &[f32],
    order: Order,
) -> Vec<f32> {
    let tokens = x.len() / cols;
    let bytes = row_bytes(format, cols);
    let mut out = vec![0.0; tokens * rows];
    let activations: Vec<_> = if format.block_len() == 1 {
        Vec::new()
    } else {
        x.chunks_exact(32).map(quantize).collect()
    };
    for row in 0..rows {
        let w = &src[row * bytes..(row + 1) * bytes];
        let decoded: Vec<Value> = if format.block_len() == 1 {
            Vec::new()
        } else {
            let blocks = w.chunks_exact(format.block_bytes());
            blocks
                .flat_map(|block| (0..format.block_len()).map(|k| decode(format, block, k)))
                .collect()
        };
        for t in 0..tokens {
            let x = &x[t * cols..(t + 1) * cols];
            let parts = if order == Order::SplitK { 2 } else { 1 };
            let mut sum = 0.0;
            for part in 0..parts {
                let dot = if format.block_len() == 1 {
                    let (from, to) = (cols * part / parts, cols * (part + 1) / parts);
                    let size = format.block_bytes();
                    float_row(format, &w[from * size..to * size], &x[from..to], order, 0.0)
                } else {
                    let blocks = cols / 32;
                    let (from, to) = (blocks * part / parts, blocks * (part + 1) / parts);
                    let activations = &activations[t * blocks + from..t * blocks + to];
                    quantized_row(&decoded[32 * from..32 * to], activations, order)
                };
                // Adding to zero would lose the sign of −0.
                sum = if part == 0 { dot } else { sum + dot };
            }
            out[t * rows + row] = sum;
        }
    }
    out
}
