//! Named objects in a bucket ([`kestrel_blockstore::named`]), by conditional puts. A store without
//! them is refused.

use std::thread;

use bytes::Bytes;
use kestrel_blockstore::error::Result;
use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};
use kestrel_types::clock::{Clock, SystemClock};
use object_store::{
    GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    UpdateVersion,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task;

use crate::client::Attempt;
use crate::fault::{Cause, Failure, Fault};
use crate::marker::{connect, finds_out_conditional_put, open_error};
use crate::open_error::OpenError;
use crate::options::S3Options;
use crate::rate_limiter::Direction;
use crate::store::S3Store;
use crate::store::put::{Kept, unique};
use crate::wire::Trace;

/// Keys of a page of a listing.
const KEYS_MAX: usize = 1000;

/// What a request gives.
type Done<T> = std::result::Result<T, Failure>;

/// Most bytes of an object that is read as a whole.
const WHOLE_MAX: u64 = 1 << 30;

/// See the module's header.
#[derive(Debug)]
pub struct S3Named {
    store: S3Store,
}

impl S3Named {
    /// The objects below the prefix. One request unless `probes`: then the store is tried whether
    /// it heeds the conditions, which some ignore in silence.
    ///
    /// # Errors
    /// If the store cannot be reached, or lacks conditional puts.
    pub fn open(options: S3Options, probes: bool) -> std::result::Result<Self, OpenError> {
        let mut store = connect(options)?;
        store.conditional_put = true;
        let mut named = Self { store };
        if probes {
            named.probe()?;
        }
        named.store.client.deadline = named.store.client.limits().deadline;
        Ok(named)
    }

    fn lacks(&self, what: &str) -> OpenError {
        OpenError::Other(format!(
            "{}: the store ignores {what}, by which processes agree which of them writes: metadata \
             cannot be kept there; use a store that has conditional puts (AWS, MinIO, Ceph, \
             versitygw), or keep the metadata elsewhere",
            self.shown()
        ))
    }

    fn probe(&self) -> std::result::Result<(), OpenError> {
        if !finds_out_conditional_put(&self.store)? {
            return Err(self.lacks("If-None-Match"));
        }
        let name = unique("kestrel-probe");
        let text = |number: u8| Bytes::from(format!("made to try If-Match; try {number}\n"));
        let tried = async || -> Done<bool> {
            self.put_new(&name, text(1)).await?;
            let Some(first) = self.read_whole(&name).await? else { return Ok(false) };
            let second = self.put_over(&name, text(2), &first.tag).await?;
            let third = self.put_over(&name, text(3), &first.tag).await?;
            Ok(second.is_some() && third.is_none())
        };
        let found = self.block(tried());
        if let Err(error) = self.remove(&name) {
            log::warn!("{name} stays behind in the store: {error}");
        }
        match found {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lacks("If-Match")),
            Err(failure) if failure.fault.cause == Cause::Unsupported => {
                Err(self.lacks("If-Match"))
            }
            Err(failure) => Err(open_error(&self.store.client, *failure)),
        }
    }

    fn block<T>(
        &self,
        request: impl Future<Output = Done<T>>,
    ) -> std::result::Result<T, Box<Failure>> {
        self.store.client.block(request).map_err(Box::new)
    }

    /// Makes a call that blocks, on a thread that may be one of a runtime: rows are read wherever a
    /// request for them is executed.
    fn call<T: Send>(
        &self,
        during: &'static str,
        call: impl FnOnce() -> std::result::Result<T, Box<Failure>> + Send,
    ) -> Result<T> {
        let call = || call().map_err(|failure| failure.into_error(during, None));
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Err(_) => call(),
            Ok(RuntimeFlavor::MultiThread) => task::block_in_place(call),
            Ok(_) => thread::scope(|scope| {
                // A panic goes on here.
                scope.spawn(call).join().unwrap_or_else(|why| std::panic::resume_unwind(why))
            }),
        }
    }

    async fn put_new(&self, name: &str, bytes: Bytes) -> Done<bool> {
        let path = self.store.client.path(name);
        let turn = self.store.client.turn(Direction::Up).await?;
        let done = self.store.put_bytes(&path, bytes.clone().into(), &Kept::default()).await;
        drop(turn);
        match done {
            Ok(()) => Ok(true),
            Err(failure) if failure.fault.cause == Cause::Present => {
                let found = self.read_whole(name).await?;
                let text = "the store says that an object is there, and then that it is not";
                let found = found.ok_or_else(|| Failure::found(Cause::Failed, text))?;
                Ok(found.bytes == bytes)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn put_over(&self, name: &str, bytes: Bytes, tag: &str) -> Done<Option<ETag>> {
        let client = &self.store.client;
        let path = client.path(name);
        let once = async || -> Attempt<Option<ETag>> {
            let version = UpdateVersion { e_tag: Some(tag.to_string()), version: None };
            let options = PutOptions { mode: PutMode::Update(version), ..PutOptions::default() };
            Ok(client.s3.put_opts(&path, bytes.clone().into(), options).await?.e_tag)
        };
        match client.request(Direction::Up, bytes.len() as u64, once).await {
            Ok(Some(tag)) => Ok(Some(tag)),
            // The answer had no tag, or a put that had come through was tried again.
            Ok(None) => self.tag_of_own(name, &bytes).await,
            Err(failure) if matches!(failure.fault.cause, Cause::Present | Cause::Missing) => {
                self.tag_of_own(name, &bytes).await
            }
            Err(failure) => Err(failure),
        }
    }

    async fn tag_of_own(&self, name: &str, bytes: &Bytes) -> Done<Option<ETag>> {
        let found = self.read_whole(name).await?;
        Ok(found.filter(|found| found.bytes == bytes).map(|found| found.tag))
    }

    async fn read_whole(&self, name: &str) -> Done<Option<NamedObject>> {
        let path = self.store.client.path(name);
        let once = async || -> Attempt<NamedObject> {
            let answer = self.store.client.s3.get_opts(&path, GetOptions::default()).await?;
            let (len, tag) = (answer.meta.size, answer.meta.e_tag.clone());
            if len > WHOLE_MAX {
                return Err(Fault::inconsistent(format!("the object has {len} bytes")).into());
            }
            let Some(tag) = tag else {
                return Err(Fault::inconsistent("the answer has no ETag").into());
            };
            let modified = answer.meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
            let now = Trace::current().date().unwrap_or_else(|| SystemClock.now());
            let bytes = whole_body(answer, len).await?;
            Ok(NamedObject { bytes, tag, age: now.saturating_sub(modified).max(0) })
        };
        match self.store.client.request(Direction::Down, 0, once).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.fault.cause == Cause::Missing => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn read_some(&self, name: &str, offset: u64, len: u64) -> Done<Bytes> {
        let path = self.store.client.path(name);
        let range = offset..offset.saturating_add(len);
        let once = async || -> Attempt<Bytes> {
            let range = Some(GetRange::Bounded(range.clone()));
            let options = GetOptions { range, ..GetOptions::default() };
            let answer = self.store.client.s3.get_opts(&path, options).await?;
            let announced = answer.range.end - answer.range.start;
            whole_body(answer, announced).await
        };
        match self.store.client.request(Direction::Down, len, once).await {
            // The object ends at or before `offset`.
            Err(failure) if failure.fault.cause == Cause::Short => Ok(Bytes::new()),
            other => other,
        }
    }

    async fn delete(&self, name: &str) -> Done<()> {
        let path = self.store.client.path(name);
        let once = async || -> Attempt<()> { Ok(self.store.client.s3.delete(&path).await?) };
        match self.store.client.request(Direction::Up, 0, once).await {
            Err(failure) if failure.fault.cause == Cause::Missing => Ok(()),
            other => other,
        }
    }
}

/// The body of an answer, which has to be as long as was announced.
async fn whole_body(answer: GetResult, announced: u64) -> Attempt<Bytes> {
    let bytes = answer.bytes().await?;
    if bytes.len() as u64 == announced {
        return Ok(bytes);
    }
    Err(Fault::unbelievable("the answer's body has another length than it says").into())
}

impl NamedStore for S3Named {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.call("making a named object", || self.block(self.put_new(name, bytes)))
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        self.call("replacing a named object", || self.block(self.put_over(name, bytes, tag)))
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        self.call("reading a named object", || self.block(self.read_whole(name)))
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.call("reading a named object", || self.block(self.read_some(name, offset, len)))
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        let root = below.trim_end_matches('/');
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = || self.block(self.store.keys_below(root, after.as_deref(), KEYS_MAX));
            let (keys, next) = self.call("listing named objects", page)?;
            // The folder's own key, as consoles make it, is none of them.
            let keys = keys.into_iter().filter(|(name, ..)| name.starts_with(below));
            all.extend(keys.map(|(name, size, _)| (name, size)));
            if next.is_none() {
                return Ok(all);
            }
            after = next;
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.call("removing a named object", || self.block(self.delete(name)))
    }

    fn shown(&self) -> &str {
        self.store.client.options.url()
    }
}
