//! Extended attributes.

use std::sync::Arc;
use std::time::Instant;

use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::perm::CAPABILITY;
use kestrel_types::policy::{PolicyField, XATTR_PREFIX};
use kestrel_types::request::{Op, XattrFlags};

use super::{Caller, Done, Fs, into_bytes};
use crate::file::OpenFile;
use crate::metadata::{attribute_of_none, no_attribute};

impl Fs {
    /// Value of an attribute.
    pub fn getxattr(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        name: Box<[u8]>,
        done: Done<Box<[u8]>>,
    ) {
        let written_plain = |file: Arc<OpenFile>| file.lock().is_written_plain();
        if *name == *CAPABILITY && self.files.get(ino).is_some_and(written_plain) {
            return done(Err(no_attribute()));
        }
        if let Some(error) =
            attribute_of_none(&name).filter(|_| self.listed.is_plain(caller, ino, Instant::now()))
        {
            return done(Err(error));
        }
        let op = Op::GetXattr(self.known.reference(ino), name);
        let fs = self.clone();
        let ask = move |_| {
            let again = fs.clone();
            fs.ask(caller, op, move |answer| {
                let value = answer.and_then(into_bytes);
                done(value.or_else(|error| {
                    again.removed_without_xattrs(ino, error).and(Err(no_attribute()))
                }));
            });
        };
        self.after_writes(ino, ask);
    }

    /// Runs `then` when what was written to a file that may have attributes is committed: that
    /// takes its capabilities away.
    fn after_writes(
        self: &Arc<Self>,
        ino: InodeId,
        then: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        match self.files.get(ino) {
            Some(file) if file.lock().has_unsettled_attributes() => {
                self.flush_file(&file, Box::new(then))
            }
            _ => then(Ok(())),
        }
    }

    /// Names of all attributes, each followed by NUL.
    pub fn listxattr(self: &Arc<Self>, caller: Caller, ino: InodeId, done: Done<Box<[u8]>>) {
        if self.listed.is_plain(caller, ino, Instant::now()) {
            return done(Ok(Box::default()));
        }
        let (fs, op) = (self.clone(), Op::ListXattr(self.known.reference(ino)));
        let ask = move |_| {
            let again = fs.clone();
            fs.ask(caller, op, move |answer| {
                let names = answer.and_then(into_bytes);
                done(names.or_else(|error| {
                    again.removed_without_xattrs(ino, error).map(|()| Box::default())
                }));
            });
        };
        self.after_writes(ino, ask);
    }

    /// Sets an attribute.
    pub fn setxattr(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        name: Box<[u8]>,
        value: Box<[u8]>,
        flags: XattrFlags,
        done: Done<()>,
    ) {
        let field = name.strip_prefix(XATTR_PREFIX).and_then(PolicyField::from_name);
        let op = Op::SetXattr(self.known.reference(ino), name, value.clone(), flags);
        let fs = self.clone();
        let set = move |prepared: FsResult<()>| {
            if let Err(error) = prepared {
                return done(Err(error));
            }
            let again = fs.clone();
            fs.ask(caller, op, move |answer| {
                if let (Ok(_), Some(file)) = (&answer, again.files.get(ino)) {
                    file.lock().inode.xattrs = true;
                }
                done(answer.map(|_| ()));
            });
        };
        match field {
            Some(PolicyField::Trash) if *value != *b"none" => self.with_kept_dir(Box::new(set)),
            Some(PolicyField::Tier) => self.with_tier(&value, Box::new(set)),
            _ => set(Ok(())),
        }
    }

    /// Removes an attribute.
    pub fn removexattr(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        name: Box<[u8]>,
        done: Done<()>,
    ) {
        let op = Op::RemoveXattr(self.known.reference(ino), name);
        self.ask(caller, op, move |answer| done(answer.map(|_| ())));
    }
}
