//! What a client knows that the kernel and servers rely on, written down for a process that takes a
//! mount over: which inodes the kernel refers to, what is open and locked, the session at the
//! server. JSON, so that processes of different versions understand each other: what one does not
//! know it ignores, what is missing has its default. Nothing of it is ever on a disk.
//!
//! What was written is not among it: a client that hands over has stored everything before.

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::wire::{ClientId, LockKind, LockMode};
use serde::{Deserialize, Serialize};

/// Number of the form in which this version writes a mount down, and the only one that it reads. A
/// change that an older or newer process would misunderstand gets the next number.
pub const FORMAT: u32 = 1;

/// A mount, written down.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MountNote {
    /// See [`FORMAT`].
    pub format: u32,
    /// Where it is mounted.
    pub dir: HexBytes,
    /// Device number of the mounted file system.
    pub device: (u32, u32),
    /// What the kernel and the mount have agreed on: numbers of the crate for FUSE.
    pub negotiated: Vec<u64>,
    /// Numbers of the next handles of a file and of a directory.
    pub next: (u64, u64),
    /// Handles of files.
    pub files: Vec<HandleNote>,
    /// Handles of directories.
    pub dirs: Vec<DirNote>,
    /// All else.
    pub client: ClientState,
}

/// What a client hands over but for its open files and directories.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientState {
    /// Number of the next handle.
    pub next_handle: u64,
    /// Batches of listings that were left in the middle have smaller numbers.
    pub positions: u64,
    /// Inodes that the kernel refers to.
    pub inodes: Vec<InodeNote>,
    /// Locks that processes hold, if a server keeps them.
    pub locks: Vec<LockNote>,
    /// Files with handles that lost their locks.
    pub lost: Vec<InodeId>,
    /// Files, directories and bytes of a volume with its node in this process.
    pub figures: Option<[i64; 3]>,
    /// The sessions at the nodes that serve the volume.
    pub sessions: Vec<SessionNote>,
}

/// An inode that the kernel refers to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InodeNote {
    /// Its number.
    pub ino: InodeId,
    /// Lookups that the kernel has not forgotten.
    pub lookups: u64,
    /// Its type, by number.
    pub kind: u8,
    /// The directory and name under which it was last seen.
    pub seen: Option<(InodeId, HexBytes)>,
    /// Its last attributes, if it lost its last name.
    pub removed: Option<HexBytes>,
    /// The contents that the kernel's pages and its size of the file are of, 0 if not known.
    pub cached: (u64, u64),
    /// Opens that were told to drop pages, and those that have since.
    pub dropping: (u32, u32),
}

/// What one owner has locked of one file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LockNote {
    /// The file.
    pub ino: InodeId,
    /// `flock(2)` instead of `fcntl(2)`.
    pub flock: bool,
    /// The kernel's number of the owner.
    pub owner: u64,
    /// Ranges: first byte, last byte, exclusive, process.
    pub ranges: Vec<(u64, u64, bool, u32)>,
    /// More may be held than that.
    pub uncertain: bool,
    /// Numbers of the handles through which it locked.
    pub handles: Vec<u64>,
}

/// The session with a node that serves the volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionNote {
    /// The node; 0 in a volume of one node.
    pub node: NodeId,
    /// The client's number.
    pub client: HexBytes,
    /// Connections so far.
    pub incarnation: u64,
    /// Every call up to this one is answered, and there is no later one.
    pub calls: u64,
    /// Files that the server counts as open: how often, writable, may get a name.
    pub opens: Vec<(InodeId, u32, bool, bool)>,
}

/// A handle of a file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HandleNote {
    /// The kernel's number of it.
    pub fh: u64,
    /// The file.
    pub ino: InodeId,
    /// The number by which locks refer to it.
    pub number: u64,
    /// What it was opened for.
    pub read: bool,
    /// See `read`.
    pub write: bool,
    /// See `read`.
    pub exec: bool,
    /// The kernel keeps no pages of what is written through it.
    pub uncached: bool,
    /// Reads do not count for the access time.
    pub noatime: bool,
    /// Locks of the file were lost since it was opened.
    pub lost: bool,
    /// The kernel may have dropped no pages for it yet.
    pub drops: bool,
    /// Of the file: others append, too; bytes have been moved and the kernel has not heard of it;
    /// a write that could not be stored, for the next flush to report.
    pub shared_end: bool,
    /// See `shared_end`.
    pub moved: bool,
    /// See `shared_end`.
    pub error: Option<i32>,
}

