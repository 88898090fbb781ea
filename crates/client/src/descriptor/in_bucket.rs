//! The descriptor of a volume that a bucket has all of: the named object [`NAME`]
//! (`docs/format/bucket.md`). The descriptor in the volume's state directory is a copy of it.
//!
//! While `kestrel format` runs, the object holds an [`UnfinishedFormat`]: the process, and which
//! volumes have left something below the prefix. The descriptor takes its place when all else is
//! there. Every step replaces what was read, so that of two processes one goes on and the other is
//! told, however long a process was stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};
use kestrel_bucket::{BucketUrl, ProcessMark};
use kestrel_types::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::{COPY_NAME, Descriptor, DescriptorLock, FILE_BYTES_MAX, FILE_NAME};
use crate::error::VolumeError;
use crate::state_dir::{StateDir, StateRecord, is_bucket_url, without_parameters};

/// Name of the object.
const NAME: &str = "meta/descriptor";

const UNFINISHED_MAGIC: &str = "kestrelfs-format";
const UNFINISHED_FORMAT: u64 = 1;

/// How often a change is tried that other machines' changes get in the way of.
const ATTEMPTS: u32 = 8;

/// A volume that has rows or objects which nothing needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Its identity, 32 hexadecimal digits.
    pub volume: String,
    /// Where its objects are, if not below the same prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
}

/// A `kestrel format` that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedFormat {
    magic: String,
    format: u64,
    /// The process that does it.
    pub process: ProcessMark,
    /// Volumes with something below the prefix, that of this format last.
    pub leftovers: Vec<Leftover>,
}

impl UnfinishedFormat {
    /// This process's, for a volume that takes the place of `leftovers`.
    pub fn new(mut leftovers: Vec<Leftover>, volume: &Descriptor) -> Self {
        leftovers.push(volume.as_leftover());
        let process = ProcessMark::this("kestrel format");
        Self { magic: UNFINISHED_MAGIC.into(), format: UNFINISHED_FORMAT, process, leftovers }
    }

    fn text(&self) -> Bytes {
        // Strings and numbers: nothing that JSON could not say.
        serde_json::to_vec_pretty(self).unwrap_or_default().into()
    }
}

/// What the object says.
#[derive(Debug)]
pub enum Published {
    /// It is not there.
    Nothing,
    /// A volume is being made, or was not made to its end.
    Unfinished(UnfinishedFormat, Nanos),
    /// There is a volume.
    Volume(Box<Descriptor>),
}

/// The object, in its bucket.
pub struct BucketDescriptor {
    store: Arc<dyn NamedStore>,
    /// For messages: without parameters.
    base: String,
    url: String,
}

impl BucketDescriptor {
    /// That of the volume at `url`. `probes`: it is tried whether the store has what is needed.
    ///
    /// # Errors
    /// If the store cannot be reached, or lacks conditional puts.
    pub fn open(url: &str, credentials: Option<&Path>, probes: bool) -> Result<Self, VolumeError> {
        let place = BucketUrl::parse(url).map_err(VolumeError::Invalid)?;
        let place = place.credentials_file(credentials.map(Path::to_path_buf));
        Ok(Self::new(place.open(probes).map_err(VolumeError::engine)?, url))
    }

    fn new(store: Arc<dyn NamedStore>, url: &str) -> Self {
        let base = without_parameters(url).trim_end_matches('/').to_string();
        Self { store, base, url: url.to_string() }
    }

    fn failed(&self, why: &kestrel_blockstore::Error) -> VolumeError {
        VolumeError::Io(format!("{}: {why}", self.base))
    }

    fn source(&self) -> PathBuf {
        format!("{}/{NAME}", self.base).into()
    }

