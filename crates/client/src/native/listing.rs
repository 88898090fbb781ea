//! Names in directories.

use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Op, Outcome, READDIR_ENTRIES_MAX, Reply};

use super::NativeCalls;
use crate::fs::{plain, unexpected};

pub use kestrel_types::request::DirEntry;

/// Names in a directory, which come page by page.
#[derive(Debug)]
pub struct Listing {
    dir: InodeId,
    after: Option<Name>,
    ended: bool,
}

impl Listing {
    /// Of a directory.
    pub(super) fn of(dir: InodeId) -> Self {
        Self { dir, after: None, ended: false }
    }

    /// The directory's number.
    pub fn dir(&self) -> InodeId {
        self.dir
    }

    /// Whether nothing follows.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// What asks for the next page. The first one needs the permission to list.
    pub(super) fn request(&self) -> Op {
        Op::ReadDir {
            dir: self.dir,
            after: self.after.clone(),
            limit: READDIR_ENTRIES_MAX,
            check: self.after.is_none(),
        }
    }

    /// Takes a page. A directory that was removed meanwhile has ended.
    pub(super) fn take(&mut self, reply: Reply) -> FsResult<Vec<DirEntry>> {
        match reply {
            Ok(Answer::Entries { entries, end, .. }) => {
                self.ended = end || entries.is_empty();
                self.after = entries.last().map(|entry| entry.name.clone()).or(self.after.take());
                Ok(entries)
            }
            Ok(other) => Err(unexpected(&other)),
            Err(Outcome::Failed(error))
                if self.after.is_some() && matches!(error.errno, libc::ENOENT | libc::ESTALE) =>
            {
                self.ended = true;
                Ok(Vec::new())
            }
            Err(outcome) => plain(Err(outcome)).map(|_| Vec::new()),
        }
    }
}

impl NativeCalls<'_> {
    /// Begins to list a directory.
    ///
    /// # Errors
    /// Those of opendir(3), but for the permission to list, which the first page needs.
    pub fn listing(&self, path: &[u8]) -> FsResult<Listing> {
        super::walk::check(path)?;
        Ok(Listing::of(self.walk_dir(path)?))
    }

    /// The next names of a directory, in the order of their bytes; none at its end.
    ///
    /// # Errors
    /// Those of readdir(3).
    pub fn next_entries(&self, listing: &mut Listing) -> FsResult<Vec<DirEntry>> {
        match listing.has_ended() {
            true => Ok(Vec::new()),
            false => {
                let reply = self.reply(listing.request())?;
                listing.take(reply)
            }
        }
    }

    /// All names of a directory, in the order of their bytes.
    ///
    /// # Errors
    /// As for [`NativeCalls::listing`] and [`NativeCalls::next_entries`].
    pub fn list(&self, path: &[u8]) -> FsResult<Vec<DirEntry>> {
        let mut listing = self.listing(path)?;
        let mut all = self.next_entries(&mut listing)?;
        while !listing.has_ended() {
            all.extend(self.next_entries(&mut listing)?);
        }
        Ok(all)
    }
}
