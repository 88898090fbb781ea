//! Walk hints: what the kernel looks a name up for when it sends a LOOKUP to a FUSE server.
//!
//! # The problem
//!
//! A program opens `/mnt/a/b/c/file`. The kernel walks that path component by component, and for
//! each one that it has not cached it sends a request to the FUSE server: LOOKUP of `a` in the
//! root, LOOKUP of `b` in that, and so on, and at last OPEN. The server sees neither where the walk
//! leads nor what for. If it needs other machines for that, that is a round trip per component.
//!
//! The kernel has all of it at that moment. It keeps the state of the walk in a structure on the
//! stack of the calling thread, `struct nameidata`: the directory it has reached, a pointer to the
//! rest of the path text, and flags such as "not at the last component yet" and "to be opened". But
//! the FUSE protocol does not carry it.
//!
//! # The mechanism
//!
//! Linux lets privileged processes load small programs into the kernel that run at certain points:
//! BPF. They are checked before they may run (by the *verifier*, which refuses a program unless it
//! provably ends and touches no memory but its own), and compiled to machine code. One of those
//! points is the *tracepoint* `fuse_request_send`, which a thread passes on its way to waiting for
//! a FUSE answer.
//!
//! The program of this crate runs there. It sees the request, and the thread's `nameidata`, and
//! copies the rest of the path, the flags and a little more into a *slot*: memory that kernel and
//! server share (`slots.rs`). When the server gets the LOOKUP, the slot has been written;
//! [`WalkHints::take`] reads it with plain loads and makes a [`Hint`] of it.
//!
//! ```text
//!   calling thread, in the kernel                         server
//!   open("/mnt/a/b/c/file")
//!    walk: nameidata { last = "a/b/c/file", flags, .. }
//!     LOOKUP a ── fuse_request_send ── queue ───────────▶ LOOKUP, unique 42
//!                   │ program                               │ take(42, "a")
//!                   ▼                                       ▼
//!                 slots[42 / 2 % 1024] ══ shared memory ══▶ Hint { follows, rest: "b/c/file", .. }
//! ```
//!
//! There is no C compiler and no binary blob involved: the program is put together here, for the
//! kernel that runs (`program.rs`, with `asm.rs`; `load.rs` gets it into the kernel), since
//! structures differ from kernel to kernel. Where their members lie, the kernel describes itself
//! (`btf.rs`). What the flag bits mean it does not describe, so that is measured (`calibrate.rs`).
//!
//! # How to use it
//!
//! 1. [`WalkHints::load`] before the mount. An error ([`Unavailable`]) has the reason why there
//!    will be no hints and what would help.
//! 2. Mount and serve. For each LOOKUP call [`WalkHints::probe`] first: while calibration runs,
//!    some names are its own.
//! 3. [`WalkHints::calibrate`], from a thread that does not serve. From now on there are hints.
//! 4. [`WalkHints::take`] once for every LOOKUP.
//!
//! The program belongs to the process: when the last [`WalkHints`] is dropped, or the process ends
//! in any way, it is gone.
//!
//! ```no_run
//! use std::os::unix::ffi::OsStrExt;
//! use std::sync::Arc;
//!
//! use kestrel_fuse::{Config, FileSystem, Mount, MountOptions, Operation, Reply, Request, Session};
//! use kestrel_walkhint::{Lookup, WalkHints};
//!
//! /// A file system without files, which prints the hint of each LOOKUP.
//! struct Hinted(Arc<WalkHints>);
//!
//! impl FileSystem for Hinted {
//!     fn handle(&self, request: Request<'_>, reply: Reply) {
//!         let Operation::Lookup { name } = &request.op else { return reply.error(libc::ENOSYS) };
//!         let name = name.as_bytes();
//!         let Request { unique, pid, nodeid, .. } = request;
//!         let lookup = Lookup { unique, tid: pid, nodeid };
//!         if let Some(errno) = self.0.probe(&lookup, name) {
//!             return reply.error(errno); // a walk of the calibration
//!         }
//!         println!("{:?}", self.0.take(&lookup, name).walk());
//!         reply.error(libc::ENOENT);
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hints = WalkHints::load()?;
//! let mount = Mount::new("/mnt/v".as_ref(), &MountOptions::default())?;
//! let session = Session::start(mount, Hinted(hints.clone()), &Config::default())?;
//! hints.calibrate("/mnt/v".as_ref())?;
//! session.join()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! | module | |
//! | --- | --- |
//! | `hint` | [`Hint`], [`Lookup`]: what a hint says, and how it is read out of a recorded walk |
//! | `slots` | memory that the program in the kernel writes and the server reads |
//! | `program` | the program that runs in the kernel, instruction by instruction |
//! | `asm` | an assembler for BPF |
//! | `btf` | the kernel's own description of its types |
//! | `load` | getting the program into the kernel: maps, verification, attachment |
//! | `calibrate` | measuring the flag bits |
//! | `unavailable` | [`Unavailable`]: why there are no hints |
//!
//! # What a hint is worth
//!
//! A hint is certain or it is not there; nothing is guessed. It is `None` whenever
//!
//! - the LOOKUP is not part of a path walk: the last component of mkdir, mknod, symlink, unlink,
//!   rmdir, rename and of link's new name, READDIRPLUS, NFS export, lookups by the kernel itself;
//! - the walk is on another file system, as when an overlay lies on top of ours: the super block of
//!   the directory that the walk has reached must be the mount's, that directory must have the node
//!   id of the request, and the walk must be at the name of the request;
//! - the slot holds another request: there are 1024, and a request that waits while others come may
//!   lose its slot. Request number, opcode and node id are compared, and a slot that is being
//!   written is noticed;
//! - the path is longer than PATH_MAX (only the kernel itself can make such);
//! - the requests have no number yet when the program runs (before Linux 6.18), so that the slot is
//!   chosen by thread, and the calling thread is not visible in the server's pid namespace
//!   (`fuse_in_header.pid` is 0).
//!
//! Within the text of a symbolic link the kernel keeps what comes behind the link elsewhere; there
//! [`Hint::complete`] is false. Intents are set at the last component only: that is when the kernel
//! decides about them.
//!
//! Every caller gets hints alike: threads, containers (with the exception above), io_uring workers,
//! which walk with a `nameidata` of their own. Only [`Hint::open_flags`] is special: the kernel has
//! the flags of an open in a place that cannot be reached from outside, so they are read from the
//! registers with which the thread entered the kernel, if that was a system call that opens; a
//! worker thread's registers are not.
//!
//! Several mounts on a machine each have their program, and each records requests of its own
//! connection only.
//!
//! # What it needs
//!
//! Linux 5.15 or later with BTF (`CONFIG_DEBUG_INFO_BTF`; distributions have it), x86-64 or arm64,
//! and CAP_BPF with CAP_PERFMON, or CAP_SYS_ADMIN. The tracepoint is there since Linux 6.12;
//! before, the program is attached to the entry of the function `fuse_simple_request`, which
//! lockdown policies may forbid where they allow tracepoints. Lockdown in *confidentiality* mode
//! forbids both. Memory: 4.3 MB for the slots.
//!
//! # Safety
//!
//! The program cannot crash or hang the kernel; that is the verifier's promise. Since Linux 6.18 it
//! runs while the thread holds the spin lock of the mount's request queue, so its time there is
//! bounded by the copy of one path. It changes nothing in the kernel but its slots. It reads memory
//! of the calling thread's kernel stack and the path text, and puts parts of paths on this mount
//! where this process alone can read them; the server gets these names anyway.
//!
//! What the slots hold is not trusted: lengths are checked, text need not be UTF-8, and
//! contradictions mean no hint.
//!
//! # What it costs
//!
//! `cargo run --release -p kestrel-walkhint --example cost` measures it. On Linux 6.18, 2 virtual
//! processors, busy with other work, the kernel's own count of the program's time (which adds some
//! 50 ns to each run):
//!
//! | | |
//! | --- | --- |
//! | LOOKUP on our mount, last component | 0.5 µs |
//! | the same, 256 bytes of path follow | 0.7 µs |
//! | the same, 4000 bytes follow | 2.7 µs |
//! | LOOKUP on another FUSE mount of the machine | 0.16 µs |
//! | any other FUSE request | 0.09 µs |
//! | `take`: 16 bytes of path, 4000 bytes | 0.04 µs, 1.9 µs |
//! | `load`, once | 10 to 25 ms |
//! | `calibrate`, once | 0.3 to 3 ms |
//!
//! A LOOKUP as a whole takes 12 to 17 µs there, with a server that does nothing.

