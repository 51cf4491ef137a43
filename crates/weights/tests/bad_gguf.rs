//! Damaged files: each gives an error that says where, in bounded time and memory.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use kernels::formats::Format;
use support::{Builder, memory_limit, parse_any, peak_of, valid};
use weights::gguf::{Gguf, ValueType as T};

#[global_allocator]
static ALLOCATOR: support::CountingAllocator = support::CountingAllocator;

const F32: u32 = Format::F32.ggml_type();
const Q8_0: u32 = Format::Q8_0.ggml_type();
/// A type that the kernels don't support but whose size is known.
const Q2_K: u32 = 10;
/// A type that nobody knows.
const UNKNOWN: u32 = 9999;

/// A name, the bytes, and what the error must say.
type Case = (&'static str, Vec<u8>, &'static [&'static str]);

fn other_files() -> Vec<Case> {
    let text = |t: &str| t.as_bytes().to_vec();
    vec![
        ("empty", vec![], &["byte 0", "empty file"]),
        ("three bytes", text("GGU"), &["byte 0", "first 3 bytes"]),
        ("one byte", text("G"), &["first 1 byte of", "truncated"]),
        (
            "text",
            text("\n# A title\nand more"),
            &["a text that begins with \"# A title\"", "not a GGUF model"],
        ),
        (
            "text cut inside a character",
            "é".repeat(256).as_bytes()[..511].to_vec(),
            &["a text that begins with \"ééé"],
        ),
        (
            "HTML",
            text("<!DOCTYPE html><html>Not found"),
            &["HTML page"],
        ),
        (
            "HTML after blanks",
            text(" \n\t<html lang='en'>"),
            &["HTML page"],
        ),
        ("zip", text("PK\x03\x04 and more"), &["zip archive"]),
        (
            "safetensors",
            Builder::default().u64(2).raw(b"{}").bytes,
            &["safetensors"],
        ),
        (
            "Git LFS pointer",
            text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
            &["Git LFS pointer", "git lfs pull"],
        ),
        ("GGML", text("lmgg\x01\0\0\0"), &["old GGML"]),
        ("GGMF", text("fmgg\x01\0\0\0"), &["old GGMF"]),
        ("GGJT", text("tjgg\x03\0\0\0"), &["old GGJT"]),
        ("JSON", text("{\"error\": \"not found\"}"), &["JSON"]),
        ("zero bytes", vec![0; 4096], &["zero bytes"]),
        ("gzip", vec![0x1f, 0x8b, 8, 0, 0], &["gzip"]),
        ("pickle", vec![0x80, 2, 0x8a, 10], &["pickle"]),
        (
            "noise",
            vec![0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5],
            &["de, ad, be, ef"],
        ),
        (
            "small letters",
            text("gguf\x03\0\0\0"),
            &["not a GGUF model"],
        ),
        (
            "reverse magic",
            text("FUGG\0\0\0\x03"),
            &["reverse byte order"],
        ),
    ]
}

fn headers() -> Vec<Case> {
    let header = |v| Builder::header(v, 0, 0).bytes;
    vec![
        (
            "magic only",
            b"GGUF".to_vec(),
            &[
                "truncated",
                "byte 4",
                "version needs 4 bytes",
                "0 are left of the file's 4 bytes",
            ],
        ),
        (
            "half a version",
            b"GGUF\x03\0".to_vec(),
            &["byte 4", "2 are left"],
        ),
        (
            "version 0",
            header(0),
            &["byte 4", "version 0", "expected 2 or 3", "damaged"],
        ),
        (
            "version 1",
            header(1),
            &["version 1", "expected 2 or 3", "2023"],
        ),
        ("version 4", header(4), &["version 4", "newer tool"]),
        (
            "big-endian",
            header(3_u32.swap_bytes()),
            &["byte 4", "big-endian", "version 3"],
        ),
        (
            "no counts",
            Builder::default().raw(b"GGUF").u32(3).bytes,
            &["byte 8", "tensors"],
        ),
        (
            "no key count",
            Builder::default().raw(b"GGUF").u32(3).u64(0).bytes,
            &["byte 16", "the number of keys needs 8"],
        ),
    ]
}

fn counts() -> Vec<Case> {
    vec![
        (
            "-1 tensors",
            Builder::v3(u64::MAX, 0).bytes,
            &[
                "byte 8",
                "number of tensors is 18446744073709551615",
                "truncated",
                "8 are left of the file's 24 bytes",
            ],
        ),
        (
            "one tensor more than fits",
            Builder::v3(3, 0).zeros(66).bytes,
            &[
                "byte 8",
                "number of tensors is 3",
                "at least 99 bytes",
                "74 are left",
            ],
        ),
        (
            "-1 keys",
            Builder::v3(0, u64::MAX).zeros(100).bytes,
            &["byte 16", "number of keys"],
        ),
        (
            "a key too many",
            Builder::v3(0, 2).string("k").u32(0).raw(&[1]).bytes,
            &["byte 16"],
        ),
        (
            "too many keys",
            Builder::v3(0, 65_537).zeros(14 * 65_537).bytes,
            &["number of keys is 65537", "at most 65536"],
        ),
        (
            "too many tensors",
            Builder::v3(262_145, 0).zeros(33 * 262_145).bytes,
            &["number of tensors is 262145", "at most 262144"],
        ),
    ]
}

fn keys() -> Vec<Case> {
    let one = || Builder::v3(0, 1);
    let good = |key: &str| one().key(key, T::U8).raw(&[1]);
    let mut twice = good("twice").key("twice", T::U8).raw(&[2]).bytes;
    twice[16] = 2;
    vec![
        (
            "key length -1",
            one().u64(u64::MAX).zeros(100).bytes,
            &[
                "byte 32",
                "key 0 needs 18446744073709551615 bytes",
                "100 are left",
            ],
        ),
        (
            "key past the end",
            one().u64(1000).zeros(100).bytes,
            &["byte 32", "key 0"],
        ),
        (
            "empty key",
            good("").zeros(9).bytes,
            &["byte 24", "key 0 is empty"],
        ),
        (
            "long key",
            good(&"k".repeat(65_536)).bytes,
            &["byte 24", "65536 bytes long", "65535"],
        ),
        (
            "binary key",
            one().string([0xff]).u32(0).zeros(9).bytes,
            &["byte 24", "not UTF-8"],
        ),
        (
            "key twice",
            twice,
            &["byte 42", "key `twice`", "twice (first at byte 24)"],
        ),
    ]
}

fn values() -> Vec<Case> {
    let one = || Builder::v3(0, 1);
    vec![
        (
            "value type 13",
            one().string("k").u32(13).zeros(9).bytes,
            &["byte 33", "value type of key `k` is 13", "0 to 12"],
        ),
        (
            "value type -1",
            one().string("k").u32(u32::MAX).zeros(9).bytes,
            &["4294967295"],
        ),
        (
            "half a value",
            one().key("k", T::U64).zeros(4).bytes,
            &[
                "byte 37",
                "the value of key `k` needs 8 bytes",
                "4 are left",
            ],
        ),
        (
            "bool 2",
            one().key("k", T::Bool).raw(&[2]).bytes,
            &["byte 37", "key `k` is 2", "bool"],
        ),
        (
            "string length -1",
            one().key("k", T::String).u64(u64::MAX).bytes,
            &["byte 45", "key `k` needs 18446744073709551615"],
        ),
        (
            "string of 2^63 - 1",
            one()
                .key("k", T::String)
                .u64(i64::MAX as u64)
                .zeros(64)
                .bytes,
            &["byte 45", "64 are left"],
        ),
        (
            "half a string length",
            one().key("k", T::String).u32(1).bytes,
            &["the length of"],
        ),
    ]
}

fn arrays() -> Vec<Case> {
    let one = || Builder::v3(0, 1);
    let array = |element, len| one().array("k", element, len);
    vec![
        (
            "array of -1",
            array(T::U8, u64::MAX).zeros(9).bytes,
            &["byte 41", "`k`", "9 are left"],
        ),
        (
            "array of -1 f64",
            array(T::F64, u64::MAX).zeros(64).bytes,
            &["byte 41", "147573952589676412920 bytes", "64 are left"],
        ),
        // 2^61 elements of 8 bytes: their size in bytes is 0 in 64 bits.
        (
            "array that wraps",
            array(T::U64, 1 << 61).zeros(64).bytes,
            &["byte 41", "18446744073709551616 bytes", "64 are left"],
        ),
        (
            "array one too long",
            array(T::U16, 5).zeros(9).bytes,
            &["byte 41", "is 5", "at least 10 bytes", "9 are left"],
        ),
        (
            "array of 2^40 strings",
            array(T::String, 1 << 40).zeros(80).bytes,
            &["80 are left"],
        ),
        (
            "string past the end in an array",
            array(T::String, 2).string("a").u64(999).bytes,
            &[
                "byte 66",
                "element 1 of the value of key `k` needs 999 bytes",
            ],
        ),
        (
            "array of type 99",
            one().key("k", T::Array).u32(99).u64(1).bytes,
            &["byte 37", "the element type of the value of key `k` is 99"],
        ),
        (
            "array without length",
            one().key("k", T::Array).u32(0).bytes,
            &["byte 41", "length"],
        ),
    ]
}

fn nested_arrays() -> Vec<Case> {
    let one = || Builder::v3(0, 1);
    let array = |element, len| one().array("k", element, len);
    let deep = (0..5).fold(one().key("k", T::Array), |b, _| {
        b.u32(T::Array.number()).u64(1)
    });
    vec![
        (
            "too deep an array",
            deep.zeros(64).bytes,
            &["nested 5 deep", "at most 4"],
        ),
        (
            "array of arrays of -1",
            array(T::Array, u64::MAX).zeros(36).bytes,
            &["byte 41", "36 are left"],
        ),
        (
            "inner array of -1",
            array(T::Array, 1).u32(T::U8.number()).u64(u64::MAX).bytes,
            &["byte 53", "element 0"],
        ),
        (
            "bool 7 in an array",
            array(T::Bool, 2).raw(&[1, 7]).bytes,
            &["byte 50", "element 1"],
        ),
    ]
}

fn special_keys() -> Vec<Case> {
    let alignment = |a: u32| Builder::v3(1, 1).key("general.alignment", T::U32).u32(a);
    let tensor = |b: Builder| b.tensor("t", &[8], F32, 0).pad(32).zeros(32).bytes;
    let with_key = |b: Builder| b.bytes;
    let one = || Builder::v3(0, 1);
    vec![
        (
            "alignment 0",
            tensor(alignment(0)),
            &["general.alignment", "u32 0", "power of two"],
        ),
        (
            "alignment 24",
            tensor(alignment(24)),
            &["general.alignment", "u32 24"],
        ),
        (
            "alignment 2^32 - 1",
            tensor(alignment(u32::MAX)),
            &["4294967295", "power of two"],
        ),
        (
            "alignment 2^31",
            tensor(alignment(1 << 31)),
            &["tensor `t`", "byte 2147483648 on"],
        ),
        (
            "alignment -32",
            with_key(one().key("general.alignment", T::I32).u32(-32_i32 as u32)),
            &["byte 24", "i32 -32", "expected an integer from 0"],
        ),
        (
            "alignment as text",
            with_key(one().key("general.alignment", T::String).string("32")),
            &["general.alignment", "string \"32\""],
        ),
        (
            "one of three files",
            with_key(one().key("split.count", T::U16).raw(&[3, 0])),
            &["split.count", "3 files", "not supported yet"],
        ),
    ]
}

fn tensor_entries() -> Vec<Case> {
    let one = || Builder::v3(1, 0);
    let name = |name: &str| one().tensor(name, &[8], F32, 0).pad(32).zeros(64).bytes;
    let long = "n".repeat(65);
    vec![
        (
            "no name",
            name(""),
            &["byte 24", "name of tensor 0 is empty"],
        ),
        (
            "long name",
            name(&long),
            &["byte 24", "65 bytes long", "1 to 64"],
        ),
        (
            "binary name",
            one().string([0xc3, 0x28]).zeros(64).bytes,
            &["byte 24", "not UTF-8"],
        ),
        (
            "name length -1",
            one().u64(u64::MAX).zeros(64).bytes,
            &["byte 32", "name of tensor 0"],
        ),
    ]
}

fn tensor_shapes() -> Vec<Case> {
    let one = || Builder::v3(1, 0);
    let tensor = |dims: &[u64], kind| one().tensor("t", dims, kind, 0).pad(32).zeros(64).bytes;
    vec![
        (
            "no dimensions",
            tensor(&[], F32),
            &["byte 33", "dimensions of tensor `t` is 0", "1 to 4"],
        ),
        (
            "5 dimensions",
            tensor(&[1; 5], F32),
            &["byte 33", "is 5", "1 to 4"],
        ),
        (
            "2^32 - 1 dimensions",
            one().string("t").u32(u32::MAX).zeros(64).bytes,
            &["byte 33"],
        ),
        (
            "dimension 0",
            tensor(&[8, 0], F32),
            &["byte 45", "dimension 1 of tensor `t` is 0"],
        ),
        (
            "dimension -1",
            tensor(&[8, u64::MAX], F32),
            &["byte 45", "dimension 1 of tensor `t`"],
        ),
        (
            "more values than 64 bits count",
            tensor(&[1 << 32, 1 << 32], F32),
            &["byte 45", "dimension 1 of tensor `t` is 4294967296"],
        ),
        (
            "more bytes than 64 bits count",
            tensor(&[1 << 31, 1 << 31], F32),
            &["byte 53", "shape of tensor `t` is [2147483648, 2147483648]"],
        ),
        (
            "2^62 values",
            tensor(&[1 << 62], F32),
            &["byte 45", "shape of tensor `t`", "64 bits"],
        ),
    ]
}

fn tensor_ends() -> Vec<Case> {
    let one = || Builder::v3(1, 0);
    let tensor = |dims: &[u64], kind| one().tensor("t", dims, kind, 0).pad(32).zeros(64).bytes;
    vec![
        (
            "half a block a row",
            tensor(&[48, 2], Q8_0),
            &[
                "byte 53",
                "row length of tensor `t` is 48",
                "multiple of 32",
                "Q8_0",
            ],
        ),
        (
            "half a block, unsupported type",
            tensor(&[128], Q2_K),
            &["multiple of 256", "Q2_K"],
        ),
        (
            "directory cut",
            one().tensor("t", &[8], F32, 0).bytes[..53].to_vec(),
            &["byte 49"],
        ),
        (
            "type cut",
            Builder::v3(1, 0)
                .string("a-long-enough-name")
                .u32(1)
                .u64(8)
                .raw(&[0, 0])
                .bytes,
            &[
                "byte 62",
                "the type of tensor `a-long-enough-name` needs 4 bytes",
            ],
        ),
    ]
}

fn tensor_places() -> Vec<Case> {
    let at = |offset| {
        Builder::v3(1, 0)
            .tensor("t", &[8], F32, offset)
            .pad(32)
            .zeros(32)
            .bytes
    };
    let mut short = Builder::v3(1, 0)
        .tensor("t", &[8], F32, 0)
        .pad(32)
        .zeros(31)
        .bytes;
    short.shrink_to_fit();
    vec![
        (
            "offset 16",
            at(16),
            &["byte 49", "data offset of tensor `t` is 16", "alignment 32"],
        ),
        (
            "offset past the end",
            at(32),
            &["tensor `t`", "32 bytes from byte 96 on", "only 96 bytes"],
        ),
        (
            "offset near 2^64",
            at(u64::MAX - 31),
            &["tensor `t`", "has only 96 bytes"],
        ),
        (
            "offset 2^63",
            at(1 << 63),
            &["tensor `t`", "from byte 9223372036854775872 on"],
        ),
        (
            "data a byte short",
            short,
            &["tensor `t`", "32 bytes from byte 64 on", "only 95 bytes"],
        ),
    ]
}

fn overlaps() -> Vec<Case> {
    let two = |a: (u32, u64), b: (u32, u64)| {
        let both = Builder::v3(2, 0)
            .tensor("a", &[32], a.0, a.1)
            .tensor("b", &[32], b.0, b.1);
        both.pad(32).zeros(256).bytes
    };
    vec![
        (
            "same place",
            two((F32, 0), (F32, 0)),
            &["byte 96", "tensor `b` starts inside"],
        ),
        (
            "overlap",
            two((F32, 0), (F32, 96)),
            &["tensor `b`", "tensor `a`", "ends at byte 224"],
        ),
        (
            "overlap, backwards",
            two((F32, 96), (F32, 0)),
            &["tensor `a` starts inside"],
        ),
        (
            "unknown in the same place",
            two((F32, 0), (UNKNOWN, 0)),
            &["starts inside"],
        ),
        (
            "unknown inside another",
            two((UNKNOWN, 32), (F32, 0)),
            &["tensor `a` starts inside"],
        ),
        (
            "unknown past the end",
            two((F32, 0), (UNKNOWN, 256)),
            &["tensor `b`", "from byte 352"],
        ),
        (
            "name twice",
            Builder::v3(2, 0)
                .tensor("t", &[8], F32, 0)
                .tensor("t", &[8], F32, 32)
                .pad(32)
                .zeros(64)
                .bytes,
            &["byte 57", "tensor `t` appears twice (first at byte 24)"],
        ),
    ]
}

#[test]
fn every_bad_file_gives_an_error_that_says_where() {
    let groups = [
        other_files(),
        headers(),
        counts(),
        keys(),
        values(),
        arrays(),
        nested_arrays(),
        special_keys(),
        tensor_entries(),
        tensor_shapes(),
        tensor_ends(),
        tensor_places(),
        overlaps(),
    ];
    let cases: Vec<Case> = groups.into_iter().flatten().collect();
    assert!(cases.len() >= 90, "{} cases", cases.len());
    let mut unclear = Vec::new();
    for (name, bytes, needles) in cases {
        let (size, start) = (bytes.len(), Instant::now());
        let (result, peak) = peak_of(|| parse_any(bytes));
        let Err(error) = result else {
            panic!("{name}: no error")
        };
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{name}: {:?}",
            start.elapsed()
        );
        assert!(
            peak <= memory_limit(size),
            "{name}: {peak} bytes of memory for {size}"
        );
        let error = error.to_string();
        assert!(error.starts_with("any.gguf: "), "{name}: {error}");
        let missing = needles.iter().filter(|n| !error.contains(**n));
        unclear.extend(missing.map(|n| format!("{name}: `{error}` should contain `{n}`")));
    }
    assert!(unclear.is_empty(), "{}", unclear.join("\n"));
}

#[test]
fn a_right_file_reads_and_has_what_was_written() {
    let gguf = Gguf::from_bytes("valid.gguf", valid().bytes).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.len(), 9);
    assert_eq!(metadata.get_str("general.architecture").unwrap(), "llama");
    assert!(metadata.get_bool("flag").unwrap());
    assert_eq!(metadata.get_i32("small").unwrap(), -1);
    assert_eq!(metadata.get_f32("double").unwrap(), 1.5);
    let tokens: Vec<&[u8]> = metadata.get_bytes_array("tokens").unwrap().collect();
    assert_eq!(tokens, [&b"a"[..], b"", &[0xff, 0xfe]]);
    assert_eq!(
        metadata
            .get_f32_array("scores")
            .unwrap()
            .collect::<Vec<_>>(),
        [1.0, 2.0]
    );
    assert_eq!(
        metadata
            .get_bool_array("flags")
            .unwrap()
            .collect::<Vec<_>>(),
        [false, true]
    );
    assert_eq!(metadata.get_array("nested").unwrap().len(), 2);
    assert_eq!(gguf.tensor("matrix").unwrap().bytes(), 68);
    assert_eq!(
        gguf.find_tensor("other").unwrap().tensor_type().name(),
        "Q2_K"
    );
    assert!(
        gguf.tensor("other")
            .unwrap_err()
            .to_string()
            .contains("Q2_K")
    );
    parse_any(valid().bytes).unwrap();
}

