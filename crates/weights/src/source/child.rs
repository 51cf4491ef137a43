//! A child process in a group of its own, so that all that it started ends with it, and what it said last.

use std::{
    collections::VecDeque,
    io::{self, Read},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use super::{SourceError, error::io_error, unfinished::Group};

/// How often a running child is looked at.
const POLL: Duration = Duration::from_millis(100);

/// How long the end of its words is waited for after its own: something that it left running may hold the
/// other end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much of what it said is kept, in bytes.
const TAIL_BYTES: usize = 8192;

/// A child process, ended when dropped.
pub(super) struct Running {
    child: Child,
    group: Group,
    stderr: Tail,
}

/// What came of a child.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// The end of what it wrote to standard error.
    pub(super) said: String,
}

impl Running {
    /// Starts it, with nothing on standard input and nobody who reads its standard output.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut child = command.spawn()?;
        let group = Group::new(child.id());
        let stderr = child.stderr.take();
        let mut running = Self {
            child,
            group,
            stderr: Tail::nothing(),
        };
        if let Some(stderr) = stderr {
            running.stderr = Tail::of(stderr)?;
        }
        Ok(running)
    }

    /// Waits for its end; `meanwhile` is called from time to time and may refuse to wait any longer.
    pub(super) fn wait(
        mut self,
        meanwhile: &mut dyn FnMut() -> Result<(), SourceError>,
    ) -> Result<Ended, SourceError> {
        loop {
            let status = self.child.try_wait().map_err(io_error("wait for", "pip"))?;
            if let Some(status) = status {
                if !status.success() {
                    self.group.kill();
                }
                let said = self.stderr.text();
                return Ok(Ended { status, said });
            }
            meanwhile()?;
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        self.group.kill();
        // Both fail where it has ended, which is as wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of a stream, collected by a thread: memory rather than a file, since a disk that is full could
/// not take the message that says so.
struct Tail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    /// Closed by the thread where the stream ends.
    ended: Option<Receiver<()>>,
}

impl Tail {
    fn nothing() -> Self {
        Self {
            bytes: Arc::default(),
            ended: None,
        }
    }

    fn of(mut stream: ChildStderr) -> io::Result<Self> {
        let bytes: Arc<Mutex<VecDeque<u8>>> = Arc::default();
        let (end, ended) = mpsc::channel::<()>();
        let kept = Arc::clone(&bytes);
        let read = move || {
            let _end = end;
            let mut buffer = [0; 4096];
            loop {
                let count = match stream.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(count) => count,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&buffer[..count]);
                let excess = kept.len().saturating_sub(TAIL_BYTES);
                kept.drain(..excess);
            }
        };
        thread::Builder::new().name("pip".into()).spawn(read)?;
        Ok(Self {
            bytes,
            ended: Some(ended),
        })
    }

    fn text(&self) -> String {
        if let Some(ended) = &self.ended {
            let _ = ended.recv_timeout(LAST_WORDS);
        }
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(bytes.make_contiguous()).into_owned()
    }
}
