//! The folder of cached model files.
//!
//! A model's file appears there by rename only, complete and checked. What is being fetched lies beside
//! it in a folder of its own, `NAME.PID.partial`, which is removed at the end, whatever the end. A lock
//! file per model (`.NAME.lock`, while it is fetched) keeps two processes from fetching the same; the
//! operating system drops the lock with the process, so whoever holds it knows that other partial folders of
//! that model were left behind by a killed process, and removes them.

use std::{
    env,
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{Reference, SourceError, error::io_error, hash, unfinished::Temporary};
use crate::catalogue;

/// The environment variable with the cache's folder.
const CACHE_VARIABLE: &str = "PLAINCHANT_CACHE";

/// How often another process's lock is looked at.
const POLL: Duration = Duration::from_millis(100);

/// How the name of a file that came from a package, not from the catalogue, begins.
const PACKAGE_PREFIX: &str = "pypi-";

/// The folder of cached model files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

/// A file in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// The reference that leads to it: a name of the catalogue, or `pypi:PACKAGE==VERSION`; none for a
    /// file that was put there by hand.
    pub reference: Option<String>,
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
}

/// What checking a cached file against its hash found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The hash is as expected.
    Intact {
        /// The SHA-256.
        sha256: String,
    },
    /// It isn't.
    Damaged {
        /// The SHA-256 found.
        found: String,
        /// The SHA-256 expected.
        expected: String,
    },
    /// Nothing says what the hash should be.
    Unknown {
        /// The SHA-256 found.
        sha256: String,
    },
}

