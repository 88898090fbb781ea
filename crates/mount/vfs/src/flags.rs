//! Flags of files and directories (`chattr(1)`, `lsattr(1)`): the kernel turns `FS_IOC_GETFLAGS`,
//! `FS_IOC_SETFLAGS`, `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, and its calls `file_getattr(2)`
//! and `file_setattr(2)`, into IOCTL. It asks for `CAP_LINUX_IMMUTABLE` itself where that is
//! needed. Any other ioctl is `ENOTTY`.

#![allow(
    clippy::disallowed_methods,
    reason = "arguments of ioctls are in the byte order of the machine"
)]

use std::sync::Arc;

use kestrel_client::fs::{Caller, Done};
use kestrel_fuse::{Ioctl, Reply};
use kestrel_types::error::FsResult;
use kestrel_types::inode::{Inode, InodeFlags};

use crate::core::Core;

// Codes of `linux/fs.h`, on 64-bit machines.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Bytes of a `struct fsxattr`: five words, the first of which are flags, and padding.
const FSXATTR_BYTES: usize = 28;

/// Each flag with its `FS_*_FL` and its `FS_XFLAG_*`.
const FLAGS: [(InodeFlags, u32, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x10, 0x08),
    (InodeFlags::APPEND, 0x20, 0x10),
    (InodeFlags::NO_DUMP, 0x40, 0x80),
    (InodeFlags::NO_ATIME, 0x80, 0x40),
];

/// Which of the two numbers of a flag is meant.
type Bit = fn(&(InodeFlags, u32, u32)) -> u32;

fn bits(flags: InodeFlags, bit: Bit) -> u32 {
    FLAGS.iter().filter(|flag| flags.has(flag.0)).fold(0, |bits, flag| bits | bit(flag))
}

/// `None` if there are others among them.
fn from_bits(bits: u32, bit: Bit) -> Option<InodeFlags> {
    let set = FLAGS.iter().filter(|flag| bits & bit(flag) != 0);
    let (flags, known) = set.fold((InodeFlags::default(), 0), |(flags, known), flag| {
        (flags.with(flag.0), known | bit(flag))
    });
    (known == bits).then_some(flags)
}

/// The flags that an argument of `FS_IOC_SETFLAGS` or `FS_IOC_FSSETXATTR` asks for, or the errno.
fn wanted(cmd: u32, data: &[u8]) -> Result<InodeFlags, i32> {
    let (head, rest) = data.split_first_chunk::<4>().ok_or(libc::EINVAL)?;
    let word = u32::from_ne_bytes(*head);
    if cmd == FS_IOC_SETFLAGS {
        return from_bits(word, |flag| flag.1).ok_or(libc::EOPNOTSUPP);
    }
    // Hints of extents' sizes and projects are other file systems'.
    if rest.iter().any(|byte| *byte != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    from_bits(word, |flag| flag.2).ok_or(libc::EOPNOTSUPP)
}

/// Whether an ioctl asks for flags (true) or sets them; `None` for any other one.
pub fn is_read(cmd: u32) -> Option<bool> {
    match cmd {
        FS_IOC_GETFLAGS | FS_IOC_FSGETXATTR => Some(true),
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR => Some(false),
        _ => None,
    }
}

/// Answers an ioctl that asks for flags.
pub fn answer(ioctl: &Ioctl<'_>) -> impl FnOnce(Reply, Inode) + Send + 'static {
    let (cmd, room) = (ioctl.cmd, ioctl.out_size as usize);
    move |reply: Reply, inode: Inode| {
        let data = match cmd {
            FS_IOC_GETFLAGS => bits(inode.flags, |flag| flag.1).to_ne_bytes().to_vec(),
            _ => {
                let mut attributes = vec![0; FSXATTR_BYTES];
                attributes[..4].copy_from_slice(&bits(inode.flags, |flag| flag.2).to_ne_bytes());
                attributes
            }
        };
        if data.len() > room {
            return reply.error(libc::EINVAL);
        }
        reply.ioctl(0, &data);
    }
}

impl Core {
    /// IOCTL.
    pub(crate) fn ioctl(
        self: &Arc<Self>,
        caller: Caller,
        node: u64,
        ioctl: Ioctl<'_>,
        reply: Reply,
    ) {
        let cmd = ioctl.cmd;
        match cmd {
            FS_IOC_GETFLAGS | FS_IOC_FSGETXATTR => {
                let done = self.asked(caller.pid, reply, answer(&ioctl));
                self.inode(caller, node, done);
            }
            FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR => match wanted(cmd, ioctl.data) {
                Ok(flags) => self.set_flags(caller, node, flags, reply),
                Err(errno) => reply.error(errno),
            },
            _ => reply.error(libc::ENOTTY),
        }
    }

    fn set_flags(self: &Arc<Self>, caller: Caller, node: u64, flags: InodeFlags, reply: Reply) {
        self.numbered(caller, node, reply, move |core, ino, reply| {
            let answer = |reply: Reply, _: Inode| reply.ioctl(0, &[]);
            let done = core.patient(caller.pid, reply, answer);
            let again = core.clone();
            let done: Done<Inode> = Box::new(move |changed: FsResult<Inode>| {
                if let (Ok(_), Some(notifier)) = (&changed, again.notifier.get()) {
                    // Its time of change is another one, and the kernel does not know. An error: it
                    // has forgotten the node.
                    let _ = notifier.invalidate_inode(node, -1, 0);
                }
                done(changed);
            });
            core.change(node, None, done, move |core, done| {
                core.fs.set_flags(caller, ino, flags, done)
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags survive the way to the kernel and back in both of its encodings, and unknown ones are
    /// refused.
    #[test]
    fn flags_as_the_kernel_writes_them() {
        for number in 0..16 {
            let flags = InodeFlags::from_bits(number).expect("known");
            let attributes = bits(flags, |flag| flag.2).to_ne_bytes();
            let attributes = [&attributes[..], &[0; FSXATTR_BYTES - 4]].concat();
            assert_eq!(
                wanted(FS_IOC_SETFLAGS, &bits(flags, |flag| flag.1).to_ne_bytes()),
                Ok(flags)
            );
            assert_eq!(wanted(FS_IOC_FSSETXATTR, &attributes), Ok(flags));
        }
        assert_eq!(bits(InodeFlags::IMMUTABLE, |flag| flag.1), 0x10);
        assert_eq!(wanted(FS_IOC_SETFLAGS, &4u32.to_ne_bytes()), Err(libc::EOPNOTSUPP));
        assert_eq!(wanted(FS_IOC_SETFLAGS, &[0; 3]), Err(libc::EINVAL));
        let project = [&[0; 12][..], &[1], &[0; 15]].concat();
        assert_eq!(wanted(FS_IOC_FSSETXATTR, &project), Err(libc::EOPNOTSUPP));
    }
}
