//! `kestrel.json`: what a volume is, readable by people, checksummed against accidents
//! (`docs/format.md`).
//!
//! | file | |
//! | --- | --- |
//! | `cluster` | what the descriptor of one node of a cluster says beside the common part |
//! | `coding` | how objects of a volume are coded: compression, and the wrapped data keys |
//! | `secret` | the secret of a volume, from which the certificates of its nodes are made |
//! | `pending` | changes of the settings of all nodes, which may be interrupted |
//! | `lock` | one writer of a descriptor at a time |
//! | `in_bucket` | the descriptor of a volume that a bucket has all of |

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kestrel_s3::{S3_SCHEME, S3Options};
use kestrel_types::crash;
use serde::{Deserialize, Serialize};

use crate::accesses::AtimeMode;
use crate::error::VolumeError;
use crate::state_dir::{StateDir, StateRecord, is_bucket_url};
use kestrel_types::hex::to_hex;

mod cluster;
mod coding;
mod in_bucket;
mod lock;
mod pending;
mod secret;

pub use cluster::ClusterSection;
pub use coding::{CodingSettings, DATA_KEYS_MAX, Encryption, WrappedKey};
pub use in_bucket::{BucketDescriptor, Leftover, Published, UnfinishedFormat, find_volume};
use lock::DescriptorLock;
pub use secret::{SECRET_BYTES, VolumeSecret, authority_of, random};

/// Name of the descriptor within the volume's directory.
pub const FILE_NAME: &str = "kestrel.json";

/// Name of its second copy, which is replaced before it and read where it is damaged.
pub const COPY_NAME: &str = "kestrel.json.copy";

/// Format version of a volume that one node keeps.
pub const FORMAT_VERSION: u32 = 1;

/// Format version of a volume that several nodes share, the newest this program reads and writes:
/// programs that do not know of several nodes must not take one's part for the volume.
pub const FORMAT_VERSION_CLUSTER: u32 = 2;

/// Largest descriptor, bytes; anything longer is not ours.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// When an acknowledged change survives power loss (`docs/design/metadata.md`, section 7, item 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Before it is acknowledged.
    Commit,
    /// After fsync, fdatasync, sync, or one second. It survives the death of the process at once.
    Fsync,
}

/// Settings of a volume, chosen when it is formatted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name shown to people.
    pub name: String,
    /// Where file data is: URL of the block store, or `None` for `objects/` within the volume's
    /// directory.
    pub storage: Option<String>,
    /// Largest stored range, bytes: files up to this size are packed, larger ones cut in blocks of
    /// it.
    pub block_bytes: u32,
    /// Largest file kept in its metadata record, bytes.
    pub inline_max: u32,
    /// When changes survive power loss.
    pub durability: Durability,
    /// How long data stays after nothing refers to it, seconds.
    pub grace_seconds: u32,
    /// Which reads change access times, at mounts that are not told otherwise.
    #[serde(default, skip_serializing_if = "AtimeMode::is_none")]
    pub atime: AtimeMode,
}

impl Settings {
    /// Smallest block size, bytes; blocks are powers of two, so that none crosses a chunk.
    pub const BLOCK_BYTES_MIN: u32 = 64 * 1024;

    /// Checks the bounds of every setting.
    ///
    /// # Errors
    /// Names the setting, its bounds, and what was given.
    pub fn check(&self) -> Result<(), VolumeError> {
        let bad = |what: String| Err(VolumeError::Invalid(what));
        if self.name.is_empty()
            || self.name.len() > 255
            || self.name.chars().any(|c| c.is_control() || c == '/')
        {
            return bad(
                "the volume's name must have 1 to 255 bytes and neither '/' nor control characters"
                    .into(),
            );
        }
        let blocks = Self::BLOCK_BYTES_MIN..=kestrel_types::range::RANGE_BYTES_MAX;
        if !blocks.contains(&self.block_bytes) || !self.block_bytes.is_power_of_two() {
            return bad(format!(
                "block size {}: must be a power of two from 64K to 16M",
                self.block_bytes
            ));
        }
        if self.inline_max as usize > kestrel_types::inode::INLINE_MAX {
            return bad(format!("inline size {}: must be at most 16K", self.inline_max));
        }
        match self.storage.as_deref() {
            Some(url) if url.starts_with(S3_SCHEME) => S3Options::parse(url)
                .map(drop)
                .map_err(|error| VolumeError::Invalid(format!("storage {error}"))),
            Some(url) if !url.starts_with("file:///") => bad(format!(
                "storage {url}: neither file:///PATH nor s3://BUCKET/PREFIX?endpoint=…&region=…"
            )),
            _ => Ok(()),
        }
    }
}