impl Cache {
    /// The cache in that folder, which is created when first needed.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The user's cache: `$PLAINCHANT_CACHE`, else `$XDG_CACHE_HOME/plainchant/models`, else the
    /// system's usual place (`~/.cache/plainchant/models`; macOS `~/Library/Caches/plainchant/models`;
    /// Windows `%LOCALAPPDATA%\plainchant\models`).
    ///
    /// # Errors
    /// None of the environment variables is set.
    pub fn from_env() -> Result<Self, SourceError> {
        Self::from_variables(|name| env::var_os(name))
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, SourceError> {
        let folder = |name: &str| get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(folder) = folder(CACHE_VARIABLE) {
            return Ok(Self::new(folder));
        }
        let home = || folder("HOME").or_else(|| folder("USERPROFILE"));
        // The XDG rules say to ignore a path that isn't absolute.
        let caches = folder("XDG_CACHE_HOME")
            .filter(|p| p.is_absolute())
            .or_else(|| {
                if cfg!(windows) {
                    folder("LOCALAPPDATA").or_else(|| Some(home()?.join("AppData").join("Local")))
                } else if cfg!(target_os = "macos") {
                    Some(home()?.join("Library").join("Caches"))
                } else {
                    Some(home()?.join(".cache"))
                }
            });
        let caches = caches.ok_or(SourceError::NoCacheFolder)?;
        Ok(Self::new(caches.join("plainchant").join("models")))
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files in the cache, by name.
    ///
    /// # Errors
    /// The folder is there but can't be read.
    pub fn list(&self) -> Result<Vec<CachedModel>, SourceError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.folder_error("read the folder")(e)),
        };
        let mut models: Vec<CachedModel> = entries
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let metadata = fs::metadata(&path).ok()?;
                let is_model = path.extension().is_some_and(|e| e == "gguf") && metadata.is_file();
                is_model.then(|| CachedModel {
                    reference: reference_of(&path),
                    bytes: metadata.len(),
                    path,
                })
            })
            .collect();
        models.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(models)
    }

    /// Reads a cached file whole and checks it against its hash: that of the catalogue, or the one noted
    /// when it was fetched. `progress` gets the bytes read so far and says whether to go on.
    ///
    /// # Errors
    /// The file can't be read; the caller said to stop.
    pub fn verify(
        &self,
        model: &CachedModel,
        progress: impl FnMut(u64) -> bool,
    ) -> Result<Verification, SourceError> {
        let found = hash::of_file(&model.path, progress).map_err(io_error("read", &model.path))?;
        let found = found.ok_or(SourceError::Cancelled)?;
        let of_catalogue = model.reference.as_deref().and_then(catalogue::find);
        let expected = match of_catalogue {
            Some(model) => Some(model.sha256.clone()),
            None => fs::read_to_string(hash_note(&model.path))
                .ok()
                .and_then(|note| note.split_whitespace().next().map(str::to_owned)),
        };
        Ok(match expected {
            None => Verification::Unknown { sha256: found },
            Some(expected) if expected == found => Verification::Intact { sha256: found },
            Some(expected) => Verification::Damaged { found, expected },
        })
    }

    /// Removes a file from the cache.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&self, model: &CachedModel) -> Result<(), SourceError> {
        fs::remove_file(&model.path).map_err(io_error("remove", &model.path))?;
        let _ = fs::remove_file(hash_note(&model.path));
        Ok(())
    }

    /// Removes what killed processes left behind, and gives the bytes freed. What others are fetching
    /// just now stays.
    ///
    /// # Errors
    /// The folder is there but can't be read.
    pub fn clean(&self) -> Result<u64, SourceError> {
        let mut freed = 0;
        for (path, file) in self.partials()? {
            if let Some(_lock) = self.try_lock(&file)? {
                freed += size_of_folder(&path);
                let _ = fs::remove_dir_all(&path);
            }
        }
        Ok(freed)
    }

    /// Makes the folder where there is none, and finds out whether files can be put there.
    ///
    /// # Errors
    /// It can't be made or written to, with what to do.
    pub fn check_writable(&self) -> Result<(), SourceError> {
        self.create_folder()?;
        let path = self.path_of(&format!(".probe.{}", std::process::id()));
        let created = File::create(&path).and_then(|mut file| file.write_all(b"."));
        let _ = fs::remove_file(&path);
        created.map_err(io_error("write", path))
    }

    fn create_folder(&self) -> Result<(), SourceError> {
        fs::create_dir_all(&self.folder).map_err(self.folder_error("create the folder"))
    }

    /// The path of a file in the cache.
    pub(super) fn path_of(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The cached file of that name, where it is no more than a name.
    pub(super) fn find_file(&self, name: &Path) -> Option<PathBuf> {
        let is_name = name.file_name() == Some(name.as_os_str());
        is_name
            .then(|| self.folder.join(name))
            .filter(|path| path.is_file())
    }

    /// The newest cached version of a package.
    pub(super) fn newest_of_package(&self, name: &str) -> Result<Option<PathBuf>, SourceError> {
        let prefix = format!("pypi:{name}==");
        let versions = self.list()?.into_iter().filter_map(|model| {
            let version = model.reference?.strip_prefix(&prefix)?.to_owned();
            Some((version_key(&version), model.path))
        });
        Ok(versions.max().map(|(_, path)| path))
    }

    /// Waits until this process may fetch `file`; meanwhile calls `waiting`, which may refuse to go on.
    pub(super) fn lock(
        &self,
        file: &str,
        waiting: &mut dyn FnMut() -> Result<(), SourceError>,
    ) -> Result<Lock, SourceError> {
        loop {
            if let Some(lock) = self.try_lock(file)? {
                return Ok(lock);
            }
            waiting()?;
            thread::sleep(POLL);
        }
    }

    /// The lock, unless another process has it.
    fn try_lock(&self, file: &str) -> Result<Option<Lock>, SourceError> {
        loop {
            let (path, lock) = self.open_lock(file)?;
            match lock.try_lock() {
                // Whoever held it before removed it: it excludes nobody any more.
                Ok(()) if !is_at(&lock, &path) => {}
                Ok(()) => return Ok(Some(Lock::new(path, Some(lock)))),
                Err(TryLockError::WouldBlock) => return Ok(None),
                // A file system without locks: both processes fetch then, each into its own partial folder,
                // and the later rename replaces the same content.
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Some(Lock::new(path, None)));
                }
                Err(TryLockError::Error(e)) => return Err(io_error("lock", path)(e)),
            }
        }
    }

    fn open_lock(&self, file: &str) -> Result<(PathBuf, File), SourceError> {
        self.create_folder()?;
        let path = self.path_of(&format!(".{file}.lock"));
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        Ok((path.clone(), lock.map_err(io_error("open", path))?))
    }

    /// A new, empty folder for what is being fetched of `file`. Older ones of that file are removed
    /// where the lock says that nobody uses them.
    pub(super) fn partial(&self, file: &str, lock: &Lock) -> Result<Partial, SourceError> {
        if lock.excludes() {
            for (path, of_file) in self.partials()? {
                if of_file == file {
                    let _ = fs::remove_dir_all(path);
                }
            }
        }
        let pid = std::process::id();
        // With the lock the first number is free; without, or where removing failed, a later one is.
        for number in 0..1000 {
            let path = self.path_of(&format!("{file}.{pid}-{number}.partial"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Partial(Temporary::new(path))),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io_error("create the folder", path)(e)),
            }
        }
        let error = io::Error::from(io::ErrorKind::AlreadyExists);
        Err(io_error("create a partial folder in", &self.folder)(error))
    }

    /// An error of the cache's folder, which may be no folder.
    fn folder_error(&self, action: &'static str) -> impl FnOnce(io::Error) -> SourceError {
        move |error| {
            let is_file = |path: &&Path| fs::metadata(path).is_ok_and(|m| !m.is_dir());
            match self.folder.ancestors().find(is_file) {
                Some(file) => SourceError::CacheNotAFolder {
                    folder: self.folder.clone(),
                    file: file.to_owned(),
                },
                None => io_error(action, &self.folder)(error),
            }
        }
    }

    /// The partial folders, each with the file it is for.
    fn partials(&self) -> Result<Vec<(PathBuf, String)>, SourceError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.folder_error("read the folder")(e)),
        };
        let partial = |path: PathBuf| {
            let name = path.file_name()?.to_str()?.strip_suffix(".partial")?;
            let file = name.rsplit_once('.')?.0.to_owned();
            Some((path, file))
        };
        Ok(entries.filter_map(|e| partial(e.ok()?.path())).collect())
    }
}

