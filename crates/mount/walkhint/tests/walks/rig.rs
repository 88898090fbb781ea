//! A mounted file system that remembers its requests, and their hints.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use kestrel_fuse::null::{NullFs, NullOptions};
use kestrel_fuse::transport::TransportChoice;
use kestrel_fuse::{
    Attr, Config, Entry, FileSystem, Mount, MountOptions, Opened, Operation, Reply, Request,
};
use kestrel_fuse::{Session, mount};
use kestrel_walkhint::{Attach, Hint, Lookup, Unavailable, WalkHints};

/// A request that the file system got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// LOOKUP: the name, the thread id of its header, and the hint.
    Lookup { name: String, tid: u32, hint: Option<Hint> },
    /// OPEN or CREATE, with its flags.
    Open { flags: u32 },
}

/// The null file system with two additions: names that start with `lnk.` are symbolic links to the
/// rest of the name, where `+` stands for `/`, and names that start with `exe.` are executable
/// files. They exist everywhere.
struct Recorder {
    hints: Arc<WalkHints>,
    null: NullFs,
    seen: Mutex<Vec<Seen>>,
    /// The first LOOKUP of a name that starts with `stale.` is answered ESTALE.
    staled: AtomicBool,
    special: Mutex<Vec<String>>,
    /// Requests for names that start with `parked.` wait until this is true.
    go_on: (Mutex<bool>, Condvar),
    /// One of them waits.
    parked: AtomicBool,
}

/// Node ids of links and executables: this and an index.
const SPECIAL: u64 = 1 << 40;

impl Recorder {
    fn special(&self, node: u64) -> Option<String> {
        let index = usize::try_from(node.checked_sub(SPECIAL)?).unwrap();
        self.special.lock().unwrap().get(index).cloned()
    }

    fn attr(&self, node: u64, name: &str) -> Attr {
        let mode =
            if name.starts_with("lnk.") { libc::S_IFLNK | 0o777 } else { libc::S_IFREG | 0o755 };
        Attr { ino: node, mode, nlink: 1, size: 4, ..Attr::default() }
    }

    fn remember(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }

    /// LOOKUP. `None`: it is the null file system's.
    fn lookup(&self, request: &Request<'_>, name: &OsStr) -> Option<Result<Entry, i32>> {
        let lookup = Lookup { unique: request.unique, tid: request.pid, nodeid: request.nodeid };
        if let Some(errno) = self.hints.probe(&lookup, name.as_bytes()) {
            return Some(Err(errno));
        }
        if name.as_bytes().starts_with(b"parked.") {
            self.parked.store(true, Ordering::Release);
            let (go_on, changed) = &self.go_on;
            drop(changed.wait_while(go_on.lock().unwrap(), |go_on| !*go_on).unwrap());
        }
        let hint = self.hints.take(&lookup, name.as_bytes()).walk();
        let name = name.to_str().unwrap().to_owned();
        self.remember(Seen::Lookup { name: name.clone(), tid: request.pid, hint });
        if name.starts_with("stale.") && !self.staled.swap(true, Ordering::Relaxed) {
            return Some(Err(libc::ESTALE));
        }
        if !name.starts_with("lnk.") && !name.starts_with("exe.") {
            return None;
        }
        let mut special = self.special.lock().unwrap();
        let index = special.iter().position(|probe| *probe == name).unwrap_or_else(|| {
            special.push(name.clone());
            special.len() - 1
        });
        let nodeid = SPECIAL + index as u64;
        Some(Ok(Entry { nodeid, attr: self.attr(nodeid, &name), ..Entry::default() }))
    }
}

impl FileSystem for Recorder {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let special = self.special(request.nodeid);
        match (&request.op, special) {
            (Operation::Lookup { name }, _) => match self.lookup(&request, name) {
                Some(Ok(entry)) => return reply.entry(&entry),
                Some(Err(errno)) => return reply.error(errno),
                None => {}
            },
            (Operation::Create { name, .. }, _) if self.hints.is_probe(name.as_bytes()) => {
                return reply.error(libc::EPERM);
            }
            (Operation::Create { flags, .. }, _) => self.remember(Seen::Open { flags: *flags }),
            (Operation::Open { flags, .. }, special) => {
                self.remember(Seen::Open { flags: *flags });
                if special.is_some() {
                    return reply.opened(Opened::default());
                }
            }
            (Operation::Getattr { .. }, Some(name)) => {
                return reply.attr(&self.attr(request.nodeid, &name), Duration::ZERO);
            }
            (Operation::Readlink, Some(name)) => {
                return reply.data(name.trim_start_matches("lnk.").replace('+', "/").as_bytes());
            }
            (Operation::Read { .. }, Some(_)) => return reply.data(b""),
            (Operation::Forget(_), Some(_)) => return,
            _ => {}
        }
        self.null.handle(request, reply);
    }
}