/// A handle of a directory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirNote {
    /// The kernel's number of it.
    pub fh: u64,
    /// The directory.
    pub ino: InodeId,
    /// Listing does not count for the access time.
    pub noatime: bool,
    /// Where its listings are.
    pub stream: StreamNote,
}

/// A listing under way: [`crate::dir_stream`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamNote {
    /// What has been listed.
    pub batches: Vec<BatchNote>,
    /// Number of the next batch.
    pub next: u64,
    /// How many batches were forgotten.
    pub dropped: u64,
    /// Passes so far.
    pub pass: u64,
    /// Pass and number of the first batch.
    pub first: Option<(u64, u64)>,
    /// Entries listed in this pass, and the most in one.
    pub listed: (usize, usize),
    /// The end was reached; it has batches of other handles.
    pub ended: bool,
    /// See `ended`.
    pub resumed: bool,
    /// The directory does not change.
    pub stays: bool,
}

/// A batch of a listing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchNote {
    /// Its number.
    pub number: u64,
    /// The name it begins after.
    pub after: Option<HexBytes>,
    /// Its last name.
    pub last: Option<HexBytes>,
    /// A hash of each name.
    pub hashes: Vec<u32>,
    /// The directory ends with it.
    pub end: bool,
    /// Pass and number of the batch that follows.
    pub next: Option<(u64, u64)>,
}

/// Bytes, as hexadecimal digits: names need not be text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HexBytes(String);

impl HexBytes {
    /// Writes bytes down.
    pub fn new(bytes: &[u8]) -> Self {
        Self(to_hex(bytes))
    }

    /// The bytes.
    ///
    /// # Errors
    /// `EINVAL` if these are no digits.
    pub fn bytes(&self) -> FsResult<Vec<u8>> {
        from_hex(&self.0).ok_or_else(|| unreadable("bytes"))
    }

    /// A name.
    ///
    /// # Errors
    /// `EINVAL` if these are no digits; what [`Name::new`] says.
    pub fn name(&self) -> FsResult<Name> {
        Name::new(&self.bytes()?)
    }

    /// An inode, written down.
    pub fn of_inode(inode: &Inode) -> Self {
        let mut bytes = Vec::new();
        inode.encode_into(&mut bytes);
        Self::new(&bytes)
    }

    /// The inode.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn inode(&self) -> FsResult<Inode> {
        let bytes = self.bytes()?;
        Inode::decode(&mut kestrel_types::codec::Reader::new(&bytes))
            .map_err(|_| unreadable("an inode"))
    }
}

impl SessionNote {
    /// The client's number.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn client(&self) -> FsResult<ClientId> {
        let bytes = self.client.bytes()?;
        bytes.try_into().map(ClientId).map_err(|_| unreadable("the session"))
    }
}

impl InodeNote {
    /// Its type.
    ///
    /// # Errors
    /// `EINVAL` if there is no such type.
    pub fn kind(&self) -> FsResult<Kind> {
        Kind::from_u8(self.kind).ok_or_else(|| unreadable("the type of an inode"))
    }
}

impl LockNote {
    /// Its kind.
    pub fn kind(&self) -> LockKind {
        if self.flock { LockKind::Flock } else { LockKind::Posix }
    }

    /// The mode of a range.
    pub fn mode(exclusive: bool) -> LockMode {
        if exclusive { LockMode::Write } else { LockMode::Read }
    }
}

/// The error of a state that makes no sense.
pub fn unreadable(what: &str) -> FsError {
    FsError::because(
        libc::EINVAL,
        format!("what the process before has left cannot be understood: {what}"),
    )
}