/// Where the rows of a node are.
#[derive(Debug, Clone)]
pub enum RowsAt {
    /// In its directory.
    Directory,
    /// In PostgreSQL.
    Postgres(Box<kestrel_postgres::PgUrl>),
    /// In the registry, an etcd.
    Etcd(Box<kestrel_etcd::EtcdUrl>),
    /// In a bucket.
    Bucket(Box<kestrel_bucket::BucketUrl>),
}

impl RowsAt {
    /// Reads the URL of a store for metadata.
    fn parse(url: &str) -> Result<Self, String> {
        if kestrel_bucket::BucketUrl::is_one(url) {
            return kestrel_bucket::BucketUrl::parse(url).map(|place| Self::Bucket(place.into()));
        }
        kestrel_postgres::PgUrl::parse(url).map(|place| Self::Postgres(place.into()))
    }

    /// The same with the credentials of a bucket from this file, if one is given.
    #[must_use]
    pub fn with_credentials(self, file: Option<&Path>) -> Self {
        match (self, file) {
            (Self::Bucket(place), Some(file)) => {
                Self::Bucket(place.credentials_file(Some(file.into())).into())
            }
            (other, _) => other,
        }
    }

    /// Where they are outside of the directory, for people: a URL without secrets.
    pub fn shown(&self) -> Option<String> {
        match self {
            Self::Directory => None,
            Self::Postgres(place) => Some(place.shown().into()),
            Self::Etcd(place) => Some(place.shown().into()),
            Self::Bucket(place) => Some(place.shown()),
        }
    }
}

/// The descriptor of a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Always `kestrelfs`.
    pub magic: String,
    /// Version of everything on disk.
    pub format_version: u32,
    /// Identity, 32 hexadecimal digits; every file of the volume carries it.
    pub uuid: String,
    /// When it was formatted, nanoseconds since the epoch.
    pub created: i64,
    /// Its settings.
    pub settings: Settings,
    /// Where its metadata is: URL of a database, perhaps with a password, or of a bucket; none:
    /// `meta/` within the volume's directory. Not for clients, logs or dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// Where the metadata of nodes is that only coordinate: URL of an etcd, perhaps with a
    /// password; none: where that of the others is. Of clusters only; not for clients, logs or
    /// dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// How its objects are coded; none as long as no object was ever to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coding: Option<CodingSettings>,
    /// Number of the job, of the namespace of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u32>,
    /// Which node of which cluster this is, if several share the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSection>,
    /// What the certificates of the volume's server are made from, if one node has the volume and
    /// it was ever served to other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<VolumeSecret>,
    /// CRC-32C, hexadecimal, of this document with this field empty, written as compact JSON.
    pub checksum: String,
}

