//! Inodes by number alone, which is all that a file handle of the kernel's holds
//! (`open_by_handle_at(2)`, NFS).
//!
//! A directory, a file with several names and one that is open are found by number at their node.
//! Any other file lies under its name, which this client may have forgotten since: one thread reads
//! names until it has found all files that are looked for by then ([`Op::Locate`]).

use std::sync::{Arc, Weak};

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Answer, LOCATE_MAX, Op};
use parking_lot::Mutex;

use super::{Caller, Done, Fs, into_inode, unexpected, wait};

/// Files that are looked for, and whether a thread does that.
#[derive(Default)]
pub(super) struct Locator(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    wanted: Vec<Wanted>,
    searching: bool,
}

struct Wanted {
    ino: InodeId,
    done: Done<Inode>,
}

impl Fs {
    /// An inode by its number; the kernel will know it. `ESTALE` if it does not exist any more. A
    /// file that this client does not know by name costs a pass over the names of the volume.
    pub fn lookup_number(self: &Arc<Self>, ino: InodeId, done: Done<Inode>) {
        let fs = self.clone();
        self.ask(Caller::ROOT, Op::GetAttr(self.known.reference(ino)), move |answer| match answer
            .and_then(into_inode)
        {
            Ok(inode) if inode.nlink == 0 && inode.kind != Kind::Dir => done(Err(gone())),
            Ok(inode) => done(Ok(fs.introduce(inode, None))),
            Err(error) if error.errno == libc::ESTALE => fs.locate(Wanted { ino, done }),
            Err(error) => done(Err(error)),
        });
    }

    /// Has a file looked for by the thread that does so, which is started if there is none.
    fn locate(self: &Arc<Self>, wanted: Wanted) {
        let mut queue = self.locator.0.lock();
        queue.wanted.push(wanted);
        if queue.searching {
            return;
        }
        let fs = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("kestrel-locate".into());
        match thread.spawn(move || search_all(&fs)) {
            Ok(_) => queue.searching = true,
            Err(why) => {
                let wanted = std::mem::take(&mut queue.wanted);
                drop(queue);
                log::error!("no thread to look for files by number: {why}");
                give_up(
                    wanted,
                    &FsError::new(libc::EAGAIN, "no thread to look for files by number"),
                );
            }
        }
    }

    /// Asks for a file where it was found; the kernel will know it.
    fn at_place(self: &Arc<Self>, ino: InodeId, seen: Option<(InodeId, Name)>) -> FsResult<Inode> {
        let op = Op::GetAttr(InodeRef { ino, seen: seen.clone() });
        let inode = wait(|done| self.ask(Caller::ROOT, op, done)).and_then(into_inode)?;
        if inode.nlink == 0 && inode.kind != Kind::Dir {
            return Err(gone());
        }
        Ok(self.introduce(inode, seen.as_ref().map(|(dir, name)| (*dir, name))))
    }

    /// Reads some names. Answers the files that are among them, and keeps the others; where to go
    /// on.
    fn search_some(
        self: &Arc<Self>,
        wanted: &mut Vec<Wanted>,
        after: Option<(InodeId, Name)>,
    ) -> FsResult<Option<(InodeId, Name)>> {
        let files = wanted.iter().map(|wanted| wanted.ino).collect();
        let answer = wait(|done| self.ask(Caller::ROOT, Op::Locate { files, after }, done))?;
        let Answer::Located { found, next } = answer else { return Err(unexpected(&answer)) };
        for (dir, entry) in found {
            let Some(at) = wanted.iter().position(|wanted| wanted.ino == entry.ino) else {
                continue;
            };
            // It may have been renamed since, and be found again.
            if let Ok(inode) = self.at_place(entry.ino, Some((dir, entry.name))) {
                (wanted.swap_remove(at).done)(Ok(inode));
            }
        }
        Ok(next)
    }
}

/// Looks for everything that is wanted until nothing is. Holds the file system only while it reads.
fn search_all(fs: &Weak<Fs>) {
    loop {
        let Some(holder) = fs.upgrade() else { return };
        let mut wanted = {
            let mut queue = holder.locator.0.lock();
            let count = queue.wanted.len().min(LOCATE_MAX);
            queue.searching = count > 0;
            queue.wanted.drain(..count).collect::<Vec<_>>()
        };
        drop(holder);
        if wanted.is_empty() {
            return;
        }
        let mut after = None;
        let end = loop {
            let Some(fs) = fs.upgrade() else { break Err(gone()) };
            match fs.search_some(&mut wanted, after) {
                Ok(Some(next)) if !wanted.is_empty() => after = Some(next),
                Ok(_) => break Ok(fs),
                Err(why) => break Err(why),
            }
        };
        match end {
            // What was opened or moved meanwhile is found by number now.
            Ok(fs) => {
                wanted.into_iter().for_each(|wanted| (wanted.done)(fs.at_place(wanted.ino, None)))
            }
            Err(why) => give_up(wanted, &why),
        }
    }
}

fn give_up(wanted: Vec<Wanted>, why: &FsError) {
    wanted.into_iter().for_each(|wanted| (wanted.done)(Err(why.clone())));
}

fn gone() -> FsError {
    FsError::new(libc::ESTALE, "the file of this handle does not exist any more")
}
