//! `inspect`: what a model file holds, and the memory it needs.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::Result;
use kernels::formats::Format;
use kernels::packed::PackedMatrix;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::Memory;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use text::{TokenId, Tokenizer};
use weights::gguf::{Gguf, TensorInfo, Value};

use crate::cli::InspectArgs;
use crate::{report, session};

/// Elements of an array that are shown.
const ELEMENTS_SHOWN: usize = 8;
/// Characters of a text that are shown on a line.
const CHARACTERS_SHOWN: usize = 100;
/// Rows that are packed together: what a matrix's size is counted in.
const PACKED_ROWS: usize = 16;

#[derive(Serialize)]
struct Report<'a> {
    file: String,
    gguf_version: u32,
    file_bytes: u64,
    parameters: u64,
    metadata: Map<String, Json>,
    tensors: Vec<Tensor<'a>>,
    types: Vec<TypeCount>,
    tokenizer: Json,
    chat_template: Option<&'a str>,
    /// What there is to say where the model can't be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_supported: Option<String>,
    memory: Option<MemoryNeeds>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    tensor_type: String,
    /// Rows first, as in PyTorch.
    shape: Vec<usize>,
    bytes: u64,
}

#[derive(Serialize)]
struct TypeCount {
    #[serde(rename = "type")]
    tensor_type: String,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

/// Bytes that running the model takes, its working memory left aside.
#[derive(Serialize)]
struct MemoryNeeds {
    weights_bytes: usize,
    kv_bytes: usize,
    total_bytes: usize,
    ctx: usize,
    kv: &'static str,
}

/// Shows a model file.
///
/// # Errors
/// When it can't be had or is damaged. One that can't be run is shown with the reason.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let file = session::open(&args.model)?;
    let facts = file.facts();
    let memory = memory_needs(&file, args);
    let (memory, not_supported) = match memory {
        Ok(memory) => (Some(memory), None),
        Err(Needs::NotSupported(why)) => (None, Some(why)),
        Err(Needs::Failed(error)) => return Err(error),
    };
    let report = Report {
        file: file.path().display().to_string(),
        gguf_version: facts.version,
        file_bytes: facts.file_bytes,
        parameters: facts.parameters,
        metadata: file
            .metadata()
            .iter()
            .map(|(key, value)| (key.to_owned(), to_json(&value)))
            .collect(),
        tensors: file.tensors().iter().map(tensor).collect(),
        types: facts
            .types
            .iter()
            .map(|t| TypeCount {
                tensor_type: t.tensor_type.to_string(),
                tensors: t.tensors,
                parameters: t.parameters,
                bytes: t.bytes,
            })
            .collect(),
        tokenizer: tokenizer(&file),
        chat_template: file
            .metadata()
            .opt_str("tokenizer.chat_template")
            .unwrap_or_default(),
        not_supported,
        memory,
    };
    if args.json {
        return report::print_json(&report, false);
    }
    report::print(&for_people(&report)?)
}

fn tensor(info: &TensorInfo) -> Tensor<'_> {
    Tensor {
        name: info.name(),
        tensor_type: info.tensor_type().to_string(),
        shape: info.shape(),
        bytes: info.bytes(),
    }
}

/// A metadata value; of a long array only the beginning, with its length.
fn to_json(value: &Value<'_>) -> Json {
    match *value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        // The shortest digits that are this f32, not those of its f64.
        Value::F32(v) => json!(v.to_string().parse::<f64>().ok().filter(|v| v.is_finite())),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(bytes) => json!(String::from_utf8_lossy(bytes)),
        Value::Array(array) => {
            let first: Vec<Json> = array
                .iter()
                .take(ELEMENTS_SHOWN)
                .map(|v| to_json(&v))
                .collect();
            match array.len() {
                n if n <= ELEMENTS_SHOWN => json!(first),
                n => {
                    json!({ "array_of": array.element_type().name(), "length": n, "first": first })
                }
            }
        }
    }
}

/// What kind of tokenizer there is, or why there is none.
fn tokenizer(file: &Gguf) -> Json {
    let tokenizer = match Tokenizer::from_gguf(file) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return json!({ "not_supported": error.to_string() }),
    };
    let text = |key| file.metadata().opt_str(key).unwrap_or_default();
    let token = |id: TokenId| {
        let bytes = tokenizer.token_bytes(id);
        json!({ "id": id, "piece": String::from_utf8_lossy(bytes) })
    };
    json!({
        "model": text("tokenizer.ggml.model"),
        "pre": text("tokenizer.ggml.pre"),
        "tokens": tokenizer.vocab_size(),
        "adds_bos": tokenizer.adds_bos(),
        "bos": tokenizer.bos().map(token),
        "eos": tokenizer.eos().map(token),
        "ends_generation": tokenizer.end_of_generation_tokens().iter().copied().map(token).collect::<Vec<_>>(),
    })
}

/// Why the memory is not known.
enum Needs {
    NotSupported(String),
    Failed(anyhow::Error),
}

