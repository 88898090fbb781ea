//! Runs one step in one tree and records everything that can be seen of it.
//!
//! | file | |
//! | --- | --- |
//! | `names` | operations on names and attributes |

mod names;

use std::ffi::CString;

use crate::compare::op::{Base, DIR_SLOTS, Loc, Op, SLOTS, Step, Target};
use crate::compare::outcome::{Outcome, TimeProbe, Times};
use crate::compare::{dirs, io, locks};
use crate::sys::{self, Sys};

/// A descriptor that is never open: the kernel answers EBADF.
const NO_FD: i32 = 1 << 20;

/// An open file of a slot.
#[derive(Clone, Copy)]
pub struct OpenFile {
    /// The descriptor.
    pub fd: i32,
    /// Its open flags.
    pub flags: i32,
}

/// What one actor has open on one side.
pub struct World {
    /// When the run began; explicit times are all older.
    pub run_start: i64,
    root: i32,
    files: [Option<OpenFile>; SLOTS],
    dirs: [Option<i32>; DIR_SLOTS],
}

/// A file or directory of which the times are watched across a call.
enum TimedInode {
    Fd(i32),
    At(i32, CString, i32),
}

impl World {
    /// A world at the root directory of the calling process.
    pub fn new(run_start: i64) -> Sys<Self> {
        let root = sys::openat(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_DIRECTORY, 0)? as i32;
        Ok(Self { run_start, root, files: [None; SLOTS], dirs: [None; DIR_SLOTS] })
    }

    /// Closes everything.
    pub fn close_all(&mut self) {
        let files = self.files.iter_mut().filter_map(|f| f.take().map(|f| f.fd));
        let dirs = self.dirs.iter_mut().filter_map(Option::take);
        for fd in files.chain(dirs).chain([self.root]) {
            let _ = sys::close(fd);
        }
    }

    /// The file of a slot.
    pub fn file(&self, slot: u8) -> OpenFile {
        self.files[slot as usize].unwrap_or(OpenFile { fd: NO_FD, flags: 0 })
    }

    fn fd(&self, slot: u8) -> i32 {
        self.file(slot).fd
    }

    fn dir(&self, dir: u8) -> i32 {
        self.dirs[dir as usize].unwrap_or(NO_FD)
    }

    /// A location for the *at calls.
    pub fn at(&self, loc: &Loc) -> (i32, CString) {
        let dir = match loc.base {
            Base::Root => self.root,
            Base::Cwd => libc::AT_FDCWD,
            Base::Dir(d) => self.dir(d),
        };
        (dir, sys::cstring(&loc.path))
    }

    /// A location for calls that take only a path.
    pub fn plain(&self, loc: &Loc) -> CString {
        if loc.base == Base::Root && !loc.path.starts_with(b"/") {
            sys::cstring(&[b"/", &loc.path[..]].concat())
        } else {
            sys::cstring(&loc.path)
        }
    }

    /// Runs a step.
    pub fn run(&mut self, step: &Step) -> Outcome {
        let timed = if step.probe { self.timed(&step.op) } else { Vec::new() };
        let (sec, nsec) = sys::wall_clock();
        let before: Vec<_> = timed.iter().map(|(_, w, _)| look(w)).collect();
        let mut out = self.run_op(&step.op);
        for ((label, first, second), before) in timed.iter().zip(before) {
            let after = look(second.as_ref().unwrap_or(first));
            let same = matches!((&before, &after), (Some(b), Some(a)) if a.0 == b.0);
            out.times.push(TimeProbe {
                label: (*label).into(),
                before: before.filter(|_| same).map(|b| b.1),
                after: after.filter(|_| same).map(|a| a.1),
                start: sec * 1_000_000_000 + nsec,
            });
        }
        out
    }

    /// Looks the places of an operation up, whatever comes of it.
    pub fn look_up_all(&self, op: &Op) {
        for loc in op.places() {
            let (dir, path) = self.at(loc);
            let _ = sys::fstatat(dir, &path, libc::AT_SYMLINK_NOFOLLOW);
        }
    }

