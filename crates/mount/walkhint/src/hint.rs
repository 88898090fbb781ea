//! What a hint contains, and how it is read out of a recorded walk.
//!
//! The kernel walks a path component by component and keeps the state of the walk in a
//! `struct nameidata`: the directory it has reached, the component it is at, as a pointer into the
//! path text, and flags. A [`Walk`] is a copy of those. [`Walk::hint`] turns it into a statement
//! about one LOOKUP, or into nothing when the two do not belong together.

use crate::calibrate::Flags;

/// What identifies the LOOKUP that is being served: from the header of the FUSE request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// `fuse_in_header.unique`.
    pub unique: u64,
    /// `fuse_in_header.pid`: the calling thread, 0 where it is not visible in our pid namespace.
    pub tid: u32,
    /// `fuse_in_header.nodeid`: the directory.
    pub nodeid: u64,
}

/// What the caller is up to with the last component of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// It will be opened (open, creat, exec).
    pub open: bool,
    /// It is to be created where it is missing (O_CREAT).
    pub create: bool,
    /// It must not be there yet (O_EXCL with O_CREAT).
    pub exclusive: bool,
    /// It must be a directory (O_DIRECTORY, or a slash at the end of the path).
    pub directory: bool,
    /// If it is a symbolic link, that is followed.
    pub follow: bool,
}

/// What was recorded about a LOOKUP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintResult {
    /// It is part of this walk.
    Walk(Hint),
    /// It is no part of a walk: a call that makes a name (mkdir, mknod, symlink, link) looks for
    /// that name. Such a call does not walk again when this LOOKUP is answered `ESTALE`, but does
    /// if what it sends next is.
    Creation,
    /// Nothing certain; the name has to be looked up for real.
    Nothing,
}

impl HintResult {
    /// The walk, if it is part of one.
    pub fn walk(self) -> Option<Hint> {
        match self {
            HintResult::Walk(hint) => Some(hint),
            HintResult::Creation | HintResult::Nothing => None,
        }
    }
}

/// What was recorded about the walk that a LOOKUP is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// More components come after this one, so this is (or leads to) a directory for the caller.
    pub follows: bool,
    /// The text after this component and the slashes behind it: `b//c/` at the `a` of `a/b//c/`.
    /// Empty for the last.
    pub rest: Box<[u8]>,
    /// `rest` is everything that follows. It is not within the text of a symbolic link: the kernel
    /// then walks the link's text, and what comes after the link is not in the record.
    pub complete: bool,
    /// A component of `rest` is `..`.
    pub dotdot: bool,
    /// The text ends in a slash.
    pub trailing_slash: bool,
    /// What happens to the last component. The kernel decides that when it gets there: all `false`
    /// while [`follows`](Hint::follows).
    pub intent: Intent,
    /// The kernel walks the path again because an answer was ESTALE: nothing cached or guessed may
    /// be answered now.
    pub revalidate: bool,
    /// Flags as `fuse_open_in.flags` of the OPEN or CREATE that will follow, and besides O_CREAT,
    /// O_EXCL, O_NOCTTY and O_TRUNC as the caller gave them, which the kernel removes from some
    /// requests. A forecast from the registers of the system call, never a promise: what is done
    /// because of it must be undone when the OPEN that comes has other flags, or none comes. `None`
    /// without the open intent, for io_uring, 32-bit programs and anything else that is not plainly
    /// a system call that opens.
    pub open_flags: Option<u32>,
    /// The call keeps what the path leads to without opening it: O_PATH, a bind mount, a watch. A
    /// forecast too.
    pub keeps: bool,
    /// The calling thread in the initial pid namespace, recorded also where `fuse_in_header.pid` is
    /// 0. To compare only.
    pub caller: u32,
}

impl Hint {
    /// It does not matter for this walk what the component is, as long as it turns out to be the
    /// directory that the walk takes it for: it may be answered without a request.
    pub fn may_fake(&self) -> bool {
        self.follows && self.complete && !self.dotdot && !self.revalidate
    }
}

/// A walk as the program recorded it: numbers of the kernel, not yet interpreted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<'a> {
    /// `nameidata.flags`.
    pub flags: u32,
    /// `nameidata.depth`: symbolic links being followed.
    pub depth: u32,
    /// Bytes of the component that the walk is at.
    pub component_bytes: u32,
    /// Thread id in the initial pid namespace.
    pub caller: u32,
    /// Number of the system call and the arguments that may be open flags.
    pub call: SystemCall,
    /// The path from the component on, without NUL.
    pub text: &'a [u8],
}

