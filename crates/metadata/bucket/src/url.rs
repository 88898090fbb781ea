//! Where the rows are: `s3://BUCKET/PREFIX?…` or `file:///PATH`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::named::{EncryptedNamed, LocalNamed, NamedStore};
use kestrel_blockstore::store::coded::Keys;
use kestrel_engine::EngineError;
use kestrel_engine::elsewhere::DEADLINE_DEFAULT;
use kestrel_s3::{S3_SCHEME, S3Limits, S3Named, S3Options};
use xxhash_rust::xxh3::xxh3_128;

use crate::Uuid;
use crate::holder::HOLDER;
use crate::table::TABLES;

/// What a URL of a directory begins with.
const FILE_SCHEME: &str = "file://";

/// Below this are the rows of all nodes.
pub const ROOT: &str = "meta/";

/// What names of objects of a node begin with.
pub fn prefix_of(node: u32) -> String {
    format!("{ROOT}{node}/")
}

/// Something that the tables of a node are read and written through, as they are stored: it gets
/// the store below it, and which objects are tables.
///
/// # Errors
/// What is in the way, in words.
pub type TableLayer =
    dyn Fn(Arc<dyn NamedStore>, &LiveTables) -> Result<Arc<dyn NamedStore>, String> + Send + Sync;

/// Which objects of a store are the tables of a node. Each is written once. No other object has its
/// name later, unless all of the bucket is put back to an earlier state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveTables {
    /// What their names begin with; 16 hexadecimal digits follow.
    pub prefix: String,
    /// Of these tables alone: of this node of this volume at this place.
    pub owner: [u8; 16],
}

/// A bucket and a prefix in it, or a directory that serves as one.
#[derive(Debug, Clone)]
pub struct BucketUrl {
    place: Place,
    deadline: Duration,
    /// The volume, and its data keys, if its metadata is encrypted.
    keys: Option<(Uuid, Keys)>,
    layer: Option<Layer>,
}

#[derive(Clone)]
struct Layer(Arc<TableLayer>);

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Layer")
    }
}

#[derive(Debug, Clone)]
enum Place {
    Bucket(Box<S3Options>),
    Directory(PathBuf),
}

