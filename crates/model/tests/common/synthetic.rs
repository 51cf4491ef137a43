//! Made-up models: seeded random weights in any block format, as a GGUF file.

use std::io::Write as _;

use kernels::formats::Format;
use weights::gguf::writer::Writer;

/// A small generator of our own (SplitMix64), so that files are the same for ever.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Between −1 and 1.
    pub(crate) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

const HIDDEN: usize = 256;
const INNER: usize = 512;
const LAYERS: usize = 2;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
pub(crate) const VOCABULARY: usize = 300;

/// The bytes of a llama model whose matrices are of `format`.
pub(crate) fn llama(format: Format) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 2048),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", INNER),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
    ] {
        writer.set(&format!("llama.{key}"), value as u32);
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut data = Vec::new();
    let mut random = Random(u64::from(format.ggml_type()) + 1);
    let mut matrix = |writer: &mut Writer, name: &str, rows: usize, cols: usize| {
        writer.declare(name, &[cols, rows], format);
        data.push(random_blocks(format, rows * cols, &mut random));
    };
    matrix(&mut writer, "token_embd.weight", VOCABULARY, HIDDEN);
    for layer in 0..LAYERS {
        for (part, rows, cols) in [
            ("attn_q", HEADS * HEAD_DIM, HIDDEN),
            ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
            ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
            ("attn_output", HIDDEN, HEADS * HEAD_DIM),
            ("ffn_gate", INNER, HIDDEN),
            ("ffn_up", INNER, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ] {
            matrix(
                &mut writer,
                &format!("blk.{layer}.{part}.weight"),
                rows,
                cols,
            );
        }
    }
    let norms = (0..LAYERS).flat_map(|layer| {
        ["attn_norm", "ffn_norm"].map(|part| format!("blk.{layer}.{part}.weight"))
    });
    for name in norms.chain(["output_norm.weight".to_owned()]) {
        writer.declare(&name, &[HIDDEN], Format::F32);
        data.push(
            (0..HIDDEN)
                .flat_map(|i| (1.0 + i as f32 / 1024.0).to_le_bytes())
                .collect(),
        );
    }
    let parts: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut out = Vec::new();
    writer.write(&mut out, &parts).unwrap();
    out.flush().unwrap();
    out
}

/// Random blocks with sane scales: weights of a spread near 0.05 and a mean near 0.
fn random_blocks(format: Format, values: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; values / format.block_len() * format.block_bytes()];
    bytes.fill_with(|| random.next() as u8);
    // Where each block keeps its scales, and what they are.
    let scales: &[(usize, f32)] = match format {
        Format::Q4_0 => &[(0, 0.01)],
        Format::Q4_1 => &[(0, 0.01), (2, -0.075)],
        Format::Q5_0 => &[(0, 0.005)],
        Format::Q5_1 => &[(0, 0.005), (2, -0.0775)],
        Format::Q8_0 => &[(0, 0.0007)],
        Format::Q4_K => &[(0, 0.0003), (2, 0.00225)],
        Format::Q5_K => &[(0, 0.000_15), (2, 0.002_325)],
        Format::Q6_K => &[(208, 0.000_04)],
        Format::F32 | Format::F16 | Format::BF16 => &[],
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &(at, scale) in scales {
            let jitter = 1.0 + random.signed() / 4.0;
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(scale * jitter).to_le_bytes());
        }
        let value = random.signed() * 0.08;
        match format {
            Format::F32 => block.copy_from_slice(&value.to_le_bytes()),
            Format::F16 => block.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            _ => {}
        }
    }
    bytes
}