/// The system call that a thread is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemCall {
    /// Its number, or [`SystemCall::NONE`].
    pub number: i64,
    /// Second and third argument, and the word that the third points to (`open_how.flags`).
    pub args: [u64; 3],
}

impl SystemCall {
    /// Not recorded.
    pub const NONE: i64 = -1;

    /// It makes a name. (32-bit programs have other numbers.)
    pub fn makes_a_name(self) -> bool {
        match self.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir | libc::SYS_mknod | libc::SYS_symlink | libc::SYS_link => true,
            libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_symlinkat | libc::SYS_linkat => true,
            _ => false,
        }
    }

    /// It keeps what its path leads to, without an OPEN that would show it.
    pub fn keeps(self) -> bool {
        match self.number {
            libc::SYS_mount
            | libc::SYS_open_tree
            | libc::SYS_inotify_add_watch
            | libc::SYS_fanotify_mark => true,
            _ => self.flags().is_some_and(|flags| flags as i32 & libc::O_PATH != 0),
        }
    }

    /// What `file->f_flags` will be, when this is a call that opens.
    ///
    /// 32-bit programs have numbers of their own; none of theirs that collides with one of these
    /// opens a file, apart from openat2, which has the same number and the same meaning of its
    /// third argument. They get `None` or the truth.
    pub fn open_flags(self) -> Option<u32> {
        // The kernel adds it for 64-bit programs, and it reaches the FUSE request (the libc crate
        // has 0 for it there).
        const LARGEFILE: u32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
        // FMODE_EXEC: "opened for execution", the one internal flag that FUSE passes on.
        const EXEC: u32 = 0x20;
        let flags = match self.number {
            libc::SYS_execve | libc::SYS_execveat => EXEC,
            _ => self.flags()?,
        };
        // O_CLOEXEC is the descriptor's.
        Some(flags & !(libc::O_CLOEXEC as u32) | LARGEFILE)
    }

    /// The flags of a call of the open family, as given. open() ignores what does not fit its int
    /// argument, openat2() refuses it.
    fn flags(self) -> Option<u32> {
        let flags = match self.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => self.args[0],
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64,
            libc::SYS_openat => self.args[1],
            libc::SYS_openat2 => self.args[2],
            _ => return None,
        };
        Some(flags as u32)
    }
}

impl Walk<'_> {
    /// The walk's record about a LOOKUP of `name`; `None` when it is not at that name, or
    /// contradicts itself.
    pub fn hint(&self, name: &[u8], flags: &Flags) -> Option<Hint> {
        let behind = self.text.strip_prefix(name)?;
        if name.is_empty() || self.component_bytes as usize != name.len() {
            return None;
        }
        let slashes = behind.iter().take_while(|&&byte| byte == b'/').count();
        if slashes == 0 && !behind.is_empty() {
            return None;
        }
        let rest = &behind[slashes..];
        let within = self.flags & flags.parent != 0;
        if !rest.is_empty() && !within {
            return None;
        }
        // Within the walk, but the text ends here: the last component of a symbolic link's text, of
        // which the kernel has counted down `depth` already. What follows is behind the link, and
        // not in the record.
        let link_ends = within && rest.is_empty();
        let has = |bit: u32| !within && self.flags & bit != 0;
        let intent = Intent {
            open: has(flags.open),
            create: has(flags.create),
            exclusive: has(flags.exclusive),
            directory: has(flags.directory),
            follow: has(flags.follow),
        };
        Some(Hint {
            follows: within,
            rest: rest.into(),
            complete: self.depth == 0 && !link_ends,
            dotdot: rest.split(|&byte| byte == b'/').any(|component| component == b".."),
            trailing_slash: self.text.last() == Some(&b'/'),
            open_flags: if intent.open && flags.calls { self.call.open_flags() } else { None },
            intent,
            keeps: !within && flags.calls && self.call.keeps(),
            revalidate: self.flags & flags.revalidate != 0,
            caller: self.caller,
        })
    }
}

#[cfg(test)]
mod tests;
