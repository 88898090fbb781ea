//! The block store of a volume that one process serves and others use: a bucket, or a directory
//! that all of them reach.
//!
//! A path says little about what lies there on another machine. So the server leaves a word in the
//! directory (once, random), tells it to its clients, and a client that does not find it there does
//! not use the directory: bytes that it would store in another one would be lost to everybody else.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use kestrel_blockstore::store::key::MARKER;
use kestrel_types::placement::{PlacementError, PlacementMap};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Base, ObjectsUrl, Storage, StoreOptions};
use crate::descriptor::{Descriptor, random};
use crate::error::VolumeError;
use kestrel_types::hex::{from_hex, to_hex};

/// Random bytes of the word.
const WORD_BYTES: usize = 16;

/// Longest marker that is read, bytes.
const MARKER_BYTES_MAX: u64 = 256;

/// What a server tells a client of the volume, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Offer {
    /// What `kestrel.json` holds.
    descriptor: Value,
    /// Where its objects are, if that is a directory.
    pub objects: Option<SharedDir>,
    /// The placement map of its metadata nodes in hexadecimal digits ([`PlacementMap::encode`]), if
    /// they are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// The identity of the published version that is served, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A directory with objects, and how to recognize it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDir {
    /// Absolute path at the server.
    pub path: PathBuf,
    /// What the marker in it holds.
    pub word: String,
}

impl Offer {
    /// What a server with this volume open offers. Leaves the marker in a directory that has none.
    ///
    /// # Errors
    /// If the marker cannot be written or read.
    pub fn new(descriptor: &Descriptor, storage: &Storage) -> Result<Self, VolumeError> {
        Self::marked_by(descriptor, storage, &mark)
    }

    /// What a server of the version with this identity offers. Writes nothing: the
    /// process that published it has left the marker.
    ///
    /// # Errors
    /// If there is no marker, or it cannot be read.
    pub fn of_version(
        descriptor: &Descriptor,
        storage: &Storage,
        id: &str,
    ) -> Result<Self, VolumeError> {
        let word = |dir: &Path| match read(&dir.join(MARKER)) {
            Ok(word) if !word.is_empty() => Ok(word),
            _ => Err(VolumeError::Io(format!(
                "{}: it has no file {MARKER} by which clients know it; serve the volume once, or \
                 publish a version, which makes the file",
                dir.display()
            ))),
        };
        let offer = Self::marked_by(descriptor, storage, &word)?;
        Ok(Self { placement: None, version: Some(id.to_string()), ..offer })
    }

    fn marked_by(
        descriptor: &Descriptor,
        storage: &Storage,
        word: &dyn Fn(&Path) -> Result<String, VolumeError>,
    ) -> Result<Self, VolumeError> {
        let objects = match &storage.base {
            Base::S3(_) => None,
            Base::Dir(dir) => {
                let path =
                    fs::canonicalize(dir).map_err(|error| VolumeError::io("find", dir, error))?;
                let word = word(&path)?;
                Some(SharedDir { path, word })
            }
        };
        let shown = serde_json::to_value(descriptor.for_clients()?);
        let placement =
            descriptor.cluster.as_ref().map(|section| section.placement_hex().to_string());
        Ok(Self {
            descriptor: shown.map_err(|why| VolumeError::Invalid(why.to_string()))?,
            objects,
            placement,
            version: None,
        })
    }

    /// The same with another placement map, of a volume that several nodes share.
    pub fn placed_by(&self, placement: &PlacementMap) -> Self {
        Self { placement: Some(to_hex(&placement.encode())), ..self.clone() }
    }

    /// The offer as it travels.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = serde_json::json!({ "descriptor": self.descriptor, "objects": self.objects });
        if let Some(placement) = &self.placement {
            out["placement"] = placement.as_str().into();
        }
        if let Some(version) = &self.version {
            out["version"] = version.as_str().into();
        }
        out.to_string().into_bytes()
    }

    /// What the server named `server` offered.
    ///
    /// # Errors
    /// If it is no offer.
    pub fn from_json(text: &[u8], server: &str) -> Result<Self, VolumeError> {
        serde_json::from_slice(text).map_err(|error| {
            let why = format!(
                "its description of the volume is not valid: {error}; use the same version of \
                 kestrel"
            );
            VolumeError::Corrupt(server.into(), why)
        })
    }

    /// The volume's descriptor, checked as one that is read from a file.
    ///
    /// # Errors
    /// As for [`Descriptor::read`].
    pub fn descriptor(&self, server: &str) -> Result<Descriptor, VolumeError> {
        Descriptor::from_offer(self.descriptor.clone(), Path::new(server))
    }

    /// Where everything is among the volume's metadata nodes; none if it has only one.
    ///
    /// # Errors
    /// If the table is damaged, or a newer version of this program wrote it.
    pub fn placement(&self, server: &str) -> Result<Option<PlacementMap>, VolumeError> {
        let Some(digits) = &self.placement else { return Ok(None) };
        let damaged = |why: String| {
            VolumeError::Corrupt(
                server.into(),
                format!("the table of its metadata nodes is not valid: {why}"),
            )
        };
        let bytes = from_hex(digits)
            .ok_or_else(|| damaged("it is not written in hexadecimal digits".into()))?;
        PlacementMap::decode(&bytes).map(Some).map_err(|error| match error {
            PlacementError::Newer(_) => VolumeError::Invalid(format!("{server}: {error}")),
            PlacementError::Damaged(why) => {
                damaged(format!("{why}; use the same version of kestrel"))
            }
        })
    }
}

