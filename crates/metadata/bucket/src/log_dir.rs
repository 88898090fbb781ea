//! The log directory: where a machine keeps batches that are durable on it and have yet to be
//! uploaded (`docs/format/log-dir.md`).
//!
//! | in the directory | |
//! | --- | --- |
//! | `kestrel-log.lock` | locked by the process that uses the directory |
//! | `kestrel-log/owner.json` | [`Owner`] of the batches |
//! | `kestrel-log/log/` | the batches: a [`LocalLog`] |
//! | `kestrel-log/uploaded` | the time of the last upload, for messages |
//! | `kestrel-log.aside-N` | a log with batches that could not be brought into the volume |
//!
//! **Whether batches still fit the volume** is decided by the manifest in the bucket. It has a
//! random number of the opening that claimed the rows last. An opening notes its number in
//! [`Owner`] before it claims. So if the manifest has one of the numbers noted, no other machine
//! has claimed the rows since, and what the log has behind the bucket's last position follows it.
//! Otherwise the volume has gone on without these batches: they are never mixed in.
//!
//! **The note** is a file in the volume's directory on this machine, and names the log directory as
//! long as that may have batches that the bucket does not have. It is written after the log was
//! made, and removed before the log is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kestrel_engine::EngineError;
use kestrel_engine::embedded::Verify;
use kestrel_engine::local_log::{LocalLog, LoggedBatch};
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::hex::to_hex;
use serde::{Deserialize, Serialize};

use crate::Uuid;
use crate::document::{self, Document};

/// Name of the note in a volume's directory.
pub const NOTE_NAME: &str = "log-dir.json";

/// How often batches are uploaded by default.
pub const UPLOAD_EVERY_DEFAULT: Duration = Duration::from_secs(5);

const MAGIC: &str = "kestrelfs-log-dir";
const NOTE_MAGIC: &str = "kestrelfs-log-dir-note";
const FORMAT: u32 = 1;

const LOCK: &str = "kestrel-log.lock";
const HOME: &str = "kestrel-log";
const OWNER: &str = "owner.json";
const LOG: &str = "log";
const UPLOADED: &str = "uploaded";

/// Free bytes of the disk that only what frees space may use.
const RESERVE_BYTES: u64 = 16 << 20;
/// Longest wait for a process that has let go of the directory and is still ending.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// What a user can do about a log that does not fit.
const DISCARD: &str = "`kestrel mount … --discard-log` sets the log aside (nothing of it is \
                       deleted) and goes on from what the bucket has";

/// Settings of a log on a local disk.
#[derive(Debug, Clone)]
pub struct LogDirOptions {
    /// The directory, for one volume.
    pub dir: PathBuf,
    /// How often batches are uploaded.
    pub upload_every: Duration,
    /// A log that does not fit the volume any more is set aside; without it opening is refused.
    pub discard: bool,
    /// The file by which this machine knows of the log: [`NOTE_NAME`] in the volume's directory.
    pub note: PathBuf,
}

/// The volume that a log belongs to, and the openings that used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Owner {
    magic: String,
    format: u32,
    /// Identity of the volume, 32 hexadecimal digits.
    volume: String,
    node: u32,
    /// Epoch of the last opening that claimed the rows with this log.
    epoch: u64,
    /// Numbers of the openings that claimed the rows with this log, or were about to.
    openings: Vec<u64>,
    /// CRC-32C, eight hexadecimal digits, of this document with this field empty.
    checksum: String,
}

#[derive(Serialize, Deserialize)]
struct Note {
    magic: String,
    format: u32,
    /// Identity of the volume, as in [`Owner`].
    volume: String,
    dir: PathBuf,
}

impl Document for Owner {
    fn checksum(&mut self) -> &mut String {
        &mut self.checksum
    }
}

