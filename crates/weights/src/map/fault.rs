//! What happens when the pages of a map can't be read: the file has shrunk, or its disk fails.
//!
//! The system raises `SIGBUS` then, which ends a process without a word. The handler here says which file it
//! was and ends the process with exit status 1. A fault elsewhere is left to whoever handled it before.

use std::{
    io::{self, IsTerminal},
    ops::Range,
    path::Path,
    ptr,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicPtr, AtomicUsize, Ordering},
    },
};

/// What is mapped. The handler walks it, so its entries are never freed, only used again.
static WATCHED: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// For those who change it.
static CHANGES: Mutex<()> = Mutex::new(());

/// The action before ours.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

struct Entry {
    /// The first address.
    start: AtomicUsize,
    /// The address past the last; 0 where the entry is free. Written last and read first, so that whoever sees it
    /// sees the start that goes with it.
    end: AtomicUsize,
    /// What the handler writes.
    message: AtomicPtr<String>,
    next: *mut Entry,
}

/// A map that the handler knows, until dropped, which must be before the map is.
#[derive(Debug)]
pub(super) struct Watch(&'static Entry);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

// SAFETY: entries are never freed, and changed through atomics only; `next` is not changed once an entry can be seen.
unsafe impl Sync for Entry {}
// SAFETY: as above.
unsafe impl Send for Entry {}

impl Watch {
    /// Watches over these addresses, where the file `path` is mapped.
    pub(super) fn new(addresses: Range<usize>, path: &Path) -> Self {
        install();
        // The line may have a progress bar on it.
        let begin = if io::stderr().is_terminal() { "\n" } else { "" };
        let message = format!(
            "{begin}error: {} changed while it was read, or its disk failed: a part of it can't be read any more; put \
             a new file in place by renaming it\n",
            path.display()
        );
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = free_entry();
        let message = Box::into_raw(Box::new(message));
        let old = entry.message.swap(message, Ordering::Release);
        entry.start.store(addresses.start, Ordering::Relaxed);
        entry.end.store(addresses.end, Ordering::Release);
        if !old.is_null() {
            // SAFETY: it came from `Box::into_raw` and nobody reads it: the handler reads that of an entry with a
            // faulting address in it only, and the map that had this entry is gone.
            drop(unsafe { Box::from_raw(old) });
        }
        Self(entry)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.end.store(0, Ordering::Release);
    }
}

/// An entry that is not used, a new one if need be. Only for who holds the lock.
fn free_entry() -> &'static Entry {
    if let Some(entry) = find(|end, _| end == 0) {
        return entry;
    }
    let entry = Box::leak(Box::new(Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        message: AtomicPtr::new(ptr::null_mut()),
        next: WATCHED.load(Ordering::Relaxed),
    }));
    WATCHED.store(entry, Ordering::Release);
    entry
}

/// The first entry whose end and start are as wanted.
fn find(wanted: impl Fn(usize, usize) -> bool) -> Option<&'static Entry> {
    let mut next = WATCHED.load(Ordering::Acquire);
    // SAFETY: entries are leaked boxes, whole before they can be seen.
    while let Some(entry) = unsafe { next.as_ref() } {
        let end = entry.end.load(Ordering::Acquire);
        if wanted(end, entry.start.load(Ordering::Relaxed)) {
            return Some(entry);
        }
        next = entry.next;
    }
    None
}

/// Installs the handler, once in a process.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a zeroed `sigaction` is a valid one of plain numbers and no handler.
        let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        ours.sa_sigaction = handler as usize;
        // On the stack for signals where the thread has one, as the one who was here before may need.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are valid for the calls. What is installed before can be read by the handler, since it is
        // stored before ours is installed.
        unsafe {
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before);
            BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
            libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
        }
    });
}

/// Only calls what may be called in a handler of signals: no allocation, no lock.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the system gives a valid one, and that of SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let message = find(|end, start| (start..end).contains(&address))
        .map(|entry| entry.message.load(Ordering::Acquire));
    // SAFETY: an entry in use has a message, which stays as long as the map: whoever touched the address holds it.
    match message.and_then(|message| unsafe { message.as_ref() }) {
        // SAFETY: `write` and `_exit` may be called here; the message is valid for its length.
        Some(message) => unsafe {
            let _ = libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
            libc::_exit(1);
        },
        // The access is tried again when this returns, and raises the signal again.
        // SAFETY: `sigaction` may be called here; what it gets is stored before this handler is installed.
        None => unsafe {
            libc::sigaction(signal, BEFORE.load(Ordering::Acquire), ptr::null_mut());
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fs::File, os::unix::process::ExitStatusExt, process::Command, thread};

    use super::super::Bytes;

    const CASE: &str = "PLAINCHANT_TEST_FAULT";

    /// Runs the test of that name in a process of its own, with the case told.
    fn child(name: &str) -> std::process::Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name_of_test = format!("map::fault::tests::{name}");
        let args = ["--exact", &name_of_test, "--nocapture"];
        command.args(args).env(CASE, "1").output().unwrap()
    }

    fn is_child() -> bool {
        std::env::var_os(CASE).is_some()
    }

    /// A file of 4 MiB, its path, and the folder that holds it.
    fn file() -> (tempfile::TempDir, std::path::PathBuf, File) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let file = File::create_new(&path).unwrap();
        file.set_len(4 << 20).unwrap();
        let reader = File::open(&path).unwrap();
        drop(reader);
        (folder, path, file)
    }

    #[test]
    fn a_file_that_shrinks_ends_the_process_with_its_name() {
        if is_child() {
            let (folder, path, file) = file();
            // A map that is gone leaves its entry to the next.
            drop(Bytes::map(&File::open(&path).unwrap(), &folder.path().join("other")).unwrap());
            let bytes = Bytes::map(&File::open(&path).unwrap(), &path).unwrap();
            file.set_len(1).unwrap();
            let read = thread::spawn(move || bytes.as_slice()[3 << 20]).join();
            panic!("read {read:?}");
        }
        let output = child("a_file_that_shrinks_ends_the_process_with_its_name");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let said = stderr.contains("/model.gguf changed while it was read");
        assert!(said && stderr.contains("error: "), "{stderr}");
    }

    #[test]
    fn a_fault_elsewhere_is_not_taken_for_one_of_ours() {
        if is_child() {
            let (_folder, path, file) = file();
            let _ours = Bytes::map(&File::open(&path).unwrap(), &path).unwrap();
            // SAFETY: a test of what touching it does.
            let other = unsafe { memmap2::Mmap::map(&file) };
            file.set_len(1).unwrap();
            panic!("read {:?}", other.map(|map| map[3 << 20]));
        }
        let output = child("a_fault_elsewhere_is_not_taken_for_one_of_ours");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