impl Storage {
    /// Opens the block store of a volume that the server named `server` serves. Starts threads.
    ///
    /// # Errors
    /// As for [`Storage::open`], and if the store is a directory that is not reached from here.
    pub fn open_offered(
        offer: &Offer,
        server: &str,
        options: &StoreOptions,
    ) -> Result<Self, VolumeError> {
        let descriptor = offer.descriptor(server)?;
        let place = match &offer.objects {
            Some(shared) => {
                find(shared, server)?;
                ObjectsUrl::Dir(shared.path.clone())
            }
            None => ObjectsUrl::of(Path::new(""), &descriptor.settings, options)?,
        };
        Self::open_at(place, &descriptor, options)
    }

    /// Whether what is acknowledged may still be lost with this machine, so that it must be synced
    /// before others rely on it.
    pub fn needs_sync(&self) -> bool {
        matches!(self.base, Base::Dir(_))
    }
}

/// The word in the marker of a directory, which is made if there is none.
pub(super) fn mark(dir: &Path) -> Result<String, VolumeError> {
    let path = dir.join(MARKER);
    match read(&path) {
        Ok(word) if !word.is_empty() => return Ok(word),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(VolumeError::io("read", &path, error));
        }
        _ => {}
    }
    let word = to_hex(&random::<WORD_BYTES>()?);
    let partial = dir.join(format!("{MARKER}.new"));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        writeln!(file, "{word}")?;
        file.sync_all()?;
        fs::rename(&partial, &path)
    };
    write().map_err(|error| VolumeError::io("write", &path, error))?;
    Ok(word)
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MARKER_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.trim().to_string())
}

fn find(shared: &SharedDir, server: &str) -> Result<(), VolumeError> {
    let dir = shared.path.display();
    look(&shared.path, &shared.word).map_err(|why| {
        VolumeError::Io(format!(
            "the volume at {server} keeps its objects in the server's directory {dir}, which is \
             not reached from here: {why}; \
             share that directory under the same path, or use a volume formatted with --storage \
             s3://…"
        ))
    })
}

/// Looks whether the word lies in the directory.
fn look(dir: &Path, word: &str) -> Result<(), String> {
    match read(&dir.join(MARKER)) {
        Ok(found) if found == word => Ok(()),
        Ok(_) => Err("another directory lies there".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Leaves a word in the directory of objects of the volume at `dir`, if they are in one: the other
/// nodes of its cluster know it by that.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn mark_objects(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
) -> Result<Option<String>, VolumeError> {
    match ObjectsUrl::of(dir, &descriptor.settings, options)? {
        ObjectsUrl::S3(_) => Ok(None),
        ObjectsUrl::Dir(objects) => mark(&objects).map(Some),
    }
}

impl Storage {
    /// The word in the directory of the objects, which is left there if there is none; none of
    /// objects in a bucket.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn objects_word(&self) -> Result<Option<String>, VolumeError> {
        match &self.base {
            Base::Dir(objects) => mark(objects).map(Some),
            Base::S3(_) => Ok(None),
        }
    }
}

/// Checks that a directory with objects is the one that all nodes of a cluster use.
///
/// # Errors
/// Says what lies there instead, and what to do.
pub(super) fn recognize(objects: &Path, word: Option<&str>) -> Result<(), VolumeError> {
    let dir = objects.display();
    let word = word.ok_or_else(|| {
        VolumeError::Invalid(format!(
            "the cluster's objects are in {dir}, but nothing says how to know it"
        ))
    })?;
    look(objects, word).map_err(|why| {
        VolumeError::Io(format!(
            "the cluster's objects are in the directory {dir}, which is not reached from here: \
             {why}; share that directory \
             under the same path, or form the cluster with --storage s3://…"
        ))
    })
}

#[cfg(test)]
mod tests {
    use kestrel_types::placement::{Exceptions, Member, SlotMap};

    use super::*;

    /// A placement map in an offer reads back, and the error about one that cannot be read says
    /// why.
    #[test]
    fn placement_map_in_offer() {
        let members = [1, 2].map(|id| Member { id, address: format!("node-{id}:9440") });
        let table =
            PlacementMap::new(SlotMap::even(members.to_vec()).unwrap(), Exceptions::default());
        let mut offer =
            Offer { descriptor: Value::Null, objects: None, placement: None, version: None };
        let again =
            |offer: &Offer| Offer::from_json(&offer.to_json(), "a:1").unwrap().placement("a:1");
        assert_eq!(again(&offer).unwrap(), None);
        let mut bytes = table.encode();
        offer.placement = Some(to_hex(&bytes));
        assert_eq!(again(&offer).unwrap(), Some(table));
        bytes[0] = 9;
        for (digits, why) in [
            (to_hex(&bytes), "use the version of kestrel"),
            ("0".into(), "hexadecimal"),
            ("0\u{e9}".into(), "hexadecimal"),
            ("+1".into(), "hexadecimal"),
            ("01".into(), "not valid"),
        ] {
            offer.placement = Some(digits);
            let error = again(&offer).unwrap_err().to_string();
            assert!(error.contains("a:1") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_directory_is_recognized_by_the_word_in_it() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let word = mark(here.path()).unwrap();
        assert_eq!(mark(here.path()).unwrap(), word, "it stays");
        let shared = |path: &Path| SharedDir { path: path.to_path_buf(), word: word.clone() };
        find(&shared(here.path()), "server").unwrap();
        let missing = find(&shared(there.path()), "server:1").unwrap_err().to_string();
        assert!(missing.contains("server:1") && missing.contains("--storage s3://"), "{missing}");
        mark(there.path()).unwrap();
        assert!(
            find(&shared(there.path()), "server")
                .unwrap_err()
                .to_string()
                .contains("another directory")
        );
    }
}
