//! SHA-256 of what is written, and of files.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use sha2::{Digest, Sha256};

/// Passes bytes on to `out`, hashing and counting them, up to a limit.
pub(super) struct HashingWriter<W> {
    out: W,
    hash: Sha256,
    written: u64,
}

impl<W: Write> HashingWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            hash: Sha256::new(),
            written: 0,
        }
    }

    /// Bytes passed on so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// The writer, and the hash in hexadecimal.
    pub(super) fn finish(self) -> (W, String) {
        (self.out, hex(&self.hash.finalize()))
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The SHA-256 of a file, in hexadecimal; `progress` gets the bytes read so far and says whether to go
/// on (`None` is returned where it doesn't).
pub(super) fn of_file(
    path: &Path,
    mut progress: impl FnMut(u64) -> bool,
) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(Some(hex(&hash.finalize()))),
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hash.update(&buffer[..count]);
        done += count as u64;
        if !progress(done) {
            return Ok(None);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