impl std::fmt::Debug for Descriptor {
    /// Without what may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptor")
            .field("uuid", &self.uuid)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Descriptor {
    /// A descriptor for a new volume.
    ///
    /// # Errors
    /// If the settings are out of bounds or the system has no randomness.
    pub fn new(settings: Settings, created: i64) -> Result<Self, VolumeError> {
        settings.check()?;
        let uuid = to_hex(&random::<16>()?);
        let magic = "kestrelfs".to_string();
        let format_version = FORMAT_VERSION;
        let (metadata, registry, coding, cluster, secret, checksum) =
            (None, None, None, None, None, String::new());
        let mut new = Self {
            magic,
            format_version,
            uuid,
            created,
            settings,
            metadata,
            registry,
            coding,
            job: None,
            cluster,
            secret,
            checksum,
        };
        new.checksum = new.expected_checksum()?;
        Ok(new)
    }

    /// The volume's identity as bytes.
    pub fn uuid_bytes(&self) -> [u8; 16] {
        let mut out = [0; 16];
        for (byte, digits) in out.iter_mut().zip(self.uuid.as_bytes().chunks(2)) {
            let text = std::str::from_utf8(digits).unwrap_or("00");
            *byte = u8::from_str_radix(text, 16).unwrap_or(0);
        }
        out
    }

    /// Where its metadata is, that of nodes that only coordinate apart.
    ///
    /// # Errors
    /// If the URL is none; without any password.
    pub fn metadata(&self) -> Result<RowsAt, VolumeError> {
        let place = self.metadata.as_deref().map(RowsAt::parse);
        Ok(place.transpose().map_err(VolumeError::Invalid)?.unwrap_or(RowsAt::Directory))
    }

    /// Where the metadata of nodes is that only coordinate, if it is not where that of the others
    /// is.
    ///
    /// # Errors
    /// As for [`Descriptor::metadata`].
    pub fn registry(&self) -> Result<Option<kestrel_etcd::EtcdUrl>, VolumeError> {
        let place = self.registry.as_deref().map(kestrel_etcd::EtcdUrl::parse);
        place.transpose().map_err(VolumeError::Invalid)
    }

    /// Where the rows of a node are that only coordinates (`idle`), or of any other.
    ///
    /// # Errors
    /// As for [`Descriptor::metadata`].
    pub fn rows_of(&self, idle: bool) -> Result<RowsAt, VolumeError> {
        match self.registry()? {
            Some(place) if idle => Ok(RowsAt::Etcd(Box::new(place))),
            _ => self.metadata(),
        }
    }

    /// For a new volume: if it is encrypted and has its metadata in a bucket, all of that is
    /// encrypted too.
    pub(crate) fn require_metadata_encrypted(&mut self) -> Result<(), VolumeError> {
        let in_bucket = matches!(self.metadata()?, RowsAt::Bucket(_));
        let coding = self.coding.as_mut();
        if let Some(encryption) = coding.and_then(|coding| coding.encryption.as_mut()) {
            encryption.metadata_required = in_bucket;
        }
        Ok(())
    }

    /// Where the rows are that this descriptor's directory serves.
    ///
    /// # Errors
    /// As for [`Descriptor::metadata`].
    pub fn rows(&self) -> Result<RowsAt, VolumeError> {
        let idle = match &self.cluster {
            Some(section) => section.placement()?.is_idle(section.node),
            None => false,
        };
        self.rows_of(idle)
    }

    /// Whether the rows of a node, an idle one or not, lie where other machines reach them too.
    ///
    /// # Errors
    /// As for [`Descriptor::metadata`].
    pub fn is_shared(&self, idle: bool) -> Result<bool, VolumeError> {
        Ok(!matches!(self.rows_of(idle)?, RowsAt::Directory))
    }

    /// The descriptor of a job's namespace in this volume, with objects at this URL.
    ///
    /// # Errors
    /// If the URL is none.
    pub(crate) fn of_job(&self, job: u32, storage: &str) -> Result<Self, VolumeError> {
        let mut made = self.clone();
        // A name that may stand in a URL: what follows an @ there is a snapshot.
        made.settings.name = format!("job-{job}");
        made.settings.storage = Some(storage.into());
        made.settings.durability = Durability::Fsync;
        made.format_version = FORMAT_VERSION;
        (made.metadata, made.registry, made.cluster, made.secret) = (None, None, None, None);
        made.job = Some(job);
        made.settings.check()?;
        made.checksum = made.expected_checksum()?;
        Ok(made)
    }

    /// The same with its metadata in a database or a bucket.
    ///
    /// # Errors
    /// If the URL is none.
    pub(crate) fn with_metadata(mut self, url: Option<String>) -> Result<Self, VolumeError> {
        self.metadata = url;
        self.metadata()?;
        self.checksum = self.expected_checksum()?;
        Ok(self)
    }

    /// The same with the metadata of nodes that only coordinate in an etcd.
    ///
    /// # Errors
    /// If the URL is none.
    pub(crate) fn with_registry(mut self, url: Option<String>) -> Result<Self, VolumeError> {
        self.registry = url;
        self.registry()?;
        self.checksum = self.expected_checksum()?;
        Ok(self)
    }

    fn expected_checksum(&self) -> Result<String, VolumeError> {
        let bare = Self { checksum: String::new(), ..self.clone() };
        let text =
            serde_json::to_vec(&bare).map_err(|error| VolumeError::Invalid(error.to_string()))?;
        Ok(format!("{:08x}", crc32c::crc32c(&text)))
    }

    /// Reads the descriptor of the volume at `dir`.
    ///
    /// # Errors
    /// Says whether there is no volume, a newer one, or a damaged one, and names the file.
    pub fn read(dir: &Path) -> Result<Self, VolumeError> {
        match Self::read_file(dir, FILE_NAME) {
            // A newer program would have written both: what one alone says may be a flipped bit.
            Err(why @ (VolumeError::Corrupt(..) | VolumeError::Newer(..))) => {
                let copy = Self::read_file(dir, COPY_NAME).map_err(|_| why)?;
                log::warn!(
                    "{}: damaged; its copy is intact and is used",
                    dir.join(FILE_NAME).display()
                );
                Ok(copy)
            }
            read => read,
        }
    }

    /// Makes both copies of the descriptor of the volume at `dir` say the same, if one is intact. A
    /// disk that does not take it is no reason not to open the volume.
    pub(crate) fn mend(dir: &Path) {
        let mend = || -> Result<(), VolumeError> {
            let lock = DescriptorLock::take(dir)?;
            let descriptor = Self::read(dir)?;
            for name in [COPY_NAME, FILE_NAME] {
                if Self::read_file(dir, name).ok().as_ref() != Some(&descriptor) {
                    descriptor.put(dir, name, &lock, None)?;
                }
            }
            Ok(())
        };
        if let Err(why) = mend() {
            log::warn!("the second copy of the volume's descriptor could not be written: {why}");
        }
    }

    fn read_file(dir: &Path, name: &str) -> Result<Self, VolumeError> {
        let path = dir.join(name);
        let size = match fs::metadata(&path) {
            Ok(meta) => meta.len(),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Err(VolumeError::NotAVolume(dir.to_path_buf()));
            }
            Err(error) => return Err(VolumeError::io("read", &path, error)),
        };
        if size > FILE_BYTES_MAX {
            let why = "it is too large to be a volume descriptor".to_string();
            return Err(VolumeError::Corrupt(path, why));
        }
        let text = fs::read(&path).map_err(|error| VolumeError::io("read", &path, error))?;
        let loose = serde_json::from_slice(&text).map_err(|error| {
            VolumeError::Corrupt(path.clone(), format!("it is not valid JSON ({error})"))
        })?;
        Self::from_json(loose, &path)
    }