#[test]
fn a_file_cut_at_any_byte_gives_an_error() {
    let whole = valid().bytes;
    for len in 0..whole.len() {
        let (result, peak) = peak_of(|| parse_any(whole[..len].to_vec()));
        let error = result.expect_err(&format!("cut at {len}")).to_string();
        let telling = ["byte", "tensor"].iter().any(|w| error.contains(w));
        assert!(telling, "cut at {len}: {error}");
        assert!(peak <= memory_limit(len), "cut at {len}: {peak} bytes");
    }
}

#[test]
fn any_changed_byte_of_the_directory_gives_a_value_or_an_error() {
    let whole = valid().bytes;
    let header = whole.len() - (128 + 84);
    let (mut right, mut wrong) = (0, 0);
    for at in 0..header {
        for change in 1..=255_u8 {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            let (result, peak) = peak_of(|| parse_any(bytes));
            assert!(
                peak <= memory_limit(whole.len()),
                "byte {at} ^ {change}: {peak} bytes"
            );
            *(if result.is_ok() {
                &mut right
            } else {
                &mut wrong
            }) += 1;
        }
    }
    // Changing a letter of a name is no error; changing a count is one.
    assert!(
        right > 10_000 && wrong > 10_000,
        "{right} right, {wrong} wrong"
    );
}
