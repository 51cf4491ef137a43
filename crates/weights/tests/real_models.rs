//! The real models of the developers' cache, where they are there: every tensor loads.
#![allow(clippy::unwrap_used)]

use std::{env, fs, path::PathBuf};

use kernels::pool::Pool;
use weights::{
    gguf::Gguf,
    load::{LoadOptions, Loader},
};

fn models() -> Vec<PathBuf> {
    let folder = env::var_os("PLAINCHANT_DEV_MODELS")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/plainchant-dev-models")));
    let files = folder
        .and_then(|f| fs::read_dir(f).ok())
        .into_iter()
        .flatten();
    let files = files.filter_map(|e| Some(e.ok()?.path()));
    files
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect()
}

#[test]
fn directories_of_real_models_read_whole() {
    for path in models() {
        let gguf = Gguf::open(&path).unwrap();
        let metadata = gguf.metadata();
        let architecture = metadata.get_str("general.architecture").unwrap();
        assert!(
            metadata
                .get_u32(&format!("{architecture}.block_count"))
                .unwrap()
                > 0
        );
        let tokens = metadata.get_str_array("tokenizer.ggml.tokens").unwrap();
        let embedding = gguf.tensor("token_embd.weight").unwrap();
        assert_eq!(tokens.len(), embedding.rows());
        assert_eq!(tokens.count(), embedding.rows());
        let types = metadata.get_i32_array("tokenizer.ggml.token_type").unwrap();
        assert_eq!(types.count(), embedding.rows());
    }
}

/// Minutes in a debug build, so only on request: `cargo test --release -- --ignored`.
#[test]
#[ignore = "reads gigabytes"]
fn every_tensor_of_real_models_loads() {
    let pool = Pool::new(2);
    for path in models() {
        let gguf = Gguf::open(&path).unwrap();
        let loader = Loader::new(&gguf, &pool, LoadOptions::default());
        for tensor in gguf.tensors() {
            match tensor.dims() {
                [len] => assert_eq!(loader.vector(tensor.name(), *len).unwrap().len(), *len),
                [cols, rows] => {
                    let packed = loader.matrix(tensor.name(), [*rows, *cols]).unwrap();
                    assert!(packed.bytes() as u64 >= tensor.bytes());
                }
                dims => panic!("{}: {dims:?}", tensor.name()),
            }
        }
    }
}