    /// The descriptor that a document from `source` holds.
    ///
    /// # Errors
    /// As those of [`Descriptor::read`].
    pub(crate) fn from_json(loose: serde_json::Value, source: &Path) -> Result<Self, VolumeError> {
        Self::judge(loose, source, false)
    }

    /// The descriptor that the server named `source` shows to its clients.
    ///
    /// # Errors
    /// As those of [`Descriptor::read`].
    pub(crate) fn from_offer(loose: serde_json::Value, source: &Path) -> Result<Self, VolumeError> {
        Self::judge(loose, source, true)
    }

    fn judge(
        loose: serde_json::Value,
        source: &Path,
        is_offered: bool,
    ) -> Result<Self, VolumeError> {
        let corrupt = |why: &str| VolumeError::Corrupt(source.to_path_buf(), why.to_string());
        // The version first: a newer descriptor may have fields this program cannot judge.
        if loose.get("magic").and_then(|magic| magic.as_str()) != Some("kestrelfs") {
            return Err(corrupt("it does not describe a KestrelFS volume"));
        }
        match loose.get("format_version").and_then(|version| version.as_u64()) {
            Some(version) if version > u64::from(FORMAT_VERSION_CLUSTER) => {
                return Err(VolumeError::Newer(source.to_path_buf(), version));
            }
            Some(version) if version >= u64::from(FORMAT_VERSION) => {}
            _ => return Err(corrupt("its format version is missing or invalid")),
        }
        let descriptor: Self = serde_json::from_value(loose).map_err(|error| {
            corrupt(&format!("{error}; if a newer kestrel wrote it, use that one"))
        })?;
        let hex = descriptor.uuid.len() == 32
            && descriptor.uuid.bytes().all(|digit| digit.is_ascii_hexdigit());
        if descriptor.checksum != descriptor.expected_checksum()? || !hex {
            return Err(corrupt(
                "its checksum does not match its content; restore the file from a backup",
            ));
        }
        let checked = descriptor.check_all(is_offered);
        checked.map_err(|error| match error {
            VolumeError::Invalid(why) => {
                VolumeError::Invalid(format!("{}: {why}", source.display()))
            }
            other => other,
        })?;
        Ok(descriptor)
    }

