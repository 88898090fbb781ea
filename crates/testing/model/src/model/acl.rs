//! The model's POSIX ACLs: entries one by one, as the functions of Linux walk them
//! (`fs/posix_acl.c`). They are kept as their extended attributes, with all that the mode has of
//! them, so chmod and inheritance change both.

use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Creds, XattrFlags};

use super::{MaybeReply, Model, ModelInode, Run};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Tag, permissions, id.
type Entry = (u16, u16, u32);

/// Extended attributes by name.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

fn parse(value: &[u8]) -> Run<Vec<Entry>> {
    if value.len() < 4 {
        return Err(libc::EINVAL);
    }
    if value[..4] != [2, 0, 0, 0] {
        return Err(libc::EOPNOTSUPP);
    }
    if value.len() % 8 != 4 {
        return Err(libc::EINVAL);
    }
    if value.len() > 4096 {
        return Err(libc::E2BIG);
    }
    let short = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let entry = |bytes: &[u8]| {
        let id = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        (short(&bytes[..2]), short(&bytes[2..4]), id)
    };
    let entries: Vec<Entry> = value[4..].chunks(8).map(entry).collect();
    let tags: Vec<u16> = entries.iter().map(|entry| entry.0).collect();
    let once = |tag| tags.iter().filter(|one| **one == tag).count() == 1;
    let names_any = tags.contains(&USER) || tags.contains(&GROUP);
    let valid = tags.is_sorted()
        && once(USER_OBJ)
        && once(GROUP_OBJ)
        && once(OTHER)
        && (once(MASK) || !names_any && !tags.contains(&MASK))
        && entries.iter().all(|(tag, perm, id)| {
            let named = *tag == USER || *tag == GROUP;
            [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(tag)
                && *perm < 8
                && (!named || *id != u32::MAX)
        });
    if valid || entries.is_empty() { Ok(entries) } else { Err(libc::EINVAL) }
}

fn value(entries: &[Entry]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        let id = if *tag == USER || *tag == GROUP { *id } else { u32::MAX };
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// How far an entry's permissions lie in the mode, if they do.
fn shift(entries: &[Entry], tag: u16) -> Option<u32> {
    let has_mask = entries.iter().any(|entry| entry.0 == MASK);
    match tag {
        USER_OBJ => Some(6),
        MASK => Some(3),
        GROUP_OBJ if !has_mask => Some(3),
        OTHER => Some(0),
        _ => None,
    }
}

fn says_more_than_a_mode(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| [USER, GROUP, MASK].contains(&entry.0))
}

impl ModelInode {
    fn entries(&self, name: &[u8]) -> Option<Vec<Entry>> {
        self.xattrs.get(name).map(|value| parse(value).unwrap())
    }

    /// The mode was set: so are the entries that it has.
    pub(super) fn mode_to_acl(&mut self) {
        let Some(mut entries) = self.entries(ACCESS) else { return };
        let all = entries.clone();
        for (tag, perm, _) in &mut entries {
            if let Some(shift) = shift(&all, *tag) {
                *perm = self.mode >> shift & 7;
            }
        }
        self.xattrs.insert(ACCESS.to_vec(), value(&entries));
    }

    /// Whether the access ACL grants what a caller that is neither owner nor superuser wants, if
    /// there is one that counts.
    pub(super) fn acl_grants(&self, creds: &Creds, want: u16) -> Option<bool> {
        if self.mode & 0o070 == 0 {
            return None;
        }
        let entries = self.entries(ACCESS)?;
        let mask = entries.iter().find(|entry| entry.0 == MASK)?.1;
        let mut is_member = false;
        for (tag, perm, id) in entries {
            let group = if tag == GROUP_OBJ { self.gid } else { id };
            match tag {
                USER if id == creds.uid => return Some(perm & mask & want == want),
                GROUP_OBJ | GROUP if Model::member(creds, group) => {
                    is_member = true;
                    if perm & want == want {
                        return Some(perm & mask & want == want);
                    }
                }
                OTHER => return Some(!is_member && perm & want == want),
                _ => {}
            }
        }
        unreachable!("every ACL ends with others");
    }

    /// What is made in this directory with this mode has these bits of it, and these attributes.
    pub(super) fn inherit_acl(&self, (mode, umask): (u16, u16), kind: Kind) -> (u16, Attributes) {
        let Some(default) = self.entries(DEFAULT).filter(|_| kind != Kind::Symlink) else {
            return (mode & !umask, Vec::new());
        };
        let (mut mode, mut entries, mut attributes) = (mode, default.clone(), Vec::new());
        for (tag, perm, _) in &mut entries {
            if let Some(shift) = shift(&default, *tag) {
                *perm &= mode >> shift & 7;
                mode = mode & !(7 << shift) | *perm << shift;
            }
        }
        if says_more_than_a_mode(&entries) {
            attributes.push((ACCESS.to_vec(), value(&entries)));
        }
        if kind == Kind::Dir {
            attributes.push((DEFAULT.to_vec(), value(&default)));
        }
        (mode, attributes)
    }
}

impl Model {
    fn check_acl_change(&self, creds: &Creds, ino: u64, refused: bool) -> Run<()> {
        let node = self.node(ino)?;
        if node.kind == Kind::Symlink {
            return Err(libc::EOPNOTSUPP);
        }
        if node.flags.has(InodeFlags::IMMUTABLE.with(InodeFlags::APPEND)) {
            return Err(libc::EPERM);
        }
        if refused && node.kind != Kind::Dir {
            return Err(libc::EACCES);
        }
        if [0, node.uid].contains(&creds.uid) { Ok(()) } else { Err(libc::EPERM) }
    }

    pub(super) fn get_acl(&self, ino: u64, name: &[u8]) -> Run<Vec<u8>> {
        let node = self.node(ino)?;
        if node.kind == Kind::Symlink {
            return Err(libc::EOPNOTSUPP);
        }
        node.xattrs.get(name).cloned().ok_or(libc::ENODATA)
    }

    pub(super) fn remove_acl(
        &mut self,
        creds: &Creds,
        file: &InodeRef,
        name: &[u8],
        reply: MaybeReply<'_>,
    ) -> Run<()> {
        let ino = file.ino;
        self.check_acl_change(creds, ino, false)?;
        self.inode_changes(file, reply)?;
        let now = self.now;
        let node = self.node_mut(ino);
        if node.xattrs.remove(name).is_some() {
            node.ctime = now;
        }
        Ok(())
    }

    pub(super) fn set_acl(
        &mut self,
        creds: &Creds,
        file: &InodeRef,
        (name, bytes): (&[u8], &[u8]),
        flags: XattrFlags,
        reply: MaybeReply<'_>,
    ) -> Run<()> {
        let (ino, entries) = (file.ino, parse(bytes)?);
        self.check_acl_change(creds, ino, name == DEFAULT && !entries.is_empty())?;
        self.inode_changes(file, reply)?;
        let is_set = self.node(ino)?.xattrs.contains_key(name);
        match is_set {
            true if flags.create => return Err(libc::EEXIST),
            false if flags.replace => return Err(libc::ENODATA),
            false if entries.is_empty() => return Ok(()),
            _ => {}
        }
        let now = self.now;
        let node = self.node_mut(ino);
        node.ctime = now;
        node.xattrs.remove(name);
        if entries.is_empty() {
            return Ok(());
        }
        if name == ACCESS {
            for (tag, perm, _) in &entries {
                if let Some(shift) = shift(&entries, *tag) {
                    node.mode = node.mode & !(7 << shift) | perm << shift;
                }
            }
            if creds.uid != 0 && !Self::member(creds, node.gid) {
                node.mode &= !0o2000;
            }
        }
        if name == DEFAULT || says_more_than_a_mode(&entries) {
            node.xattrs.insert(name.to_vec(), value(&entries));
        }
        Ok(())
    }
}
