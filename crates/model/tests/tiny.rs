//! Small random models of each family, against the logits that `transformers` gives them
//! (`tools/oracle/tiny.py` makes both).
#![allow(clippy::unwrap_used)]

mod common;

use common::{TINY, Way, fixture, load, logits};
use kernels::isa::Isa;
use kernels::pages::KvType;

#[derive(serde::Deserialize)]
struct Fixture {
    vocab: usize,
    logits_std: f32,
    sequences: Vec<Sequence>,
}

#[derive(serde::Deserialize)]
struct Sequence {
    tokens: Vec<u32>,
    first_row: usize,
}

/// The largest difference to the reference over all positions, in units of the logits' spread.
fn difference(name: &str, isa: Isa) -> f32 {
    let text = std::fs::read_to_string(fixture(&format!("{name}.json"))).unwrap();
    let expected: Fixture = serde_json::from_str(&text).unwrap();
    let bytes = std::fs::read(fixture(&format!("{name}.logits.f32"))).unwrap();
    let reference: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let model = load(&fixture(&format!("{name}.gguf")));
    let way = Way {
        isa,
        threads: 2,
        chunk: 16,
        kv_type: KvType::F32,
    };
    let mut worst = 0.0;
    for sequence in &expected.sequences {
        let rows = logits(&model, &sequence.tokens, way);
        assert_eq!(rows.len(), sequence.tokens.len());
        for (i, row) in rows.iter().enumerate() {
            let at = (sequence.first_row + i) * expected.vocab;
            for (a, b) in row.iter().zip(&reference[at..at + expected.vocab]) {
                worst = f32::max(worst, (a - b).abs() / b.abs().max(expected.logits_std));
            }
        }
    }
    worst
}

/// 1e-4: f32 rounding over a few layers; a wrong rope, norm or mask gives 1e-2 and more.
#[test]
fn logits_are_those_of_transformers() {
    for name in TINY {
        for isa in Isa::supported() {
            let worst = difference(name, isa);
            assert!(worst <= 1e-4, "{name} on {isa}: {worst}");
        }
    }
}
