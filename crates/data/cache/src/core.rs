//! What the parts of a cached store share.

use std::io;
use std::sync::Arc;

use kestrel_blockstore::BlockStore;
use kestrel_blockstore::object::VolumeId;
use kestrel_types::clock::{Clock, Nanos};
use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;

use crate::disk::{Disk, Side};
use crate::object::{Object, ObjectIndex, REUSED_BIT};
use crate::options::CacheOptions;
use crate::page::{OBJECT_BYTES_MAX, PageOwner};
use crate::span::SpanPolicy;
use crate::stats::CacheStats;

pub(crate) struct Core {
    pub store: Arc<dyn BlockStore>,
    pub volume: VolumeId,
    pub disks: Vec<Arc<Disk>>,
    pub table: Arc<ObjectIndex>,
    pub span: Mutex<SpanPolicy>,
    pub stats: Arc<CacheStats>,
    pub clock: Arc<dyn Clock>,
    pub options: CacheOptions,
}

impl Core {
    pub fn owner(&self, object: ObjectId) -> PageOwner {
        PageOwner { volume: self.volume, object }
    }

    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The disk for an object: of those in service the one that ranks highest.
    pub fn disk_for(&self, object: ObjectId) -> Option<&Arc<Disk>> {
        let in_service = self.disks.iter().filter(|disk| disk.is_in_service(Side::Read));
        in_service.max_by_key(|disk| disk.rank(object))
    }

    /// What opens a file; if the process has no descriptors left, after closing cache files.
    pub fn with_descriptors<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match open() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                self.table.close_files();
                open()
            }
            opened => opened,
        }
    }

    /// Drops a cache file of which a page is damaged, and none is known to be the object's.
    pub fn drop_file(&self, object: &Object, disk: &Disk) -> io::Result<()> {
        object.state.lock().forget_file();
        self.stats.corrupt.add(1);
        log::warn!(
            "object {:016x}: its cache file holds something else, or is damaged: dropped",
            object.id
        );
        disk.remove_file(object.id).map(drop)
    }

    /// Whether these bytes of an object can be cached at all.
    pub fn is_cacheable(offset: u64, len: u64) -> bool {
        len > 0 && offset.checked_add(len).is_some_and(|end| end <= OBJECT_BYTES_MAX)
    }

    /// Notes that pages of an object were requested and given.
    pub fn served(&self, object: &Arc<Object>, disk: &Arc<Disk>, pages: std::ops::Range<u32>) {
        let now = self.now();
        let (ahead_bytes, touch) = object.state.lock().use_pages(pages, now);
        if ahead_bytes > 0 {
            self.stats.span_used_bytes.add(ahead_bytes);
            self.span.lock().used(ahead_bytes);
        }
        let Some(touch) = touch else { return };
        let job = move || {
            let since_epoch = std::time::Duration::from_nanos(u64::try_from(now).unwrap_or(0));
            // Written for eviction only; what is lost here costs a file its rank.
            let _ = touch.file.set_modified(std::time::UNIX_EPOCH + since_epoch);
            if touch.is_reused {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600 | REUSED_BIT);
                let _ = touch.file.set_permissions(mode);
            }
        };
        // Likewise if too much waits.
        let _ = disk.writes.submit(Box::new(job));
    }

    /// Bytes of disk in use in all directories, as far as this process can tell.
    pub fn used_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.used_bytes()).sum()
    }
}

/// For deadlines of calls without a waiting caller that has its own.
pub(crate) const DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);
