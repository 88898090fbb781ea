//! Threads that make the planned calls and record them.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;

use super::plan::{self, COUNTERS, PlannedCall, REGISTERS, Spot};
use super::tree::{Answer, At, Call, DIR_NAMES, ROOT_NAMES, SUB_NAMES};
use super::{RecordedCall, appends, counter, registers};
use crate::rng::Rng;
use crate::sys::{self, Sys};

/// How often a call that says `ESTALE` is made again.
const STALE_MAX: usize = 100;

/// After so many calls with an unknown outcome no more calls are made: judging them would take too
/// long.
const UNKNOWN_MAX: usize = 12;

/// What to run.
#[derive(Debug, Clone)]
pub struct Load {
    /// Directories that show the same tree, in which the run makes one of its own: thread N uses
    /// number N modulo their count.
    pub dirs: Vec<PathBuf>,
    /// Threads.
    pub threads: usize,
    /// Calls of each thread, about.
    pub ops: u64,
    /// Seed of the plan.
    pub seed: u64,
    /// Calls of 100 that are on files that are overwritten.
    pub overwriting: u64,
    /// Calls of 100 others that are on the log and the counters.
    pub sharing: u64,
    /// Longest pause before a call, microseconds: spreads the run over a time in which something
    /// else happens.
    pub pause_us: u64,
}

/// What was recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Calls on names.
    pub tree: Vec<RecordedCall<Call, Answer>>,
    /// Calls on each of the files that are overwritten.
    pub registers: [Vec<RecordedCall<registers::Call, registers::Answer>>; REGISTERS],
    /// Calls on the log.
    pub log: Vec<RecordedCall<appends::Call, appends::Answer>>,
    /// Calls on each of the counters.
    pub counters: [Vec<RecordedCall<counter::Add, u64>>; COUNTERS],
    /// Calls that were made again because of `ESTALE`.
    pub stale: usize,
}

impl Recorded {
    /// Takes in what another thread recorded.
    fn take(&mut self, part: Self) {
        self.tree.extend(part.tree);
        self.stale += part.stale;
        self.registers.iter_mut().zip(part.registers).for_each(|(all, part)| all.extend(part));
        self.log.extend(part.log);
        self.counters.iter_mut().zip(part.counters).for_each(|(all, part)| all.extend(part));
    }
}

/// Makes the calls. Leaves nothing in the directories unless it fails.
///
/// # Errors
/// If the directory of the run cannot be made, is not the same in all `dirs`, or a file that is
/// overwritten holds bytes of two writes.
pub fn run(load: &Load) -> Result<Recorded, String> {
    let name = format!("history-{}-{}", load.seed, std::process::id());
    let [first, ..] = load.dirs.as_slice() else { return Err("no directory given".into()) };
    let home = first.join(&name);
    prepare(&home)?;
    let homes: Vec<PathBuf> = load.dirs.iter().map(|dir| dir.join(&name)).collect();
    for home in &homes {
        if !home.join("tmp").is_dir() {
            let _ = std::fs::remove_dir_all(first.join(&name));
            return Err(format!(
                "{} is not the same directory as {}",
                home.display(),
                first.display()
            ));
        }
    }
    let shared =
        Shared { origin: Instant::now(), unknown: AtomicUsize::new(0), token: AtomicU64::new(1) };
    let recorded = thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (home, shared) = (&homes[thread % homes.len()], &shared);
                scope.spawn(move || Actor::new(thread, home, shared)?.act(load))
            })
            .collect();
        let mut all = Recorded::default();
        for thread in threads {
            let part = thread.join().map_err(|_| "a thread panicked")??;
            all.take(part);
        }
        for (thread, home) in homes.iter().enumerate() {
            all.take(Actor::new(load.threads + thread, home, &shared)?.audit()?);
        }
        Ok::<_, String>(all)
    })?;
    std::fs::remove_dir_all(&home)
        .map_err(|error| format!("cannot remove {}: {error}", home.display()))?;
    Ok(recorded)
}

