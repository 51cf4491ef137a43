//! Damaged or unsupported hyper-parameters are errors that name the key, before anything large is allocated.
#![allow(clippy::unwrap_used)]

mod common;

use common::fixture;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Memory, Model};
use weights::gguf::{Gguf, Value, writer::Writer};
use weights::load::LoadOptions;

/// The tiny model `name` with some keys changed, added or (`None`) left out.
fn changed(name: &str, changes: &[(&str, Option<Value<'_>>)]) -> Result<(), String> {
    let is_changed = |key: &str| changes.iter().any(|(changed, _)| *changed == key);
    rewritten(name, &is_changed, &|writer| {
        for (key, value) in changes {
            if let Some(value) = value {
                writer.set_value(key, *value);
            }
        }
    })
    .map(|_| ())
}

/// The tiny model `name` without the keys that `is_changed` knows, and with what `change` writes.
fn rewritten(
    name: &str,
    is_changed: &dyn Fn(&str) -> bool,
    change: &dyn Fn(&mut Writer),
) -> Result<Model, String> {
    let path = fixture(&format!("{name}.gguf"));
    let file = Gguf::open(&path).unwrap();
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter().filter(|(key, _)| !is_changed(key)) {
        writer.set_value(key, value);
    }
    change(&mut writer);
    let mut data = Vec::new();
    for tensor in file.tensors() {
        writer.declare(tensor.name(), tensor.dims(), tensor.tensor_type());
        data.push(file.tensor_bytes(tensor));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    writer
        .write(std::fs::File::create(&path).unwrap(), &data)
        .unwrap();
    let file = Gguf::open(&path).map_err(|error| error.to_string())?;
    Model::load(&file, &Pool::new(1), LoadOptions::default()).map_err(|error| error.to_string())
}

#[test]
fn an_unchanged_model_loads() {
    changed("llama-tied", &[]).unwrap();
    changed("qwen2", &[]).unwrap();
    changed("gemma3", &[]).unwrap();
}

#[test]
fn every_bad_value_is_named() {
    let u = |value| Some(Value::U32(value));
    let f = |value| Some(Value::F32(value));
    let cases: &[(&str, &str, Option<Value<'_>>)] = &[
        (
            "llama-untied",
            "general.architecture",
            Some(Value::String(b"mamba")),
        ),
        ("llama-untied", "llama.block_count", None),
        ("llama-untied", "llama.block_count", u(0)),
        ("llama-untied", "llama.block_count", u(4_000_000_000)),
        ("llama-untied", "llama.block_count", f(2.0)),
        ("llama-untied", "llama.embedding_length", u(0)),
        ("llama-untied", "llama.embedding_length", u(u32::MAX)),
        ("llama-untied", "llama.attention.head_count", u(0)),
        ("llama-untied", "llama.attention.head_count", u(3)),
        ("llama-untied", "llama.attention.head_count_kv", u(0)),
        ("llama-untied", "llama.context_length", u(0)),
        ("llama-untied", "llama.context_length", u(u32::MAX)),
        (
            "llama-untied",
            "llama.attention.layer_norm_rms_epsilon",
            None,
        ),
        (
            "llama-untied",
            "llama.attention.layer_norm_rms_epsilon",
            f(f32::NAN),
        ),
        ("llama-untied", "llama.rope.dimension_count", u(15)),
        ("llama-untied", "llama.rope.dimension_count", u(1 << 24)),
        ("llama-untied", "llama.rope.freq_base", f(0.0)),
        ("llama-untied", "llama.rope.freq_base", f(f32::INFINITY)),
        (
            "llama-untied",
            "llama.rope.scaling.type",
            Some(Value::String(b"yarn")),
        ),
        (
            "llama-tied",
            "llama.rope.scaling.type",
            Some(Value::String(b"linear")),
        ),
        ("llama-untied", "llama.rope.scaling.factor", f(4.0)),
        ("llama-untied", "llama.rope.scale_linear", f(4.0)),
        ("llama-untied", "llama.logit_scale", f(0.5)),
        ("llama-untied", "llama.embedding_scale", f(12.0)),
        (
            "llama-untied",
            "llama.attention.causal",
            Some(Value::Bool(false)),
        ),
        ("llama-untied", "llama.attention.sliding_window", u(8)),
        ("llama-untied", "llama.expert_count", u(8)),
        ("gemma3", "gemma3.attention.sliding_window", None),
        ("gemma3", "gemma3.rope.dimension_count", u(7)),
    ];
    for (name, key, value) in cases {
        let error = changed(name, &[(key, *value)]).expect_err(key);
        let named = key.rsplit_once('.').unwrap().1;
        assert!(
            error.contains(named) || error.contains("mamba"),
            "{key} = {value:?}: {error}"
        );
    }
}

#[test]
fn layers_with_a_window_can_be_named_one_by_one() {
    const KEY: &str = "gemma3.attention.sliding_window_pattern";
    let layers = changed_windows("gemma3", KEY, &[]).unwrap_err();
    assert!(
        layers.contains(KEY) && layers.contains("an array of 0"),
        "{layers}"
    );
    let file = Gguf::open(fixture("gemma3.gguf")).unwrap();
    let count = file.metadata().get_usize("gemma3.block_count").unwrap();
    for windowed in [
        vec![true; count],
        (0..count).map(|layer| layer % 2 == 0).collect(),
    ] {
        let model = changed_windows("gemma3", KEY, &windowed).unwrap();
        let found = model
            .architecture
            .attentions()
            .map(|(_, a)| a.window.is_some());
        assert_eq!(found.collect::<Vec<_>>(), windowed);
    }
}

/// The tiny model with an array of bools for `key`.
fn changed_windows(name: &str, key: &str, windowed: &[bool]) -> Result<Model, String> {
    rewritten(name, &|k| k == key, &|writer| {
        writer.set(key, windowed);
    })
}

#[test]
fn sizes_that_contradict_the_tensors_are_refused() {
    for (key, value) in [
        ("llama.embedding_length", 128),
        ("llama.feed_forward_length", 95),
        ("llama.attention.key_length", 17),
        ("llama.block_count", 3),
        ("llama.block_count", 1),
    ] {
        let error = changed("llama-untied", &[(key, Some(Value::U32(value)))]).expect_err(key);
        assert!(error.contains("tensor"), "{key}: {error}");
    }
}

#[test]
fn a_token_reads_the_keys_and_values_that_it_sees() {
    let read = |name: &str, position| {
        let file = Gguf::open(fixture(&format!("{name}.gguf"))).unwrap();
        let architecture = model::arch::read(&file).unwrap();
        Memory::bytes_read_at(&architecture, KvType::F16, position)
    };
    let file = Gguf::open(fixture("llama-tied.gguf")).unwrap();
    let architecture = model::arch::read(&file).unwrap();
    let values = architecture
        .attentions()
        .map(|(_, a)| a.kv_heads * 2 * a.head_dim);
    let of_position = 2 * values.sum::<usize>();
    assert_eq!(read("llama-tied", 0), of_position);
    assert_eq!(read("llama-tied", 99), 100 * of_position);
    // Layers with a window read no more than that of it.
    let (early, late) = (read("gemma3", 0), read("gemma3", 200));
    assert!(early < late && late < 201 * early, "{early} {late}");
}
