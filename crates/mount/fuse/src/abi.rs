//! The FUSE kernel protocol, 7.31 to 7.45: structures, operation codes and flags as the kernel
//! defines them.
//!
//! Everything is in host byte order and without hidden padding, so that a structure and its bytes
//! are the same thing ([`Wire`]). Names follow the kernel's header (`include/uapi/linux/fuse.h`)
//! without its prefix, so that either can be read beside the other. Nothing outside this crate
//! should need this module.

/// Major version spoken here.
pub const KERNEL_MAJOR: u32 = 7;
/// Newest minor version of which this crate has the messages (Linux 6.18).
pub const KERNEL_MINOR_MAX: u32 = 45;
/// Oldest minor version accepted (Linux 5.4).
pub const KERNEL_MINOR_MIN: u32 = 31;

/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;

/// A plain structure of the wire: no padding, every bit pattern valid.
///
/// # Safety
/// Implement it through the macro `wire!` only, which proves the absence of padding at compile
/// time; every field must be an integer or another `Wire` type.
pub unsafe trait Wire: Copy + 'static {
    /// The structure's bytes as the kernel wants them.
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: no padding and no pointers in a Wire type, and the borrow keeps it alive.
        unsafe { std::slice::from_raw_parts((self as *const Self).cast::<u8>(), size_of::<Self>()) }
    }

    /// Reads the structure from the start of `bytes`; `None` when they are too few. Alignment does
    /// not matter.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: the length was checked, every bit pattern is valid, and the read tolerates any
        // alignment.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: an integer.
unsafe impl Wire for u32 {}
// SAFETY: an integer.
unsafe impl Wire for u64 {}

/// Declares wire structures and proves that each one's fields fill it without a gap.
macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident = $size:literal {
        $($field:ident: $type:ty),+ $(,)?
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),+ }
        const _: () = assert!(size_of::<$name>() == $size && $(size_of::<$type>() +)+ 0 == $size);
        // SAFETY: integers only, and the sum of the fields is the size of the whole: no padding.
        unsafe impl Wire for $name {}
    )+};
}

wire! {
    /// Precedes every request.
    struct InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Precedes every reply and every notification.
    struct OutHeader = 16 { len: u32, error: i32, unique: u64 }

    /// Attributes of an inode.
    struct RawAttr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: RawAttr,
    }
    struct AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: RawAttr }
    struct OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    struct CreateOut = 144 { entry: EntryOut, open: OpenOut }
    struct WriteOut = 8 { size: u32, padding: u32 }
    struct StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    struct GetxattrOut = 8 { size: u32, padding: u32 }
    struct LseekOut = 8 { offset: u64 }
    struct CopyFileRangeOut = 8 { bytes_copied: u64 }
    struct IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    struct PollOut = 8 { revents: u32, padding: u32 }
    struct LkOut = 24 { lk: FileLock }
    struct SxTime = 16 { sec: i64, nsec: u32, reserved: i32 }
    struct StatxOut = 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2],
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }

    /// First part of the INIT request; `flags2` follows when the kernel sets
    /// [`INIT_EXT`](init::INIT_EXT).
    struct InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    struct InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }

    struct ForgetIn = 8 { nlookup: u64 }
    struct ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    struct BatchForgetIn = 8 { count: u32, dummy: u32 }
    struct GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    struct SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    struct MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    struct MkdirIn = 8 { mode: u32, umask: u32 }
    struct RenameIn = 8 { newdir: u64 }
    struct Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    struct LinkIn = 8 { oldnodeid: u64 }
    struct OpenIn = 8 { flags: u32, open_flags: u32 }
    struct CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    struct ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    struct FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    struct ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    struct WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    struct FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// The short form, without [`SETXATTR_EXT`](init::SETXATTR_EXT).
    struct SetxattrInCompat = 8 { size: u32, flags: u32 }
    struct SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    struct GetxattrIn = 8 { size: u32, padding: u32 }
    struct FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    struct LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    struct AccessIn = 8 { mask: u32, padding: u32 }
    struct InterruptIn = 8 { unique: u64 }
    struct IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    struct PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32 }
    struct FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    struct LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    struct CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    struct SyncfsIn = 8 { padding: u64 }
    struct StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    struct ExtHeader = 8 { size: u32, kind: u32 }

    /// Argument of [`DEV_IOC_BACKING_OPEN`].
    struct BackingMap = 16 { fd: i32, flags: u32, padding: u64 }

    struct NotifyInvalInode = 24 { ino: u64, off: i64, len: i64 }
    struct NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32 }
    /// The bytes follow.
    struct NotifyStore = 24 { ino: u64, offset: u64, size: u32, padding: u32 }
    struct NotifyDelete = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    /// Node ids follow.
    struct NotifyPrune = 16 { count: u32, padding: u32, spare: u64 }

    /// Third part of an entry's header over io_uring, after the headers of request or reply and the
    /// operation's structure.
    struct UringEntInOut = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32,
        reserved: u64 }
    /// Arguments of both commands over io_uring.
    struct UringCmdReq = 24 { flags: u64, commit_id: u64, qid: u16, padding0: u16, padding1: u32 }
}

/// Declares the operation codes, their parsing and their names.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)+) => {
        /// Operation codes of requests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(missing_docs)]
        pub enum Opcode { $($(#[$doc])* $name = $value),+ }

        impl Opcode {
            /// All codes of this version, in numeric order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),+];

            /// The code behind a number; `None` for those that this crate does not know.
            #[inline]
            pub const fn from_u32(value: u32) -> Option<Opcode> {
                match value { $($value => Some(Opcode::$name),)+ _ => None }
            }

            /// Lower-case name for logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text),+ }
            }
        }
    };
}