fn prepare(home: &Path) -> Result<(), String> {
    let make = || {
        std::fs::create_dir(home)?;
        std::fs::create_dir(home.join("tmp"))?;
        std::fs::write(home.join("log"), [])?;
        (0..COUNTERS)
            .try_for_each(|at| std::fs::write(home.join(format!("c{at}")), 0u64.to_be_bytes()))?;
        (0..REGISTERS).try_for_each(|at| {
            std::fs::write(home.join(format!("r{at}")), registers::INITIAL.to_be_bytes())
        })
    };
    make().map_err(|error: std::io::Error| format!("cannot prepare {}: {error}", home.display()))
}

/// What all threads share.
struct Shared {
    /// When the clock was zero.
    origin: Instant,
    /// Calls with an unknown outcome, so far.
    unknown: AtomicUsize,
    /// The next content.
    token: AtomicU64,
}

struct Actor<'a> {
    thread: usize,
    shared: &'a Shared,
    root: Fd,
    tmp: Fd,
    /// The log, open for appending, and the counters: once they have been used.
    log: Option<Fd>,
    counters: [Option<Fd>; COUNTERS],
    recorded: Recorded,
}

/// An open directory and a name in it, with what the model calls it.
struct Target {
    /// The directory, if it was opened for this call.
    dir: Option<Fd>,
    name: CString,
    at: At,
}

impl<'a> Actor<'a> {
    fn new(thread: usize, home: &Path, shared: &'a Shared) -> Result<Self, String> {
        let open = |path: &Path| {
            let name = sys::cstring(path.as_os_str().as_bytes());
            open(libc::AT_FDCWD, &name, libc::O_DIRECTORY, 0).map_err(|errno| {
                format!("cannot open {}: {}", path.display(), crate::errno::name(errno))
            })
        };
        let (root, tmp) = (open(home)?, open(&home.join("tmp"))?);
        Ok(Self {
            thread,
            shared,
            root,
            tmp,
            log: None,
            counters: Default::default(),
            recorded: Recorded::default(),
        })
    }

    fn act(mut self, load: &Load) -> Result<Recorded, String> {
        let mut rng = Rng::new(load.seed.wrapping_mul(1000).wrapping_add(self.thread as u64));
        for _ in 0..load.ops {
            if self.shared.unknown.load(Ordering::Relaxed) >= UNKNOWN_MAX {
                break;
            }
            if load.pause_us > 0 {
                thread::sleep(Duration::from_micros(rng.below(load.pause_us + 1)));
            }
            self.perform(plan::next(&mut rng, load.overwriting, load.sharing))?;
        }
        Ok(self.recorded)
    }

    /// Looks at everything, when nobody changes anything any more.
    fn audit(mut self) -> Result<Recorded, String> {
        for name in 0..ROOT_NAMES.len() {
            self.perform(PlannedCall::Stat(Spot::Root(name)))?;
            self.perform(PlannedCall::Read(Spot::Root(name)))?;
        }
        for dir in 0..DIR_NAMES {
            self.perform(PlannedCall::List(dir))?;
            (0..SUB_NAMES.len())
                .try_for_each(|name| self.perform(PlannedCall::Read(Spot::Sub(dir, name))))?;
        }
        (0..REGISTERS).try_for_each(|at| self.perform(PlannedCall::ReadRegister(at)))?;
        self.perform(PlannedCall::ReadLog)?;
        (0..COUNTERS).try_for_each(|kind| self.perform(PlannedCall::Add(kind)))?;
        self.perform(PlannedCall::ListRoot)?;
        Ok(self.recorded)
    }

