//! Jobs that several processes serve (`docs/format/versions.md`, "Jobs with several servers").
//!
//! The servers are the nodes of a cluster. Each has rows of its own, as those of a node of a volume
//! in a bucket, above the rows of the job's inputs, of which it sees those that are its own. When
//! the job is published the rows of all become those of one server ("gathered").

use std::collections::BTreeMap;
use std::fmt;

use kestrel_blockstore::named::{NamedObject, NamedStore};
use kestrel_engine::{BeforeSync, EngineError};
use serde::{Deserialize, Serialize};

use super::{DEADLINE, JobRecord, JobRegistry, ROWS_NODE};
use crate::recover::{self, Below};
use crate::tree::layer::OwnsRow;
use crate::version::damaged;
use crate::version::stack::layers_of;
use crate::{BucketEngine, BucketOptions, url};

/// The object that says that the rows of all servers have become those of one, below the place of
/// the job's rows.
const GATHERED: &str = "meta/gathered";

/// Where the servers' addresses are: what the names of these objects begin with.
const ADDRESSES: &str = "meta/address/";

/// Longest address, bytes.
const ADDRESS_BYTES_MAX: usize = 255;

/// The servers of a job, if it has several.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobServers {
    /// Which server owns which rows: a placement map, hexadecimal. It never changes.
    pub placement: String,
    /// What the servers know each other by, hexadecimal.
    pub secret: String,
    /// Metadata workers of each.
    pub workers: u32,
}

impl fmt::Debug for JobServers {
    /// Without the secret: what is debugged ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobServers").field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl JobRegistry {
    /// The servers of a job, if it has several and their rows were not gathered.
    ///
    /// # Errors
    /// The store's.
    pub fn servers<'r>(
        &self,
        record: &'r JobRecord,
    ) -> Result<Option<&'r JobServers>, EngineError> {
        let Some(servers) = &record.servers else { return Ok(None) };
        let found = self.rows_of(record).read(GATHERED).map_err(|why| self.failed(&why))?;
        Ok(found.is_none().then_some(servers))
    }

    /// From now on the rows of one server are those of the job.
    ///
    /// # Errors
    /// The store's.
    pub fn set_gathered(&self, record: &JobRecord) -> Result<(), EngineError> {
        let made = self.rows_of(record).create(GATHERED, bytes::Bytes::from_static(b"gathered"));
        made.map(drop).map_err(|why| self.failed(&why))
    }

    /// Makes the rows of a server, which has none.
    ///
    /// # Errors
    /// The store's.
    pub fn create_server_rows(&self, record: &JobRecord, server: u32) -> Result<(), EngineError> {
        recover::create_in(&*self.rows_of(record), &record.id_bytes(), server, false)
    }

    /// Removes the rows that one server has, or that were gathered: number 0.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_server_rows(&self, record: &JobRecord, server: u32) -> Result<(), EngineError> {
        self.remove_rows_below(&record.id_bytes(), &url::prefix_of(server))
    }

    /// The process that has the rows of a server open, in words, if there is one.
    ///
    /// # Errors
    /// The store's.
    pub fn server_holder(
        &self,
        record: &JobRecord,
        server: u32,
    ) -> Result<Option<String>, EngineError> {
        recover::holder_in(&*self.rows_of(record), server)
    }

    /// Opens the rows of a server above those of the job's inputs that it owns, and claims them, as
    /// [`JobRegistry::open`] does.
    ///
    /// # Errors
    /// As there.
    pub fn open_server(
        &self,
        record: &JobRecord,
        (server, owns): (u32, Option<OwnsRow>),
        options: BucketOptions,
        before_sync: BeforeSync,
    ) -> Result<BucketEngine, EngineError> {
        debug_assert_eq!(owns.is_some(), server != ROWS_NODE);
        let place = (self.rows_of(record), DEADLINE);
        let id = record.id_bytes();
        let limits = recover::limits_of(options);
        let below = |tree: &_| layers_of(&self.place, &id, &record.base, (tree, owns.as_ref()));
        let below: Below<'_> = Some(&below);
        recover::open_above(place, (id, server), (options, limits), before_sync, (None, below))
    }

    /// Notes where a server is.
    ///
    /// # Errors
    /// The store's.
    pub fn set_address(
        &self,
        record: &JobRecord,
        server: u32,
        address: &str,
    ) -> Result<(), EngineError> {
        let (store, name) = (self.rows_of(record), format!("{ADDRESSES}{server}"));
        let failed = |why| self.failed(&why);
        loop {
            let bytes = bytes::Bytes::from(address.to_string());
            match store.read(&name).map_err(failed)? {
                Some(found) if found.bytes == bytes => return Ok(()),
                Some(found) => drop(store.replace(&name, bytes, &found.tag).map_err(failed)?),
                None => drop(store.create(&name, bytes).map_err(failed)?),
            }
        }
    }

    /// Where the servers are, as far as they have said so.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn addresses(&self, record: &JobRecord) -> Result<BTreeMap<u32, String>, EngineError> {
        let store = self.rows_of(record);
        let listed = store.list(ADDRESSES).map_err(|why| self.failed(&why))?;
        let mut found = BTreeMap::new();
        for (name, _) in listed {
            let server = name.strip_prefix(ADDRESSES).and_then(|number| number.parse().ok());
            let Some(server) = server else { continue };
            if let Some(address) = address_in(&*store, &name, |why| self.failed(why))? {
                found.insert(server, address);
            }
        }
        Ok(found)
    }
}

/// The address that an object has, if it is there.
fn address_in(
    store: &dyn NamedStore,
    name: &str,
    failed: impl Fn(&kestrel_blockstore::error::Error) -> EngineError,
) -> Result<Option<String>, EngineError> {
    let text = |found: NamedObject| {
        let text = std::str::from_utf8(&found.bytes).ok()?;
        let may_be = !text.is_empty() && text.len() <= ADDRESS_BYTES_MAX;
        (may_be && !text.contains(char::is_whitespace)).then(|| text.to_string())
    };
    let found = store.read(name).map_err(|why| failed(&why))?;
    found.map(|found| text(found).ok_or_else(|| damaged(name, "it is no address"))).transpose()
}
