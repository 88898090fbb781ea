//! Names in directories.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

use kestrel_client::native::{DirEntry, Listing, NativeVolume};
use kestrel_types::error::FsResult;
use kestrel_types::inode::Inode;
use parking_lot::Mutex;

use crate::arguments::{answer, check_flags};
use crate::boundary::{CallResult, guarded};
use crate::handles::{self, Handled};
use crate::structs::{kestrel_attributes, kestrel_dirent};
use crate::volume::{OpenVolume, Use};

/// `KESTREL_DIR_ATTRIBUTES`.
const ATTRIBUTES: i32 = 1;

/// A directory that is being listed.
pub struct OpenDir {
    volume: Arc<OpenVolume>,
    path: Box<[u8]>,
    with_attributes: bool,
    state: Mutex<DirState>,
}

struct DirState {
    listing: Listing,
    /// What came with the last page and was not taken yet.
    page: VecDeque<Listed>,
}

/// A name, with its attributes if they were asked for.
type Listed = (DirEntry, Option<FsResult<Inode>>);

impl Handled for OpenDir {
    fn kind() -> &'static str {
        "directory"
    }

    fn volume(&self) -> Option<usize> {
        Some(self.volume.number())
    }

    fn end(&self, _: &NativeVolume) -> CallResult<()> {
        Ok(())
    }
}

impl OpenDir {
    fn next(&self, used: &Use) -> CallResult<Option<Listed>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        while state.page.is_empty() && !state.listing.has_ended() {
            let entries = used.run(|calls| calls.next_entries(&mut state.listing))?;
            if !self.with_attributes {
                state.page.extend(entries.into_iter().map(|entry| (entry, None)));
                continue;
            }
            let path = |entry: &DirEntry| [&*self.path, b"/", entry.name.as_bytes()].concat();
            let paths: Vec<Vec<u8>> = entries.iter().map(path).collect();
            let found = used.run(|calls| CallResult::Ok(calls.stat_many(&paths, false)))?;
            let all = entries.into_iter().zip(found.into_iter().map(Some));
            // What was removed since the page came is no name any more.
            let is_there = |(_, found): &Listed| {
                !found.as_ref().is_some_and(|it| {
                    it.as_ref().is_err_and(|why| matches!(why.errno, libc::ENOENT | libc::ESTALE))
                })
            };
            state.page.extend(all.filter(is_there));
        }
        Ok(state.page.pop_front())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_opendir(volume: i64, path: *const c_char, flags: c_int) -> i64 {
    guarded("kestrel_opendir", || {
        check_flags(flags, ATTRIBUTES)?;
        // SAFETY: kestrel.h says what the pointer is.
        let path = unsafe { crate::arguments::path(path) }?;
        let volume = handles::get::<OpenVolume>(volume)?;
        let used = volume.enter()?;
        let listing = used.run(|calls| calls.listing(path)).map_err(|why| why.about(path))?;
        handles::add(Arc::new(OpenDir {
            volume: volume.clone(),
            path: path.into(),
            with_attributes: flags & ATTRIBUTES != 0,
            state: Mutex::new(DirState { listing, page: VecDeque::new() }),
        }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_readdir(dir: i64, out: *mut kestrel_dirent) -> c_int {
    guarded("kestrel_readdir", || {
        // SAFETY: kestrel.h says what the pointer is.
        let out = unsafe { answer(out) }?;
        let dir = handles::get::<OpenDir>(dir)?;
        let next = dir.next(&dir.volume.enter()?).map_err(|why| why.about(&*dir.path))?;
        let Some((entry, found)) = next else { return Ok(0) };
        let (attributes, error) = match found {
            None => (kestrel_attributes::default(), 0),
            Some(Ok(inode)) => (kestrel_attributes::of(&inode), 0),
            Some(Err(why)) => (kestrel_attributes::default(), -why.errno),
        };
        let bytes = entry.name.as_bytes();
        let mut name = [0; 256];
        // A name has at most 255 bytes.
        for (to, from) in name.iter_mut().take(255).zip(bytes) {
            *to = from.cast_signed() as c_char;
        }
        out.write(kestrel_dirent {
            ino: entry.ino,
            r#type: entry.kind.dirent_type().into(),
            name_len: bytes.len() as u32,
            error,
            reserved0: 0,
            attributes,
            name,
        });
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_closedir(dir: i64) -> c_int {
    guarded("kestrel_closedir", || handles::take::<OpenDir>(dir).map(drop))
}
