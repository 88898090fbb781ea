//! Making and removing a volume that a bucket has all of: metadata, file data, and the descriptor,
//! which is there last of all.
//!
//! The object of the descriptor is taken first, with a mark that names this process
//! ([`UnfinishedFormat`]). Then what the mark lists as left over is removed, rows and objects are
//! made, and the descriptor takes the mark's place. A process that is killed leaves the mark, and
//! the next `kestrel format` removes what the mark lists.

use std::path::{Path, PathBuf};

use kestrel_blockstore::named::ETag;
use kestrel_bucket::BucketUrl;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::crash;

use super::format::make_rows;
use super::{NewVolume, VolumeLock, engine};
use crate::descriptor::{
    BucketDescriptor, Descriptor, Durability, Leftover, Published, Settings, UnfinishedFormat,
};
use crate::error::VolumeError;
use crate::keys;
use crate::state_dir::{StateDir, without_parameters};
use crate::storage::{self, StoreOptions};

/// How old the mark of a format must be, seconds, to be taken for one that was cut short on another
/// machine.
const CUT_SHORT_SECONDS: i64 = 60;

/// A prefix that this process has taken to make or to remove a volume.
struct Taken {
    home: BucketDescriptor,
    url: String,
    dir: PathBuf,
    /// The volume that is made or removed.
    volume: Descriptor,
    mark: UnfinishedFormat,
    tag: ETag,
    options: StoreOptions,
}

fn is_taken(url: &str) -> VolumeError {
    VolumeError::Invalid(format!(
        "{}: another process formats it at this moment; look what comes of that",
        without_parameters(url)
    ))
}

/// What is in the way of a new volume, or has to be removed for it.
fn leftovers(
    (found, url): (Published, &str),
    force: bool,
    credentials: Option<&Path>,
) -> Result<Vec<Leftover>, VolumeError> {
    let old = match found {
        Published::Nothing => return Ok(Vec::new()),
        Published::Unfinished(format, age) => {
            let seconds = age / SECOND;
            if seconds < CUT_SHORT_SECONDS && !format.process.has_ended() {
                return Err(VolumeError::Invalid(format!(
                    "{}: {} began to format it {seconds} s ago; if that process has ended, format \
                     again in {} s",
                    without_parameters(url),
                    format.process.words,
                    CUT_SHORT_SECONDS - seconds
                )));
            }
            return Ok(format.leftovers);
        }
        Published::Volume(old) => old,
    };
    if !force {
        return Err(VolumeError::Invalid(format!(
            "{}: the volume {:?} is there; choose another prefix, or give --force to format it and \
             lose what it holds",
            without_parameters(url),
            old.settings.name
        )));
    }
    let place = BucketUrl::parse(url).map_err(VolumeError::Invalid)?;
    let place = place.credentials_file(credentials.map(Path::to_path_buf));
    if let Some(holder) = kestrel_bucket::holder(&place, 0).map_err(VolumeError::Io)? {
        return Err(VolumeError::Invalid(format!(
            "{}: {holder} has the volume open; unmount or stop it there first",
            without_parameters(url)
        )));
    }
    Ok(vec![old.as_leftover()])
}

impl Taken {
    /// Takes the prefix for `volume`. From then on there is no volume.
    fn take(
        state: &StateDir,
        volume: &Descriptor,
        force: bool,
        options: &StoreOptions,
    ) -> Result<Self, VolumeError> {
        let (url, dir) = (state.url().to_string(), state.path().to_path_buf());
        let credentials = state.credentials(options.credentials.as_deref());
        let home = BucketDescriptor::open(&url, credentials.as_deref(), true)?;
        let (found, tag) = home.read()?;
        let old = leftovers((found, &url), force, credentials.as_deref())?;
        let mark = UnfinishedFormat::new(old, volume);
        let tag = home.begin(&mark, tag.as_ref())?.ok_or_else(|| is_taken(&url))?;
        Descriptor::remove_copy(&dir)?;
        let options = StoreOptions { credentials, ..options.clone() };
        Ok(Self { home, url, dir, volume: volume.clone(), mark, tag, options })
    }

