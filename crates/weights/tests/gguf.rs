//! What is written reads back; getters say what they found and expected.
#![allow(clippy::unwrap_used)]

use std::fs;

use kernels::formats::Format;
use proptest::prelude::*;
use weights::gguf::{
    Gguf, TensorType, Value, ValueType,
    writer::{Bytes, Writer},
};

/// A file with a key of every type and a tensor of every format.
fn varied() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.set("u8", 200_u8);
    writer.set("i8", -100_i8);
    writer.set("u16", 60_000_u16);
    writer.set("i16", -30_000_i16);
    writer.set("u32", u32::MAX);
    writer.set("i32", i32::MIN);
    writer.set("u64", u64::MAX);
    writer.set("i64", i64::MIN);
    writer.set("f32", 0.1_f32);
    writer.set("f64", 1e300_f64);
    writer.set("bool", true);
    writer.set("text", "Ünïcode");
    writer.set("binary", Bytes(&[0xff, 0]));
    writer.set("numbers", &[1_i32, -2, 3][..]);
    writer.set("words", &["a", "", "c"][..]);
    writer.set("tokens", &[Bytes(b"a"), Bytes(&[0xe2, 0x82])][..]);
    writer.set("none", Vec::<f32>::new());
    writer.set("nested", vec![vec![1_u16, 2], vec![], vec![3]]);
    let mut data = Vec::new();
    for format in Format::ALL {
        writer.declare(format.name(), &[256, 3], format);
        data.push(vec![7; 3 * 256 / format.block_len() * format.block_bytes()]);
    }
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    writer.write(Vec::new(), &data).unwrap()
}

#[test]
fn every_type_of_value_and_tensor_reads_back() {
    let gguf = Gguf::from_bytes("varied", varied()).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.get("u8"), Some(Value::U8(200)));
    assert_eq!(m.get("i8"), Some(Value::I8(-100)));
    assert_eq!(m.get("u16"), Some(Value::U16(60_000)));
    assert_eq!(m.get("i16"), Some(Value::I16(-30_000)));
    assert_eq!(m.get_u32("u32").unwrap(), u32::MAX);
    assert_eq!(m.get_i32("i32").unwrap(), i32::MIN);
    assert_eq!(m.get_u64("u64").unwrap(), u64::MAX);
    assert_eq!(m.get("i64"), Some(Value::I64(i64::MIN)));
    assert_eq!(m.get_f32("f32").unwrap(), 0.1);
    assert_eq!(m.get("f64"), Some(Value::F64(1e300)));
    assert!(m.get_bool("bool").unwrap());
    assert_eq!(m.get_str("text").unwrap(), "Ünïcode");
    assert_eq!(m.get_bytes("binary").unwrap(), [0xff, 0]);
    assert_eq!(
        m.get_i32_array("numbers").unwrap().collect::<Vec<_>>(),
        [1, -2, 3]
    );
    assert_eq!(
        m.get_str_array("words").unwrap().collect::<Vec<_>>(),
        ["a", "", "c"]
    );
    let tokens: Vec<_> = m.get_bytes_array("tokens").unwrap().collect();
    assert_eq!(tokens, [&b"a"[..], &[0xe2, 0x82]]);
    assert_eq!(m.get_f32_array("none").unwrap().len(), 0);
    let nested: Vec<_> = m
        .get_array("nested")
        .unwrap()
        .iter()
        .map(|v| v.to_string())
        .collect();
    assert_eq!(nested, ["2 × u16 [1, 2]", "0 × u16 []", "1 × u16 [3]"]);
    for format in Format::ALL {
        let tensor = gguf.tensor(format.name()).unwrap();
        assert_eq!(
            (tensor.dims(), tensor.shape()),
            (&[256, 3][..], vec![3, 256])
        );
        assert_eq!(tensor.format(), Some(format));
        assert!(tensor.offset().is_multiple_of(32));
        assert!(gguf.tensor_bytes(tensor).iter().all(|&b| b == 7));
        let bytes = 3 * 256 / format.block_len() * format.block_bytes();
        assert_eq!(gguf.tensor_bytes(tensor).len(), bytes);
    }
}