fn memory_needs(file: &Gguf, args: &InspectArgs) -> Result<MemoryNeeds, Needs> {
    let not_supported = |error: &dyn std::fmt::Display| Needs::NotSupported(error.to_string());
    let architecture = model::arch::read(file).map_err(|e| not_supported(&e))?;
    let ctx = session::context(args.ctx.asked(), architecture.context).map_err(Needs::Failed)?;
    let kv_type: KvType = args.kv.kv_type();
    let mut sizes = PackedSizes {
        pool: Pool::new(1),
        groups: HashMap::new(),
    };
    let mut weights_bytes: usize = 0;
    for info in file.tensors() {
        let format = file.tensor_format(info).map_err(|e| not_supported(&e))?;
        weights_bytes =
            weights_bytes.saturating_add(sizes.of(format, info).map_err(Needs::Failed)?);
    }
    let kv_bytes = Memory::bytes_per_sequence(&architecture, kv_type, ctx);
    let total_bytes = weights_bytes.saturating_add(kv_bytes);
    Ok(MemoryNeeds {
        weights_bytes,
        kv_bytes,
        total_bytes,
        ctx,
        kv: kv_type.name(),
    })
}

/// The sizes of packed tensors, found by packing one group of rows of each kind.
struct PackedSizes {
    pool: Pool,
    groups: HashMap<(Format, usize), usize>,
}

impl PackedSizes {
    fn of(&mut self, format: Format, info: &TensorInfo) -> Result<usize> {
        let (rows, cols) = (info.rows(), info.cols());
        if info.dims().iter().filter(|&&n| n > 1).count() <= 1 && format.is_float() {
            // Vectors are kept as f32.
            return Ok(info.elements().saturating_mul(4));
        }
        let group = match self.groups.get(&(format, cols)) {
            Some(&bytes) => bytes,
            None => {
                // Blocks of zeros are sound in every format.
                let zeros =
                    vec![0; PACKED_ROWS * (cols / format.block_len()) * format.block_bytes()];
                let packed =
                    PackedMatrix::pack(format, PACKED_ROWS, cols, &zeros, &self.pool, &|_| ())?;
                self.groups.insert((format, cols), packed.bytes());
                packed.bytes()
            }
        };
        Ok(rows.div_ceil(PACKED_ROWS).saturating_mul(group))
    }
}

fn for_people(report: &Report<'_>) -> Result<String> {
    let mut out = String::new();
    let size = report::bytes(report.file_bytes);
    writeln!(out, "{}", report.file)?;
    writeln!(
        out,
        "GGUF version {}, {size}, {}\n",
        report.gguf_version,
        report::counted(
            usize::try_from(report.parameters).unwrap_or(usize::MAX),
            "parameter"
        )
    )?;
    writeln!(
        out,
        "Metadata ({})",
        report::counted(report.metadata.len(), "key")
    )?;
    for (key, value) in &report.metadata {
        writeln!(out, "  {key} = {}", shown(value))?;
    }
    writeln!(out, "\nTensors ({})", report.tensors.len())?;
    let width = report
        .tensors
        .iter()
        .map(|t| t.name.len())
        .max()
        .unwrap_or(0);
    for t in &report.tensors {
        let shape: Vec<String> = t.shape.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "  {:<width$}  {:<5} [{}]",
            t.name,
            t.tensor_type,
            shape.join(", ")
        )?;
    }
    writeln!(out, "\nTypes")?;
    for t in &report.types {
        let size = report::bytes(t.bytes);
        writeln!(
            out,
            "  {:<5} {:>13} {:>20}  {size}",
            t.tensor_type,
            report::counted(t.tensors, "tensor"),
            format!("{} values", t.parameters)
        )?;
    }
    writeln!(out, "\nTokenizer")?;
    for (key, value) in report.tokenizer.as_object().into_iter().flatten() {
        writeln!(out, "  {key} = {}", shown(value))?;
    }
    match report.chat_template {
        Some(template) => writeln!(out, "\nChat template\n{}", indented(template))?,
        None => writeln!(out, "\nChat template: none")?,
    }
    match (&report.memory, &report.not_supported) {
        (Some(memory), _) => memory_for_people(&mut out, memory)?,
        (None, Some(why)) => writeln!(out, "\nThis model can't be run: {why}")?,
        (None, None) => {}
    }
    Ok(out)
}

fn memory_for_people(out: &mut String, memory: &MemoryNeeds) -> Result<()> {
    let size = |n: usize| report::bytes(n as u64);
    let MemoryNeeds { ctx, kv, .. } = memory;
    writeln!(out, "\nMemory")?;
    writeln!(out, "  weights         {}", size(memory.weights_bytes))?;
    writeln!(
        out,
        "  keys and values {} ({} of {kv})",
        size(memory.kv_bytes),
        report::counted(*ctx, "position")
    )?;
    writeln!(out, "  total           {}", size(memory.total_bytes))?;
    Ok(())
}

/// A value on one line, its end cut off where it is long.
fn shown(value: &Json) -> String {
    let text = match value {
        Json::Object(array) if array.contains_key("array_of") => {
            let first: Vec<String> = array["first"]
                .as_array()
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect();
            format!("[{}, … {} in all]", first.join(", "), array["length"])
        }
        value => value.to_string(),
    };
    match text.char_indices().nth(2 * CHARACTERS_SHOWN) {
        Some(_) => {
            let start: String = text.chars().take(CHARACTERS_SHOWN).collect();
            format!("{start}… ({})", report::counted(text.len(), "byte"))
        }
        None => text,
    }
}

fn indented(text: &str) -> String {
    text.lines()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_and_say_so() {
        assert_eq!(shown(&json!("short")), "\"short\"");
        let cut = shown(&json!("é".repeat(300)));
        assert!(
            cut.ends_with("… (602 bytes)") && cut.chars().count() < 120,
            "{cut}"
        );
        let array = json!({ "array_of": "u32", "length": 9, "first": [1, 2] });
        assert_eq!(shown(&array), "[1, 2, … 9 in all]");
    }
}
