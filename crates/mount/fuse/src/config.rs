//! What this crate requests from the kernel at INIT, and what the kernel grants.

use crate::abi::{self, init};
use crate::transport::TransportChoice;

/// Settings of a [`Session`](crate::Session).
#[derive(Clone, Debug)]
pub struct Config {
    /// How many threads serve at a time; 0 takes [`workers_default`]. A thread is busy while
    /// [`handle`](crate::FileSystem::handle) runs. More threads than cores cost CPU time (measured:
    /// with four busy callers on two cores, 16 threads take half as much again as two). At most
    /// [`WORKERS_MAX`].
    pub workers: usize,
    /// Further threads that take over from those in [`block_in_place`](crate::block_in_place), so
    /// as many calls of it can wait while the others go on. They cost nothing until then.
    pub spare_workers: usize,
    /// Over what requests come. `fusermount3`'s `auto_unmount` does not work with io_uring, so
    /// [`TransportChoice::Auto`] takes the device for such mounts.
    pub transport: TransportChoice,
    /// Over io_uring: entries that each processor's queue begins with, 1 to
    /// [`RING_ENTRIES_MAX`](crate::transport::uring::RING_ENTRIES_MAX). More are added while the
    /// file system keeps many requests. See [`transport::uring`](crate::transport::uring) for the
    /// memory they take.
    pub ring_entries: usize,
    /// Over io_uring: most entries of a session beyond those that it begins with; at most
    /// [`ENTRIES_MORE`](crate::transport::uring::ENTRIES_MORE).
    pub ring_entries_more: usize,
    /// A device descriptor for each thread: less lock contention in the kernel.
    pub clone_fd: bool,
    /// Largest WRITE, and with it largest READ, in bytes. A receive buffer of this size belongs
    /// to each thread, spare ones included; memory is taken as far as it was ever filled.
    pub max_write: u32,
    /// Largest read-ahead of the kernel, and so the largest READ of a buffered reader. At INIT it
    /// can only be lowered from the kernel's default, 128 KiB; where this process may (root), it is
    /// raised afterwards.
    pub max_readahead: u32,
    /// How many requests that no process waits for (read-ahead, asynchronous direct I/O, release)
    /// may be under way. Further ones queue in the kernel.
    pub max_background: u16,
    /// From this many on the kernel calls the device congested and slows down read-ahead.
    pub congestion_threshold: u16,
    /// Resolution of timestamps in nanoseconds, a power of ten from 1 to 1,000,000,000.
    pub time_gran_ns: u32,
    /// Lets the kernel abort the whole connection when a request goes unanswered for this many
    /// seconds; 0 is never. Kernels from 6.15.
    pub request_timeout_s: u16,
    /// The session can be handed over to another process ([`Session::intake`]): it serves over the
    /// device, and the kernel must be able to send requests again (Linux 6.9).
    ///
    /// [`Session::intake`]: crate::Session::intake
    pub hands_over: bool,
    /// What the kernel and the file system do for each other.
    pub features: Features,
}

/// Most serving threads, spare ones not counted, and most spare ones.
pub const WORKERS_MAX: usize = 256;
/// Bounds of [`Config::max_write`].
pub const MAX_WRITE_MIN: u32 = 4096;
/// See [`MAX_WRITE_MIN`].
pub const MAX_WRITE_MAX: u32 = 16 << 20;

impl Default for Config {
    fn default() -> Config {
        Config {
            workers: 0,
            spare_workers: 16,
            transport: TransportChoice::Auto,
            ring_entries: 64,
            ring_entries_more: crate::transport::uring::ENTRIES_MORE,
            clone_fd: true,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 128,
            congestion_threshold: 96,
            time_gran_ns: 1,
            request_timeout_s: 0,
            hands_over: false,
            features: Features::default(),
        }
    }
}

impl Config {
    /// Serving threads, and spare ones.
    pub(crate) fn threads(&self) -> (usize, usize) {
        let workers =
            if self.workers == 0 { workers_default() } else { self.workers.min(WORKERS_MAX) };
        (workers, self.spare_workers.min(WORKERS_MAX))
    }

    /// Largest WRITE in bytes, and largest request in pages.
    fn sizes(&self) -> (u32, u16) {
        let max_write = self.max_write.clamp(MAX_WRITE_MIN, MAX_WRITE_MAX);
        (max_write, max_write.div_ceil(page_bytes()).clamp(1, u32::from(u16::MAX)) as u16)
    }

    /// The largest payload of a request or reply, header and the operation's structure not counted.
    pub(crate) fn payload_bytes(&self) -> usize {
        let (max_write, max_pages) = self.sizes();
        let pages = usize::from(max_pages) * page_bytes() as usize;
        pages.max(max_write as usize).max(abi::READ_BUFFER_BYTES_MIN)
    }
}