impl BucketUrl {
    /// Whether a URL names one, by its scheme.
    pub fn is_one(url: &str) -> bool {
        url.starts_with(S3_SCHEME) || url.starts_with(FILE_SCHEME)
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix(FILE_SCHEME) {
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                return Err(format!("{url}: a directory has three slashes: file:///PATH"));
            }
            let place = Place::Directory(path);
            return Ok(Self { place, deadline: DEADLINE_DEFAULT, keys: None, layer: None });
        }
        let options = S3Options::parse(url).map_err(|why| why.to_string())?;
        let deadline = options.deadline();
        Ok(Self { place: Place::Bucket(Box::new(options)), deadline, keys: None, layer: None })
    }

    /// The same with the metadata of `volume` encrypted and decrypted, but the holder's name.
    #[must_use]
    pub fn encrypted(self, volume: Uuid, keys: Keys) -> Self {
        Self { keys: Some((volume, keys)), ..self }
    }

    /// The same for an engine or a follower that reads its tables through this layer.
    #[must_use]
    pub fn tables_through(self, layer: Arc<TableLayer>) -> Self {
        Self { layer: Some(Layer(layer)), ..self }
    }

    /// The same with credentials from this file.
    #[must_use]
    pub fn credentials_file(self, file: Option<PathBuf>) -> Self {
        let place = match self.place {
            Place::Bucket(options) => Place::Bucket(Box::new(options.credentials_file(file))),
            directory @ Place::Directory(_) => directory,
        };
        Self { place, ..self }
    }

    /// The same for requests that are given up on after so long at most.
    #[must_use]
    pub(crate) fn within(self, deadline: Duration) -> Self {
        let deadline = deadline.min(self.deadline);
        let place = match self.place {
            Place::Bucket(options) => {
                let limits = S3Limits { deadline, ..S3Limits::default() };
                Place::Bucket(Box::new(options.limits(limits)))
            }
            directory @ Place::Directory(_) => directory,
        };
        Self { place, deadline, ..self }
    }

    /// For people. It has no secrets.
    pub fn shown(&self) -> String {
        match &self.place {
            Place::Bucket(options) => options.url().to_string(),
            Place::Directory(path) => format!("{FILE_SCHEME}{}", path.display()),
        }
    }

    /// How long to wait for a store that does not answer.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The store. `probes`: it is tried whether it has conditional puts.
    ///
    /// # Errors
    /// If it has none, or cannot be reached.
    pub fn open(&self, probes: bool) -> Result<Arc<dyn NamedStore>, EngineError> {
        Ok(self.decrypted(self.open_stored(probes)?))
    }

    /// The store as a process opens it that works with the rows of a node.
    ///
    /// # Errors
    /// As for [`BucketUrl::open`], and those of the layer.
    pub(crate) fn open_rows(
        &self,
        uuid: &Uuid,
        node: u32,
    ) -> Result<Arc<dyn NamedStore>, EngineError> {
        let store = self.open_stored(false)?;
        let Some(Layer(layer)) = &self.layer else { return Ok(self.decrypted(store)) };
        let tables = self.live_tables(uuid, node);
        let layered = layer(store, &tables)
            .map_err(|why| EngineError::Io(format!("tables of metadata: {why}")))?;
        Ok(self.decrypted(layered))
    }

    fn live_tables(&self, uuid: &Uuid, node: u32) -> LiveTables {
        let place = match &self.place {
            Place::Bucket(options) => {
                let endpoint = options.endpoint().unwrap_or_default();
                format!("{endpoint} {} {}", options.bucket(), options.prefix())
            }
            Place::Directory(path) => path.to_string_lossy().into_owned(),
        };
        let mut named = uuid.to_vec();
        named.extend_from_slice(&node.to_be_bytes());
        named.extend_from_slice(place.as_bytes());
        let owner = xxh3_128(&named).to_be_bytes();
        LiveTables { prefix: format!("{}{TABLES}", prefix_of(node)), owner }
    }

    fn decrypted(&self, store: Arc<dyn NamedStore>) -> Arc<dyn NamedStore> {
        match &self.keys {
            Some((volume, keys)) => {
                let store = EncryptedNamed::new(store, *volume, keys.clone());
                Arc::new(store.leaving(|name| name.ends_with(HOLDER)))
            }
            None => store,
        }
    }

    /// The store with objects as they are stored, encrypted or not.
    ///
    /// # Errors
    /// As for [`BucketUrl::open`].
    pub(crate) fn open_stored(&self, probes: bool) -> Result<Arc<dyn NamedStore>, EngineError> {
        match &self.place {
            Place::Bucket(options) => match S3Named::open((**options).clone(), probes) {
                Ok(store) => Ok(Arc::new(store)),
                Err(why) => Err(EngineError::Refused(format!("metadata in a bucket: {why}"))),
            },
            Place::Directory(path) => match LocalNamed::open(path) {
                Ok(store) => Ok(Arc::new(store)),
                Err(why) => {
                    Err(EngineError::Io(format!("metadata in a bucket: {}: {why}", self.shown())))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_buckets() {
        for (url, shown) in [
            ("s3://bucket/a/b", Some("s3://bucket/a/b")),
            ("file:///srv/meta", Some("file:///srv/meta")),
            ("file://srv/meta", None),
            ("s3://", None),
        ] {
            let parsed = BucketUrl::parse(url).ok().map(|url| url.shown());
            assert_eq!(parsed.as_deref(), shown, "{url}");
        }
        assert!(!BucketUrl::is_one("postgres://x") && BucketUrl::is_one("s3://b/p"));
    }

    /// Tables of other volumes, nodes and places have other owners, whatever else the URL says.
    #[test]
    fn owners_of_tables() {
        let tables = |url: &str, uuid: u8, node: u32| {
            BucketUrl::parse(url).expect("a URL").live_tables(&[uuid; 16], node)
        };
        let these = tables("s3://bucket/p?endpoint=http://one:1", 1, 2);
        assert_eq!(these.prefix, "meta/2/table/");
        assert_eq!(these, tables("s3://bucket/p?endpoint=http://one:1&region=elsewhere", 1, 2));
        for other in [
            tables("s3://bucket/p?endpoint=http://one:1", 2, 2),
            tables("s3://bucket/p?endpoint=http://one:1", 1, 3),
            tables("s3://bucket/q?endpoint=http://one:1", 1, 2),
            tables("s3://bucket/p?endpoint=http://two:1", 1, 2),
            tables("file:///b/p", 1, 2),
        ] {
            assert_ne!(these.owner, other.owner, "{other:?}");
        }
    }
}
