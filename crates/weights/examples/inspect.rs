//! Lists what a GGUF file holds: `cargo run --example inspect FILE`.
#![allow(clippy::print_stdout)]

use weights::gguf::Gguf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: inspect FILE")?;
    let gguf = Gguf::open(path)?;
    for (key, value) in gguf.metadata().iter() {
        println!("{key} = {value}");
    }
    for tensor in gguf.tensors() {
        println!(
            "{:40} {:?} {}",
            tensor.name(),
            tensor.shape(),
            tensor.tensor_type()
        );
    }
    println!("{:#?}", gguf.facts());
    Ok(())
}
