//! A simulated disk: what is not synced may be lost, torn or reordered, space may run out,
//! operations may fail.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile};

/// Bytes that a disk writes all or not at all.
pub const SECTOR: usize = 512;

/// A disk in memory. Clones share it.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

#[derive(Clone, Default)]
struct State {
    /// Files by number; names lead to them.
    files: Vec<FileState>,
    names: BTreeMap<String, usize>,
    /// Names as the disk has them for sure, and what was done to them since.
    durable_names: BTreeMap<String, usize>,
    name_changes: Vec<NameChange>,
    capacity: Option<u64>,
    fail_writes: u32,
    fail_syncs: u32,
    short_writes: bool,
    /// Operations that change something until the power goes off.
    left: Option<u64>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
}

#[derive(Clone, Default)]
struct FileState {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last sync, in order: where, and what they hold.
    pending: Vec<(usize, Vec<u8>)>,
}

/// What a power loss leaves of unsynced writes.
pub trait Fate {
    /// How many of `changes` unsynced changes of names survive (the file system's journal keeps
    /// their order).
    fn names(&mut self, changes: usize) -> usize;
    /// Whether an unsynced sector survives.
    fn sector(&mut self) -> bool;
}

impl SimDisk {
    /// An empty disk of `capacity` bytes, or boundless.
    pub fn new(capacity: Option<u64>) -> Self {
        let disk = Self::default();
        disk.0.lock().capacity = capacity;
        disk
    }

    /// The next `count` writes fail; if `short`, after writing half.
    pub fn fail_writes(&self, count: u32, short: bool) {
        let mut state = self.0.lock();
        state.fail_writes = count;
        state.short_writes = short;
    }

    /// The next `count` syncs of files fail, and forget what was unsynced as Linux does.
    pub fn fail_syncs(&self, count: u32) {
        self.0.lock().fail_syncs = count;
    }

    /// The power goes off after `count` more operations that change something: all later ones fail.
    pub fn power_off_after(&self, count: u64) {
        self.0.lock().left = Some(count);
    }

    /// Whether the power went off.
    pub fn is_off(&self) -> bool {
        self.0.lock().left == Some(0)
    }

    /// Unsynced sectors and changes of names.
    pub fn unsynced(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.files.iter().map(|file| file.pending.len()).sum(), state.name_changes.len())
    }

    /// A disk as it may be after a power loss now.
    pub fn after_power_loss(&self, fate: &mut dyn Fate) -> Self {
        let mut state = self.0.lock().clone();
        let survive = fate.names(state.name_changes.len());
        let mut names = state.durable_names.clone();
        for change in state.name_changes.drain(..).take(survive) {
            apply(&mut names, change);
        }
        for file in &mut state.files {
            let mut bytes = file.durable.clone();
            for (at, sector) in file.pending.drain(..) {
                if fate.sector() {
                    let end = (at + sector.len()).min(bytes.len());
                    bytes[at..end].copy_from_slice(&sector[..end - at]);
                }
            }
            file.durable.clone_from(&bytes);
            file.now = bytes;
        }
        state.durable_names.clone_from(&names);
        state.names = names;
        state.fail_writes = 0;
        state.fail_syncs = 0;
        state.left = None;
        Self(Arc::new(Mutex::new(state)))
    }

    /// A disk as it is for a process that starts after this one was killed.
    pub fn after_kill(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }

    /// Changes bytes of a file behind everybody's back.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        let number = state.names[name];
        let file = &mut state.files[number];
        change(&mut file.now);
        file.durable.clone_from(&file.now);
        file.pending.clear();
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: NameChange) {
    match change {
        NameChange::Set(name, file) => {
            names.retain(|_, other| *other != file);
            names.insert(name, file);
        }
        NameChange::Remove(name) => {
            names.remove(&name);
        }
    }
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().map(|file| self.files[*file].now.len() as u64).sum()
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, change.clone());
        self.name_changes.push(change);
    }

    fn tick(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.0.lock().find(name)?;
        Ok(Arc::new(SimFile { disk: self.clone(), file }))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.tick()?;
        if state.capacity.is_some_and(|capacity| state.used() + len > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = state.files.len();
        let zeros = vec![0; len as usize];
        state.files.push(FileState { now: zeros.clone(), durable: zeros, pending: Vec::new() });
        state.change(NameChange::Set(name.into(), file));
        Ok(Arc::new(SimFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.tick()?;
        let file = state.find(from)?;
        state.change(NameChange::Set(to.into(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.tick()?;
        state.find(name)?;
        state.change(NameChange::Remove(name.into()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.tick()?;
        state.name_changes.clear();
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.0.lock();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used())))
    }

    fn describe(&self, name: &str) -> String {
        format!("sim/{name}")
    }
}

struct SimFile {
    disk: SimDisk,
    file: usize,
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[self.file].now.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.0.lock();
        let bytes = &state.files[self.file].now;
        let from = offset as usize;
        let source = bytes.get(from..from + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(source);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.tick()?;
        let mut bytes = bytes;
        let mut failed = false;
        if state.fail_writes > 0 {
            state.fail_writes -= 1;
            failed = true;
            bytes = if state.short_writes { &bytes[..bytes.len() / 2] } else { &[] };
        }
        let file = &mut state.files[self.file];
        let from = offset as usize;
        if from + bytes.len() > file.now.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        file.now[from..from + bytes.len()].copy_from_slice(bytes);
        if !bytes.is_empty() {
            for sector in from / SECTOR..(from + bytes.len()).div_ceil(SECTOR) {
                let at = sector * SECTOR;
                let end = (at + SECTOR).min(file.now.len());
                let content = &file.now[at..end];
                let last = file
                    .pending
                    .iter()
                    .rfind(|(other, _)| *other == at)
                    .map(|(_, content)| &content[..]);
                // What changes nothing adds no outcome, only combinations to try.
                if last.unwrap_or(&file.durable[at..end]) != content {
                    let content = content.to_vec();
                    file.pending.push((at, content));
                }
            }
        }
        if failed { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.tick()?;
        if state.fail_syncs > 0 {
            state.fail_syncs -= 1;
            state.files[self.file].pending.clear();
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let file = &mut state.files[self.file];
        file.durable.clone_from(&file.now);
        file.pending.clear();
        Ok(())
    }
}
