//! What a file that isn't GGUF looks like, in words.

use super::error::counted;

/// How much of a text is shown.
const SHOWN_CHARACTERS: usize = 40;

/// Describes the start of a file that doesn't begin with the GGUF magic.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let head = bytes.get(..512).unwrap_or(bytes);
    let known = [
        (
            &b"PK\x03\x04"[..],
            "a zip archive (a wheel, or a PyTorch checkpoint)",
        ),
        (b"PK\x05\x06", "an empty zip archive"),
        (
            b"lmgg",
            "an old GGML file (from before GGUF): convert or download the model again",
        ),
        (
            b"fmgg",
            "an old GGMF file (from before GGUF): convert or download the model again",
        ),
        (
            b"tjgg",
            "an old GGJT file (from before GGUF): convert or download the model again",
        ),
        (b"algg", "an old GGML adapter (from before GGUF)"),
        (
            b"version https://git-lfs",
            "a Git LFS pointer: fetch the file itself with `git lfs pull`",
        ),
        (b"\x1f\x8b", "a gzip archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"\x80\x02", "a Python pickle (a PyTorch checkpoint)"),
        (b"\x89HDF", "an HDF5 file"),
        (b"FUGG", "the magic `GGUF` in reverse byte order"),
    ];
    if bytes.is_empty() {
        return "an empty file".into();
    }
    if let Some((_, what)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*what).into();
    }
    if b"GGUF".starts_with(bytes) {
        let first = counted(bytes.len() as u64, "byte");
        return format!("only the first {first} of a GGUF file (a truncated download?)");
    }
    if is_safetensors(bytes) {
        return "a safetensors file".into();
    }
    if head.iter().all(|&b| b == 0) {
        return "a file of zero bytes (an unfinished download?)".into();
    }
    let text = String::from_utf8_lossy(head)
        .trim_start()
        .to_ascii_lowercase();
    if text.starts_with("<!doctype") || text.starts_with("<html") {
        return "an HTML page (a download link that led to a web page?)".into();
    }
    if text.starts_with('{') || text.starts_with('[') {
        return "JSON text".into();
    }
    if let Some(begin) = beginning_of_text(head) {
        return format!("a text that begins with {begin:?}");
    }
    let begin = head.get(..8).unwrap_or(head);
    format!("a file that begins with the bytes {begin:02x?}")
}

/// The first words of what looks like text.
fn beginning_of_text(head: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The head may end inside a character.
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&head[..e.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    let first = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    text.chars()
        .all(is_text)
        .then(|| first.chars().take(SHOWN_CHARACTERS).collect())
}

/// A safetensors file starts with the length of a JSON object, in 8 bytes, and then the object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return false;
    };
    let len = u64::from_le_bytes(*len);
    rest.starts_with(b"{") && (2..1 << 32).contains(&len)
}
