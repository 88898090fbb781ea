//! The process that serves a supervised mount: what its supervisor gives it, and what it leaves to
//! the next one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_client::handover::{FORMAT, MountNote};
use kestrel_vfs::{Handover, Mount, Predecessor};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    ACCEPTED, CHECK_OPTION, DESCRIPTORS, FRESH, LEAVES, READY, SOCKET_ENV, START, TAKE_OVER, socket,
};

/// How long another program may take to say what it can take over.
const CHECK: Duration = Duration::from_secs(10);

/// How long requests wait while a mount is being left, at most.
const PAUSE: Duration = Duration::from_secs(10);

/// Makes durable what the volume has, when nothing uses it any more.
pub type Settle = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The way to the supervisor.
pub struct Supervised {
    socket: OwnedFd,
    /// How often the mount was handed over or taken over.
    generation: u32,
    /// Why the last attempt to take it over has failed, if it has.
    failure: String,
    predecessor: Mutex<Option<Predecessor>>,
    handover: Mutex<Option<(Handover, Settle)>>,
}

impl Supervised {
    /// This process's supervisor, if it has one. Called once, before threads are started.
    ///
    /// # Errors
    /// If what the supervisor says cannot be understood.
    pub fn from_environment() -> Result<Option<Arc<Self>>, String> {
        let Some(number) = std::env::var_os(SOCKET_ENV) else { return Ok(None) };
        let number = number.to_str().and_then(|text| text.parse::<RawFd>().ok());
        let number = number.ok_or_else(|| format!("{SOCKET_ENV} is no number"))?;
        // SAFETY: no other thread reads or changes the environment yet.
        unsafe { std::env::remove_var(SOCKET_ENV) };
        // SAFETY: the number only says which descriptor it is; it fails if there is none.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(format!("{SOCKET_ENV}: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the supervisor has opened it for this process, in which nothing else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        Self::greet(socket).map(|supervised| Some(Arc::new(supervised)))
    }

    fn greet(socket: OwnedFd) -> Result<Self, String> {
        let next = || {
            socket::receive(&socket)
                .map_err(|why| format!("the supervisor: {why}"))?
                .ok_or_else(|| String::from("the supervisor is gone"))
        };
        let start = next()?;
        let said: Value = serde_json::from_slice(&start.text).unwrap_or_default();
        if start.kind != START {
            return Err("the supervisor is of another version".into());
        }
        let number = |name: &str| said[name].as_u64().and_then(|number| number.try_into().ok());
        let generation = number("generation").unwrap_or_default();
        let failure = said["failure"].as_str().unwrap_or_default().to_string();
        let predecessor = match said["how"].as_str() {
            Some(FRESH) => None,
            Some(TAKE_OVER) => {
                let state = start.fds.into_iter().next().ok_or("the supervisor sent no state")?;
                let mut note = read_note(state)?;
                // Numbers that an attempt which failed has used are not used again.
                for session in &mut note.client.sessions {
                    session.calls += u64::from(generation) << 24;
                    session.incarnation += u64::from(generation) << 24;
                }
                let count: u32 = number("descriptors").unwrap_or_default();
                let mut descriptors = Vec::new();
                while descriptors.len() < count as usize {
                    let message = next()?;
                    if message.kind != DESCRIPTORS || message.fds.is_empty() {
                        return Err("the supervisor sent too few descriptors".into());
                    }
                    descriptors.extend(message.fds);
                }
                Some(Predecessor { descriptors, note })
            }
            _ => return Err("the supervisor is of another version".into()),
        };
        let (predecessor, handover) = (Mutex::new(predecessor), Mutex::default());
        Ok(Self { socket, generation, failure, predecessor, handover })
    }

    /// What the process before has left; it can be had once.
    pub fn take_predecessor(&self) -> Option<Predecessor> {
        self.predecessor.lock().take()
    }

    /// Whether a mount that is there is taken over, and where it is. Nothing may look at it: it
    /// does not answer yet.
    pub fn takes_over(&self) -> Option<PathBuf> {
        self.predecessor.lock().as_ref().and_then(|predecessor| predecessor.dir().ok())
    }

    /// A look at what the process before has left.
    pub fn with_note<T>(&self, look: impl FnOnce(&MountNote) -> T) -> Option<T> {
        self.predecessor.lock().as_ref().map(|predecessor| look(&predecessor.note))
    }