impl Owner {
    fn new(uuid: &Uuid, node: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            format: FORMAT,
            volume: to_hex(uuid),
            node,
            epoch: 0,
            openings: Vec::new(),
            checksum: String::new(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        document::encode(self)
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self, EngineError> {
        let bad = |why: &str| {
            EngineError::Corrupt(format!("log directory: {}: {why}; {DISCARD}", path.display()))
        };
        let version = document::head(bytes, &bad)?;
        if version.magic != MAGIC {
            return Err(bad("it is no log of a volume"));
        }
        check_format(version.format, path)?;
        let found: Self = document::decode(bytes, &bad)?;
        Ok(found)
    }
}

fn check_format(format: u32, path: &Path) -> Result<(), EngineError> {
    if format == FORMAT {
        return Ok(());
    }
    Err(EngineError::Refused(format!(
        "log directory: {} has format {format}, which is not known to this program; use a newer \
         one",
        path.display()
    )))
}

fn failed(what: &str, path: &Path, why: &io::Error) -> EngineError {
    if why.kind() == ErrorKind::StorageFull {
        let path = path.display();
        return EngineError::Io(format!("log directory: {what} {path}: {why}; free space there"));
    }
    EngineError::Io(format!("log directory: {what} {}: {why}", path.display()))
}

/// Writes a file as a whole; durable when it returns.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
    let partial = path.with_extension("new");
    let write = || -> io::Result<()> {
        let mut options = File::options();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        sync_names(path.parent().unwrap_or(path))
    };
    write().map_err(|why| failed("writing", path, &why))
}

fn sync_names(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(failed("reading", path, &why)),
    }
}

/// The log directory that a note names, if there is the note: it may have batches that the bucket
/// does not have. `uuid`: a note of another volume, which was here before, goes.
///
/// # Errors
/// If the note cannot be read, or a newer program wrote it.
pub fn remembered(note: &Path, uuid: Option<&Uuid>) -> Result<Option<PathBuf>, EngineError> {
    let Some(bytes) = read(note)? else { return Ok(None) };
    let bad = |why: String| {
        EngineError::Corrupt(format!(
            "log directory: {}: {why}: it named the directory of the log that was used last; name \
             it with --log-dir and remove this file",
            note.display()
        ))
    };
    let version = document::head(&bytes, &|why| bad(why.into()))?;
    if version.magic != NOTE_MAGIC {
        return Err(bad("it is no note of a log".into()));
    }
    check_format(version.format, note)?;
    let found: Note = serde_json::from_slice(&bytes).map_err(|why| bad(why.to_string()))?;
    if uuid.is_some_and(|uuid| to_hex(uuid) != found.volume) {
        log::warn!("{} is of the volume {}, and goes", note.display(), found.volume);
        fs::remove_file(note).map_err(|why| failed("removing", note, &why))?;
        return Ok(None);
    }
    Ok(Some(found.dir))
}

/// The log directory, for this process alone.
pub struct LogDir {
    options: LogDirOptions,
    uuid: Uuid,
    owner: Owner,
    /// There is no log yet, or none any more.
    is_new: bool,
    _lock: File,
}

impl LogDir {
    /// Takes the directory, which is made if it is missing, for a node of a volume.
    ///
    /// # Errors
    /// `Refused` for the log of another volume, a newer format, a directory in use, or one that the
    /// note names and that has no log any more; `Corrupt`; `Io`.
    pub fn open(options: LogDirOptions, uuid: Uuid, node: u32) -> Result<Self, EngineError> {
        let dir = &options.dir;
        let home = dir.join(HOME);
        if remembered(&options.note, Some(&uuid))?.as_ref() == Some(dir)
            && !home.join(OWNER).exists()
        {
            if !options.discard {
                return Err(EngineError::Refused(format!(
                    "log directory: {} is gone, where the last process here kept changes that may \
                     not be in the bucket; bring it back (is its disk mounted?), or go on without \
                     those changes with `kestrel mount … --discard-log`",
                    home.display()
                )));
            }
            log::warn!("{} is gone; going on from what the bucket has", home.display());
        }
        let made = fs::DirBuilder::new().mode(0o700).create(dir);
        match made {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => {
                return Err(failed("making", dir, &why));
            }
            _ if !dir.is_dir() => {
                return Err(EngineError::Refused(format!(
                    "log directory: {} is not a directory; give a directory on a local disk",
                    dir.display()
                )));
            }
            _ => {}
        }
        let lock = lock(dir)?;
        let path = home.join(OWNER);
        let mut this = Self {
            uuid,
            owner: Owner::new(&uuid, node),
            is_new: true,
            _lock: lock,
            options: options.clone(),
        };
        let decoded = read(&path)?.map(|bytes| Owner::decode(&bytes, &path)).transpose();
        match decoded {
            Ok(None) => {}
            Ok(Some(owner)) if (&owner.volume, owner.node) == (&to_hex(&uuid), node) => {
                (this.owner, this.is_new) = (owner, false);
            }
            Ok(Some(owner)) => {
                return Err(EngineError::Refused(format!(
                    "log directory: {} has the log of node {} of the volume {}; give a directory \
                     of its own to each volume",
                    dir.display(),
                    owner.node,
                    owner.volume
                )));
            }
            Err(EngineError::Corrupt(why)) if options.discard => {
                log::warn!("{why}");
                this.set_aside()?;
            }
            Err(why) => return Err(why),
        }
        Ok(this)
    }