/// As many serving threads as cores, and at least two, so that one slow handler does not stop
/// everything.
pub fn workers_default() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 64))
}

/// Use of READDIRPLUS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaddirPlus {
    /// Plain READDIR only. Right when attributes and entries may not be cached: they would be
    /// requested again.
    #[default]
    Never,
    /// As the kernel sees fit: when the first entries are looked up after listing.
    Auto,
    /// For every directory read.
    Always,
}

/// Declares the switches with their flags, so that the struct, the request and the answer cannot
/// drift apart.
macro_rules! features {
    ($($(#[$doc:meta])* $field:ident = $default:literal, $flag:ident;)+) => {
        /// Optional behaviour, negotiated at INIT. Defaults are those of a network file system
        /// without caching. What the kernel does not know stays off: see [`Negotiated::features`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Features {
            $($(#[$doc])* pub $field: bool,)+
            /// READDIRPLUS. Off by default.
            pub readdirplus: ReaddirPlus,
        }

        impl Default for Features {
            fn default() -> Features {
                Features { $($field: $default,)+ readdirplus: ReaddirPlus::Never }
            }
        }

        impl Features {
            fn flags(&self) -> u64 {
                let plus = match self.readdirplus {
                    ReaddirPlus::Never => 0,
                    ReaddirPlus::Auto => init::DO_READDIRPLUS | init::READDIRPLUS_AUTO,
                    ReaddirPlus::Always => init::DO_READDIRPLUS,
                };
                plus $(| if self.$field { init::$flag } else { 0 })+
            }

            fn from_flags(flags: u64) -> Features {
                let readdirplus =
                    match (flags & init::DO_READDIRPLUS != 0, flags & init::READDIRPLUS_AUTO != 0) {
                    (false, _) => ReaddirPlus::Never,
                    (true, true) => ReaddirPlus::Auto,
                    (true, false) => ReaddirPlus::Always,
                };
                Features { $($field: flags & init::$flag != 0,)+ readdirplus }
            }
        }
    };
}

features! {
    /// Several READs of one file at once. Default on.
    async_read = true, ASYNC_READ;
    /// OPEN does O_TRUNC itself instead of a SETATTR before it. Default on.
    atomic_o_trunc = true, ATOMIC_O_TRUNC;
    /// Lookups and directory reads of one directory at once. Default on.
    parallel_dirops = true, PARALLEL_DIROPS;
    /// Direct I/O is split into parallel requests. Default on.
    async_dio = true, ASYNC_DIO;
    /// The file system clears set-user-ID, set-group-ID and `security.capability` on write,
    /// truncate and change of owner, where `kill_suidgid` of a request is set. Saves a GETXATTR
    /// before every write. Default on.
    handle_killpriv_v2 = true, HANDLE_KILLPRIV_V2;
    /// SETXATTR has a flag for set-group-ID to be cleared. Default on.
    setxattr_ext = true, SETXATTR_EXT;
    /// Shared mmap works on files opened with direct I/O. Default on.
    direct_io_allow_mmap = true, DIRECT_IO_ALLOW_MMAP;
    /// Calls that create carry the one supplementary group that matters. Default on.
    create_supp_group = true, CREATE_SUPP_GROUP;
    /// `ioctl` on directories reaches the file system. Default on.
    ioctl_dir = true, HAS_IOCTL_DIR;
    /// File handles (`open_by_handle_at`) would not outlive the kernel's caches without `export`,
    /// so offer none: NFS cannot export such a mount. Default on; off, the kernel serves handles of
    /// nodes that it still has in memory.
    no_export = true, NO_EXPORT_SUPPORT;
    /// LOOKUP of `.` and `..` by node id works, so handles can be resolved at any time. Default
    /// off.
    export = false, EXPORT_SUPPORT;
    /// The page cache of a file is dropped when its size or modification time is found changed.
    /// Costs a GETATTR on every cached read when attributes may not be cached. Default off: an open
    /// drops the pages.
    auto_inval_data = false, AUTO_INVAL_DATA;
    /// Pages are dropped by notification only, not when a change of size is noticed. Default off.
    explicit_inval_data = false, EXPLICIT_INVAL_DATA;
    /// Targets of symbolic links are cached. Default off.
    cache_symlinks = false, CACHE_SYMLINKS;
    /// The kernel collects writes and owns size and times meanwhile. Default off: not for a shared
    /// file system.
    writeback_cache = false, WRITEBACK_CACHE;
    /// POSIX locks come as GETLK and SETLK. Default off: the kernel keeps them for this mount.
    posix_locks = false, POSIX_LOCKS;
    /// BSD locks come as SETLK. Default off: the kernel keeps them for this mount.
    flock_locks = false, FLOCK_LOCKS;
    /// The kernel enforces ACLs, and permissions with them. Default off.
    posix_acl = false, POSIX_ACL;
    /// The umask is left to the file system. Default off.
    dont_mask = false, DONT_MASK;
    /// Open files may be read from backing files ([`Backings`](crate::Backings)). Default off: with
    /// it no overlay can have another stacked file system below itself and this one. Not together
    /// with `writeback_cache`.
    passthrough = false, PASSTHROUGH;
    /// OPEN may answer ENOSYS, and files then need no open at all. Default off.
    no_open = false, NO_OPEN_SUPPORT;
    /// OPENDIR likewise. Default off.
    no_opendir = false, NO_OPENDIR_SUPPORT;
    /// Requests that were read and not answered can be had again
    /// ([`Notifier::resend`](crate::Notifier::resend)). Default off.
    resend = false, HAS_RESEND;
}

/// What INIT settled.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// Minor protocol version of the kernel (the major one is 7).
    pub kernel_minor: u32,
    /// Minor version in use.
    pub minor: u32,
    /// What is on.
    pub features: Features,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest READ and WRITE in pages.
    pub max_pages: u16,
    /// Largest read-ahead in bytes.
    pub max_readahead: u32,
    /// Whether [`Notifier::expire_entry`](crate::Notifier::expire_entry) expires rather than drops.
    pub expire_only: bool,
    /// Whether the kernel has [`Notifier::prune`](crate::Notifier::prune).
    pub prunes: bool,
    /// The kernel offers the io_uring transport.
    pub io_uring_offered: bool,
    /// All flags that the kernel offered, for logs.
    pub offered: u64,
}

/// Numbers that say what INIT settled: [`Negotiated::to_numbers`].
pub const NEGOTIATED_NUMBERS: usize = 10;

impl Negotiated {
    /// For a process that takes the connection over, of whatever version. Further numbers may
    /// come after these some day; what the first ones mean stays.
    pub fn to_numbers(&self) -> [u64; NEGOTIATED_NUMBERS] {
        [
            self.kernel_minor.into(),
            self.minor.into(),
            self.features.flags(),
            self.max_write.into(),
            self.max_pages.into(),
            self.max_readahead.into(),
            self.expire_only.into(),
            self.prunes.into(),
            self.io_uring_offered.into(),
            self.offered,
        ]
    }

    /// The reverse; none if there are too few of them, or one is none that the other process can
    /// have given.
    pub fn from_numbers(numbers: &[u64]) -> Option<Negotiated> {
        let numbers: &[u64; NEGOTIATED_NUMBERS] = numbers.first_chunk()?;
        let word = |at: usize| u32::try_from(numbers[at]).ok();
        Some(Negotiated {
            kernel_minor: word(0)?,
            minor: word(1)?,
            features: Features::from_flags(numbers[2]),
            max_write: word(3).filter(|max| (MAX_WRITE_MIN..=MAX_WRITE_MAX).contains(max))?,
            max_pages: u16::try_from(numbers[4]).ok()?,
            max_readahead: word(5)?,
            expire_only: numbers[6] != 0,
            prunes: numbers[7] != 0,
            io_uring_offered: numbers[8] != 0,
            offered: numbers[9],
        })
    }
}

/// The kernel's side of INIT.
pub(crate) struct Offer {
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u64,
}

impl Offer {
    /// Reads the body of an INIT request. The major version has been looked at.
    pub(crate) fn parse(body: &[u8]) -> Option<Offer> {
        use abi::Wire;
        let first = abi::InitIn::read(body)?;
        let mut flags = u64::from(first.flags);
        if flags & init::INIT_EXT != 0 {
            flags |= u64::from(u32::read(&body[size_of::<abi::InitIn>()..])?) << 32;
        }
        Some(Offer { minor: first.minor, max_readahead: first.max_readahead, flags })
    }

    /// Whether the kernel offers io_uring.
    pub(crate) fn has_uring(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }

    /// Settles on what both sides can and want, io_uring with `uring`: the summary and the wire
    /// form of the answer.
    pub(crate) fn negotiate(&self, config: &Config, uring: bool) -> (Negotiated, abi::InitOut) {
        // Always wanted: writes of more than a page, requests of more than 32 pages, the second
        // word of flags, and to learn whether a connection was unmounted or aborted.
        let always = init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT | init::ABORT_ERROR;
        let timeout = if config.request_timeout_s > 0 { init::REQUEST_TIMEOUT } else { 0 };
        let uring = if uring { init::OVER_IO_URING } else { 0 };
        let agreed = self.flags & (always | timeout | uring | config.features.flags());

        let (max_write, max_pages) = config.sizes();
        let max_background = config.max_background.max(1);
        let out = abi::InitOut {
            major: abi::KERNEL_MAJOR,
            minor: self.minor.min(abi::KERNEL_MINOR_MAX),
            max_readahead: config.max_readahead.min(self.max_readahead),
            flags: agreed as u32,
            max_background,
            congestion_threshold: config.congestion_threshold.clamp(1, max_background),
            max_write,
            time_gran: config.time_gran_ns.clamp(1, 1_000_000_000),
            max_pages,
            flags2: (agreed >> 32) as u32,
            max_stack_depth: if agreed & init::PASSTHROUGH != 0 {
                abi::BACKING_STACK_DEPTH
            } else {
                0
            },
            request_timeout: if agreed & init::REQUEST_TIMEOUT != 0 {
                config.request_timeout_s
            } else {
                0
            },
            ..Default::default()
        };
        let negotiated = Negotiated {
            kernel_minor: self.minor,
            minor: out.minor,
            features: Features::from_flags(agreed),
            max_write,
            max_pages,
            max_readahead: out.max_readahead,
            expire_only: self.flags & init::HAS_EXPIRE_ONLY != 0,
            prunes: self.minor >= abi::PRUNE_MINOR_MIN,
            io_uring_offered: self.has_uring(),
            offered: self.flags,
        };
        (negotiated, out)
    }
}

fn page_bytes() -> u32 {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(bytes).unwrap_or(4096).max(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_round_trip() {
        let features =
            Features { posix_locks: true, readdirplus: ReaddirPlus::Auto, ..Features::default() };
        assert_eq!(Features::from_flags(features.flags()), features);
    }

    /// A process that takes a connection over knows what INIT settled.
    #[test]
    fn negotiated_in_numbers() {
        let offer = Offer { minor: 45, max_readahead: 1 << 17, flags: u64::MAX };
        let config = Config {
            features: Features { resend: true, flock_locks: true, ..Features::default() },
            ..Config::default()
        };
        let (negotiated, _) = offer.negotiate(&config, false);
        let numbers = negotiated.to_numbers();
        let again = Negotiated::from_numbers(&numbers).expect("all are there");
        assert_eq!((again.to_numbers(), again.features), (numbers, negotiated.features));
        assert!(again.features.resend);
        assert!(Negotiated::from_numbers(&numbers[..9]).is_none());
        let mut absurd = numbers;
        absurd[3] = 1 << 40;
        assert!(Negotiated::from_numbers(&absurd).is_none());
    }

    #[test]
    fn only_what_both_want() {
        let offer = Offer {
            minor: 38,
            max_readahead: 65536,
            flags: init::ASYNC_READ | init::WRITEBACK_CACHE,
        };
        let (negotiated, out) =
            offer.negotiate(&Config { request_timeout_s: 9, ..Config::default() }, false);
        assert!(negotiated.features.async_read);
        assert!(!negotiated.features.writeback_cache, "offered, not wanted");
        assert!(!negotiated.features.parallel_dirops, "wanted, not offered");
        assert_eq!((out.minor, out.max_readahead, out.request_timeout), (38, 65536, 0));
        assert_eq!(out.max_pages, 256);
    }

    #[test]
    fn absurd_settings_are_bounded() {
        let offer = Offer { minor: 99, max_readahead: 0, flags: u64::MAX };
        let config = Config {
            max_write: u32::MAX,
            max_background: 0,
            congestion_threshold: u16::MAX,
            time_gran_ns: 0,
            ..Config::default()
        };
        let (negotiated, out) = offer.negotiate(&config, true);
        assert_eq!(out.minor, abi::KERNEL_MINOR_MAX);
        assert_eq!(negotiated.max_write, MAX_WRITE_MAX);
        assert_eq!((out.max_background, out.congestion_threshold, out.time_gran), (1, 1, 1));
        assert_eq!(config.payload_bytes(), MAX_WRITE_MAX as usize);
        assert_eq!(Config { max_write: 0, ..config }.payload_bytes(), abi::READ_BUFFER_BYTES_MIN);
    }

    #[test]
    fn io_uring_when_wanted_and_offered() {
        let config = Config::default();
        for (flags, wanted, agreed) in [(u64::MAX, true, 1), (u64::MAX, false, 0), (0, true, 0)] {
            let (negotiated, out) =
                Offer { minor: 45, max_readahead: 0, flags }.negotiate(&config, wanted);
            assert_eq!(out.flags2 >> 9 & 1, agreed);
            assert_eq!(negotiated.io_uring_offered, flags != 0);
        }
    }

    #[test]
    fn truncated_init() {
        let mut body = vec![0u8; 16];
        assert!(Offer::parse(&body[..15]).is_none());
        assert!(Offer::parse(&body).is_some());
        body[12..16].copy_from_slice(&(init::INIT_EXT as u32).to_le_bytes());
        assert!(Offer::parse(&body).is_none(), "flags2 announced and missing");
    }
}
