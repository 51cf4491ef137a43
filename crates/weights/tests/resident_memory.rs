//! Loading must not hold the file and its packed form in memory at once. In a file of its own, since the
//! peak is that of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;

use kernels::{formats::Format, pool::Pool};
use weights::{
    gguf::{Gguf, writer::Writer},
    load::load_matrix,
};

/// A figure in `/proc/self/status`, bytes.
fn status(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(key)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

#[test]
fn peak_memory_stays_near_the_packed_size() {
    const MATRICES: usize = 3;
    const SHAPE: [usize; 2] = [16 * 1024, 2048];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = Writer::new();
    for i in 0..MATRICES {
        writer.declare(&format!("m{i}"), &[SHAPE[1], SHAPE[0]], Format::Q8_0);
    }
    let mut out = writer
        .begin(std::io::BufWriter::new(fs::File::create(&path).unwrap()))
        .unwrap();
    let row = vec![1; SHAPE[1] / 32 * 34];
    for _ in 0..MATRICES * SHAPE[0] {
        out.write(&row).unwrap();
    }
    out.finish().unwrap();

    let gguf = Gguf::open(&path).unwrap();
    let tensor_bytes = gguf.facts().tensor_bytes as usize;
    let pool = Pool::new(2);
    let before = status("VmRSS");
    let matrices: Vec<_> = (0..MATRICES)
        .map(|i| load_matrix(&gguf, &format!("m{i}"), SHAPE, &pool).unwrap())
        .collect();
    let grown = status("VmHWM") - before;
    let packed: usize = matrices.iter().map(|m| m.bytes()).sum();
    assert!(
        grown >= packed,
        "{grown} < {packed}: the measurement is broken"
    );
    assert!(
        grown <= tensor_bytes + tensor_bytes / 4,
        "the peak grew by {grown} bytes for {tensor_bytes} bytes of tensors ({packed} packed)"
    );
}