    fn perform(&mut self, plan: PlannedCall) -> Result<(), String> {
        match plan {
            PlannedCall::Create(spot) => self.at(spot, Self::create),
            PlannedCall::Publish(spot) => self.at(spot, Self::publish),
            PlannedCall::Unlink(spot) => self.at(spot, |actor, target| {
                let dir = actor.dir(target);
                actor.simple(Call::Unlink(target.at), || sys::unlinkat(dir, &target.name, 0));
            }),
            PlannedCall::Mkdir(name) => {
                let (root, path) = (self.root.0, sys::cstring(ROOT_NAMES[name].as_bytes()));
                self.simple(Call::Mkdir(name), || sys::mkdirat(root, &path, 0o755));
            }
            PlannedCall::Rmdir(name) => {
                let (root, path) = (self.root.0, sys::cstring(ROOT_NAMES[name].as_bytes()));
                self.simple(Call::Rmdir(name), || sys::unlinkat(root, &path, libc::AT_REMOVEDIR));
            }
            PlannedCall::Rename(from, to, no_replace) => {
                let Some(from) = self.resolve(from) else { return Ok(()) };
                let Some(to) = self.resolve(to) else { return Ok(()) };
                let (from_dir, to_dir) = (self.dir(&from), self.dir(&to));
                let flags = if no_replace { libc::RENAME_NOREPLACE } else { 0 };
                let call = Call::Rename { from: from.at, to: to.at, no_replace, repeated: false };
                self.simple(call, || sys::renameat2(from_dir, &from.name, to_dir, &to.name, flags));
            }
            PlannedCall::Stat(spot) => self.at(spot, |actor, target| {
                let dir = actor.dir(target);
                actor.record(Call::Stat(target.at), || {
                    let stat = sys::fstatat(dir, &target.name, libc::AT_SYMLINK_NOFOLLOW)?;
                    Ok(Answer::Found {
                        dir: stat.st_mode & libc::S_IFMT == libc::S_IFDIR,
                        ino: stat.st_ino,
                    })
                });
            }),
            PlannedCall::Read(spot) => self.at(spot, |actor, target| {
                let dir = actor.dir(target);
                actor.record(Call::Read(target.at), || {
                    let file = open(dir, &target.name, libc::O_RDONLY, 0)?;
                    content(&file).map(Answer::Content)
                });
            }),
            PlannedCall::ListRoot => {
                let root = self.root.0;
                self.record(Call::List(None), || {
                    // A descriptor of its own, so a position of its own.
                    names(&open(root, c".", libc::O_DIRECTORY, 0)?, &ROOT_NAMES)
                });
            }
            PlannedCall::List(name) => {
                if let Some((dir, ino)) = self.open_dir(name) {
                    self.record(Call::List(Some(ino)), || names(&dir, &SUB_NAMES));
                }
            }
            PlannedCall::Overwrite(at) => self.overwrite(at),
            PlannedCall::ReadRegister(at) => self.read_register(at)?,
            PlannedCall::Append { held } => self.append(held),
            PlannedCall::ReadLog => self.read_log()?,
            PlannedCall::Add(kind) => self.add(kind),
        }
        Ok(())
    }

    fn at(&mut self, spot: Spot, call: impl FnOnce(&mut Self, &Target)) {
        if let Some(target) = self.resolve(spot) {
            call(self, &target);
        }
    }

    /// Opens the directory of a place, which is a call by itself; `None` if that fails.
    fn resolve(&mut self, spot: Spot) -> Option<Target> {
        match spot {
            Spot::Root(name) => Some(Target {
                dir: None,
                name: sys::cstring(ROOT_NAMES[name].as_bytes()),
                at: At::Root(name),
            }),
            Spot::Sub(dir, name) => {
                let (dir, ino) = self.open_dir(dir)?;
                let path = sys::cstring(SUB_NAMES[name].as_bytes());
                Some(Target { dir: Some(dir), name: path, at: At::Sub(ino, name) })
            }
        }
    }

    fn dir(&self, target: &Target) -> c_int {
        target.dir.as_ref().unwrap_or(&self.root).0
    }

    fn open_dir(&mut self, name: usize) -> Option<(Fd, u64)> {
        debug_assert!(name < DIR_NAMES);
        let (root, path) = (self.root.0, sys::cstring(ROOT_NAMES[name].as_bytes()));
        let mut opened = None;
        self.record(Call::OpenDir(name), || {
            let dir = open(root, &path, libc::O_DIRECTORY, 0)?;
            let ino = sys::fstat(dir.0)?.st_ino;
            opened = Some((dir, ino));
            Ok(Answer::Ino(Some(ino)))
        });
        opened
    }

    fn create(&mut self, target: &Target) {
        let dir = self.dir(target);
        self.record(Call::Create(target.at), || {
            let file =
                open(dir, &target.name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o644)?;
            // It may be without a name by now; then its number is nobody's business.
            Ok(Answer::Ino(sys::fstat(file.0).ok().map(|stat| stat.st_ino)))
        });
    }