    fn log_path(&self) -> PathBuf {
        self.options.dir.join(HOME).join(LOG)
    }

    /// The log, with the batches that are not known to be in the bucket.
    ///
    /// # Errors
    /// `Corrupt` for a log that is damaged before its end, unless it may be set aside.
    pub fn recover(
        &mut self,
        verify: &mut Verify<'_>,
    ) -> Result<Option<(LocalLog, Vec<LoggedBatch>)>, EngineError> {
        let path = self.log_path();
        if self.is_new {
            return Ok(None);
        }
        let opened = LocalLog::is_in(&path, &self.uuid).and_then(|is_there| {
            is_there.then(|| LocalLog::open(&path, self.uuid, RESERVE_BYTES, verify)).transpose()
        });
        match opened {
            Err(EngineError::Corrupt(why)) if self.options.discard => {
                log::warn!("{why}");
                self.set_aside()?;
                Ok(None)
            }
            Err(EngineError::Corrupt(why)) => {
                Err(EngineError::Corrupt(format!("log directory: {why}; {DISCARD}")))
            }
            other => other,
        }
    }

    /// Whether an opening with this log has the number.
    pub fn knows(&self, opening: u64) -> bool {
        self.owner.openings.contains(&opening)
    }

    /// Epoch of the last opening that claimed the rows with this log.
    pub fn epoch(&self) -> u64 {
        self.owner.epoch
    }

    /// An opening is about to claim the rows; durable when this returns.
    ///
    /// # Errors
    /// `Io`.
    pub fn begin(&mut self, opening: u64) -> Result<(), EngineError> {
        if !self.knows(opening) {
            self.owner.openings.push(opening);
        }
        self.write()
    }

    /// The opening has claimed the rows, and the log has its batches from now on.
    ///
    /// # Errors
    /// `Io`.
    pub fn claimed(&mut self, opening: u64, epoch: u64) -> Result<(), EngineError> {
        (self.owner.openings, self.owner.epoch) = (vec![opening], epoch);
        self.write()?;
        let dir = fs::canonicalize(&self.options.dir).unwrap_or(self.options.dir.clone());
        let (magic, volume) = (NOTE_MAGIC.into(), to_hex(&self.uuid));
        let note = Note { magic, format: FORMAT, volume, dir };
        // A path that is no text is refused where it is given.
        let text = serde_json::to_vec(&note).unwrap_or_default();
        replace(&self.options.note, &text)
    }