    /// Objects of which the operation may change the times: label, where before, where after (if
    /// elsewhere).
    fn timed(&self, op: &Op) -> Vec<(&'static str, TimedInode, Option<TimedInode>)> {
        let parent = |loc: &Loc| {
            let (dir, _) = self.at(loc);
            let end = loc.path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
            let parent = match loc.path[..end].iter().rposition(|&b| b == b'/') {
                Some(0) => b"/".to_vec(),
                Some(i) => loc.path[..i].to_vec(),
                None => b".".to_vec(),
            };
            TimedInode::At(dir, sys::cstring(&parent), 0)
        };
        let itself = |loc: &Loc, nofollow: bool| {
            let (dir, path) = self.at(loc);
            TimedInode::At(dir, path, if nofollow { libc::AT_SYMLINK_NOFOLLOW } else { 0 })
        };
        let target = |target: &Target| match target {
            Target::Path(loc, nofollow) => itself(loc, *nofollow),
            Target::Slot(slot) => TimedInode::Fd(self.fd(*slot)),
        };
        match op {
            Op::Open { loc, .. }
            | Op::Mkdir { loc, .. }
            | Op::Rmdir { loc }
            | Op::Mknod { loc, .. }
            | Op::Symlink { loc, .. }
            | Op::Unlink { loc } => vec![("the parent", parent(loc), None)],
            Op::Link { from, to, follow } => {
                vec![("the parent", parent(to), None), ("the file", itself(from, !follow), None)]
            }
            Op::LinkSlot { slot, to } => {
                vec![
                    ("the parent", parent(to), None),
                    ("the file", TimedInode::Fd(self.fd(*slot)), None),
                ]
            }
            Op::Rename { from, to, .. } => vec![
                ("the source parent", parent(from), None),
                ("the target parent", parent(to), None),
                ("the file", itself(from, true), Some(itself(to, true))),
            ],
            Op::Write { slot, .. }
            | Op::Pwrite { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fallocate { slot, .. } => {
                vec![("the file", TimedInode::Fd(self.fd(*slot)), None)]
            }
            Op::CopyRange { to, .. } => vec![("the file", TimedInode::Fd(self.fd(*to)), None)],
            Op::Truncate { loc, .. } => vec![("the file", itself(loc, false), None)],
            Op::Chmod { target: t, .. }
            | Op::Chown { target: t, .. }
            | Op::Utimens { target: t, .. }
            | Op::SetXattr { target: t, .. }
            | Op::RemoveXattr { target: t, .. } => vec![("the file", target(t), None)],
            _ => Vec::new(),
        }
    }

    /// Whether a place that an operation starts from is a removed directory. What still works there
    /// differs between file systems, and a network or FUSE file system may answer ESTALE, so
    /// nothing is done there on either side.
    fn gone(&self, op: &Op) -> bool {
        let removed = |fd: i32| match sys::fstatat(fd, c"", libc::AT_EMPTY_PATH) {
            Ok(st) => st.st_nlink == 0,
            Err(e) => e == libc::ESTALE || e == libc::ENOENT,
        };
        op.dirs().into_iter().any(|dir| removed(self.dir(dir)))
            || (op.uses_cwd() && removed(libc::AT_FDCWD))
    }

    fn run_op(&mut self, op: &Op) -> Outcome {
        if self.gone(op) {
            return Outcome::of(Err(libc::ESTALE));
        }
        match op {
            Op::Open { slot, loc, flags, mode } => self.open(*slot, loc, *flags, *mode),
            Op::Close { slot } => {
                let fd = self.fd(*slot);
                self.files[*slot as usize] = None;
                Outcome::of(sys::close(fd))
            }
            Op::Dup { from, to } => self.dup(*from, *to),
            Op::OpenDir { dir, loc, flags } => self.open_dir(*dir, loc, *flags),
            Op::CloseDir { dir } => {
                let fd = self.dir(*dir);
                self.dirs[*dir as usize] = None;
                Outcome::of(sys::close(fd))
            }
            Op::Read { slot, len } => io::read(self.file(*slot), *len, None),
            Op::Write { slot, len, fill } => io::write(self.file(*slot), *len, None, *fill),
            Op::Pread { slot, off, len } => io::read(self.file(*slot), *len, Some(*off)),
            Op::Pwrite { slot, off, len, fill } => {
                io::write(self.file(*slot), *len, Some(*off), *fill)
            }
            Op::Truncate { loc, len } => self.truncate(loc, *len),
            Op::Ftruncate { slot, len } => Outcome::of(sys::ftruncate(self.fd(*slot), *len)),
            Op::Fallocate { slot, mode, off, len } => {
                io::allocate(self.fd(*slot), *mode, *off, *len)
            }
            Op::Lseek { slot, off, whence } => io::seek(self.fd(*slot), *off, *whence),
            Op::SeekMap { slot } => io::seek_map(self.fd(*slot)),
            Op::MmapWrite { slot, off, len, fill, shared, sync } => {
                io::mmap_write(self.file(*slot), *off, *len, *fill, *shared, *sync)
            }
            Op::MmapRead { slot, off, len } => io::mmap_read(self.fd(*slot), *off, *len),
            Op::CopyRange { from, from_off, to, to_off, len } => {
                io::copy_range(self.file(*from), *from_off, self.file(*to), *to_off, *len)
            }
            Op::Fsync { slot, data_only: false } => Outcome::of(sys::fsync(self.fd(*slot))),
            Op::Fsync { slot, data_only: true } => Outcome::of(sys::fdatasync(self.fd(*slot))),
            Op::FsyncDir { dir } => Outcome::of(sys::fsync(self.dir(*dir))),
            Op::Flock { slot, operation } => Outcome::of(sys::flock(self.fd(*slot), *operation)),
            Op::Lock { slot, kind, typ, range } => locks::lock(self.fd(*slot), *kind, *typ, *range),
            Op::GetLock { slot, kind, typ, range } => {
                locks::get(self.fd(*slot), *kind, *typ, *range)
            }
            Op::LockWait { slot, range, .. } => locks::wait(self.fd(*slot), *range),
            Op::Chdir { loc } => Outcome::of(sys::chdir(&self.plain(loc))),
            Op::Fchdir { dir } => Outcome::of(sys::fchdir(self.dir(*dir))),
            Op::Getcwd => getcwd(),
            Op::Umask { mask } => Outcome::of(sys::umask(*mask)),
            Op::ReadDirSlot { dir, buf } => dirs::read_again(self.dir(*dir), *buf as usize),
            Op::ReadDir { loc } => dirs::read(self.at(loc)),
            Op::SeekDir { loc } => dirs::seek(self.at(loc)),
            Op::ScanUnderChange { loc, seed, threaded } => {
                crate::compare::scan::scan(self.at(loc), *seed, *threaded)
            }
            Op::DeepPath { loc, name_len, depth } => dirs::deep(self.at(loc), *name_len, *depth),
            _ => self.run_names(op),
        }
    }

    fn truncate(&self, loc: &Loc, len: i64) -> Outcome {
        let path = self.plain(loc);
        // Whether a call that changes no size updates the times is left open, and local file
        // systems differ.
        match sys::fstatat(libc::AT_FDCWD, &path, 0) {
            Ok(st) if st.st_size == len && st.st_mode & libc::S_IFMT == libc::S_IFREG => {
                Outcome::default()
            }
            _ => Outcome::of(sys::truncate(&path, len)),
        }
    }

    fn open(&mut self, slot: u8, loc: &Loc, flags: i32, mode: u32) -> Outcome {
        if let Some(old) = self.files[slot as usize].take() {
            let _ = sys::close(old.fd);
        }
        let (dir, path) = self.at(loc);
        // The kernel opens FIFOs itself, and asks no file system that checks permissions itself.
        let is_fifo =
            sys::fstatat(dir, &path, 0).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFIFO);
        if is_fifo && sys::geteuid() != Ok(0) {
            return Outcome::of(Err(libc::ENXIO));
        }
        // An unnamed file in a removed directory: EPERM, ENOENT and success are all found in the
        // wild.
        let unnamed = flags & libc::O_TMPFILE == libc::O_TMPFILE;
        if unnamed && sys::fstatat(dir, &path, 0).is_ok_and(|st| st.st_nlink == 0) {
            return Outcome::of(Err(libc::ENOENT));
        }
        // Never block in the open of a FIFO; on other files the flag means nothing.
        match sys::openat(dir, &path, flags | libc::O_NONBLOCK | libc::O_CLOEXEC, mode) {
            Ok(fd) => {
                let fd = fd as i32;
                let mut out = Outcome::default();
                let st = sys::fstat(fd);
                let kind = st.as_ref().map_or(0, |st| st.st_mode & libc::S_IFMT);
                if kind == libc::S_IFIFO || kind == libc::S_IFDIR {
                    // Nobody tells the file system that a FIFO is open, so it need not outlive its
                    // last name; and handles of directories have slots of their own, for which
                    // removal is looked after.
                    let _ = sys::close(fd);
                } else {
                    self.files[slot as usize] = Some(OpenFile { fd, flags });
                }
                match st {
                    Ok(st) => self.push_stat(&mut out, &st),
                    Err(e) => out.field("fstat", crate::errno::name(e)),
                }
                out
            }
            Err(e) => Outcome::of(Err(e)),
        }
    }

