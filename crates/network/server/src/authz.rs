//! What a client may ask for: the checks that need its session. The node itself checks names,
//! numbers, sizes and permissions.
//!
//! A handle is a claim: "I have this file open". Operations that had their permission checked at
//! open, and not again, are refused to sessions that do not have it open, so a forged inode number
//! gives a client no more than a name would. What only the node may do is refused to every client.

use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::request::{Op, Request};

use crate::opens::Opens;

/// What the answer of a call means for the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEffect {
    /// Nothing.
    None,
    /// An answer `Opened` counts an open.
    Opens {
        /// For writing.
        write: bool,
    },
    /// One open has been given back; it is put back if the call fails.
    Releases {
        /// The file.
        ino: InodeId,
        /// It was open for writing.
        write: bool,
    },
    /// An answer `Objects` gives numbers to the session.
    Allocates,
}

const NOT_OPEN: FsError = FsError::new(libc::EBADF, "this client does not have the file open");
const NOT_WRITABLE: FsError =
    FsError::new(libc::EBADF, "this client does not have the file open for writing");
const NODE_ONLY: FsError = FsError::new(libc::EPERM, "only the node itself may ask for this");
const TOO_MANY: FsError = FsError::new(libc::ENFILE, "this client has too many files open");

fn writable(opens: &Opens, ino: InodeId) -> Result<(), FsError> {
    if opens.get(ino).write { Ok(()) } else { Err(NOT_WRITABLE) }
}

/// Whether a session may make this request, and what its answer will mean. A release is counted
/// here already.
///
/// # Errors
/// `EBADF` for a file that is not open, or not for writing; `EPERM` for what only the node does;
/// `ENFILE` above `opens_max`.
pub fn session_effect(
    request: &Request,
    opens: &mut Opens,
    opens_max: usize,
) -> Result<SessionEffect, FsError> {
    let room = |effect| if opens.total() < opens_max { Ok(effect) } else { Err(TOO_MANY) };
    match &request.op {
        Op::Create { flags, .. } => room(SessionEffect::Opens { write: flags.write }),
        Op::Open(_, flags) | Op::OpenAt(_, flags) => {
            room(SessionEffect::Opens { write: flags.write })
        }
        Op::TmpFile { .. } => room(SessionEffect::Opens { write: true }),
        Op::Release(ino) => match opens.take(*ino, 1) {
            (1, held) => Ok(SessionEffect::Releases { ino: *ino, write: held.write }),
            _ => Err(NOT_OPEN),
        },
        Op::Commit(commit) => writable(opens, commit.inode.ino).map(|()| SessionEffect::None),
        Op::Clone { to, .. } => writable(opens, to.ino).map(|()| SessionEffect::None),
        Op::SetAttr(inode, set) if set.through_handle => {
            writable(opens, inode.ino).map(|()| SessionEffect::None)
        }
        // It changes no byte that readers see, but only a session that reads the old bytes can know
        // the new ones.
        Op::Compact { inode, .. } if opens.get(inode.ino).count == 0 && request.creds.uid != 0 => {
            Err(NOT_OPEN)
        }
        Op::Sweep(_) => Err(NODE_ONLY),
        Op::AllocObjects(_) => Ok(SessionEffect::Allocates),
        _ => Ok(SessionEffect::None),
    }
}