    /// Reads it, with the tag by which it is replaced.
    ///
    /// # Errors
    /// The store's, and as for [`Descriptor::read`].
    pub fn read(&self) -> Result<(Published, Option<ETag>), VolumeError> {
        let read = || match self.store.read(NAME).map_err(|why| self.failed(&why))? {
            None => Ok((Published::Nothing, None)),
            Some(found) => Ok((self.decode(&found)?, Some(found.tag))),
        };
        // The answer may have been damaged on its way.
        read().or_else(|why| match why {
            VolumeError::Corrupt(..) => read(),
            other => Err(other),
        })
    }

    fn decode(&self, found: &NamedObject) -> Result<Published, VolumeError> {
        let source = self.source();
        let corrupt = |why: String| {
            VolumeError::Corrupt(
                source.clone(),
                format!("{why}; bring the object back from an earlier version or a copy"),
            )
        };
        if found.bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(corrupt("it is too large to be a volume descriptor".into()));
        }
        let loose: serde_json::Value = serde_json::from_slice(&found.bytes)
            .map_err(|why| corrupt(format!("it is not valid JSON ({why})")))?;
        if loose["magic"] != UNFINISHED_MAGIC {
            let descriptor = Descriptor::from_json(loose, &source)?;
            if descriptor.cluster.is_some() {
                return Err(corrupt("it is of a node of a cluster".into()));
            }
            return Ok(Published::Volume(Box::new(descriptor)));
        }
        match loose["format"].as_u64() {
            Some(UNFINISHED_FORMAT) => {}
            Some(newer) if newer > UNFINISHED_FORMAT => {
                return Err(VolumeError::Newer(source, newer));
            }
            _ => return Err(corrupt("it has no format version".into())),
        }
        let unfinished = serde_json::from_value(loose).map_err(|why| corrupt(why.to_string()))?;
        Ok(Published::Unfinished(unfinished, found.age))
    }

    /// The descriptor, as this machine opens the volume.
    ///
    /// # Errors
    /// As for [`BucketDescriptor::read`], and if there is no volume.
    pub fn volume(&self) -> Result<(Descriptor, ETag), VolumeError> {
        match self.read()? {
            (Published::Volume(found), Some(tag)) => Ok((*found, tag)),
            (Published::Unfinished(format, _), _) => Err(VolumeError::Invalid(format!(
                "{}: {} began to make a volume and has not come to its end; if that process has \
                 ended, run `kestrel format` again",
                self.base, format.process.words
            ))),
            _ => Err(VolumeError::NotAVolume(self.url.clone().into())),
        }
    }

    /// Puts the mark of a format in the place of what was read with `tag`; the new tag. `None`: the
    /// object has changed meanwhile.
    ///
    /// # Errors
    /// The store's.
    pub fn begin(
        &self,
        format: &UnfinishedFormat,
        tag: Option<&ETag>,
    ) -> Result<Option<ETag>, VolumeError> {
        let failed = |why| self.failed(&why);
        match tag {
            Some(tag) => self.store.replace(NAME, format.text(), tag).map_err(failed),
            None if !self.store.create(NAME, format.text()).map_err(failed)? => Ok(None),
            None => {
                let made = self.store.read(NAME).map_err(failed)?;
                Ok(made.filter(|made| made.bytes == format.text()).map(|made| made.tag))
            }
        }
    }

    /// Puts a descriptor in the place of what was read with `tag`. `false`: the object has changed
    /// meanwhile.
    ///
    /// # Errors
    /// The store's.
    pub fn publish(&self, descriptor: &Descriptor, tag: &ETag) -> Result<bool, VolumeError> {
        let text = descriptor.text()?.into();
        let replaced = self.store.replace(NAME, text, tag).map_err(|why| self.failed(&why))?;
        Ok(replaced.is_some())
    }

    /// Removes the object if it still has this tag.
    ///
    /// # Errors
    /// The store's.
    pub fn retract(&self, tag: &ETag) -> Result<(), VolumeError> {
        let found = self.store.read(NAME).map_err(|why| self.failed(&why))?;
        match found {
            Some(found) if found.tag == *tag => {
                self.store.remove(NAME).map_err(|why| self.failed(&why))
            }
            _ => Ok(()),
        }
    }

    /// Changes the descriptor; repeats that if another machine has changed it meanwhile.
    fn update(
        &self,
        mut change: impl FnMut(&mut Descriptor) -> Result<(), VolumeError>,
    ) -> Result<Descriptor, VolumeError> {
        for _ in 0..ATTEMPTS {
            let (before, tag) = self.volume()?;
            let mut changed = before.clone();
            change(&mut changed)?;
            changed.check()?;
            changed.checksum = changed.expected_checksum()?;
            if changed == before || self.publish(&changed, &tag)? {
                return Ok(changed);
            }
        }
        Err(VolumeError::Invalid(format!(
            "{}: other machines change the volume's settings all the time; nothing was changed: \
             repeat it",
            self.base
        )))
    }
}

