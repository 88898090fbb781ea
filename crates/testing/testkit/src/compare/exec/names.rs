//! Operations on names and attributes.

use super::{World, nofollow_flag, user_names};
use crate::compare::op::{Loc, Op, Target, Time};
use crate::compare::outcome::Outcome;
use crate::sys::{self, Sys};

impl World {
    /// Operations on names and attributes.
    pub(super) fn run_names(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Mkdir { loc, mode } => {
                let (dir, path) = self.at(loc);
                Outcome::of(sys::mkdirat(dir, &path, *mode))
            }
            Op::Rmdir { loc } => {
                let (dir, path) = self.at(loc);
                Outcome::of(sys::unlinkat(dir, &path, libc::AT_REMOVEDIR))
            }
            Op::Unlink { loc } => {
                let (dir, path) = self.at(loc);
                Outcome::of(sys::unlinkat(dir, &path, 0))
            }
            Op::Mknod { loc, mode } => {
                let (dir, path) = self.at(loc);
                Outcome::of(sys::mknodat(dir, &path, *mode, 0))
            }
            Op::Symlink { target, loc } => {
                let (dir, path) = self.at(loc);
                Outcome::of(sys::symlinkat(&sys::cstring(target), dir, &path))
            }
            Op::Readlink { loc } => {
                let (dir, path) = self.at(loc);
                let mut buf = vec![0; 4096];
                let mut out = Outcome::of(sys::readlinkat(dir, &path, &mut buf));
                buf.truncate(out.ret.max(0) as usize);
                out.data = buf;
                out
            }
            Op::Link { from, to, follow } => {
                let ((from_dir, from), (to_dir, to)) = (self.at(from), self.at(to));
                let flags = if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                let mut out = Outcome::of(sys::linkat(from_dir, &from, to_dir, &to, flags));
                self.note_stat(&mut out, to_dir, &to, libc::AT_SYMLINK_NOFOLLOW);
                out
            }
            Op::LinkSlot { slot, to } => {
                let (to_dir, to) = self.at(to);
                let mut out =
                    Outcome::of(sys::linkat(self.fd(*slot), c"", to_dir, &to, libc::AT_EMPTY_PATH));
                self.note_stat(&mut out, to_dir, &to, libc::AT_SYMLINK_NOFOLLOW);
                out
            }
            Op::Rename { from, to, flags } => {
                let ((from_dir, from), (to_dir, to)) = (self.at(from), self.at(to));
                let before = sys::fstatat(from_dir, &from, libc::AT_SYMLINK_NOFOLLOW);
                let mut out = Outcome::of(sys::renameat2(from_dir, &from, to_dir, &to, *flags));
                if let (0, Ok(before)) = (out.ret, before)
                    && let Ok(after) = sys::fstatat(to_dir, &to, libc::AT_SYMLINK_NOFOLLOW)
                {
                    out.field("same inode after rename", before.st_ino == after.st_ino);
                }
                out
            }
            Op::Chmod { target, mode } => match target {
                Target::Slot(slot) => Outcome::of(sys::fchmod(self.fd(*slot), *mode)),
                Target::Path(loc, _) => {
                    let (dir, path) = self.at(loc);
                    Outcome::of(sys::fchmodat(dir, &path, *mode))
                }
            },
            Op::Chown { target, uid, gid } => match target {
                Target::Slot(slot) => Outcome::of(sys::fchown(self.fd(*slot), *uid, *gid)),
                Target::Path(loc, nofollow) => {
                    let (dir, path) = self.at(loc);
                    Outcome::of(sys::fchownat(dir, &path, *uid, *gid, nofollow_flag(*nofollow)))
                }
            },
            Op::Utimens { target, atime, mtime } => self.utimens(target, *atime, *mtime),
            Op::Stat { target } => {
                let mut out = Outcome::default();
                match self.stat(target) {
                    Ok(st) => self.push_stat(&mut out, &st),
                    Err(e) => out.ret = -i64::from(e),
                }
                out
            }
            Op::Statx { loc, flags } => self.statx(loc, *flags),
            Op::Statfs { loc } => {
                let mut out = Outcome::default();
                match sys::statfs(&self.plain(loc)) {
                    Ok(st) => {
                        out.field("longest name", st.f_namelen);
                        out.field("has space", st.f_blocks > 0 && st.f_bsize > 0);
                    }
                    Err(e) => out.ret = -i64::from(e),
                }
                out
            }
            Op::Access { loc, mode, flags } => {
                let (dir, path) = self.at(loc);
                Outcome::of(sys::faccessat2(dir, &path, *mode, *flags))
            }
            Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. } => self.run_xattr(op),
            other => unreachable!("{} is handled above", other.kind()),
        }
    }

    fn run_xattr(&self, op: &Op) -> Outcome {
        match op {
            Op::SetXattr { target, name, len, fill, flags } => {
                let mut value = vec![0; *len as usize];
                crate::rng::fill(*fill, &mut value);
                let name = sys::cstring(name);
                Outcome::of(match target {
                    Target::Slot(slot) => sys::fsetxattr(self.fd(*slot), &name, &value, *flags),
                    Target::Path(loc, nofollow) => {
                        sys::setxattr(&self.plain(loc), &name, &value, *flags, *nofollow)
                    }
                })
            }
            Op::GetXattr { target, name, size } => {
                let mut value = vec![0; *size as usize];
                let name = sys::cstring(name);
                let mut out = Outcome::of(match target {
                    Target::Slot(slot) => sys::fgetxattr(self.fd(*slot), &name, &mut value),
                    Target::Path(loc, nofollow) => {
                        sys::getxattr(&self.plain(loc), &name, &mut value, *nofollow)
                    }
                });
                value.truncate(out.ret.max(0) as usize);
                out.data = value;
                out
            }
            Op::ListXattr { target } => {
                let mut list = vec![0; 65536];
                let ret = match target {
                    Target::Slot(slot) => sys::flistxattr(self.fd(*slot), &mut list),
                    Target::Path(loc, nofollow) => {
                        sys::listxattr(&self.plain(loc), &mut list, *nofollow)
                    }
                };
                let mut out = Outcome::of(ret.map(|_| 0));
                out.field("names", user_names(&list[..ret.unwrap_or(0) as usize]).join(" "));
                out
            }
            Op::RemoveXattr { target, name } => {
                let name = sys::cstring(name);
                Outcome::of(match target {
                    Target::Slot(slot) => sys::fremovexattr(self.fd(*slot), &name),
                    Target::Path(loc, nofollow) => {
                        sys::removexattr(&self.plain(loc), &name, *nofollow)
                    }
                })
            }
            other => unreachable!("{} is no xattr call", other.kind()),
        }
    }

    fn utimens(&self, target: &Target, atime: Time, mtime: Time) -> Outcome {
        let spec = |t: Time| libc::timespec { tv_sec: t.sec, tv_nsec: t.nsec };
        let times = [spec(atime), spec(mtime)];
        let mut out = Outcome::of(match target {
            Target::Slot(slot) => sys::futimens(self.fd(*slot), &times),
            Target::Path(loc, nofollow) => {
                let (dir, path) = self.at(loc);
                sys::utimensat(dir, &path, &times, nofollow_flag(*nofollow))
            }
        });
        if out.ret == 0
            && let Ok(st) = self.stat(target)
        {
            if atime.nsec != libc::UTIME_OMIT {
                out.field("atime", self.show_time(st.st_atime, st.st_atime_nsec));
            }
            out.field("mtime", self.show_time(st.st_mtime, st.st_mtime_nsec));
        }
        out
    }

    fn stat(&self, target: &Target) -> Sys<libc::stat> {
        match target {
            Target::Slot(slot) => sys::fstat(self.fd(*slot)),
            Target::Path(loc, nofollow) => {
                let (dir, path) = self.at(loc);
                sys::fstatat(dir, &path, nofollow_flag(*nofollow))
            }
        }
    }

    fn statx(&self, loc: &Loc, flags: i32) -> Outcome {
        let (dir, path) = self.at(loc);
        let mut out = Outcome::default();
        match sys::statx(dir, &path, flags) {
            Ok(st) => {
                let kind = u32::from(st.stx_mode) & libc::S_IFMT;
                out.field(
                    "basic stats",
                    st.stx_mask & libc::STATX_BASIC_STATS == libc::STATX_BASIC_STATS,
                );
                out.field("kind", format!("{kind:o}"));
                if flags & libc::AT_STATX_DONT_SYNC != 0 {
                    // What the kernel remembers, however old: only a local file system has no such
                    // thing.
                    return out;
                }
                out.field("mode", format!("{:o}", st.stx_mode));
                out.field("owner", format!("{}:{}", st.stx_uid, st.stx_gid));
                out.field("nlink", st.stx_nlink);
                if kind == libc::S_IFREG || kind == libc::S_IFLNK {
                    out.field("size", st.stx_size);
                }
                out.field(
                    "mtime",
                    self.show_time(st.stx_mtime.tv_sec, i64::from(st.stx_mtime.tv_nsec)),
                );
            }
            Err(e) => out.ret = -i64::from(e),
        }
        out
    }
}