opcodes! {
    Lookup = 1, "lookup";
    Forget = 2, "forget";
    Getattr = 3, "getattr";
    Setattr = 4, "setattr";
    Readlink = 5, "readlink";
    Symlink = 6, "symlink";
    Mknod = 8, "mknod";
    Mkdir = 9, "mkdir";
    Unlink = 10, "unlink";
    Rmdir = 11, "rmdir";
    Rename = 12, "rename";
    Link = 13, "link";
    Open = 14, "open";
    Read = 15, "read";
    Write = 16, "write";
    Statfs = 17, "statfs";
    Release = 18, "release";
    Fsync = 20, "fsync";
    Setxattr = 21, "setxattr";
    Getxattr = 22, "getxattr";
    Listxattr = 23, "listxattr";
    Removexattr = 24, "removexattr";
    Flush = 25, "flush";
    Init = 26, "init";
    Opendir = 27, "opendir";
    Readdir = 28, "readdir";
    Releasedir = 29, "releasedir";
    Fsyncdir = 30, "fsyncdir";
    Getlk = 31, "getlk";
    Setlk = 32, "setlk";
    /// SETLK that waits.
    Setlkw = 33, "setlkw";
    Access = 34, "access";
    Create = 35, "create";
    Interrupt = 36, "interrupt";
    Destroy = 38, "destroy";
    Ioctl = 39, "ioctl";
    Poll = 40, "poll";
    BatchForget = 42, "batch_forget";
    Fallocate = 43, "fallocate";
    Readdirplus = 44, "readdirplus";
    Rename2 = 45, "rename2";
    Lseek = 46, "lseek";
    CopyFileRange = 47, "copy_file_range";
    Syncfs = 50, "syncfs";
    Tmpfile = 51, "tmpfile";
    Statx = 52, "statx";
    /// COPY_FILE_RANGE with an answer of 64 bits.
    CopyFileRange64 = 53, "copy_file_range_64";
}

/// Flags of the INIT exchange; bits 32 and up travel in `flags2`.
pub mod init {
    #![allow(missing_docs)]
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// `valid` bits of SETATTR.
pub mod fattr {
    #![allow(missing_docs)]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// GETATTR carries a file handle.
pub const GETATTR_FH: u32 = 1 << 0;
/// OPEN or CREATE truncates on behalf of a caller without CAP_FSETID.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// READ carries a lock owner.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE comes from the page cache (mmap); its file handle is any that was open for writing.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE carries a lock owner.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// WRITE must clear set-user-ID and set-group-ID.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// RELEASE drops the BSD lock of its owner.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// FSYNC of data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// The lock is a BSD lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// SETXATTR of an access ACL clears set-group-ID.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Notification of an entry: expire it instead of dropping it.
pub const NOTIFY_EXPIRE_ONLY: u32 = 1 << 0;
/// Extension record that holds supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// Codes of notifications (in `OutHeader::error`, with `unique` zero).
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// See [`NOTIFY_INVAL_INODE`].
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// See [`NOTIFY_INVAL_INODE`].
pub const NOTIFY_STORE: i32 = 4;
/// See [`NOTIFY_INVAL_INODE`].
pub const NOTIFY_DELETE: i32 = 6;
/// See [`NOTIFY_INVAL_INODE`]. Where INIT has [`HAS_RESEND`](init::HAS_RESEND).
pub const NOTIFY_RESEND: i32 = 7;
/// See [`NOTIFY_INVAL_INODE`]. From protocol minor [`PRUNE_MINOR_MIN`] on.
pub const NOTIFY_PRUNE: i32 = 9;
/// First minor version with [`NOTIFY_PRUNE`].
pub const PRUNE_MINOR_MIN: u32 = 45;

/// `ioctl` on `/dev/fuse` that joins a fresh descriptor to an existing connection:
/// `_IOR(229, 0, u32)`.
pub const DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;
/// `FUSE_DEV_IOC_BACKING_OPEN`: registers a backing file; the result is its number.
pub const DEV_IOC_BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: takes it back.
pub const DEV_IOC_BACKING_CLOSE: libc::c_ulong = 0x4004_e502;
/// Deepest stack of file systems with this one on top: backing files lie on file systems that are
/// not stacked themselves, and an overlay on top of this one still works (the kernel allows two).
pub const BACKING_STACK_DEPTH: u32 = 1;

/// Command over io_uring: here is an entry's memory, fill it with a request.
pub const URING_REGISTER: u32 = 1;
/// Command over io_uring: here is the reply, fill the entry with the next request.
pub const URING_COMMIT_AND_FETCH: u32 = 2;
/// Where the operation's structure lies in an entry's header; before it is room for the header of
/// request and reply.
pub const URING_OP_AT: usize = 128;
/// Room for the operation's structure.
pub const URING_OP_BYTES: usize = 128;
/// Bytes of an entry's header.
pub const URING_HEADER_BYTES: usize = URING_OP_AT + URING_OP_BYTES + size_of::<UringEntInOut>();

/// Bytes before the payload of a WRITE, the largest request.
pub const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// The kernel refuses smaller read buffers.
pub const READ_BUFFER_BYTES_MIN: usize = 8192;
/// Longest name the kernel passes on (1024 before Linux 6.14).
pub const NAME_BYTES_MAX: usize = 4095;