impl Descriptor {
    /// What a volume leaves behind when its descriptor is gone.
    pub fn as_leftover(&self) -> Leftover {
        let storage = self.settings.storage.clone();
        let storage = storage.filter(|_| self.settings.storage != self.metadata);
        Leftover { volume: self.uuid.clone(), storage }
    }

    /// The same as this machine reaches the volume: its bucket is at `url`.
    fn seen_at(mut self, url: &str) -> Result<Self, VolumeError> {
        if self.settings.storage == self.metadata {
            self.settings.storage = Some(url.into());
        }
        self.with_metadata(Some(url.into()))
    }

    /// Makes the copy in a state directory say what the bucket says. Directories of volumes are
    /// left alone.
    ///
    /// # Errors
    /// If there is no volume in the bucket, or its descriptor cannot be read or kept.
    pub fn refresh(dir: &Path, credentials: Option<&Path>) -> Result<(), VolumeError> {
        let Some(record) = StateRecord::read(dir)? else { return Ok(()) };
        let credentials = record.credentials(credentials);
        let home = BucketDescriptor::open(&record.url, credentials.as_deref(), false)?;
        home.copy_to(dir)
    }

    /// Changes the descriptor in the bucket and then the copy in the state directory `dir`.
    pub(super) fn update_in_bucket(
        dir: &Path,
        record: &StateRecord,
        lock: &DescriptorLock,
        change: impl FnMut(&mut Self) -> Result<(), VolumeError>,
    ) -> Result<Self, VolumeError> {
        let credentials = record.credentials(None);
        let home = BucketDescriptor::open(&record.url, credentials.as_deref(), false)?;
        let changed = home.update(change)?.seen_at(&record.url)?;
        if let Err(why) = changed.replace(dir, lock) {
            // The next process that opens the volume makes the copy again.
            log::warn!("the volume is changed, and the copy of its descriptor here is not: {why}");
        }
        Ok(changed)
    }