    fn dup(&mut self, from: u8, to: u8) -> Outcome {
        let OpenFile { fd, flags } = self.file(from);
        match sys::dup(fd) {
            Ok(new) => {
                if let Some(old) =
                    self.files[to as usize].replace(OpenFile { fd: new as i32, flags })
                {
                    let _ = sys::close(old.fd);
                }
                Outcome::default()
            }
            Err(e) => Outcome::of(Err(e)),
        }
    }

    fn open_dir(&mut self, slot: u8, loc: &Loc, flags: i32) -> Outcome {
        let (dir, path) = self.at(loc);
        let opened = sys::openat(dir, &path, flags | libc::O_NONBLOCK | libc::O_CLOEXEC, 0);
        // After the open: the location may start at this very slot.
        if let Some(old) = self.dirs[slot as usize].take() {
            let _ = sys::close(old);
        }
        if let Ok(fd) = opened {
            self.dirs[slot as usize] = Some(fd as i32);
        }
        Outcome::of(opened.map(|_| 0))
    }

    fn note_stat(&self, out: &mut Outcome, dir: i32, path: &CString, flags: i32) {
        if out.ret == 0
            && let Ok(st) = sys::fstatat(dir, path, flags)
        {
            self.push_stat(out, &st);
        }
    }

    fn push_stat(&self, out: &mut Outcome, st: &libc::stat) {
        push_stat(out, st, self.run_start);
    }