#[test]
fn a_copy_through_reader_and_writer_is_the_same_bytes() {
    let original = varied();
    let gguf = Gguf::from_bytes("original", original.clone()).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        writer.set_value(key, value);
    }
    for tensor in gguf.tensors() {
        writer.declare(tensor.name(), tensor.dims(), tensor.tensor_type());
    }
    let data: Vec<&[u8]> = gguf
        .tensors()
        .iter()
        .map(|t| gguf.tensor_bytes(t))
        .collect();
    assert_eq!(writer.write(Vec::new(), &data).unwrap(), original);
}

#[test]
fn a_file_on_the_disk_reads_as_in_memory_and_after_its_pages_were_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("varied.gguf");
    fs::write(&path, varied()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    gguf.release(0..usize::MAX);
    assert_eq!(
        gguf.facts(),
        Gguf::from_bytes("varied", varied()).unwrap().facts()
    );
    let tensor = gguf.tensor("Q6_K").unwrap();
    gguf.release(gguf.tensor_range(tensor));
    assert!(gguf.tensor_bytes(tensor).iter().all(|&b| b == 7));
}

#[test]
fn what_is_no_file_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &std::path::Path| Gguf::open(path).unwrap_err().to_string();
    let missing = folder.path().join("missing.gguf");
    assert!(error(&missing).starts_with(&format!("{}: can't open", missing.display())));
    assert!(error(folder.path()).contains("found a folder"));
    let empty = folder.path().join("empty.gguf");
    fs::write(&empty, "").unwrap();
    assert!(error(&empty).contains("empty file"));
    #[cfg(unix)]
    assert!(error(std::path::Path::new("/dev/zero")).contains("found a device"));
}

#[test]
fn version_2_reads_like_version_3() {
    let mut bytes = varied();
    bytes[4] = 2;
    let gguf = Gguf::from_bytes("v2", bytes).unwrap();
    assert_eq!(gguf.facts().version, 2);
    assert_eq!(gguf.metadata().get_u32("u32").unwrap(), u32::MAX);
}

#[test]
fn getters_name_the_key_what_was_found_and_what_was_expected() {
    let gguf = Gguf::from_bytes("varied", varied()).unwrap();
    let m = gguf.metadata();
    let words = m.get_i32_array("words").map(Iterator::count);
    let tokens = m.get_str_array("tokens").map(Iterator::count);
    let numbers = m.get_u32_array("numbers").map(Iterator::count);
    for (error, needles) in [
        (
            m.get_u32("absent").unwrap_err(),
            ["`absent`", "missing", "from 0 to 4294967295"],
        ),
        (
            m.get_u32("u64").unwrap_err(),
            ["`u64`", "the u64 18446744073709551615", "4294967295"],
        ),
        (
            m.get_u32("i8").unwrap_err(),
            ["`i8`", "the i8 -100", "from 0"],
        ),
        (
            m.get_bool("u8").unwrap_err(),
            ["`u8`", "the u8 200", "expected a bool"],
        ),
        (
            m.get_f32("u8").unwrap_err(),
            ["`u8`", "the u8 200", "expected a float"],
        ),
        (
            m.get_str("binary").unwrap_err(),
            ["`binary`", "not UTF-8", "expected a UTF-8 string"],
        ),
        (
            m.get_str("words").unwrap_err(),
            ["`words`", "an array of 3 string", "UTF-8 string"],
        ),
        (
            words.unwrap_err(),
            [
                "`words`",
                "element 0 is the string \"a\"",
                "array of integers",
            ],
        ),
        (tokens.unwrap_err(), ["`tokens`", "element 1", "not UTF-8"]),
        (
            numbers.unwrap_err(),
            ["`numbers`", "element 1 is the i32 -2", "from 0"],
        ),
        (
            m.opt_u32_each("none", 4).unwrap_err(),
            ["`none`", "array of 0", "4 of them"],
        ),
        (
            m.invalid("u8", "less than 100"),
            ["`u8`", "the u8 200", "expected less than 100"],
        ),
    ] {
        let error = error.to_string();
        for needle in needles {
            assert!(
                error.contains(needle),
                "`{error}` should contain `{needle}`"
            );
        }
    }
    assert_eq!(m.opt_u32("absent").unwrap(), None);
    assert!(m.opt_str_array("absent").unwrap().is_none());
    assert_eq!(m.opt_u32_each("u16", 2).unwrap(), Some(vec![60_000; 2]));
}

