//! One method for each kind of operation.

use super::{Effect, Generator, Kind};
use crate::compare::actor::ACTORS;
use crate::compare::op::{DIR_SLOTS, LockKind, Op, Range, SLOTS, Time};

const MODES: &[u32] = &[
    0o777, 0o755, 0o700, 0o644, 0o666, 0o600, 0o444, 0o000, 0o111, 0o222, 0o1777, 0o2775, 0o4755,
    0o6711, 0o070, 0o007,
];
const XATTRS: &[&[u8]] = &[b"user.a", b"user.b", b"user.c.d", b"user.d/e", b"user.\xe2\x82\xac"];

impl Generator {
    pub(super) fn open(&mut self, actor: usize) -> Op {
        let slot = self.rng.below(SLOTS as u64) as u8;
        let mut flags =
            *self.rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
        let mode = *self.rng.pick(MODES);
        if self.rng.percent(4) {
            let names = self.dir_seen();
            let access = if self.rng.percent(90) { libc::O_RDWR } else { flags };
            self.will(Effect::Open(actor, slot, true));
            let excl = if self.rng.percent(15) { libc::O_EXCL } else { 0 };
            return Op::Open {
                slot,
                loc: self.loc(actor, &names),
                flags: libc::O_TMPFILE | access | excl,
                mode,
            };
        }
        let names = if self.rng.percent(50) {
            flags |= libc::O_CREAT;
            let names = if self.rng.percent(60) { self.fresh() } else { self.some(&[Kind::File]) };
            self.add(&names, Kind::File);
            names
        } else {
            self.some(&[Kind::File])
        };
        let odds = [
            (12, libc::O_TRUNC),
            (15, libc::O_APPEND),
            (8, libc::O_EXCL),
            (6, libc::O_NOFOLLOW),
            (3, libc::O_DIRECTORY),
            (3, libc::O_SYNC),
            (2, libc::O_NOATIME),
        ];
        for (percent, flag) in odds {
            if self.rng.percent(percent) {
                flags |= flag;
            }
        }
        // O_CREAT with O_DIRECTORY is EINVAL since Linux 6.3 and was undefined before; O_EXCL alone
        // is undefined.
        if flags & libc::O_DIRECTORY != 0 {
            flags &= !libc::O_CREAT;
        }
        if flags & libc::O_CREAT == 0 {
            flags &= !libc::O_EXCL;
        }
        // Truncating through O_RDONLY is unspecified.
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            flags &= !libc::O_TRUNC;
        }
        if self.rng.percent(5) && flags & libc::O_APPEND == 0 {
            flags |= libc::O_DIRECT;
        }
        self.will(Effect::Open(actor, slot, true));
        Op::Open { slot, loc: self.loc(actor, &names), flags, mode }
    }

    pub(super) fn close(&mut self, actor: usize) -> Op {
        let slot = self.slot(actor);
        self.will(Effect::Open(actor, slot, false));
        Op::Close { slot }
    }

    pub(super) fn dup(&mut self, actor: usize) -> Op {
        let (from, to) = (self.slot(actor), self.rng.below(SLOTS as u64) as u8);
        self.will(Effect::Open(actor, to, true));
        Op::Dup { from, to }
    }

    pub(super) fn open_dir(&mut self, actor: usize) -> Op {
        let dir = self.rng.below(DIR_SLOTS as u64) as u8;
        let names = self.some(&[Kind::Dir]);
        let flags = match self.rng.below(10) {
            0 => libc::O_RDONLY,
            1 | 2 => libc::O_PATH | libc::O_DIRECTORY,
            _ => libc::O_RDONLY | libc::O_DIRECTORY,
        };
        let loc = self.loc(actor, &names);
        self.will(Effect::Dir(actor, dir, Some(names)));
        Op::OpenDir { dir, loc, flags }
    }

    pub(super) fn close_dir(&mut self, actor: usize) -> Op {
        let dir = self.rng.below(DIR_SLOTS as u64) as u8;
        self.will(Effect::Dir(actor, dir, None));
        Op::CloseDir { dir }
    }

    pub(super) fn read(&mut self, actor: usize) -> Op {
        let (slot, len) = (self.slot(actor), self.length());
        if self.rng.percent(50) {
            Op::Read { slot, len }
        } else {
            Op::Pread { slot, off: self.offset(), len }
        }
    }

    pub(super) fn write(&mut self, actor: usize) -> Op {
        let (slot, len, fill) = (self.slot(actor), self.length(), self.rng.next_u64() >> 40);
        if self.rng.percent(50) {
            Op::Write { slot, len, fill }
        } else {
            Op::Pwrite { slot, off: self.offset(), len, fill }
        }
    }

    pub(super) fn truncate(&mut self, actor: usize) -> Op {
        let len = self.offset();
        if self.rng.percent(50) {
            return Op::Ftruncate { slot: self.slot(actor), len };
        }
        let names = self.some(&[Kind::File]);
        Op::Truncate { loc: self.loc(actor, &names), len }
    }

    pub(super) fn fallocate(&mut self, actor: usize) -> Op {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let mode = *self.rng.pick(&[
            0,
            keep,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_ZERO_RANGE,
            keep | libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
        ]);
        let (mut off, mut len) = (self.offset().min(9 << 20), i64::from(self.length()));
        if mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0 {
            // Their granularity is the block size, which is for each file system to choose.
            (off, len) = (off.abs() / 65536 * 65536, (len / 65536 + 1) * 65536);
        }
        Op::Fallocate { slot: self.slot(actor), mode, off, len }
    }

    pub(super) fn seek(&mut self, actor: usize) -> Op {
        let slot = self.slot(actor);
        match self.rng.below(10) {
            0..3 => Op::SeekMap { slot },
            n => {
                let whence = match n {
                    3 | 4 => libc::SEEK_SET,
                    5 => libc::SEEK_CUR,
                    6 | 7 => libc::SEEK_END,
                    8 => libc::SEEK_DATA,
                    _ => libc::SEEK_HOLE,
                };
                let off = self.offset();
                let off = if off < (1 << 33) && self.rng.percent(30) { -off } else { off };
                Op::Lseek { slot, off, whence }
            }
        }
    }

    pub(super) fn mkdir(&mut self, actor: usize) -> Op {
        let names = self.fresh();
        let mode = if self.rng.percent(60) { 0o777 } else { *self.rng.pick(MODES) };
        let loc = self.loc(actor, &names);
        self.add(&names, Kind::Dir);
        Op::Mkdir { loc, mode }
    }

    pub(super) fn rmdir(&mut self, actor: usize) -> Op {
        let names = self.some(&[Kind::Dir]);
        let loc = self.loc(actor, &names);
        self.will(Effect::Remove(names));
        Op::Rmdir { loc }
    }

    pub(super) fn mknod(&mut self, actor: usize) -> Op {
        let names = self.fresh();
        let kind = *self.rng.pick(&[
            libc::S_IFIFO,
            libc::S_IFIFO,
            libc::S_IFSOCK,
            libc::S_IFREG,
            libc::S_IFDIR,
            0,
        ]);
        let loc = self.loc(actor, &names);
        if kind != libc::S_IFDIR {
            let plain = kind == libc::S_IFREG || kind == 0;
            self.add(&names, if plain { Kind::File } else { Kind::Fifo });
        }
        Op::Mknod { loc, mode: kind | *self.rng.pick(MODES) }
    }

    pub(super) fn symlink(&mut self, actor: usize) -> Op {
        let names = self.fresh();
        let target = match self.rng.below(10) {
            0..4 => self.name(),
            4 | 5 => [&b"../"[..], &self.name()[..]].concat(),
            6 | 7 => {
                let names = self.some(&[Kind::Dir, Kind::File]);
                [&b"/"[..], &names.join(&b'/')[..]].concat()
            }
            8 => names.last().cloned().unwrap_or_default(),
            _ => vec![b'x'; *self.rng.pick(&[1000, 4000, 4095, 4096, 0])],
        };
        let loc = self.loc(actor, &names);
        self.add(&names, Kind::Link);
        Op::Symlink { target, loc }
    }

    pub(super) fn readlink(&mut self, actor: usize) -> Op {
        let names = self.some(&[Kind::Link]);
        Op::Readlink { loc: self.loc(actor, &names) }
    }

    pub(super) fn link(&mut self, actor: usize) -> Op {
        let to = self.fresh();
        if self.rng.percent(12) {
            let (slot, to_loc) = (self.slot(actor), self.loc(actor, &to));
            self.add(&to, Kind::File);
            return Op::LinkSlot { slot, to: to_loc };
        }
        let from = self.some(&[Kind::File, Kind::File, Kind::Link, Kind::Fifo]);
        let (from_loc, to_loc) = (self.loc(actor, &from), self.loc(actor, &to));
        let kind = self.nodes.get(&from).copied().unwrap_or(Kind::File);
        self.add(&to, kind);
        Op::Link { from: from_loc, to: to_loc, follow: self.rng.percent(20) }
    }

    pub(super) fn unlink(&mut self, actor: usize) -> Op {
        let names = self.some(&[Kind::File, Kind::Link, Kind::Fifo]);
        let loc = self.loc(actor, &names);
        self.will(Effect::Remove(names));
        Op::Unlink { loc }
    }

    pub(super) fn rename(&mut self, actor: usize) -> Op {
        let all = [Kind::Dir, Kind::File, Kind::Link, Kind::Fifo];
        let from = self.some(&all);
        let to = if self.rng.percent(50) { self.fresh() } else { self.some(&all) };
        let flags = match self.rng.below(20) {
            0..3 => libc::RENAME_NOREPLACE,
            3..6 => libc::RENAME_EXCHANGE,
            6 => *self.rng.pick(&[libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE, 1 << 20]),
            _ => 0,
        };
        let (from_loc, to_loc) = (self.loc(actor, &from), self.loc(actor, &to));
        let exchange = flags == libc::RENAME_EXCHANGE;
        self.will(if exchange { Effect::Exchange(from, to) } else { Effect::Move(from, to) });
        Op::Rename { from: from_loc, to: to_loc, flags }
    }

    pub(super) fn chmod(&mut self, actor: usize) -> Op {
        // Directories mostly stay usable, or nothing would succeed any more.
        let target = self.target(actor, &[Kind::File, Kind::File, Kind::Dir]);
        let mode = if self.rng.percent(50) { 0o777 } else { *self.rng.pick(MODES) };
        Op::Chmod { target, mode }
    }

    pub(super) fn chown(&mut self, actor: usize) -> Op {
        let ids = [0, u32::MAX, 20001, 20002, 20003, 20100];
        let target = self.target(actor, &[Kind::File, Kind::Dir, Kind::Link]);
        let (uid, gid) = (*self.rng.pick(&ids), *self.rng.pick(&ids));
        // Changing neither clears the setuid bit on a local file system; FUSE does not tell the
        // daemon of it.
        Op::Chown { target, uid: if gid == u32::MAX && uid == gid { 0 } else { uid }, gid }
    }

    pub(super) fn time(&mut self) -> Time {
        match self.rng.below(10) {
            0 => Time { sec: 0, nsec: libc::UTIME_OMIT },
            1 | 2 => Time { sec: 0, nsec: libc::UTIME_NOW },
            3 => Time { sec: 1, nsec: 1_000_000_000 },
            // Between 1970 and 2020: older than any run, so that it is recognised as explicit.
            _ => Time {
                sec: self.rng.below(1_577_836_800) as i64,
                nsec: self.rng.below(1_000_000_000) as i64,
            },
        }
    }

    pub(super) fn utimens(&mut self, actor: usize) -> Op {
        let target = self.target(actor, &[Kind::File, Kind::Dir, Kind::Link]);
        Op::Utimens { target, atime: self.time(), mtime: self.time() }
    }

    pub(super) fn stat(&mut self, actor: usize) -> Op {
        let all = [Kind::Dir, Kind::File, Kind::Link, Kind::Fifo];
        match self.rng.below(10) {
            0 => {
                let names = self.some(&all);
                let flags = *self.rng.pick(&[
                    0,
                    libc::AT_SYMLINK_NOFOLLOW,
                    libc::AT_EMPTY_PATH,
                    libc::AT_STATX_FORCE_SYNC,
                    libc::AT_STATX_DONT_SYNC,
                ]);
                Op::Statx { loc: self.loc(actor, &names), flags }
            }
            1 => {
                let names = self.some(&all);
                Op::Statfs { loc: self.loc(actor, &names) }
            }
            _ => Op::Stat { target: self.target(actor, &all) },
        }
    }

    pub(super) fn read_dir(&mut self, actor: usize) -> Op {
        if self.rng.percent(30) {
            let dir = self.rng.below(DIR_SLOTS as u64) as u8;
            return Op::ReadDirSlot { dir, buf: *self.rng.pick(&[300, 512, 4096, 65536]) };
        }
        let names = if self.rng.percent(80) { self.dir_seen() } else { self.some(&[Kind::Dir]) };
        let loc = self.loc(actor, &names);
        if self.rng.percent(25) { Op::SeekDir { loc } } else { Op::ReadDir { loc } }
    }

    pub(super) fn scan(&mut self, actor: usize) -> Op {
        let names = self.dir_seen();
        let (loc, threaded) = (self.loc(actor, &names), self.rng.percent(40));
        Op::ScanUnderChange { loc, seed: self.rng.next_u64() >> 32, threaded }
    }

    pub(super) fn xattr(&mut self, actor: usize) -> Op {
        let target = self.target(actor, &[Kind::File, Kind::File, Kind::Dir, Kind::Link]);
        let name = match self.rng.below(50) {
            0 => [&b"user."[..], &[b'n'; 250]].concat(),
            1 => [&b"user."[..], &[b'n'; 251]].concat(),
            2 => b"user.".to_vec(),
            3 => b"nosuch.a".to_vec(),
            4 => Vec::new(),
            _ => self.rng.pick(XATTRS).to_vec(),
        };
        match self.rng.below(10) {
            0..4 => {
                let len = match self.rng.below(20) {
                    0 => 0,
                    1 => 65_537,
                    _ => self.rng.range(1, 300) as u32,
                };
                let flags = *self.rng.pick(&[0, 0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE, 77]);
                Op::SetXattr { target, name, len, fill: self.rng.next_u64() >> 40, flags }
            }
            4..7 => Op::GetXattr { target, name, size: *self.rng.pick(&[4096, 4096, 4096, 0, 10]) },
            7 | 8 => Op::ListXattr { target },
            _ => Op::RemoveXattr { target, name },
        }
    }

    pub(super) fn access(&mut self, actor: usize) -> Op {
        let names = self.some(&[Kind::Dir, Kind::File, Kind::Link]);
        let flags = *self.rng.pick(&[0, 0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW]);
        Op::Access { loc: self.loc(actor, &names), mode: self.rng.below(8) as i32, flags }
    }

    pub(super) fn mmap(&mut self, actor: usize) -> Op {
        let (slot, off, len) = (self.slot(actor), self.small_offset(), self.length());
        if self.rng.percent(45) {
            return Op::MmapRead { slot, off, len };
        }
        let fill = self.rng.next_u64() >> 40;
        Op::MmapWrite {
            slot,
            off,
            len,
            fill,
            shared: self.rng.percent(85),
            sync: self.rng.percent(30),
        }
    }

    pub(super) fn copy(&mut self, actor: usize) -> Op {
        let (from, to) = (self.slot(actor), self.slot(actor));
        let (from_off, to_off) = (i64::from(self.small_offset()), i64::from(self.small_offset()));
        Op::CopyRange { from, from_off, to, to_off, len: self.length() }
    }

    pub(super) fn sync(&mut self, actor: usize) -> Op {
        if self.rng.percent(25) {
            return Op::FsyncDir { dir: self.rng.below(DIR_SLOTS as u64) as u8 };
        }
        Op::Fsync { slot: self.slot(actor), data_only: self.rng.percent(40) }
    }

    pub(super) fn lock(&mut self, actor: usize) -> Op {
        let slot = self.slot(actor);
        let range = Range {
            start: self.rng.below(12) as i64 * 10,
            len: *self.rng.pick(&[1, 1, 10, 15, 40, 0]),
        };
        let kind = if self.rng.percent(75) { LockKind::Posix } else { LockKind::Ofd };
        let typ = *self.rng.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_WRLCK, libc::F_UNLCK]);
        match self.rng.below(100) {
            0..30 => {
                let operation = *self.rng.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]);
                Op::Flock { slot, operation: operation | libc::LOCK_NB }
            }
            30..75 => Op::Lock { slot, kind, typ, range },
            75..98 => {
                let typ = if typ == libc::F_UNLCK { libc::F_WRLCK } else { typ };
                Op::GetLock { slot, kind, typ, range }
            }
            _ => {
                let other = (actor + 1) % ACTORS.len();
                Op::LockWait { slot, range, other: other as u8, other_slot: self.slot(other) }
            }
        }
    }

    pub(super) fn process(&mut self, actor: usize) -> Op {
        match self.rng.below(10) {
            0..4 => {
                let names = if self.rng.percent(50) { Vec::new() } else { self.some(&[Kind::Dir]) };
                let loc = self.loc(actor, &names);
                self.will(Effect::Cwd(actor, names));
                Op::Chdir { loc }
            }
            4 => {
                let dir = self.rng.below(DIR_SLOTS as u64) as u8;
                if let Some(names) = self.dirs[actor][dir as usize].clone() {
                    self.will(Effect::Cwd(actor, names));
                } else {
                    self.cwd[actor] = None;
                }
                Op::Fchdir { dir }
            }
            5 | 6 => Op::Umask { mask: *self.rng.pick(&[0, 0, 0o022, 0o077, 0o027]) },
            _ => Op::Getcwd,
        }
    }

    pub(super) fn deep(&mut self, actor: usize) -> Op {
        // Once a run at full depth is enough; it is slow.
        let names = self.dir_seen();
        let loc = self.loc(actor, &names);
        let name_len = *self.rng.pick(&[255, 200, 1]);
        let depth = if self.deep_done { 20 } else { 60 };
        self.deep_done = true;
        Op::DeepPath { loc, name_len, depth }
    }
}
