//! Measuring the flag bits.
//!
//! | file | |
//! | --- | --- |
//! | `walks` | walking the probe paths |
//!
//! The flags of a path walk (LOOKUP_PARENT, LOOKUP_OPEN, ...) are preprocessor macros: BTF does not
//! have them, and they have been renumbered between kernels. So they are measured. Right after the
//! mount, this process walks some paths on it, of names that cannot exist, in ways that differ by
//! one flag each; the program records each, and the difference of two records is the bit.
//!
//! The walks ([`WALKS`]) lead to LOOKUPs in the root directory, which the mount recognises by their
//! names and answers by [`Probes::answer`], almost always with ENOENT. Each difference must be
//! exactly one bit, no two may be the same, and the open flags read from the registers must be
//! those that were passed. Anything else means that this kernel is not as this crate expects, and
//! there will be no hints.
//!
//! The walks run in a thread of their own that gives up its share of the process's descriptors
//! first: a process that waits for its own mount and is killed holds /dev/fuse open through the
//! very thread that waits for it, and would never end.

use std::sync::Mutex;
use std::sync::PoisonError;

use crate::hint::Walk;

mod walks;

pub use walks::run;

/// Names of probes start so; 16 hexadecimal digits and the number of the walk follow.
const PREFIX: &str = ".kestrel-probe-";

/// One way of walking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum WalkKind {
    /// `lstat(p)`: no flags of interest.
    Plain,
    /// `lstat(p/x)`: LOOKUP_PARENT.
    Within,
    /// `open(p, O_RDONLY)`: LOOKUP_OPEN.
    Open,
    /// `open(p, O_RDWR|O_CREAT)`: LOOKUP_CREATE too.
    Create,
    /// `open(p, O_RDWR|O_CREAT|O_EXCL)`: LOOKUP_EXCL too.
    Exclusive,
    /// `open(p, O_RDONLY|O_DIRECTORY)`: LOOKUP_OPEN and LOOKUP_DIRECTORY.
    Directory,
    /// `lstat(p)`, answered ESTALE.
    Stale,
    /// The second LOOKUP of the same, as the kernel tries again: LOOKUP_REVAL.
    Again,
    /// `stat(p)`: LOOKUP_FOLLOW.
    Follow,
}

const WALKS: usize = 9;

/// The bits, and what else was found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// LOOKUP_PARENT: the walk is not at its last component.
    pub parent: u32,
    /// LOOKUP_OPEN.
    pub open: u32,
    /// LOOKUP_CREATE.
    pub create: u32,
    /// LOOKUP_EXCL.
    pub exclusive: u32,
    /// LOOKUP_DIRECTORY.
    pub directory: u32,
    /// LOOKUP_REVAL.
    pub revalidate: u32,
    /// LOOKUP_FOLLOW.
    pub follow: u32,
    /// The registers show what open was called with.
    pub calls: bool,
}

/// What was recorded of one probe walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    flags: u32,
    open_flags: Option<u32>,
}

/// The probes of one calibration: names, answers, records.
pub struct Probes {
    prefix: Vec<u8>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    seen: [Option<Seen>; WALKS],
    /// ESTALE was answered, once.
    staled: bool,
}

impl Probes {
    /// `random` makes the names unpredictable, so that no other process's are taken for probes.
    pub fn new(random: u64) -> Probes {
        Probes {
            prefix: format!("{PREFIX}{random:016x}-").into_bytes(),
            progress: Mutex::default(),
        }
    }

    fn name(&self, kind: WalkKind) -> Vec<u8> {
        let mut name = self.prefix.clone();
        name.push(b'0' + kind as u8);
        name
    }

    /// Is it one of the names?
    pub fn is_name(&self, name: &[u8]) -> bool {
        self.index(name).is_some()
    }

    fn index(&self, name: &[u8]) -> Option<usize> {
        match name.strip_prefix(&self.prefix[..])? {
            [digit @ b'0'..=b'8'] => Some(usize::from(digit - b'0')),
            _ => None,
        }
    }

    /// The errno that answers the LOOKUP of a probe; `None` for any other name. Remembers what was
    /// recorded of it.
    pub fn answer(&self, name: &[u8], walk: Option<Walk<'_>>) -> Option<i32> {
        let mut index = self.index(name)?;
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let mut errno = libc::ENOENT;
        if index == WalkKind::Stale as usize {
            if progress.staled {
                index = WalkKind::Again as usize;
            } else {
                progress.staled = true;
                errno = libc::ESTALE;
            }
        }
        if progress.seen[index].is_none() {
            progress.seen[index] = walk.and_then(|walk| Seen::new(name, index, &walk));
        }
        Some(errno)
    }

    /// The result, or what contradicts it.
    pub fn flags(&self) -> Result<Flags, String> {
        let seen = self.progress.lock().unwrap_or_else(PoisonError::into_inner).seen;
        let mut flags = [0; WALKS];
        for (number, (flags, seen)) in flags.iter_mut().zip(seen).enumerate() {
            *flags = seen.ok_or_else(|| format!("probe walk {number} was not recorded"))?.flags;
        }
        let of = |kind: WalkKind| flags[kind as usize];
        let bit = |name: &str, with: WalkKind, without: WalkKind| {
            let (with, without) = (of(with), of(without));
            let difference = with & !without;
            if difference.is_power_of_two() && without & !with == 0 {
                Ok(difference)
            } else {
                Err(format!("{name} is not one bit: flags {with:#x} with it, {without:#x} without"))
            }
        };
        let found = Flags {
            parent: bit("LOOKUP_PARENT", WalkKind::Within, WalkKind::Plain)?,
            open: bit("LOOKUP_OPEN", WalkKind::Open, WalkKind::Plain)?,
            create: bit("LOOKUP_CREATE", WalkKind::Create, WalkKind::Open)?,
            exclusive: bit("LOOKUP_EXCL", WalkKind::Exclusive, WalkKind::Create)?,
            directory: bit("LOOKUP_DIRECTORY", WalkKind::Directory, WalkKind::Open)?,
            revalidate: bit("LOOKUP_REVAL", WalkKind::Again, WalkKind::Stale)?,
            follow: bit("LOOKUP_FOLLOW", WalkKind::Follow, WalkKind::Plain)?,
            calls: walks::OPENS.iter().all(|&(kind, flags)| {
                seen[kind as usize].is_some_and(|seen| seen.open_flags == Some(flags))
            }),
        };
        let Flags { parent, open, create, exclusive, directory, revalidate, follow, .. } = found;
        let all = [parent, open, create, exclusive, directory, revalidate, follow];
        if all.iter().fold(0, |sum, bit| sum | bit).count_ones() as usize != all.len() {
            return Err(format!("two walk flags share a bit: {found:x?}"));
        }
        Ok(found)
    }
}

impl Seen {
    /// What a probe's record shows, if it is of that probe and nothing else.
    fn new(name: &[u8], index: usize, walk: &Walk<'_>) -> Option<Seen> {
        let behind: &[u8] = if index == WalkKind::Within as usize { b"/x" } else { b"" };
        let whole = walk.text.strip_prefix(name)? == behind
            && walk.component_bytes as usize == name.len()
            && walk.depth == 0;
        whole.then(|| Seen { flags: walk.flags, open_flags: walk.call.open_flags() })
    }
}

#[cfg(test)]
mod tests;