#[test]
fn facts_count_by_type() {
    let facts = Gguf::from_bytes("varied", varied()).unwrap().facts();
    assert_eq!((facts.keys, facts.tensors), (18, Format::ALL.len()));
    assert_eq!(facts.parameters, 768 * Format::ALL.len() as u64);
    assert_eq!(facts.types.len(), Format::ALL.len());
    assert_eq!(facts.types[0].tensor_type, TensorType::from(Format::F32));
    assert_eq!(
        facts.types.iter().map(|t| t.bytes).sum::<u64>(),
        facts.tensor_bytes
    );
}

#[test]
fn the_writer_refuses_what_a_reader_would() {
    let begin = |name: &str, dims: &[usize], kind: TensorType| {
        let mut writer = Writer::new();
        writer.declare(name, dims, kind);
        writer
            .begin(Vec::new())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(begin("t", &[], Format::F32.into()).contains("1 to 4"));
    assert!(begin("t", &[0], Format::F32.into()).contains("at least 1"));
    assert!(begin("t", &[33], Format::Q8_0.into()).contains("multiple of 32"));
    assert!(begin("t", &[1], TensorType::from_number(999)).contains("unknown type 999"));
    let mut writer = Writer::new();
    writer.set_alignment(48);
    assert!(
        writer
            .begin(Vec::new())
            .unwrap_err()
            .to_string()
            .contains("power of two")
    );
    let mut writer = Writer::new();
    writer.declare("t", &[2], Format::F32);
    let mut data = writer.begin(Vec::new()).unwrap();
    data.write(&[0; 4]).unwrap();
    assert!(
        data.write(&[0; 5])
            .unwrap_err()
            .to_string()
            .contains("4 bytes left")
    );
    assert!(
        data.finish()
            .unwrap_err()
            .to_string()
            .contains("4 of 8 bytes")
    );
}

fn format() -> impl Strategy<Value = Format> {
    (0..Format::ALL.len()).prop_map(|i| Format::ALL[i])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_directory_reads_back(
        alignment in 0..12_u32,
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..5),
        numbers in prop::collection::vec(any::<u64>(), 0..5),
        tensors in prop::collection::vec((format(), 1..3_usize, 1..4_usize, any::<u8>()), 0..6),
    ) {
        let mut writer = Writer::new();
        writer.set_alignment(1 << alignment);
        writer.set("texts", texts.iter().map(|t| Bytes(t)).collect::<Vec<_>>());
        writer.set("numbers", numbers.clone());
        let mut data = Vec::new();
        for (i, (format, blocks, rows, byte)) in tensors.iter().enumerate() {
            writer.declare(&format!("t{i}"), &[blocks * format.block_len(), *rows], *format);
            data.push(vec![*byte; blocks * rows * format.block_bytes()]);
        }
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let bytes = writer.write(Vec::new(), &slices).unwrap();
        let gguf = Gguf::from_bytes("any", bytes).unwrap();
        prop_assert_eq!(gguf.facts().alignment, 1 << alignment);
        let read: Vec<_> = gguf.metadata().get_bytes_array("texts").unwrap().collect();
        prop_assert_eq!(read, texts);
        let array = gguf.metadata().get_array("numbers").unwrap();
        prop_assert_eq!(array.element_type(), ValueType::U64);
        let read: Vec<_> = array.iter().map(|v| v.integer().unwrap() as u64).collect();
        prop_assert_eq!(read, numbers);
        for (i, bytes) in data.iter().enumerate() {
            let tensor = gguf.tensor(&format!("t{i}")).unwrap();
            prop_assert!(tensor.offset().is_multiple_of(1 << alignment));
            prop_assert_eq!(gguf.tensor_bytes(tensor), bytes.as_slice());
        }
    }
}