mod asm;
mod btf;
mod calibrate;
mod hint;
mod load;
mod program;
mod slots;
mod unavailable;

use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use calibrate::{Flags, Probes};
use load::Program;

pub use hint::{Hint, HintResult, Intent, Lookup};
pub use load::Attach;
pub use unavailable::Unavailable;

/// Hints for one mount.
pub struct WalkHints {
    program: Program,
    probes: Probes,
    /// Set by calibration; no hints before.
    flags: OnceLock<Flags>,
}

/// Counters, from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkHintStats {
    /// Lookups without a hint because their slot was being written for another one at that moment.
    pub busy: u64,
}

impl WalkHints {
    /// Loads the program, at the tracepoint or else at the function. To be called before the mount,
    /// so that it is clear early whether there will be hints; takes 10 to 25 ms, most of it for
    /// reading BTF.
    pub fn load() -> Result<Arc<WalkHints>, Unavailable> {
        WalkHints::load_by(Attach::Tracepoint).or_else(|first| {
            // Not permitted here is not permitted there, and the first answer is the better one.
            let hopeless = first.raw_os_error() == Some(libc::EPERM);
            if hopeless {
                Err(first)
            } else {
                WalkHints::load_by(Attach::Fentry).map_err(|second| first.or(&second))
            }
        })
    }