/// The right to fetch a file; ends when dropped, and with the process.
pub(super) struct Lock {
    /// Removed while the lock is still held, so that nobody else's lock is removed. Where a file that is
    /// open can't be told from the one of that name, it stays.
    _path: Option<Temporary>,
    /// `None`: the file system has no locks.
    file: Option<File>,
}

impl Lock {
    fn new(path: PathBuf, file: Option<File>) -> Self {
        Self {
            _path: cfg!(unix).then(|| Temporary::new(path)),
            file,
        }
    }

    /// Whether nobody else can have it.
    fn excludes(&self) -> bool {
        self.file.is_some()
    }
}

/// Whether an open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |m: fs::Metadata| (m.dev(), m.ino());
        match (file.metadata(), fs::metadata(path)) {
            (Ok(open), Ok(there)) => identity(open) == identity(there),
            _ => false,
        }
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

/// A folder for what is being fetched, removed when dropped.
pub(super) struct Partial(Temporary);

impl Partial {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The name of the file for a package's version.
pub(super) fn package_file(name: &str, version: &str) -> String {
    format!("{PACKAGE_PREFIX}{name}-{version}.gguf")
}

fn reference_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    if let Some(model) = catalogue::models().iter().find(|m| m.file == file) {
        return Some(model.name.clone());
    }
    let package = file.strip_prefix(PACKAGE_PREFIX)?.strip_suffix(".gguf")?;
    let (name, version) = package.rsplit_once('-')?;
    let reference = format!("pypi:{name}=={version}");
    // Only where it leads back to this file.
    match Reference::parse(&reference) {
        Ok(Reference::Package {
            name,
            version: Some(version),
        }) if package_file(&name, &version) == file => Some(reference),
        _ => None,
    }
}

/// The file that notes the hash of a file with none in the catalogue, in the form of `sha256sum`.
pub(super) fn hash_note(path: &Path) -> PathBuf {
    let mut note = path.as_os_str().to_owned();
    note.push(".sha256");
    note.into()
}

/// Orders versions by their numbers, then as text.
fn version_key(version: &str) -> (Vec<u64>, String) {
    let numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok());
    (numbers.collect(), version.to_owned())
}

fn size_of_folder(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(m) if m.is_dir() => size_of_folder(&entry.path()),
            Ok(m) => m.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[cfg(all(unix, not(target_os = "macos")))]
    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                variables
                    .iter()
                    .find(|v| v.0 == name)
                    .map(|v| OsString::from(v.1))
            };
            Cache::from_variables(get).map(|c| c.folder.to_str().unwrap().to_owned())
        };
        let all = [
            ("PLAINCHANT_CACHE", "/a"),
            ("XDG_CACHE_HOME", "/b"),
            ("HOME", "/c"),
        ];
        assert_eq!(folder(&all).unwrap(), "/a");
        assert_eq!(folder(&all[1..]).unwrap(), "/b/plainchant/models");
        assert_eq!(folder(&all[2..]).unwrap(), "/c/.cache/plainchant/models");
        let relative = [
            ("PLAINCHANT_CACHE", ""),
            ("XDG_CACHE_HOME", "b"),
            ("HOME", "/c"),
        ];
        assert_eq!(folder(&relative).unwrap(), "/c/.cache/plainchant/models");
        assert!(matches!(folder(&[]), Err(SourceError::NoCacheFolder)));
    }

    /// Whoever waited at the file of a lock that has ended since holds nothing.
    #[cfg(unix)]
    #[test]
    fn a_lock_goes_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let first = cache.try_lock("m").unwrap().unwrap();
        let (path, waiting) = cache.open_lock("m").unwrap();
        assert!(is_at(&waiting, &path));
        assert!(cache.try_lock("m").unwrap().is_none());
        drop(first);
        waiting.try_lock().unwrap();
        assert!(!is_at(&waiting, &path));
        let second = cache.try_lock("m").unwrap().unwrap();
        assert!(cache.try_lock("m").unwrap().is_none());
        drop(second);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn versions_are_ordered_by_number() {
        let mut versions = ["1.10.0", "1.9.2", "1.9", "0.99", "1.10.0rc1"];
        versions.sort_by_key(|v| version_key(v));
        assert_eq!(versions, ["0.99", "1.9", "1.9.2", "1.10.0", "1.10.0rc1"]);
    }

    #[test]
    fn file_names_and_references_belong_together() {
        let reference = |file: &str| reference_of(Path::new(file));
        assert_eq!(
            reference(&package_file("a-b", "1.0")).unwrap(),
            "pypi:a-b==1.0"
        );
        let smollm = "SmolLM2-135M-Instruct.Q4_1.gguf";
        assert_eq!(reference(smollm).unwrap(), "smollm2-135m-instruct");
        assert_eq!(reference("mine.gguf"), None);
    }
}
