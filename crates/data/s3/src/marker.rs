//! The mark of a volume in its bucket: the object `PREFIX/kestrel-volume`.
//!
//! Written by a conditional put when a volume is formatted and read whenever it is opened, so that
//! two volumes never share a prefix and a volume never takes another's objects for its own
//! (`docs/format/objects.md`, "In an object store").
//!
//! It carries no checksum. A body that is no marker, or not this volume's, is read a few times
//! before it is believed.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use kestrel_blockstore::error::Error;
use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_types::clock::{Clock, Nanos, SECOND, SystemClock};
use kestrel_types::hex::to_hex;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use crate::client::{Attempt, Client};
use crate::credentials::{NONE_FOUND, process_environment};
use crate::fault::{Cause, Failure, Fault, TRUST};
use crate::open_error::OpenError;
use crate::options::S3Options;
use crate::rate_limiter::Direction;
use crate::store::S3Store;
use crate::store::put::{Kept, unique};
use crate::wire::Trace;

/// Name of the marker below the prefix.
const NAME: &str = "kestrel-volume";

/// The name of the format, in every marker.
const MAGIC: &str = "kestrelfs";

/// Version of the layout below the prefix.
const LAYOUT_VERSION: u64 = 1;

/// Largest marker, bytes; anything longer is not ours.
const BYTES_MAX: u64 = 64 << 10;

/// Longest time that creating or opening waits for a store that does not answer: a person is
/// waiting.
const OPEN_DEADLINE: Duration = Duration::from_secs(15);

/// Difference of clocks that is worth a warning; signatures allow fifteen minutes.
const SKEW_WARNED: Nanos = 120 * SECOND;

/// Content of the marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    /// Always `kestrelfs`.
    magic: String,
    /// Version of the layout below the prefix.
    layout_version: u64,
    /// Identity of the volume, 32 hexadecimal digits.
    volume: String,
    /// When it was written, nanoseconds since the epoch.
    created: i64,
    /// Whether the store was found to refuse to overwrite under a condition.
    conditional_put: bool,
}

impl S3Store {
    /// Takes an empty prefix for a new volume and opens it. A marker of the same volume is fine: an
    /// earlier format may have been cut off after it.
    ///
    /// # Errors
    /// Anything that is in the way, above all another volume.
    pub fn create(options: S3Options, volume: [u8; 16]) -> Result<Self, OpenError> {
        let mut store = connect(options)?;
        if let Some(there) = store.client.block(read(&store, Some(volume)))? {
            return Ok(opened(store, there.conditional_put));
        }
        store.conditional_put = finds_out_conditional_put(&store)?;
        let page = store.client.block(store.page(None, 1));
        let page = page.map_err(|failure| open_error(&store.client, failure))?;
        if !page.objects.is_empty() || !page.unknown.is_empty() {
            return Err(OpenError::NotEmpty { url: store.client.options.url.clone() });
        }
        let marker = Marker {
            magic: MAGIC.to_string(),
            layout_version: LAYOUT_VERSION,
            volume: to_hex(&volume),
            created: SystemClock.now(),
            conditional_put: store.conditional_put,
        };
        let text = serde_json::to_vec_pretty(&marker)
            .map_err(|error| OpenError::Other(error.to_string()))?;
        match store.client.block(put(&store, NAME, Bytes::from(text))) {
            Ok(()) => {}
            // Either this put succeeded and its answer was lost, or another process was faster: the
            // marker that is there decides.
            Err(failure) if failure.fault.cause == Cause::Present => {}
            Err(failure) => return Err(open_error(&store.client, failure)),
        }
        let marker = verify(&store, Some(volume))?;
        Ok(opened(store, marker.conditional_put))
    }

    /// Opens the store of a volume. One request.
    ///
    /// # Errors
    /// If the store cannot be reached or read, or belongs to another volume or to none.
    pub fn open(options: S3Options, volume: [u8; 16]) -> Result<Self, OpenError> {
        let store = connect(options)?;
        let marker = verify(&store, Some(volume))?;
        Ok(opened(store, marker.conditional_put))
    }

    /// The same for any volume.
    ///
    /// # Errors
    /// If the store cannot be reached or read, or belongs to no volume.
    pub fn open_any(options: S3Options) -> Result<Self, OpenError> {
        let store = connect(options)?;
        let marker = verify(&store, None)?;
        Ok(opened(store, marker.conditional_put))
    }