    fn show_time(&self, sec: i64, nsec: i64) -> String {
        show_time(sec, nsec, self.run_start)
    }

    /// The second half of `LockWait`, in the other actor.
    pub fn unlock_for(&self, op: &Op) -> Outcome {
        match op {
            Op::LockWait { range, other_slot, .. } => locks::lock(
                self.fd(*other_slot),
                crate::compare::op::LockKind::Posix,
                libc::F_UNLCK,
                *range,
            ),
            _ => Outcome::of(Err(libc::EINVAL)),
        }
    }
}

fn nofollow_flag(nofollow: bool) -> i32 {
    if nofollow { libc::AT_SYMLINK_NOFOLLOW } else { 0 }
}

fn look(timed: &TimedInode) -> Option<(u64, Times)> {
    let st = match timed {
        TimedInode::Fd(fd) => sys::fstat(*fd),
        TimedInode::At(dir, path, flags) => sys::fstatat(*dir, path, *flags),
    }
    .ok()?;
    let times = Times {
        mtime: st.st_mtime * 1_000_000_000 + st.st_mtime_nsec,
        ctime: st.st_ctime * 1_000_000_000 + st.st_ctime_nsec,
    };
    Some((st.st_ino, times))
}

fn getcwd() -> Outcome {
    let mut buf = vec![0; 8192];
    let mut out = Outcome::of(sys::getcwd(&mut buf));
    buf.truncate(out.ret.max(0) as usize);
    out.data = buf;
    out
}

/// An explicit time exactly, any other as "recent": no two file systems stamp the same nanosecond.
pub fn show_time(sec: i64, nsec: i64, run_start: i64) -> String {
    if sec < run_start { format!("{sec}.{nsec:09}") } else { "recent".into() }
}

/// Adds the attributes that two correct file systems agree on.
pub fn push_stat(out: &mut Outcome, st: &libc::stat, run_start: i64) {
    let kind = st.st_mode & libc::S_IFMT;
    out.field("mode", format!("{:o}", st.st_mode));
    out.field("owner", format!("{}:{}", st.st_uid, st.st_gid));
    out.field("nlink", st.st_nlink);
    if kind == libc::S_IFREG || kind == libc::S_IFLNK {
        out.field("size", st.st_size);
    }
    out.field("mtime", show_time(st.st_mtime, st.st_mtime_nsec, run_start));
}

/// The `user.` names of a listxattr answer, sorted and readable.
pub fn user_names(list: &[u8]) -> Vec<String> {
    let mut names: Vec<_> = list
        .split(|&b| b == 0)
        .filter(|n| n.starts_with(b"user."))
        .map(crate::compare::op::show_bytes)
        .collect();
    names.sort();
    names
}
