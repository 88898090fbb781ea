//! The supervisor of a mount: a small process that keeps the connection to the kernel while the
//! processes that serve it come and go.
//!
//! | file | |
//! | --- | --- |
//! | `served` | the process that serves the mount: what it is given, and what it leaves |
//! | `socket` | messages with descriptors between the two |
//!
//! It starts the program again as its child, with one end of a socket. The child mounts, and sends
//! the descriptors of `/dev/fuse`: the kernel ends neither the connection nor requests as long as
//! this process has them, too. To be replaced the child sends what it leaves, a file in memory, and
//! ends; the next child gets both ([`Supervised`]).
//!
//! This process has one thread, reads no volume and no mount, and allocates next to nothing. If it
//! is killed, the mount goes on as one without a supervisor.
//!
//! **What fails.** A child that ends without having left anything takes the mount with it, as that
//! of any mount does. If the program that is to take over fails, the one that served before does
//! it: [`ATTEMPTS`] times, at growing intervals.

mod served;
mod socket;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::failure::{ExitStatus, Failure};
pub use served::{Settle, Supervised, taken_over};
use socket::Message;

/// The environment variable that names the socket to the child.
const SOCKET_ENV: &str = "KESTREL_SUPERVISOR";

/// What a program is asked that may take over: it prints [`taken_over`].
pub const CHECK_OPTION: &str = "takes-over";

/// Kinds of messages. To the child: how it begins, descriptors, and that what it leaves is here.
const START: u8 = b'S';
const DESCRIPTORS: u8 = b'D';
const ACCEPTED: u8 = b'A';
/// From the child: descriptors, that it serves, and what it leaves.
const READY: u8 = b'R';
const LEAVES: u8 = b'L';

/// How a child begins.
const FRESH: &str = "mount";
const TAKE_OVER: &str = "take over";

/// How often a mount is tried to be taken over before it is given up.
const ATTEMPTS: u32 = 6;

/// Pause before the second attempt; it doubles.
const BACKOFF: Duration = Duration::from_millis(100);

/// How long a child may take until it serves what it takes over. Callers wait meanwhile.
const TAKE_OVER_MAX: Duration = Duration::from_secs(60);

/// The program that runs here, also when a newer one has been put in the place of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Serves a mount through children. `args` are those of this program. Call with no other thread.
///
/// # Errors
/// If a child cannot be started, or has failed to mount.
pub fn run(args: &[OsString]) -> Result<ExitStatus, Failure> {
    let fail = |why: std::io::Error| Failure::new("mount", format!("the supervisor: {why}"));
    let signals = block_signals().map_err(fail)?;
    Supervisor {
        args,
        signals,
        kept: Vec::new(),
        sent: Vec::new(),
        state: None,
        program: OWN_PROGRAM.into(),
        serving: None,
        generation: 0,
        failure: String::new(),
        attempts: 0,
        serves: false,
    }
    .run()
}

struct Supervisor<'a> {
    args: &'a [OsString],
    /// Signals as a descriptor.
    signals: OwnedFd,
    /// The connection to the kernel.
    kept: Vec<OwnedFd>,
    /// What of it the present child has sent.
    sent: Vec<OwnedFd>,
    /// What the child before has left, until another one has taken it over.
    state: Option<OwnedFd>,
    /// What is started next.
    program: OsString,
    /// The program of the child that served last.
    serving: Option<File>,
    /// Children that have taken over, or tried.
    generation: u32,
    /// Why the last one that tried has failed.
    failure: String,
    /// How many have failed in a row.
    attempts: u32,
    /// The present child serves.
    serves: bool,
}