    fn write(&mut self) -> Result<(), EngineError> {
        let home = self.options.dir.join(HOME);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&home);
        made.and_then(|()| sync_names(&self.options.dir))
            .map_err(|why| failed("making", &home, &why))?;
        replace(&home.join(OWNER), &self.owner.encode())?;
        self.is_new = false;
        Ok(())
    }

    /// Makes a log for batches behind `base`. One that is there has nothing that the bucket lacks.
    ///
    /// # Errors
    /// `NoSpace` and `Io`.
    pub fn make_log(&self, base: u64) -> Result<LocalLog, EngineError> {
        LocalLog::create(&self.log_path(), self.uuid, base, RESERVE_BYTES).map_err(
            |why| match why {
                EngineError::NoSpace => EngineError::Io(format!(
                    "log directory: {}: no space left on its disk; free space there",
                    self.options.dir.display()
                )),
                why => why,
            },
        )
    }

    /// Batches of the log are not in the volume, which has gone on without them. Sets the log aside
    /// if that is wanted.
    ///
    /// # Errors
    /// `Refused` with what is not there, unless it may be set aside; `Io`.
    pub fn give_up(&mut self, lost: &[LoggedBatch]) -> Result<(), EngineError> {
        let bytes: usize =
            lost.iter().map(|one| kestrel_engine::elsewhere::queued_bytes(&one.mutations)).sum();
        let age = match self.last_upload_age() {
            Some(seconds) => format!("made after the last upload {seconds} s ago"),
            None => "made after the last upload".into(),
        };
        let what = format!(
            "log directory: {} has {} batches ({bytes} bytes) of changes, {age}, that are not in \
             the volume: another process took it over after they were made, and it has gone on \
             without them",
            self.options.dir.display(),
            lost.len()
        );
        if !self.options.discard {
            return Err(EngineError::Refused(format!("{what}. {DISCARD}")));
        }
        log::warn!("{what}");
        self.set_aside()
    }

    /// Notes the time of an upload, for messages.
    pub fn uploaded(&self) {
        // Nothing depends on it.
        let _ = fs::write(self.uploaded_path(), SystemClock.now().to_string());
    }

    fn uploaded_path(&self) -> PathBuf {
        self.options.dir.join(HOME).join(UPLOADED)
    }

    /// How long ago, in seconds, an upload was noted last.
    fn last_upload_age(&self) -> Option<i64> {
        let noted = fs::read_to_string(self.uploaded_path()).ok()?;
        Some((SystemClock.now() - noted.parse::<i64>().ok()?).max(0) / SECOND)
    }

    /// Keeps the log under another name, and begins anew.
    fn set_aside(&mut self) -> Result<(), EngineError> {
        let dir = &self.options.dir;
        let free = (1..).map(|number| dir.join(format!("{HOME}.aside-{number}")));
        let to = free.into_iter().find(|path| !path.exists()).unwrap_or_else(|| dir.join("aside"));
        fs::rename(dir.join(HOME), &to)
            .and_then(|()| sync_names(dir))
            .map_err(|why| failed("setting aside as", &to, &why))?;
        log::warn!("the log is set aside as {}", to.display());
        let Owner { node, .. } = self.owner;
        (self.owner, self.is_new) = (Owner::new(&self.uuid, node), true);
        Ok(())
    }

    /// The bucket has everything: there is nothing to be remembered, and the log goes.
    ///
    /// # Errors
    /// `Io`.
    pub fn end(&self) -> Result<(), EngineError> {
        let remove = |path: &Path, done: io::Result<()>| match done {
            Err(why) if why.kind() != ErrorKind::NotFound => Err(failed("removing", path, &why)),
            _ => Ok(()),
        };
        let note = &self.options.note;
        remove(note, fs::remove_file(note))?;
        let _ = note.parent().map(sync_names);
        let home = self.options.dir.join(HOME);
        remove(&home, fs::remove_file(home.join(OWNER)))?;
        remove(&home, fs::remove_dir_all(&home))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.options.dir
    }

    /// How often batches are uploaded.
    pub fn upload_every(&self) -> Duration {
        self.options.upload_every
    }
}