    /// Writes a file nobody else knows of, then renames it into place.
    fn publish(&mut self, target: &Target) {
        let token = self.shared.token.fetch_add(1, Ordering::Relaxed);
        let (dir, tmp) = (self.dir(target), self.tmp.0);
        let name = sys::cstring(format!("t{token}").as_bytes());
        let write = || -> Sys<u64> {
            let file = open(tmp, &name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o644)?;
            sys::write(file.0, &token.to_be_bytes())?;
            let ino = sys::fstat(file.0)?.st_ino;
            close(file).map(|_| ino)
        };
        let Ok(ino) = write() else { return };
        self.simple(Call::Publish { ino, token, to: target.at }, || {
            sys::renameat2(tmp, &name, dir, &target.name, 0)
        });
    }

    fn simple(&mut self, call: Call, body: impl Fn() -> Sys<i64>) {
        self.record(call, || body().map(|_| Answer::Done));
    }

    /// Makes a call and records it; again if it says `ESTALE`.
    fn record(&mut self, call: Call, mut body: impl FnMut() -> Sys<Answer>) {
        let begin = self.now();
        let mut said = body();
        for _ in 0..STALE_MAX {
            if said != Err(libc::ESTALE) {
                break;
            }
            self.recorded.stale += 1;
            said = body();
        }
        let end = self.now();
        let answer = match said {
            Ok(answer) => Some(answer),
            Err(errno) if is_undecided(errno) => {
                self.shared.unknown.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(errno) => Some(Answer::Failed(errno)),
        };
        self.recorded.tree.push(RecordedCall { thread: self.thread, call, answer, begin, end });
    }

    fn overwrite(&mut self, at: usize) {
        let token = self.shared.token.fetch_add(1, Ordering::Relaxed);
        let name = sys::cstring(format!("r{at}").as_bytes());
        let begin = self.now();
        let write = || -> Sys<i64> {
            let file = open(self.root.0, &name, libc::O_WRONLY, 0)?;
            sys::pwrite(file.0, &token.to_be_bytes(), 0)?;
            close(file)
        };
        let answer = write().ok().map(|_| token);
        let event = RecordedCall {
            thread: self.thread,
            call: registers::Call::Write(token),
            answer,
            begin,
            end: self.now(),
        };
        self.recorded.registers[at].push(event);
    }

    fn read_register(&mut self, at: usize) -> Result<(), String> {
        let name = sys::cstring(format!("r{at}").as_bytes());
        let begin = self.now();
        let read = || content(&open(self.root.0, &name, libc::O_RDONLY, 0)?);
        let answer = match read() {
            Ok(seen) => Some(seen),
            Err(errno) if is_undecided(errno) || errno == libc::ESTALE => None,
            Err(errno) => return Err(format!("cannot read r{at}: {}", crate::errno::name(errno))),
        };
        let event = RecordedCall {
            thread: self.thread,
            call: registers::Call::Read,
            answer,
            begin,
            end: self.now(),
        };
        self.recorded.registers[at].push(event);
        Ok(())
    }

    fn append(&mut self, held: bool) {
        let record = self.shared.token.fetch_add(1, Ordering::Relaxed);
        let begin = self.now();
        let file = self.log.take().filter(|_| held);
        let append = || -> Sys<Option<Fd>> {
            let file = match file {
                Some(file) => file,
                None => open(self.root.0, c"log", libc::O_WRONLY | libc::O_APPEND, 0)?,
            };
            sys::write(file.0, &record.to_be_bytes())?;
            if held {
                sys::fsync(file.0)?;
                return Ok(Some(file));
            }
            close(file).map(|_| None)
        };
        let appended = append();
        let end = self.now();
        let answer = appended.is_ok().then(Vec::new);
        // After a failure the next one opens it anew.
        self.log = appended.ok().flatten();
        self.unknown(answer.is_none());
        let call = appends::Call::Append(record);
        self.recorded.log.push(RecordedCall { thread: self.thread, call, answer, begin, end });
    }

    fn read_log(&mut self) -> Result<(), String> {
        let begin = self.now();
        let read = || all_of(&open(self.root.0, c"log", libc::O_RDONLY, 0)?);
        let answer = match read() {
            Ok(bytes) => Some(bytes),
            Err(errno) if is_undecided(errno) => None,
            Err(errno) => {
                return Err(format!("cannot read the log: {}", crate::errno::name(errno)));
            }
        };
        let records = |bytes: Vec<u8>| {
            bytes
                .chunks(8)
                .map(|word| word.try_into().map_or(u64::MAX, u64::from_be_bytes))
                .collect()
        };
        let (answer, end) = (answer.map(records), self.now());
        self.recorded.log.push(RecordedCall {
            thread: self.thread,
            call: appends::Call::Read,
            answer,
            begin,
            end,
        });
        Ok(())
    }

    fn add(&mut self, kind: usize) {
        let begin = self.now();
        let held = self.counters[kind].take();
        let name = sys::cstring(format!("c{kind}").as_bytes());
        let add = || -> Sys<(Fd, u64)> {
            let file = match held {
                Some(file) => file,
                None => open(self.root.0, &name, libc::O_RDWR, 0)?,
            };
            lock(&file, kind, true)?;
            let found = content(&file)?;
            sys::pwrite(file.0, &(found + 1).to_be_bytes(), 0)?;
            lock(&file, kind, false)?;
            Ok((file, found))
        };
        let added = add();
        let end = self.now();
        let answer = added.as_ref().ok().map(|(_, found)| *found);
        self.counters[kind] = added.ok().map(|(file, _)| file);
        self.unknown(answer.is_none());
        self.recorded.counters[kind].push(RecordedCall {
            thread: self.thread,
            call: counter::Add,
            answer,
            begin,
            end,
        });
    }

    fn unknown(&self, is_unknown: bool) {
        self.shared.unknown.fetch_add(usize::from(is_unknown), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.shared.origin.elapsed().as_nanos() as u64
    }
}

/// Whether a failure leaves open what happened.
fn is_undecided(errno: i32) -> bool {
    [libc::EIO, libc::ETIMEDOUT, libc::ENOTCONN, libc::EINTR, libc::ECONNABORTED, libc::ESTALE]
        .contains(&errno)
}

/// An open descriptor; closed when it is dropped.
struct Fd(c_int);

impl Drop for Fd {
    fn drop(&mut self) {
        // What a close says is asked where it matters.
        let _ = sys::close(self.0);
    }
}

fn open(dir: c_int, name: &CStr, flags: c_int, mode: u32) -> Sys<Fd> {
    sys::openat(dir, name, flags | libc::O_CLOEXEC, mode).map(|fd| Fd(fd as c_int))
}

/// Takes or gives up an exclusive lock of a counter: a BSD lock or one of the open file
/// description, as the counter has it.
fn lock(file: &Fd, kind: usize, take: bool) -> Sys<i64> {
    if kind == 0 {
        return sys::flock(file.0, if take { libc::LOCK_EX } else { libc::LOCK_UN });
    }
    let mut range = libc::flock {
        l_type: if take { libc::F_WRLCK } else { libc::F_UNLCK } as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 8,
        l_pid: 0,
    };
    sys::fcntl_lock(file.0, libc::F_OFD_SETLKW, &mut range)
}

/// Closes, and says what close(2) says.
fn close(file: Fd) -> Sys<i64> {
    sys::close(std::mem::ManuallyDrop::new(file).0)
}

/// The eight bytes of a file as a number; 0 if it is empty. What is neither is a number that nobody
/// wrote.
fn content(file: &Fd) -> Sys<u64> {
    let mut bytes = [0; 16];
    match sys::pread(file.0, &mut bytes, 0)? {
        0 => Ok(0),
        8 => Ok(bytes.first_chunk().map_or(u64::MAX, |word| u64::from_be_bytes(*word))),
        _ => Ok(u64::MAX),
    }
}

/// All bytes of a file.
fn all_of(file: &Fd) -> Sys<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        match sys::pread(file.0, &mut buffer, bytes.len() as i64)? as usize {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}

/// Which of the names a directory has, from one getdents64, which is all that can be atomic; other
/// names are of no interest.
fn names(dir: &Fd, known: &[&str]) -> Sys<Answer> {
    let mut buffer = [0; 4096];
    let len = sys::getdents64(dir.0, &mut buffer)? as usize;
    let listed = sys::dirents(&buffer[..len]);
    let has = |name: &&str| listed.iter().any(|entry| entry.name == name.as_bytes());
    Ok(Answer::Names(
        known.iter().enumerate().fold(0, |bits, (at, name)| bits | u8::from(has(name)) << at),
    ))
}