impl Supervisor<'_> {
    fn run(mut self) -> Result<ExitStatus, Failure> {
        loop {
            let status = self.one_child();
            if self.state.is_none() {
                return match status {
                    Ok(0) => Ok(ExitStatus::Good),
                    Ok(code) if self.serves => {
                        log::error!("the process that served the mount ended with {code}");
                        Ok(ExitStatus::Bad)
                    }
                    // It has told why.
                    Ok(code) => std::process::exit(code),
                    Err(why) => Err(Failure::new("mount", why)),
                };
            }
            if self.is_unmounted() {
                return Ok(ExitStatus::Good);
            }
            if self.serves && status == Ok(0) {
                self.attempts = 0;
                continue;
            }
            self.attempts += 1;
            let why = match status {
                Ok(code) => format!("it ended with {code}"),
                Err(why) => why,
            };
            let program = self.program.to_string_lossy().into_owned();
            self.failure = format!("{program} has not taken the mount over: {why}");
            log::error!("{}; its log lines are above", self.failure);
            if self.attempts >= ATTEMPTS {
                log::error!("the mount is given up: unmount it with `kestrel umount`");
                return Ok(ExitStatus::Bad);
            }
            self.program = match &self.serving {
                Some(program) => format!("/proc/self/fd/{}", program.as_raw_fd()).into(),
                None => OWN_PROGRAM.into(),
            };
            std::thread::sleep(BACKOFF * 2u32.pow(self.attempts - 1));
        }
    }

    /// Starts a child and looks after it until it ends; its exit code.
    fn one_child(&mut self) -> Result<i32, String> {
        let describe = |why: std::io::Error| why.to_string();
        let (here, there) = socket::pair().map_err(describe)?;
        self.serves = false;
        let mut child = self.start(&there).map_err(describe)?;
        drop(there);
        let begun = Instant::now();
        if let Err(why) = self.greet(&here) {
            // It has ended, as a rule, and its exit code says more.
            let _ = child.kill();
            return match child.wait().map(|status| status.code()) {
                Ok(Some(code)) => Ok(code),
                _ => Err(describe(why)),
            };
        }
        let mut open = true;
        loop {
            if let Some(status) = child.try_wait().map_err(describe)? {
                // What it sent last.
                while open && self.message(&here, child.id()) {}
                return Ok(status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
            }
            let takes_over = self.state.is_some() && !self.serves;
            if takes_over && begun.elapsed() > TAKE_OVER_MAX {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not serve within {} s", TAKE_OVER_MAX.as_secs()));
            }
            let (message, signal) = self.wait(&here, open, takes_over);
            if message {
                open = self.message(&here, child.id());
            }
            if signal {
                self.signal(&child);
            }
        }
    }

    /// Waits for a message or a signal, or for a while.
    fn wait(&self, socket: &OwnedFd, open: bool, takes_over: bool) -> (bool, bool) {
        let poll =
            |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polls = [poll(&self.signals), poll(socket)];
        let count = if open { 2 } else { 1 };
        let limit = if takes_over { 1000 } else { -1 };
        // SAFETY: as many live pollfds.
        unsafe { libc::poll(polls.as_mut_ptr(), count, limit) };
        (open && polls[1].revents != 0, polls[0].revents != 0)
    }

    /// Takes a message; false when the child has closed its end.
    fn message(&mut self, socket: &OwnedFd, child: u32) -> bool {
        let Ok(Some(Message { kind, text, fds })) = socket::receive(socket) else { return false };
        match kind {
            DESCRIPTORS => self.sent.extend(fds),
            READY => {
                // Nothing is under way at descriptors of before that this child does not have.
                self.kept = std::mem::take(&mut self.sent);
                self.serves = true;
                self.state = None;
                self.failure.clear();
                crate::background::let_go();
            }
            LEAVES => {
                self.state = fds.into_iter().next();
                self.program = OsString::from_vec(text);
                self.serving = File::open(format!("/proc/{child}/exe")).ok();
                if socket::send(socket, ACCEPTED, b"", &[]).is_err() {
                    log::warn!("the process that leaves the mount is gone already");
                }
            }
            _ => log::warn!("a message of a kind that is not known: {kind}"),
        }
        true
    }

    /// Passes a signal on that asks the mount to end.
    fn signal(&self, child: &Child) {
        // SAFETY: plain data for which zero is valid.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is valid for writes of its size.
        let got = unsafe {
            libc::read(
                self.signals.as_raw_fd(),
                (&raw mut info).cast(),
                size_of::<libc::signalfd_siginfo>(),
            )
        };
        if got > 0 && info.ssi_signo != libc::SIGCHLD as u32 {
            // SAFETY: the child has not been waited for, so the number is its own.
            unsafe { libc::kill(child.id() as libc::pid_t, info.ssi_signo as i32) };
        }
    }

    fn start(&self, socket: &OwnedFd) -> std::io::Result<Child> {
        let number: RawFd = socket.as_raw_fd();
        let mut command = Command::new(&self.program);
        command.arg0("kestrel").args(self.args).env(SOCKET_ENV, number.to_string());
        // A signal of the terminal comes here, and is passed on.
        command.stdin(Stdio::null()).process_group(0);
        if self.generation > 0 || self.state.is_some() {
            // No process waits for a word any more.
            command.stdout(Stdio::null());
        }
        // SAFETY: fcntl and the calls for signals are async-signal-safe; `none` is filled in before
        // it is used.
        unsafe {
            command.pre_exec(move || {
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                // For the program that is executed the socket stays open.
                match libc::fcntl(number, libc::F_SETFD, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        command.spawn()
    }

    /// Tells a child how to begin.
    fn greet(&mut self, socket: &OwnedFd) -> std::io::Result<()> {
        let how = if self.state.is_some() { TAKE_OVER } else { FRESH };
        self.generation += u32::from(self.state.is_some());
        let start = json!({
            "how": how,
            "generation": self.generation,
            "failure": self.failure,
            "descriptors": self.kept.len(),
        });
        let state: Vec<RawFd> = self.state.iter().map(|state| state.as_raw_fd()).collect();
        socket::send(socket, START, start.to_string().as_bytes(), &state)?;
        if self.state.is_some() {
            let kept: Vec<RawFd> = self.kept.iter().map(|fd| fd.as_raw_fd()).collect();
            for fds in kept.chunks(socket::FDS_MAX) {
                socket::send(socket, DESCRIPTORS, b"", fds)?;
            }
        }
        Ok(())
    }

    /// Whether the kernel has ended the connection.
    fn is_unmounted(&self) -> bool {
        let Some(fd) = self.kept.first() else { return true };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one live pollfd.
        let rc = unsafe { libc::poll(&raw mut poll, 1, 0) };
        rc > 0 && poll.revents & libc::POLLERR != 0
    }
}

/// Has signals that matter here arrive at a descriptor.
fn block_signals() -> std::io::Result<OwnedFd> {
    // SAFETY: `set` is filled in before it is used; the calls take nothing else.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The arguments of this program, without its name.
pub fn own_args() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}