    /// Deletes all objects of a volume and then its marker; how many objects there were. For a
    /// volume that is replaced.
    ///
    /// # Errors
    /// As for [`S3Store::open`], and anything that keeps an object from being deleted: the marker
    /// stays then. Only objects of KestrelFS are deleted.
    pub fn erase(options: S3Options, volume: [u8; 16]) -> Result<u64, OpenError> {
        let store = Self::open(options, volume)?;
        let objects = erase_objects(&store).map_err(|error| OpenError::Other(error.to_string()))?;
        let deleted = store.client.block(remove(&store, NAME));
        deleted.map_err(|failure| open_error(&store.client, failure))?;
        Ok(objects)
    }

    /// A store below a fresh name of the prefix, without a marker, for measuring and checking
    /// ([`crate::objbench`]). [`S3Store::discard`] removes what was written.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub fn scratch(options: S3Options) -> Result<Self, OpenError> {
        let mut store = connect(options.below(&unique("kestrel-objbench")))?;
        store.conditional_put = finds_out_conditional_put(&store)?;
        let conditional_put = store.conditional_put;
        Ok(opened(store, conditional_put))
    }

    /// Deletes all objects of a store made by [`S3Store::scratch`].
    ///
    /// # Errors
    /// The first that keeps an object from being deleted.
    pub fn discard(self) -> Result<u64, Error> {
        erase_objects(&self)
    }
}

/// Makes a store that gives up early, with nothing found out about it yet.
pub(crate) fn connect(options: S3Options) -> Result<S3Store, OpenError> {
    let mut client = Client::new(options, &process_environment)?;
    client.deadline = client.deadline.min(OPEN_DEADLINE);
    Ok(S3Store::new(client, true))
}

/// The store is what it should be.
fn opened(mut store: S3Store, conditional_put: bool) -> S3Store {
    store.client.deadline = store.client.limits().deadline;
    store.conditional_put = store.client.options.conditional_put.unwrap_or(conditional_put);
    store
}