/// Keeps the directory for this process; the lock ends with the file.
fn lock(dir: &Path) -> Result<File, EngineError> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(|why| failed("opening", &path, &why))?;
    let begun = Instant::now();
    // SAFETY: takes no pointers; the descriptor is open.
    while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        if begun.elapsed() > LOCK_WAIT {
            return Err(EngineError::Refused(format!(
                "log directory: {} is in use by another process; give a directory of its own to \
                 each volume",
                dir.display()
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = *b"0123456789abcdef";

    fn options(dir: &Path, discard: bool) -> LogDirOptions {
        let (dir, note) = (dir.join("x"), dir.join(NOTE_NAME));
        LogDirOptions { dir, upload_every: UPLOAD_EVERY_DEFAULT, discard, note }
    }

    fn refused(opened: Result<LogDir, EngineError>) -> String {
        opened.err().map(|why| why.to_string()).unwrap_or_default()
    }

    /// The owner as the first version wrote it is read for ever; damage and newer versions are
    /// refused.
    #[test]
    fn owner_of_the_first_version() {
        let text = include_str!("tests/vectors/log-dir-owner.json").trim();
        let path = Path::new("owner.json");
        let owner = Owner { epoch: 7, openings: vec![3, u64::MAX], ..Owner::new(&UUID, 0) };
        assert_eq!(String::from_utf8(owner.encode()).unwrap(), text);
        let found = Owner::decode(text.as_bytes(), path).unwrap();
        assert_eq!(found.encode(), text.as_bytes());
        for (from, to) in [("\"epoch\":7", "\"epoch\":8"), ("{", "{ "), ("log-dir", "logdir")] {
            let bad = text.replacen(from, to, 1);
            let why = Owner::decode(bad.as_bytes(), path).unwrap_err();
            assert!(matches!(&why, EngineError::Corrupt(why) if why.contains("owner.json")));
        }
        let newer = text.replace("\"format\":1", "\"format\":2");
        let why = Owner::decode(newer.as_bytes(), path).unwrap_err();
        assert!(matches!(why, EngineError::Refused(_)));
    }

    /// The note is there as long as the log is, and names it; a log that is gone is missed.
    #[test]
    fn note_of_a_log() {
        let parent = tempfile::tempdir().unwrap();
        let plain = options(parent.path(), false);
        let mut dir = LogDir::open(plain.clone(), UUID, 0).unwrap();
        assert_eq!(remembered(&plain.note, Some(&UUID)), Ok(None));
        dir.begin(1).unwrap();
        dir.claimed(1, 2).unwrap();
        drop(dir);
        assert_eq!(remembered(&plain.note, Some(&UUID)), Ok(Some(plain.dir.clone())));
        let dir = LogDir::open(plain.clone(), UUID, 0).unwrap();
        assert!(dir.knows(1) && !dir.knows(2) && dir.epoch() == 2);
        dir.end().unwrap();
        drop(dir);
        assert_eq!(remembered(&plain.note, Some(&UUID)), Ok(None));
        let mut dir = LogDir::open(plain.clone(), UUID, 0).unwrap();
        dir.begin(3).unwrap();
        dir.claimed(3, 4).unwrap();
        drop(dir);
        fs::remove_dir_all(&plain.dir).unwrap();
        assert!(refused(LogDir::open(plain.clone(), UUID, 0)).contains("is gone"));
        LogDir::open(options(parent.path(), true), UUID, 0).unwrap();
        assert_eq!(remembered(&plain.note, None), Ok(Some(plain.dir.clone())));
        assert_eq!(remembered(&plain.note, Some(&[1; 16])), Ok(None), "of another volume");
        assert_eq!(remembered(&plain.note, None), Ok(None));
    }

    /// What is no directory, in use, or another volume's, is refused and left alone.
    #[test]
    fn unsuitable_directories() {
        let parent = tempfile::tempdir().unwrap();
        let plain = options(parent.path(), false);
        fs::write(&plain.dir, "").unwrap();
        assert!(refused(LogDir::open(plain.clone(), UUID, 0)).contains("not a directory"));
        fs::remove_file(&plain.dir).unwrap();
        let mut dir = LogDir::open(plain.clone(), UUID, 0).unwrap();
        dir.begin(1).unwrap();
        assert!(refused(LogDir::open(plain.clone(), UUID, 0)).contains("in use"));
        drop(dir);
        let why = refused(LogDir::open(plain.clone(), [1; 16], 0));
        assert!(why.contains("a directory of its own"), "{why}");
        let deep = LogDirOptions { dir: plain.dir.join("a/b"), ..plain };
        assert!(refused(LogDir::open(deep, UUID, 0)).contains("making"));
    }
}