    /// Loads the program at that place only.
    pub fn load_by(attach: Attach) -> Result<Arc<WalkHints>, Unavailable> {
        WalkHints::with(Program::load(attach, true)?)
    }

    /// As at the tracepoint of kernels before 6.18, where requests have no number yet: for tests of
    /// that.
    #[doc(hidden)]
    pub fn load_unnumbered() -> Result<Arc<WalkHints>, Unavailable> {
        WalkHints::with(Program::load(Attach::Tracepoint, false)?)
    }

    fn with(program: Program) -> Result<Arc<WalkHints>, Unavailable> {
        let random = RandomState::new().build_hasher().finish();
        Ok(Arc::new(WalkHints { program, probes: Probes::new(random), flags: OnceLock::new() }))
    }

    /// Starts recording for the mount that has `root` as root directory, and measures what the
    /// flags of a walk mean, by some walks on it. The mount must be serving, with
    /// [`probe`](WalkHints::probe) called for each LOOKUP and [`is_probe`](WalkHints::is_probe) for
    /// other requests by name; the calling thread must not be one that serves. Takes about a
    /// millisecond, 5 s at most. After an error there will be no hints.
    pub fn calibrate(&self, root: &Path) -> Result<(), Unavailable> {
        let failed =
            |e| Unavailable::call(format!("cannot measure walk flags in {}", root.display()), e);
        let directory: OwnedFd = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(root)
            .map_err(failed)?
            .into();
        self.program.bind(device(&directory).map_err(failed)?);
        let flags = calibrate::run(directory, &self.probes).map_err(failed).and_then(|()| {
            self.probes.flags().map_err(|why| Unavailable::new(format!("no walk hints: {why}")))
        });
        match flags {
            Ok(flags) => {
                // A second calibration finds the same.
                let _ = self.flags.set(flags);
                Ok(())
            }
            Err(e) => {
                self.program.bind((0, 0));
                Err(e)
            }
        }
    }

    /// The errno with which to answer the LOOKUP of a name that is a calibration's; `None` for all
    /// others.
    pub fn probe(&self, lookup: &Lookup, name: &[u8]) -> Option<i32> {
        if !self.is_probe(name) {
            return None;
        }
        let mut answer = None;
        self.program.slots().read(lookup, |record| {
            answer = self.probes.answer(name, record.walk());
            Some(())
        });
        answer.or_else(|| self.probes.answer(name, None))
    }

    /// The name is a calibration's: requests other than LOOKUP that create it are to be answered
    /// EPERM.
    pub fn is_probe(&self, name: &[u8]) -> bool {
        self.flags.get().is_none() && self.probes.is_name(name)
    }

    /// What was recorded about this LOOKUP. To be called once for every one, before it is answered.
    pub fn take(&self, lookup: &Lookup, name: &[u8]) -> HintResult {
        // Read in any case: a record that is not used must not be there for the next lookup.
        let recorded = self.program.slots().read(lookup, |record| {
            let flags = self.flags.get()?;
            match record.call_without_walk() {
                Some(call) => call.makes_a_name().then_some(HintResult::Creation),
                None => record.walk()?.hint(name, flags).map(HintResult::Walk),
            }
        });
        recorded.unwrap_or(HintResult::Nothing)
    }

    /// Where the program is attached.
    pub fn attach(&self) -> Attach {
        self.program.attach()
    }

    /// What has been counted.
    pub fn stats(&self) -> WalkHintStats {
        WalkHintStats { busy: self.program.busy() }
    }
}

/// Device number of the file system that `directory` is on, without a request to the file system.
fn device(directory: &OwnedFd) -> io::Result<(u32, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is empty and ends in NUL; `stat` takes what is written.
    let result = unsafe {
        libc::statx(
            directory.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            0,
            stat.as_mut_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a structure of integers, zeroed first.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}