    /// Removes the copy in a state directory.
    pub(crate) fn remove_copy(dir: &Path) -> Result<(), VolumeError> {
        for name in [FILE_NAME, COPY_NAME] {
            let path = dir.join(name);
            match std::fs::remove_file(&path) {
                Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                    return Err(VolumeError::io("remove", &path, why));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl BucketDescriptor {
    /// Makes the copy in a state directory say what the object says.
    fn copy_to(&self, dir: &Path) -> Result<(), VolumeError> {
        let lock = DescriptorLock::take(dir)?;
        let there = self.volume()?.0.seen_at(&self.url)?;
        there.keep_copy(dir, &lock)
    }
}

impl Descriptor {
    fn keep_copy(&self, dir: &Path, lock: &DescriptorLock) -> Result<(), VolumeError> {
        let here = Self::read(dir).ok();
        if let Some(here) = here.as_ref().filter(|here| here.uuid != self.uuid) {
            log::warn!(
                "{}: the volume was formatted anew: it was {}, and is {}",
                dir.display(),
                here.uuid,
                self.uuid
            );
        }
        if here.as_ref() == Some(self) { Ok(()) } else { self.replace(dir, lock) }
    }
}

/// Directory of the volume that a URL names, to look into or to open it: a path, `file:///path`, or
/// the state directory of a bucket's volume. That gets a copy of the descriptor if it has none. If
/// `is_fresh` the copy is made anew, unless a process here has the volume open (`is_open`).
///
/// # Errors
/// If it is the URL of something else. Of a bucket also if it has no volume or cannot be reached;
/// nothing is made here then.
pub fn find_volume(
    url: &str,
    credentials: Option<&Path>,
    is_fresh: bool,
    is_open: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, VolumeError> {
    if !is_bucket_url(url) {
        return super::volume_dir(url);
    }
    let state = StateDir::of(url)?;
    let dir = state.path();
    let here = Descriptor::read(dir).ok();
    let needs_bucket = here.is_none() || (is_fresh && !is_open(dir));
    let there = match here {
        Some(here) if !needs_bucket => here.seen_at(url)?,
        _ => {
            let credentials = state.credentials(credentials);
            let home = BucketDescriptor::open(url, credentials.as_deref(), false)?;
            home.volume()?.0.seen_at(url)?
        }
    };
    state.make(credentials)?;
    let lock = DescriptorLock::take(dir)?;
    there.keep_copy(dir, &lock)?;
    Ok(dir.to_path_buf())
}

#[cfg(test)]
mod tests {
    use kestrel_blockstore::named::{LocalNamed, MemoryNamed, NamedFault};

    use super::super::{Durability, tests::settings};
    use super::*;
    use crate::accesses::AtimeMode;

    const URL: &str = "s3://bucket/photos?region=eu-1";

    fn new_volume() -> Descriptor {
        let mut settings = settings();
        (settings.durability, settings.storage) = (Durability::Commit, Some(URL.into()));
        Descriptor::new(settings, 5).unwrap().with_metadata(Some(URL.into())).unwrap()
    }

    fn made(store: Arc<dyn NamedStore>) -> (BucketDescriptor, Descriptor) {
        let (home, volume) = (BucketDescriptor::new(store, URL), new_volume());
        let tag = home.begin(&UnfinishedFormat::new(Vec::new(), &volume), None).unwrap().unwrap();
        assert!(home.volume().is_err());
        assert!(home.publish(&volume, &tag).unwrap());
        (home, volume)
    }

    fn atime(mode: AtimeMode) -> impl Fn(&mut Descriptor) -> Result<(), VolumeError> {
        move |descriptor| {
            descriptor.settings.atime = mode;
            Ok(())
        }
    }

    /// A change made meanwhile is kept, and a lost answer is no failure.
    #[test]
    fn changes_of_two_machines() {
        let place = tempfile::tempdir().unwrap();
        let memory = Arc::new(MemoryNamed::default());
        let local: Arc<dyn NamedStore> = Arc::new(LocalNamed::open(place.path()).unwrap());
        for store in [memory.clone() as Arc<dyn NamedStore>, local] {
            let (home, volume) = made(store);
            let mut tries = 0;
            let changed = home.update(|descriptor| {
                tries += 1;
                if tries == 1 {
                    home.update(atime(AtimeMode::Relatime)).unwrap();
                }
                descriptor.settings.grace_seconds = 7;
                Ok(())
            });
            let changed = changed.unwrap();
            assert_eq!((changed.settings.grace_seconds, tries), (7, 2));
            assert_eq!(changed.settings.atime, AtimeMode::Relatime);
            assert_eq!(home.volume().unwrap().0, changed);
            assert_eq!(changed.uuid, volume.uuid);
            // Changes without end.
            let endless = home.update(|descriptor| {
                let grace = descriptor.settings.grace_seconds + 1;
                home.update(|other| {
                    other.settings.grace_seconds = grace;
                    Ok(())
                })
                .map(drop)?;
                descriptor.settings.atime = AtimeMode::None;
                Ok(())
            });
            assert!(endless.unwrap_err().to_string().contains("repeat it"));
        }
        // The store fails before a change, and the caller is told.
        memory.decide(|verb, _| match verb {
            "replace" => NamedFault::Before,
            _ => NamedFault::None,
        });
        let home = BucketDescriptor::new(memory, URL);
        assert!(home.update(atime(AtimeMode::None)).is_err());
    }

    /// Of two formats at once one makes the volume, also if the other one was stopped meanwhile.
    #[test]
    fn formats_of_two_machines() {
        let home = BucketDescriptor::new(Arc::new(MemoryNamed::default()), URL);
        let (one, two) = (new_volume(), new_volume());
        let mark = |volume: &Descriptor| UnfinishedFormat::new(Vec::new(), volume);
        let tag = home.begin(&mark(&one), None).unwrap().unwrap();
        assert_eq!(home.begin(&mark(&two), None).unwrap(), None);
        let (Published::Unfinished(found, _), Some(seen)) = home.read().unwrap() else { panic!() };
        assert_eq!((found.leftovers, &seen), (vec![one.as_leftover()], &tag));
        let next = home.begin(&mark(&two), Some(&seen)).unwrap().unwrap();
        assert!(!home.publish(&one, &tag).unwrap());
        home.retract(&tag).unwrap();
        assert!(home.publish(&two, &next).unwrap());
        assert_eq!(home.volume().unwrap().0.uuid, two.uuid);
    }

    /// An object that is damaged, newer or something else is told apart, and nothing panics.
    #[test]
    fn damaged_descriptors_in_a_bucket() {
        let memory = Arc::new(MemoryNamed::default());
        let (home, volume) = made(memory.clone());
        let text = volume.text().unwrap();
        let newer = String::from_utf8(text.clone()).unwrap();
        let newer = newer.replace("\"format_version\": 1", "\"format_version\": 9");
        let mark = UnfinishedFormat::new(Vec::new(), &volume).text();
        let newer_mark = String::from_utf8(mark.to_vec()).unwrap();
        let newer_mark = newer_mark.replace("\"format\": 1", "\"format\": 2");
        let is = |bytes: &[u8], wanted: &dyn Fn(&VolumeError) -> bool| {
            memory.damage(NAME, |_| bytes.to_vec());
            let why = home.volume().unwrap_err();
            assert!(wanted(&why), "{why}");
        };
        let corrupt = |why: &VolumeError| matches!(why, VolumeError::Corrupt(..));
        for bytes in [&text[..text.len() / 2], b"", b"{}", b"[]", b"\xff", &vec![b' '; 70_000]] {
            is(bytes, &corrupt);
        }
        is(&[&text[..9], b"\xc3", &text[10..]].concat(), &corrupt);
        is(newer.as_bytes(), &|why| matches!(why, VolumeError::Newer(_, 9)));
        is(newer_mark.as_bytes(), &|why| matches!(why, VolumeError::Newer(_, 2)));
        is(&mark, &|why| why.to_string().contains("not come to its end"));
    }

    /// The copy has the URL of this machine, and a volume that was formatted anew replaces it.
    #[test]
    fn copies_of_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(MemoryNamed::default());
        let (_, volume) = made(memory.clone());
        let other = "s3://bucket/photos?endpoint=http://here:9000";
        let here = BucketDescriptor::new(memory.clone(), other);
        here.copy_to(dir.path()).unwrap();
        let copy = Descriptor::read(dir.path()).unwrap();
        let urls = [copy.metadata.as_deref(), copy.settings.storage.as_deref()];
        assert_eq!((urls, &copy.uuid), ([Some(other); 2], &volume.uuid));
        let anew = new_volume();
        memory.damage(NAME, |_| anew.text().unwrap());
        here.copy_to(dir.path()).unwrap();
        assert_eq!(Descriptor::read(dir.path()).unwrap().uuid, anew.uuid);
    }
}