    /// Writes the descriptor durably.
    ///
    /// # Errors
    /// If the disk does not take it; the directory then has no descriptor, or the old one.
    pub fn write(&self, dir: &Path) -> Result<(), VolumeError> {
        let lock = DescriptorLock::take(dir)?;
        self.replace(dir, &lock)
    }

    /// Changes the descriptor of the volume at `dir`: all of the change is on disk when this
    /// returns, or nothing of it. May be called while the volume is in use; a process that uses it
    /// sees the change when it opens the volume the next time. Of a volume that a bucket has all of
    /// the descriptor there is changed, by several attempts if other machines change it, too.
    ///
    /// # Errors
    /// Those of [`Descriptor::read`], [`Descriptor::write`] and `change`; nothing is changed then.
    pub fn update(
        dir: &Path,
        mut change: impl FnMut(&mut Self) -> Result<(), VolumeError>,
    ) -> Result<Self, VolumeError> {
        let lock = DescriptorLock::take(dir)?;
        if let Some(record) = StateRecord::read(dir)? {
            return Self::update_in_bucket(dir, &record, &lock, change);
        }
        let mut descriptor = Self::read(dir)?;
        if let Some(section) = &descriptor.cluster {
            return Err(VolumeError::Invalid(format!(
                "{}: node {} of a cluster: its settings are those of all its nodes; name the \
                 directories of all",
                dir.display(),
                section.node
            )));
        }
        change(&mut descriptor)?;
        descriptor.check()?;
        descriptor.checksum = descriptor.expected_checksum()?;
        descriptor.replace(dir, &lock)?;
        Ok(descriptor)
    }

    /// Changes the descriptors of all nodes of a volume, at `dirs`, to the same settings: at all,
    /// or if one does not take it at none. One that was cut short is finished first; `change` then
    /// gets a descriptor from before it (`pending`).
    ///
    /// # Errors
    /// As for [`Descriptor::update`], and if settings differ beforehand and nothing tells what they
    /// were to be. The text names what did not take the change, and says if the next call goes on
    /// with it.
    pub fn update_nodes(
        dirs: &[PathBuf],
        change: impl FnOnce(&mut Self, Option<&Self>) -> Result<(), VolumeError>,
    ) -> Result<Self, VolumeError> {
        let locks =
            dirs.iter().map(|dir| DescriptorLock::take(dir)).collect::<Result<Vec<_>, _>>()?;
        let nodes: Vec<(&Path, &DescriptorLock)> =
            dirs.iter().map(PathBuf::as_path).zip(&locks).collect();
        let finished = pending::finish(&nodes)?;
        let before = dirs.iter().map(|dir| Self::read(dir)).collect::<Result<Vec<_>, _>>()?;
        let [first, ..] = &*before else {
            return Err(VolumeError::Invalid("no directory is named".into()));
        };
        if let Some((dir, _)) =
            dirs.iter().zip(&before).find(|(_, other)| !first.has_settings_of(other))
        {
            let [dir, first] = [dir, &dirs[0]].map(|dir| dir.display());
            return Err(VolumeError::Invalid(format!(
                "{dir}: its settings are not those of {first}: restore kestrel.json of the one or \
                 the other from a backup, so that \
                 they agree"
            )));
        }
        let mut changed = first.clone();
        change(&mut changed, finished.as_ref())?;
        changed.check()?;
        if !changed.has_settings_of(first) {
            pending::begin(&nodes, &changed)?;
            pending::finish(&nodes)?;
        }
        Ok(changed)
    }

    /// Whether a change of all nodes was begun at this directory and has not come to its end.
    pub fn is_changing(dir: &Path) -> bool {
        dir.join(pending::NAME).exists()
    }

    /// Whether what all nodes of a volume have in common is the same.
    fn has_settings_of(&self, other: &Self) -> bool {
        (&self.settings, &self.coding) == (&other.settings, &other.coding)
    }

    /// Puts the descriptor in the old one's place, in one step.
    fn replace(&self, dir: &Path, lock: &DescriptorLock) -> Result<(), VolumeError> {
        self.put(dir, COPY_NAME, lock, None)?;
        self.put(
            dir,
            FILE_NAME,
            lock,
            Some(["descriptor.replace.written", "descriptor.replace.renamed"]),
        )
    }