/// A mount with hints.
pub struct Rig {
    session: Option<Session>,
    fs: Arc<Recorder>,
    dir: tempfile::TempDir,
}

/// Why hints cannot be tested here, if so.
fn obstacle() -> Option<String> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 || !Path::new("/dev/fuse").exists() {
        return Some("needs root and /dev/fuse".into());
    }
    let error = WalkHints::load().err()?;
    // Permission is the machine's business; anything else is ours.
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
        .then(|| error.to_string())
}

/// A way to get hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// At the tracepoint, by request numbers.
    Numbers,
    /// At the tracepoint as it was before Linux 6.18, by thread ids.
    Threads,
    /// At the function, by thread ids.
    Function,
}

impl Way {
    pub fn load(self) -> Result<Arc<WalkHints>, Unavailable> {
        match self {
            Way::Numbers => WalkHints::load_by(Attach::Tracepoint),
            Way::Threads => WalkHints::load_unnumbered(),
            Way::Function => WalkHints::load_by(Attach::Fentry),
        }
    }
}

/// The ways that this machine has. What it lacks is printed once.
pub fn ways() -> Vec<Way> {
    static WAYS: OnceLock<Vec<Way>> = OnceLock::new();
    WAYS.get_or_init(find_ways).clone()
}

fn find_ways() -> Vec<Way> {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return Vec::new();
    }
    let mut ways = vec![Way::Numbers, Way::Threads];
    match Way::Function.load() {
        Ok(_) => ways.push(Way::Function),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("skipped: {}: {e}", Attach::Fentry)
        }
        Err(e) => panic!("{e}"),
    }
    ways
}

impl Rig {
    pub fn new(way: Way) -> Rig {
        Rig::over(way, TransportChoice::Device)
    }

    pub fn over(way: Way, transport: TransportChoice) -> Rig {
        let dir = tempfile::Builder::new().prefix("kestrel-walkhint.").tempdir().unwrap();
        let hints = way.load().unwrap();
        let fs = Arc::new(Recorder {
            hints: hints.clone(),
            null: NullFs::new(NullOptions::default()),
            seen: Mutex::default(),
            staled: AtomicBool::new(false),
            special: Mutex::default(),
            go_on: Default::default(),
            parked: AtomicBool::new(false),
        });
        let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        let config = Config { transport, workers: 4, ..Config::default() };
        let session = Session::start(mount, fs.clone(), &config).unwrap();
        // Before anything can fail: dropping the rig unmounts.
        let rig = Rig { session: Some(session), fs, dir };
        hints.calibrate(rig.dir()).unwrap();
        assert!(rig.seen().is_empty(), "probes are not for the file system");
        rig
    }

    pub fn hints(&self) -> &WalkHints {
        &self.fs.hints
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes directories and forgets that.
    pub fn dirs(&self, path: &str) {
        std::fs::create_dir_all(self.path(path)).unwrap();
        self.seen();
    }

    /// Makes an empty file and forgets that.
    pub fn file(&self, path: &str) {
        std::fs::File::create(self.path(path)).unwrap();
        self.seen();
    }

    /// Is a request parked?
    pub fn parked(&self) -> bool {
        self.fs.parked.load(Ordering::Acquire)
    }

    /// Lets parked requests go on.
    pub fn go_on(&self) {
        *self.fs.go_on.0.lock().unwrap() = true;
        self.fs.go_on.1.notify_all();
    }

    /// What came since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.fs.seen.lock().unwrap())
    }

    /// Only the lookups: names and hints.
    pub fn lookups(&self) -> Vec<(String, Option<Hint>)> {
        let lookup = |seen| match seen {
            Seen::Lookup { name, hint, .. } => Some((name, hint)),
            Seen::Open { .. } => None,
        };
        self.seen().into_iter().filter_map(lookup).collect()
    }

    /// Lookups that all have hints.
    pub fn hinted(&self) -> Vec<(String, Hint)> {
        let certain = |(name, hint): (String, Option<Hint>)| {
            let hint = hint.unwrap_or_else(|| panic!("no hint for {name}"));
            (name, hint)
        };
        self.lookups().into_iter().map(certain).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.go_on();
        // Takes the mount away by force.
        drop(self.session.take());
        while matches!(mount::find(self.dir.path()), Ok(Some(_)))
            && mount::unmount(self.dir.path(), mount::How::Force).is_ok()
        {}
    }
}