    /// The mount serves: the supervisor keeps its descriptors.
    ///
    /// # Errors
    /// If the supervisor is gone.
    pub fn serves(&self, mount: &Mount, settle: Settle) -> Result<(), String> {
        let mut fds: Vec<RawFd> =
            mount.session.descriptors().iter().map(|fd| fd.as_raw_fd()).collect();
        fds.dedup();
        *self.handover.lock() = mount.handover.clone().map(|handover| (handover, settle));
        let told = fds
            .chunks(socket::FDS_MAX)
            .try_for_each(|fds| socket::send(&self.socket, DESCRIPTORS, b"", fds))
            .and_then(|()| socket::send(&self.socket, READY, b"", &[]));
        told.map_err(|why| format!("the supervisor of the mount does not answer: {why}"))
    }

    /// For `kestrel status`.
    pub fn describe(&self) -> Value {
        json!({
            "generation": self.generation,
            "supervisor_is_gone": socket::is_gone(&self.socket),
            "last_failure": self.failure,
        })
    }

    /// Answers a question of `kestrel upgrade`: leaves the mount to the program that it names, and
    /// ends this process. Comes back only with an error; the mount goes on then.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn hand_over(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        let program = question["program"].as_str().ok_or("the question names no program")?;
        if socket::is_gone(&self.socket) {
            return Err("the supervisor of this mount was killed: unmount and mount anew".into());
        }
        check(Path::new(program))?;
        let handover = self.handover.lock();
        let (handover, settle) = handover.as_ref().ok_or("the mount does not serve yet")?;
        let begun = Instant::now();
        let paused = handover.pause(PAUSE)?;
        tell(&json!({ "leaves": std::process::id(), "generation": self.generation }));
        let (note, durable) = paused.leave();
        if let Err(why) = durable.map_err(|why| why.to_string()).and_then(|()| settle()) {
            log::error!("not all that was stored may be durable: {why}");
        }
        let left = serde_json::to_vec(&note)
            .map_err(|why| why.to_string())
            .and_then(|bytes| memory_file(&bytes).map_err(|why| why.to_string()))
            .and_then(|state| self.leave(program, &state));
        match left {
            Ok(()) => {
                log::info!(
                    "{} takes the mount over after {:.1?}: {} files and {} directories are open",
                    program,
                    begun.elapsed(),
                    note.files.len(),
                    note.dirs.len()
                );
                std::process::exit(0)
            }
            Err(why) => {
                log::error!("the mount ends: what it is cannot be left to another process: {why}");
                std::process::exit(1)
            }
        }
    }

    fn leave(&self, program: &str, state: &File) -> Result<(), String> {
        let sent = socket::send(&self.socket, LEAVES, program.as_bytes(), &[state.as_raw_fd()]);
        sent.map_err(|why| why.to_string())?;
        match socket::receive(&self.socket) {
            Ok(Some(answer)) if answer.kind == ACCEPTED => Ok(()),
            Ok(_) => Err("the supervisor does not answer".into()),
            Err(why) => Err(why.to_string()),
        }
    }
}

/// Whether a program can take over what this one leaves.
fn check(program: &Path) -> Result<(), String> {
    let shown = program.display();
    let cannot = |why: &dyn std::fmt::Display| {
        format!("{shown} cannot take the mount over, which goes on as it was: {why}")
    };
    let mut child = Command::new(program)
        .arg(CHECK_OPTION)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|why| cannot(&why))?;
    let end = Instant::now() + CHECK;
    let status = loop {
        match child.try_wait().map_err(|why| cannot(&why))? {
            Some(status) => break status,
            None if Instant::now() >= end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(cannot(&"it does not answer"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut said = String::new();
    if let Some(output) = &mut child.stdout {
        let _ = output.take(4096).read_to_string(&mut said);
    }
    let formats: Value = serde_json::from_str(&said).unwrap_or_default();
    match formats["takes_over"].as_array() {
        Some(formats) if formats.iter().any(|one| *one == FORMAT) => Ok(()),
        Some(_) => Err(cannot(&format!(
            "it does not understand what this version leaves (form {FORMAT}); unmount and mount \
             anew"
        ))),
        None => Err(cannot(&format!("it is no kestrel that takes mounts over ({status})"))),
    }
}

/// What this program prints for [`CHECK_OPTION`].
pub fn taken_over() -> Value {
    json!({ "takes_over": [FORMAT], "version": env!("CARGO_PKG_VERSION") })
}

/// A file in memory, without a name.
fn memory_file(bytes: &[u8]) -> std::io::Result<File> {
    // SAFETY: a live C string.
    let fd = unsafe { libc::memfd_create(c"kestrel-mount".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it has just been opened, and nothing else knows it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(bytes)?;
    Ok(file)
}

fn read_note(state: OwnedFd) -> Result<MountNote, String> {
    let mut bytes = Vec::new();
    let mut file = File::from(state);
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    read.map_err(|why| format!("what the process before has left cannot be read: {why}"))?;
    serde_json::from_slice(&bytes)
        .map_err(|why| format!("what the process before has left cannot be understood: {why}"))
}