    /// Writes it to a file of the directory, in one step and durably; `points` are where tests kill
    /// the process.
    fn put(
        &self,
        dir: &Path,
        name: &str,
        _lock: &DescriptorLock,
        points: Option<[&'static str; 2]>,
    ) -> Result<(), VolumeError> {
        let path = dir.join(name);
        let partial = dir.join(format!("{name}.new"));
        let text = self.text()?;
        let write = || -> std::io::Result<()> {
            let mut options = File::options();
            options.write(true).create(true).truncate(true);
            let is_secret =
                self.cluster.is_some() || self.secret.is_some() || self.metadata.is_some();
            if is_secret {
                // It holds the secret of the cluster or the volume, or perhaps a password.
                options.mode(0o600);
            }
            let mut file = options.open(&partial)?;
            if is_secret {
                // One that was left over may have had another mode.
                file.set_permissions(Permissions::from_mode(0o600))?;
            }
            file.write_all(&text)?;
            file.sync_all()?;
            points.into_iter().for_each(|[written, _]| crash::point(written));
            fs::rename(&partial, &path)?;
            points.into_iter().for_each(|[_, renamed]| crash::point(renamed));
            File::open(dir)?.sync_all()
        };
        write().map_err(|error| VolumeError::io("write", &path, error))
    }

    /// The descriptor as it is kept.
    fn text(&self) -> Result<Vec<u8>, VolumeError> {
        let sealed = Self { checksum: self.expected_checksum()?, ..self.clone() };
        let mut text = serde_json::to_vec_pretty(&sealed)
            .map_err(|error| VolumeError::Invalid(error.to_string()))?;
        text.push(b'\n');
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(VolumeError::Invalid(
                "the volume's descriptor would grow beyond 64 KiB".into(),
            ));
        }
        Ok(text)
    }

    fn check(&self) -> Result<(), VolumeError> {
        self.check_all(false)
    }

    fn check_all(&self, is_offered: bool) -> Result<(), VolumeError> {
        self.settings.check()?;
        let elsewhere = !matches!(self.metadata()?, RowsAt::Directory);
        if elsewhere && self.settings.durability == Durability::Fsync {
            return Err(VolumeError::Invalid(
                "a volume with its metadata in a database or bucket has durability commit: what is \
                 not there is lost with the process".into(),
            ));
        }
        if self.registry()?.is_some() && self.cluster.is_none() {
            return Err(VolumeError::Invalid(
                "a registry is for a volume that several nodes share".into(),
            ));
        }
        let encryption = self.coding.as_ref().and_then(|coding| coding.encryption.as_ref());
        encryption.map_or(Ok(()), Encryption::check)?;
        if let Some(secret) = &self.secret {
            secret.bytes()?;
            if is_offered || self.cluster.is_some() {
                return Err(VolumeError::Invalid("a secret stands where none belongs".into()));
            }
        }
        self.check_cluster(is_offered)
    }
}

/// Directory that a volume URL names: a path, `file:///path`, or the state directory of the volume
/// in a bucket, which need not be there ([`find_volume`]).
///
/// # Errors
/// If it is the URL of something else.
pub fn volume_dir(url: &str) -> Result<PathBuf, VolumeError> {
    if is_bucket_url(url) {
        return StateDir::of(url).map(|state| state.path().to_path_buf());
    }
    if let Some(path) = url.strip_prefix("file://") {
        if !path.starts_with('/') {
            return Err(VolumeError::Invalid(format!(
                "{url}: a file URL names an absolute path, as file:///data/vol"
            )));
        }
        return Ok(path.into());
    }
    if let Some(rest) = url.strip_prefix("kestrel:").filter(|rest| !rest.starts_with("//")) {
        let rest = rest.trim_start_matches('/');
        let example = if rest.contains('/') { rest } else { "HOST/NAME" };
        return Err(VolumeError::Invalid(format!(
            "{url}: a served volume has two slashes before its host: kestrel://{example}; write \
             ./{url} if a directory has this \
             name"
        )));
    }
    match url.split_once("://") {
        Some(_) => Err(VolumeError::Invalid(format!(
            "{url}: this needs the volume's directory, a path or file:///PATH, or its bucket, \
             s3://BUCKET/PREFIX; run it on the machine where the directory is"
        ))),
        None if url.is_empty() => Err(VolumeError::Invalid("the volume's path is empty".into())),
        None => Ok(url.into()),
    }
}