    /// Removes what a volume has left below the prefix.
    fn remove(&self, left: &Leftover) -> Result<(), VolumeError> {
        let settings = Settings {
            storage: left.storage.clone().or_else(|| Some(self.url.clone())),
            ..self.volume.settings.clone()
        };
        let gone = Descriptor { uuid: left.volume.clone(), settings, ..self.volume.clone() };
        engine::discard_rows(&gone, self.options.credentials.as_deref())?;
        storage::erase_own(&self.dir, &gone, &self.options)
    }

    /// Makes the rows and the place for objects of the volume, and publishes its descriptor.
    fn make(&self) -> Result<(), VolumeError> {
        let volume = &self.volume;
        storage::create(&self.dir, volume, &self.options)?;
        // The rows stay open until there is a volume: nobody removes them meanwhile.
        let rows = make_rows(&self.dir, volume, false, &self.options)?;
        crash::point("format.made");
        let is_published = self.home.publish(volume, &self.tag)?;
        drop(rows);
        if is_published { Ok(()) } else { Err(is_taken(&self.url)) }
    }

    /// Removes everything that the mark lists, and the mark itself.
    fn give_up(&self) -> Result<(), VolumeError> {
        self.mark.leftovers.iter().try_for_each(|left| self.remove(left))?;
        self.home.retract(&self.tag)
    }
}

/// See [`super::format()`].
pub(super) fn format(
    url: &str,
    new: NewVolume,
    options: &StoreOptions,
) -> Result<Descriptor, VolumeError> {
    let state = StateDir::of(url)?;
    if new.metadata.is_some() || new.registry.is_some() {
        return Err(VolumeError::Invalid(format!(
            "{}: its metadata goes to that bucket: leave --metadata out",
            without_parameters(url)
        )));
    }
    let now = SystemClock.now();
    let mut settings = new.settings;
    settings.durability = Durability::Commit;
    settings.storage.get_or_insert_with(|| url.to_string());
    let mut volume = Descriptor::new(settings, now)?.with_metadata(Some(url.into()))?;
    let key_file = new.encrypt_with.as_deref();
    volume.coding = keys::new_coding(&volume.uuid_bytes(), new.compression, key_file, now)?;
    volume.require_metadata_encrypted()?;
    storage::check(&volume, options)?;
    let is_new = !state.path().exists();
    let made = make(&state, &volume, new.force, options);
    if made.is_err() && is_new {
        state.remove();
    }
    made.map(|()| volume)
}

fn make(
    state: &StateDir,
    volume: &Descriptor,
    force: bool,
    options: &StoreOptions,
) -> Result<(), VolumeError> {
    state.make(options.credentials.as_deref())?;
    let dir = state.path();
    let _lock = VolumeLock::take(dir, "kestrel format")?;
    let taken = Taken::take(state, volume, force, options)?;
    crash::point("format.begun");
    let (_, old) = taken.mark.leftovers.split_last().unzip();
    // What could not be removed is removed by the next format.
    old.unwrap_or_default().iter().try_for_each(|left| taken.remove(left))?;
    crash::point("format.removed");
    if let Err(why) = taken.make() {
        if let Err(other) = taken.give_up() {
            log::warn!("what was made stays there until the next format: {other}");
        }
        return Err(why);
    }
    crash::point("format.published");
    if let Err(why) = volume.write(dir) {
        log::warn!("there is no copy of the volume's descriptor here: {why}");
    }
    Ok(())
}

/// Removes a volume from its bucket that this process has made there.
///
/// # Errors
/// The store's, and if a process has it open. What is left is removed by the next format.
pub fn discard(url: &str, volume: &Descriptor, options: &StoreOptions) -> Result<(), VolumeError> {
    let state = StateDir::of(url)?;
    Taken::take(&state, volume, true, options)?.give_up()
}
