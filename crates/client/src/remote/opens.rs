//! What a client has open at its server, as the server's answers say: the basis of a reclaim.
//!
//! Counted are the answers that opened a file, less the answers to releases. So an open or a release that was under way when
//! the server restarted is not in the reclaim, or still is: it is sent again afterwards, and counts then.

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::request::{Answer, Op, Outcome, Reply};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 16;

/// Opens of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// How many.
    pub count: u32,
    /// Made without a name, and may still get one.
    pub linkable: bool,
}

/// What an answer may mean for the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A file may be opened.
    Opens {
        /// See [`Open::linkable`].
        linkable: bool,
    },
    /// This file may be released.
    Releases(InodeId),
}

impl Effect {
    /// Of an operation's answer.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Create { .. } | Op::Open(..) | Op::OpenAt(..) => Self::Opens { linkable: false },
            Op::TmpFile { exclusive, .. } => Self::Opens { linkable: !exclusive },
            Op::Release(ino) => Self::Releases(*ino),
            _ => Self::None,
        }
    }
}

/// The table.
#[derive(Debug)]
pub struct Opens {
    shards: [Mutex<FxHashMap<InodeId, Open>>; SHARDS],
}

impl Default for Opens {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Opens {
    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, Open>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Takes in an answer.
    pub fn answered(&self, effect: Effect, reply: &Reply) {
        match (effect, reply) {
            // Opens of directories are not counted.
            (Effect::Opens { linkable }, Ok(Answer::Opened { inode, .. })) if inode.kind != Kind::Dir => {
                let mut shard = self.shard(inode.ino).lock();
                let open = shard.entry(inode.ino).or_default();
                open.count += 1;
                open.linkable |= linkable;
            }
            (Effect::Releases(ino), reply) if is_released(reply) => {
                let mut shard = self.shard(ino).lock();
                if let Some(open) = shard.get_mut(&ino) {
                    open.count -= 1;
                    if open.count == 0 {
                        shard.remove(&ino);
                    }
                }
            }
            _ => {}
        }
    }

    /// A server that lost its sessions has this file no more.
    pub fn lost(&self, ino: InodeId) {
        self.shard(ino).lock().remove(&ino);
    }

    /// All of them.
    pub fn all(&self) -> Vec<(InodeId, Open)> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().iter().map(|(ino, open)| (*ino, *open)).collect::<Vec<_>>())
            .collect()
    }

    /// Files in it.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// Whether the server does not count the open any more: it says so, or it had not.
fn is_released(reply: &Reply) -> bool {
    match reply {
        Ok(_) => true,
        Err(Outcome::Failed(error)) => matches!(error.errno, libc::EBADF | libc::ESTALE),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::error::FsError;
    use kestrel_types::ids::ROOT;
    use kestrel_types::inode::{Data, Inode};

    use super::*;

    fn opened(ino: InodeId) -> Reply {
        let inode = Inode {
            ino,
            kind: Kind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
            change: 1,
            data_change: 1,
            xattrs: false,
            data: Data::None,
        };
        Ok(Answer::Opened { inode: Box::new(inode), created: false, parent: None })
    }

    #[test]
    fn opens_are_counted_by_answers() {
        let opens = Opens::default();
        let failed = |errno| Err(FsError::new(errno, "test").into());
        let (open, temporary) = (
            Effect::Opens { linkable: false },
            Effect::of(&Op::TmpFile { dir: ROOT, mode: 0, exclusive: false }),
        );
        opens.answered(open, &opened(20));
        opens.answered(open, &opened(20));
        opens.answered(temporary, &opened(21));
        opens.answered(open, &failed(libc::EACCES));
        opens.answered(Effect::None, &opened(22));
        let mut all = opens.all();
        all.sort_by_key(|(ino, _)| *ino);
        assert_eq!(all, [(20, Open { count: 2, linkable: false }), (21, Open { count: 1, linkable: true })]);
        opens.answered(Effect::Releases(20), &Ok(Answer::Done));
        opens.answered(Effect::Releases(20), &failed(libc::EIO));
        assert_eq!(opens.len(), 2, "a release that failed has released nothing");
        opens.answered(Effect::Releases(20), &failed(libc::EBADF));
        opens.lost(21);
        opens.answered(Effect::Releases(21), &failed(libc::EBADF));
        assert_eq!(opens.len(), 0);
    }
}