/// Deletes all objects, page by page; how many.
fn erase_objects(store: &S3Store) -> Result<u64, Error> {
    let mut erased = 0;
    for page in list_all(store) {
        let objects: Vec<_> = page?.objects.into_iter().map(|info| info.object).collect();
        erased += objects.len() as u64;
        store.delete_each(&objects).into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    Ok(erased)
}

/// Reads the marker and checks that it is this volume's, or any one's.
fn verify(store: &S3Store, volume: Option<[u8; 16]>) -> Result<Marker, OpenError> {
    let marker = store.client.block(read(store, volume))?;
    marker.ok_or_else(|| OpenError::NoMarker { url: store.client.options.url.clone() })
}

fn check(marker: &Marker, volume: Option<[u8; 16]>, options: &S3Options) -> Result<(), OpenError> {
    let url = || options.url.clone();
    if marker.magic != MAGIC {
        return Err(damaged(options, "it is not one of KestrelFS"));
    }
    if marker.layout_version != LAYOUT_VERSION {
        return Err(OpenError::Newer { url: url(), version: marker.layout_version });
    }
    if let Some(wanted) =
        volume.map(|volume| to_hex(&volume)).filter(|wanted| *wanted != marker.volume)
    {
        return Err(OpenError::OtherVolume { url: url(), found: marker.volume.clone(), wanted });
    }
    Ok(())
}

/// The marker, if there is one; of this volume, if one is wanted.
async fn read(store: &S3Store, volume: Option<[u8; 16]>) -> Result<Option<Marker>, OpenError> {
    let client = &store.client;
    let path = client.path(NAME);
    // Why the last answer was not believed.
    let last_refusal = RefCell::new(None);
    let once = async || -> Attempt<(Marker, Option<Nanos>)> {
        let answer = client.s3.get_opts(&path, GetOptions::default()).await?;
        let len = answer.meta.size;
        let parsed = if len > BYTES_MAX {
            Err(damaged(&client.options, "it is too large to be one"))
        } else {
            let bytes = answer.bytes().await?;
            if bytes.len() as u64 != len {
                return Err(Fault::unbelievable(
                    "the answer's body has another length than it says",
                )
                .into());
            }
            parse(&bytes, volume, &client.options)
        };
        parsed.map(|marker| (marker, Trace::current().date())).map_err(|why| {
            let fault = Fault::inconsistent(why.to_string());
            last_refusal.replace(Some(why));
            fault.into()
        })
    };
    let (marker, date) = match client.request(Direction::Down, 0, once).await {
        Ok(found) => found,
        Err(failure) if failure.fault.cause == Cause::Missing => return Ok(None),
        Err(failure) => {
            let why = last_refusal.take().filter(|_| failure.fault.cause == Cause::Inconsistent);
            return Err(why.unwrap_or_else(|| open_error(client, failure)));
        }
    };
    if let Some(skew) = date.map(|date| (SystemClock.now() - date).abs())
        && skew > SKEW_WARNED
    {
        log::warn!(
            "{}: this machine's clock and the store's differ by {} s; above 900 s the store \
             refuses requests",
            client.options.url,
            skew / SECOND
        );
    }
    Ok(Some(marker))
}

/// The marker that these bytes are, if they are that of the volume that is wanted.
fn parse(bytes: &[u8], volume: Option<[u8; 16]>, options: &S3Options) -> Result<Marker, OpenError> {
    let marker =
        serde_json::from_slice(bytes).map_err(|error| damaged(options, &error.to_string()))?;
    check(&marker, volume, options)?;
    Ok(marker)
}

fn damaged(options: &S3Options, why: &str) -> OpenError {
    OpenError::Damaged { url: options.url.clone(), why: why.to_string() }
}

/// Puts something that is not an object.
async fn put(store: &S3Store, name: &str, bytes: Bytes) -> Result<(), Failure> {
    let _turn = store.client.turn(Direction::Up).await?;
    store.put_bytes(&store.client.path(name), bytes.into(), &Kept::default()).await
}

/// Deletes something that is not an object.
async fn remove(store: &S3Store, name: &str) -> Result<(), Failure> {
    let path = store.client.path(name);
    let once = async || -> Attempt<()> { Ok(store.client.s3.delete(&path).await?) };
    store.client.request(Direction::Up, 0, once).await
}

/// Whether the store refuses to overwrite under a condition: by trying, since some ignore the
/// condition in silence.
pub(crate) fn finds_out_conditional_put(store: &S3Store) -> Result<bool, OpenError> {
    if let Some(setting) = store.client.options.conditional_put {
        return Ok(setting);
    }
    let name = unique("kestrel-probe");
    let tried = store.client.block(async {
        let content = || {
            Bytes::from_static(
                b"made to find out whether a second put is refused; may be deleted\n",
            )
        };
        let first = put(store, &name, content()).await;
        // The first may be refused because an earlier attempt of it came through: then puts are
        // refused.
        let refused = match first {
            Ok(()) => put(store, &name, content()).await,
            failed => failed,
        };
        let found = match refused {
            Ok(()) => Ok(false),
            Err(failure) => match failure.fault.cause {
                Cause::Present => Ok(true),
                Cause::Unsupported => Ok(false),
                _ => Err(failure),
            },
        };
        if found.is_ok()
            && let Err(failure) = remove(store, &name).await
        {
            log::warn!("{name} stays behind in the store: {}", failure.text());
        }
        found
    });
    tried.map_err(|failure| open_error(&store.client, failure))
}
/// What the failure of a request means while a store is created or opened.
pub(crate) fn open_error(client: &Client, failure: Failure) -> OpenError {
    let options = &client.options;
    let (url, why) = (options.url.clone(), failure.text());
    let seen = &failure.fault.seen;
    match failure.fault.cause {
        Cause::NoBucket => OpenError::NoBucket { bucket: options.bucket.clone(), url },
        Cause::Denied => {
            OpenError::Denied { url, credentials: client.credentials_source.clone(), why }
        }
        Cause::ClockSkew => {
            let ahead_seconds = seen.date.map(|date| (SystemClock.now() - date) / SECOND);
            OpenError::ClockSkew { url, ahead_seconds }
        }
        Cause::Credentials => OpenError::Credentials(format!(
            "{}; {url}: {} gave none: {why}",
            NONE_FOUND, client.credentials_source
        )),
        Cause::Untrusted => OpenError::Other(format!("{url}: {why}; {}", TRUST)),
        Cause::Throttled | Cause::Failed | Cause::Broken | Cause::Inconsistent | Cause::Late => {
            OpenError::Unreachable { url, why }
        }
        Cause::Missing
        | Cause::Present
        | Cause::Archived
        | Cause::Restoring
        | Cause::NoClass
        | Cause::Short
        | Cause::Full
        | Cause::Unsupported
        | Cause::Refused => {
            let region = match &seen.region {
                Some(region) => format!("; the bucket is in region={region}"),
                None => "; check endpoint and region".to_string(),
            };
            OpenError::Other(format!("{url}: {why}{region}"))
        }
    }
}
