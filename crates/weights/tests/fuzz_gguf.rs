//! Random damage, with an eye for structure: fields are set to telling values, parts are cut, doubled and
//! moved. Runs for `PLAINCHANT_FUZZ_SECONDS` (5 by default) from seed `PLAINCHANT_FUZZ_SEED`.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::{
    env,
    time::{Duration, Instant},
};

use support::{Builder, memory_limit, parse_any, peak_of, valid};

#[global_allocator]
static ALLOCATOR: support::CountingAllocator = support::CountingAllocator;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A number at which readers tend to go wrong.
    fn telling(&mut self) -> u64 {
        let edge = 1_u64 << self.below(64);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX - self.below(64) as u64,
            2 => edge,
            3 => edge.wrapping_sub(1),
            4 => edge.wrapping_add(1),
            5 => self.next(),
            _ => self.below(40) as u64,
        }
    }
}

fn mutate(base: &Builder, random: &mut Random) -> Vec<u8> {
    let mut bytes = base.bytes.clone();
    for _ in 0..=random.below(4) {
        let len = bytes.len();
        match random.below(10) {
            0..=4 => {
                let field = base.fields[random.below(base.fields.len())].clone();
                let value = random.telling().to_le_bytes();
                if let Some(place) = bytes.get_mut(field.clone()) {
                    place.copy_from_slice(&value[..field.len()]);
                }
            }
            5 if len > 0 => bytes[random.below(len)] ^= 1 << random.below(8),
            6 => bytes.truncate(random.below(len + 1)),
            7 if len > 0 => {
                let start = random.below(len);
                let end = (start + random.below(40)).min(len);
                bytes.drain(start..end);
            }
            8 if len > 0 => {
                let start = random.below(len);
                let copied = bytes[start..(start + random.below(80)).min(len)].to_vec();
                let to = random.below(len);
                bytes.splice(to..to, copied);
            }
            _ => bytes.extend(random.next().to_le_bytes()),
        }
    }
    bytes
}

/// Says which file a panic came from.
struct Culprit<'a>(u64, &'a [u8]);

impl Drop for Culprit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|b| format!("{b:02x}")).collect();
            eprintln!("file {} of this run, in hexadecimal: {hex}", self.0);
        }
    }
}

#[test]
fn damaged_files_never_panic_or_take_much_memory() {
    let variable = |name: &str| env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = variable("PLAINCHANT_FUZZ_SECONDS").unwrap_or(5);
    let seed = variable("PLAINCHANT_FUZZ_SEED").unwrap_or(1);
    let mut random = Random(seed);
    let base = valid();
    let (start, mut files, mut right) = (Instant::now(), 0_u64, 0_u64);
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..100 {
            let bytes = mutate(&base, &mut random);
            let culprit = Culprit(files, &bytes);
            let copy = bytes.clone();
            let began = Instant::now();
            let (result, peak) = peak_of(|| parse_any(copy));
            assert!(
                peak <= memory_limit(bytes.len()),
                "{peak} bytes for {}",
                bytes.len()
            );
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "took {:?}",
                began.elapsed()
            );
            right += u64::from(result.is_ok());
            files += 1;
            drop(culprit);
        }
    }
    eprintln!("{files} files from seed {seed}, {right} of them readable");
    assert!(
        right > 0 && right < files || files == 0,
        "{right} of {files} readable"
    );
}