/// The same where a bucket alone will not do: for the nodes of clusters.
///
/// # Errors
/// As for [`volume_dir`], and if it is the URL of a bucket.
pub fn directory_of(url: &str) -> Result<PathBuf, VolumeError> {
    if is_bucket_url(url) {
        return Err(VolumeError::Invalid(
            "s3://…: this takes a directory, a path or file:///PATH. Nodes of clusters have one \
             each, and their metadata and file data go to a bucket with --metadata and --storage"
                .into(),
        ));
    }
    volume_dir(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn settings() -> Settings {
        crate::volume::NewVolume::plain("demo", Durability::Fsync).settings
    }

    /// A URL with one slash is no path, and the message has the URL that was meant.
    #[test]
    fn url_with_one_slash() {
        for (url, meant) in [
            ("kestrel:/meta1/photos", "kestrel://meta1/photos;"),
            ("kestrel:meta1:9440/photos", "kestrel://meta1:9440/photos;"),
            ("kestrel:photos", "kestrel://HOST/NAME;"),
        ] {
            let why = volume_dir(url).unwrap_err().to_string();
            assert!(why.contains(meant), "{why}");
        }
        assert!(volume_dir("./kestrel:/meta1/photos").is_ok());
    }

    #[test]
    fn a_descriptor_comes_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let written = Descriptor::new(settings(), 5).unwrap();
        written.write(dir.path()).unwrap();
        assert_eq!(Descriptor::read(dir.path()).unwrap(), written);
    }

    #[test]
    fn damage_newer_formats_and_strangers_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Descriptor::read(dir.path()), Err(VolumeError::NotAVolume(_))));
        Descriptor::new(settings(), 5).unwrap().write(dir.path()).unwrap();
        let path = dir.path().join(FILE_NAME);
        let good = fs::read_to_string(&path).unwrap();
        fs::remove_file(dir.path().join(COPY_NAME)).unwrap();
        fs::write(&path, good.replace("\"demo\"", "\"memo\"")).unwrap();
        assert!(matches!(Descriptor::read(dir.path()), Err(VolumeError::Corrupt(..))));
        fs::write(&path, good.replace("\"format_version\": 1", "\"format_version\": 9")).unwrap();
        assert!(matches!(Descriptor::read(dir.path()), Err(VolumeError::Newer(_, 9))));
        for len in 0..good.len() - 1 {
            fs::write(&path, &good[..len]).unwrap();
            assert!(Descriptor::read(dir.path()).is_err());
        }
    }

    /// Any flipped bit of either copy: the volume is what it was, and both copies are mended.
    #[test]
    fn flipped_bits_of_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let written = Descriptor::new(settings(), 5).unwrap();
        written.write(dir.path()).unwrap();
        let good = fs::read(dir.path().join(FILE_NAME)).unwrap();
        for (name, step) in [(FILE_NAME, 1), (COPY_NAME, 29)] {
            for bit in (0..good.len() * 8).step_by(step) {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                fs::write(dir.path().join(name), &bad).unwrap();
                assert_eq!(Descriptor::read(dir.path()).unwrap(), written, "{name}, bit {bit}");
                if bit % 64 == 0 {
                    Descriptor::mend(dir.path());
                    assert_eq!(
                        Descriptor::read_file(dir.path(), name).unwrap(),
                        written,
                        "{name}, bit {bit}"
                    );
                }
            }
            fs::write(dir.path().join(name), &good).unwrap();
        }
        // A volume of an older program has one copy; a removed volume is none.
        fs::remove_file(dir.path().join(COPY_NAME)).unwrap();
        Descriptor::mend(dir.path());
        fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
        assert!(matches!(Descriptor::read(dir.path()), Err(VolumeError::NotAVolume(_))));
    }

    #[test]
    fn absurd_settings_are_refused() {
        for broken in [
            Settings { name: "a/b".into(), ..settings() },
            Settings { block_bytes: 0, ..settings() },
            Settings { block_bytes: 100_000, ..settings() },
            Settings { block_bytes: 1 << 30, ..settings() },
            Settings { inline_max: 1 << 20, ..settings() },
            Settings { storage: Some("ftp://x".into()), ..settings() },
        ] {
            assert!(Descriptor::new(broken, 0).is_err());
        }
    }
}
