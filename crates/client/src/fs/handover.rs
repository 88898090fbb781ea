//! Handing a mount over to another process, and taking it over: what the kernel and servers rely
//! on goes from this client to the next one ([`crate::handover`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use kestrel_blockstore::ReadAhead;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::request::{Answer, Op};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::handles::Progress;
use super::storing::options_of;
use super::{Caller, DirHandle, FileHandle, Fs, into_inode, plain, unexpected, wait};
use crate::dir_stream::DirStream;
use crate::file::OpenFile;
use crate::handover::{ClientState, DirNote, HandleNote};

impl Fs {
    /// Stores everything that is written by now.
    ///
    /// # Errors
    /// The first file that could not be stored; `ETIMEDOUT` if that takes longer than `limit`. What
    /// is not stored is kept.
    pub fn store_all(self: &Arc<Self>, limit: Duration) -> FsResult<()> {
        let end = Instant::now() + limit;
        let (send, flushed) = std::sync::mpsc::channel();
        for file in self.files.all() {
            let send = send.clone();
            self.flush_file(&file, Box::new(move |result| drop(send.send(result))));
        }
        drop(send);
        let mut result = Ok(());
        loop {
            match flushed.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(stored) => result = result.and(stored),
                Err(RecvTimeoutError::Disconnected) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(FsError::new(libc::ETIMEDOUT, "the block store does not keep up"));
                }
            }
        }
    }

    /// What this client knows, when it has done its last request ([`Fs::leave`]).
    pub fn client_state(&self) -> ClientState {
        let (locks, lost) = self.locks.notes();
        ClientState {
            next_handle: self.next_handle.load(Ordering::Relaxed),
            positions: self.positions.floor(),
            inodes: self.known.notes(),
            locks,
            lost,
            figures: self.node().map(|node| node.figures()),
            sessions: self.metadata.session_notes(),
        }
    }

    /// Ends the work of this client so that another one goes on with what it has open: everything
    /// that is stored becomes durable, the background work ends, sessions stay.
    ///
    /// # Errors
    /// The sync's. The client has ended all the same.
    pub fn leave(self: &Arc<Self>) -> FsResult<()> {
        self.whole.close();
        self.stop_background();
        self.finish_accesses();
        self.packer.seal_all();
        wait(|done| self.sync(done)).and(self.metadata.leave())
    }

    /// A handle, written down.
    pub fn note_handle(&self, fh: u64, handle: &FileHandle) -> HandleNote {
        let state = handle.file.lock();
        HandleNote {
            fh,
            ino: handle.ino(),
            number: handle.number,
            read: handle.read && !handle.exec,
            write: handle.write,
            exec: handle.exec,
            uncached: handle.is_uncached(),
            noatime: handle.keeps_access_time(),
            lost: self.locks.lost_since(handle.ino(), handle.losses),
            drops: handle.drops_pages.load(Ordering::Relaxed),
            shared_end: state.shared_end,
            moved: state.moved,
            error: state.error.as_ref().map(|error| error.errno),
        }
    }

    /// A handle of a directory, written down.
    pub fn note_directory(fh: u64, handle: &DirHandle) -> DirNote {
        let (stream, noatime) = (handle.stream.lock().note(), handle.keeps_access_time());
        DirNote { fh, ino: handle.ino, noatime, stream }
    }

    /// Goes on with what another client had, before anything else is asked.
    ///
    /// # Errors
    /// `EINVAL` if it cannot be understood.
    pub fn take_state(&self, state: &ClientState) -> FsResult<()> {
        self.next_handle.fetch_max(state.next_handle, Ordering::Relaxed);
        self.positions.begin_at(state.positions);
        self.known.take_notes(&state.inodes)?;
        self.locks.take_notes(&state.locks, &state.lost);
        Ok(())
    }

    /// Goes on with files that another client had open, in the order of `notes`. A node in this
    /// process counts them anew, and deletes after that what has no name and is not open.
    ///
    /// # Errors
    /// Why a file cannot be had; the text has its number.
    pub fn take_files(self: &Arc<Self>, notes: &[HandleNote]) -> FsResult<Vec<Arc<FileHandle>>> {
        let mut counts: FxHashMap<InodeId, u32> = FxHashMap::default();
        notes.iter().for_each(|note| *counts.entry(note.ino).or_default() += 1);
        let mut inodes = FxHashMap::default();
        for (ino, count) in counts {
            let inode = self.reopen(ino, count).map_err(|why| {
                FsError::because(why.errno, format!("inode {ino}, which is open: {why}"))
            })?;
            inodes.insert(ino, inode);
        }
        let handles =
            notes.iter().filter_map(|note| Some(self.handle_of(note, inodes.get(&note.ino)?)));
        let handles = handles.collect();
        if let Some(node) = self.node() {
            node.end_grace()?;
        }
        Ok(handles)
    }

    /// What is open, as its node has it.
    fn reopen(self: &Arc<Self>, ino: InodeId, count: u32) -> FsResult<Inode> {
        let inode = self.known.reference(ino);
        let Some(node) = self.node() else {
            return wait(|done| self.ask(Caller::ROOT, Op::GetAttr(inode), done))
                .and_then(into_inode);
        };
        let claimed = wait(|done| {
            let done = Box::new(move |reply| done(plain(reply)));
            node.reclaim_open(inode, count, false, done);
        });
        match claimed? {
            Answer::Opened { inode, .. } => Ok(*inode),
            other => Err(unexpected(&other)),
        }
    }

    fn handle_of(&self, note: &HandleNote, inode: &Inode) -> Arc<FileHandle> {
        let file: Arc<OpenFile> = self.files.attach(inode.clone());
        file.paged.store(true, Ordering::SeqCst);
        let mut state = file.lock();
        state.executing += u32::from(note.exec);
        state.readers += u32::from(note.read || note.exec);
        state.writers += u32::from(note.write);
        if note.write {
            state.put_options = options_of(inode.effective);
        }
        state.was_read = true;
        state.shared_end |= note.shared_end;
        state.moved |= note.moved;
        if let Some(errno) = note.error {
            state.error = Some(FsError::new(errno, "a write before the mount was taken over"));
        }
        drop(state);
        Arc::new(FileHandle {
            file,
            read: note.read || note.exec,
            write: note.write,
            exec: note.exec,
            readahead: Mutex::new(ReadAhead::new(self.config.readahead)),
            locks: self.has_locks(),
            number: note.number,
            losses: if note.lost { 0 } else { self.locks.losses() },
            drops_pages: AtomicBool::new(note.drops),
            progress: Progress::default(),
            uncached: AtomicBool::new(note.uncached),
            keeps_access_time: AtomicBool::new(note.noatime),
        })
    }

    /// Goes on with a directory that another client had open.
    ///
    /// # Errors
    /// `EINVAL` if it cannot be understood.
    pub fn take_directory(note: &DirNote) -> FsResult<Arc<DirHandle>> {
        Ok(Arc::new(DirHandle {
            ino: note.ino,
            stream: Mutex::new(DirStream::of_note(&note.stream)?),
            listing: Arc::default(),
            keeps_access_time: AtomicBool::new(note.noatime),
        }))
    }
}
