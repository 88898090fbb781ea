//! POSIX access control lists, as Linux has them (POSIX 1003.1e draft 17; `fs/posix_acl.c`).
//!
//! An inode with [`Acls`] has an access ACL, a directory also a default one, which what is made in
//! it inherits. The owner's, the mask's and the others' permissions of an access ACL are the mode
//! bits of its inode, so [`AccessAcl`] holds only the rest: the two can not contradict each other,
//! and chmod needs no rule of its own. An ACL that says no more than a mode does is no ACL: only
//! the mode is kept.
//!
//! [`Acl`] is a whole list, as the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default` have it. Supplementary groups may be unknown ([`Creds::groups`]):
//! they are asked for only if they decide.

use std::sync::Arc;

use crate::codec::{DecodeError, Reader, put_varint};
use crate::creds::Creds;
use crate::error::FsError;
use crate::perm::{EXEC, READ, WRITE, in_group};

/// Name of the extended attribute with the access ACL.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";

/// Name of the extended attribute with the default ACL of a directory.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Most entries of one ACL: as many as the kernel passes to and from a FUSE file system, which is
/// one page of 4 KiB.
pub const ENTRIES_MAX: usize = 511;

/// Longest encoding of [`Acls`], bytes.
pub const ACLS_BYTES_MAX: usize = 2 * (8 + ENTRIES_MAX * NAMED_BYTES_MAX);

/// Longest encoding of a [`Named`], bytes.
const NAMED_BYTES_MAX: usize = 6;

/// Version of the value of both extended attributes (`POSIX_ACL_XATTR_VERSION`).
const XATTR_VERSION: u32 = 2;

// Tags of entries in the extended attributes (`include/uapi/linux/posix_acl.h`).
const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;

/// The id of entries that name nobody, and no id of a user or a group.
const NO_ID: u32 = u32::MAX;

/// All permissions.
const ALL: u8 = (READ | WRITE | EXEC) as u8;

/// An entry for a user or a group that is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Named {
    /// A group, and not a user.
    pub group: bool,
    /// Its number; not `u32::MAX`.
    pub id: u32,
    /// Permissions, 0 to 7, before the mask.
    pub perm: u8,
}

/// A whole ACL. Each permission is 0 to 7.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acl {
    /// Of the owner.
    pub user_obj: u8,
    /// Of the group, before the mask.
    pub group_obj: u8,
    /// The most that the group and what is named have. Always there if something is named.
    pub mask: Option<u8>,
    /// Of all others.
    pub other: u8,
    /// Users, then groups, each in the order in which they were set; at most [`ENTRIES_MAX`].
    pub named: Box<[Named]>,
}

/// What an access ACL says besides the mode. The mode's bits of the group are its mask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessAcl {
    /// Permissions of the group, before the mask.
    pub group_obj: u8,
    /// As in [`Acl::named`].
    pub named: Box<[Named]>,
}

/// The ACLs of an inode. At least one of them is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acls {
    /// Which caller may do what.
    pub access: Option<AccessAcl>,
    /// Of a directory: what is made in it inherits this.
    pub default: Option<Acl>,
}

/// What a caller's permissions come to where groups count.
#[derive(Default)]
struct GroupClass {
    /// The caller is in a group that has an entry.
    found: bool,
    /// One of these grants.
    granted: bool,
    /// The caller may be in a group that grants.
    may_grant: bool,
    /// The caller may be in a group that does not.
    may_refuse: bool,
}

impl GroupClass {
    fn entry(&mut self, creds: &Creds, gid: u32, grants: bool) {
        match in_group(creds, gid) {
            Some(true) => {
                self.found = true;
                self.granted |= grants;
            }
            Some(false) => {}
            None if grants => self.may_grant = true,
            None => self.may_refuse = true,
        }
    }
}

impl AccessAcl {
    /// Whether a caller that is neither the owner nor the superuser has all permissions in `want`,
    /// on an inode with this mode and group; `None` if that depends on groups that are unknown, or
    /// may, as a group has several entries.
    /// (`posix_acl_permission` and `acl_permission_check` of Linux: with an empty mask, the mode
    /// alone decides.)
    pub fn permits(&self, creds: &Creds, (mode, gid): (u16, u32), want: u32) -> Option<bool> {
        let want = want as u8 & ALL;
        let (mask, other) = ((mode >> 3) as u8 & ALL, mode as u8 & want == want);
        let grants = |perm: u8| perm & mask & want == want;
        if mask == 0 {
            let as_group = want == 0;
            return if as_group == other {
                Some(other)
            } else {
                in_group(creds, gid).map(|is| !is)
            };
        }
        let user = self.named.iter().find(|named| !named.group && named.id == creds.uid);
        if let Some(user) = user {
            return Some(grants(user.perm));
        }
        let mut class = GroupClass::default();
        class.entry(creds, gid, grants(self.group_obj));
        for group in self.named.iter().filter(|named| named.group) {
            class.entry(creds, group.id, grants(group.perm));
        }
        // A group may have several entries: it refuses nothing then that another one grants.
        let (least, most) = match class.found {
            true => (class.granted, class.granted || class.may_grant),
            false => (other && !class.may_refuse, other || class.may_grant),
        };
        (least == most).then_some(least)
    }

    /// The whole list, with what the mode has of it.
    pub fn with_mode(&self, mode: u16) -> Acl {
        let perm = |shift: u32| (mode >> shift) as u8 & ALL;
        Acl {
            user_obj: perm(6),
            group_obj: self.group_obj,
            mask: Some(perm(3)),
            other: perm(0),
            named: self.named.clone(),
        }
    }
}

impl Acl {
    /// The permission bits that an inode with this access ACL has (`posix_acl_equiv_mode`).
    pub fn mode(&self) -> u16 {
        let group = self.mask.unwrap_or(self.group_obj);
        u16::from(self.user_obj) << 6 | u16::from(group) << 3 | u16::from(self.other)
    }

    /// What is kept besides [`Acl::mode`]; `None` if that says it all.
    pub fn access(&self) -> Option<AccessAcl> {
        self.mask?;
        Some(AccessAcl { group_obj: self.group_obj, named: self.named.clone() })
    }

    /// What is made in a directory with this default ACL has of it: the mode, for one that was
    /// wanted (12 bits, the umask not applied), and the access ACL (`posix_acl_create_masq`).
    pub fn inherited(&self, mode: u16) -> (u16, Option<AccessAcl>) {
        (mode & (self.mode() | !0o777), self.access())
    }

    /// Reads the value of an extended attribute; `None` if it has no entries, which removes the
    /// ACL.
    ///
    /// # Errors
    /// `EINVAL` if the value is malformed or no valid ACL, `EOPNOTSUPP` if it is of another
    /// version, `E2BIG` if it has more than [`ENTRIES_MAX`] entries.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>, FsError> {
        let invalid = |what| FsError::new(libc::EINVAL, what);
        let Some((version, entries)) = value.split_first_chunk::<4>() else {
            return Err(invalid("the value of an ACL begins with a version of 4 bytes"));
        };
        if u32::from_le_bytes(*version) != XATTR_VERSION {
            return Err(FsError::new(libc::EOPNOTSUPP, "ACLs have version 2"));
        }
        let (entries, []) = entries.as_chunks::<8>() else {
            return Err(invalid("the entries of an ACL have 8 bytes each"));
        };
        if entries.is_empty() {
            return Ok(None);
        }
        if entries.len() > ENTRIES_MAX {
            return Err(FsError::new(libc::E2BIG, "an ACL has at most 511 entries"));
        }
        let entries = entries.iter().map(|[t0, t1, p0, p1, id @ ..]| {
            (
                u16::from_le_bytes([*t0, *t1]),
                u16::from_le_bytes([*p0, *p1]),
                u32::from_le_bytes(*id),
            )
        });
        Self::from_entries(entries).ok_or(invalid(
            "an ACL has the owner, users, the group, groups, a mask if any is named, and others",
        )).map(Some)
    }

    /// Checks the entries (`posix_acl_valid`).
    fn from_entries(entries: impl Iterator<Item = (u16, u16, u32)>) -> Option<Acl> {
        let (mut user_obj, mut group_obj, mut mask, mut other) = (None, None, None, None);
        let mut named = Vec::new();
        for (tag, perm, id) in entries {
            let perm = u8::try_from(perm).ok().filter(|perm| perm & !ALL == 0)?;
            if other.is_some() || (user_obj.is_none() != (tag == TAG_USER_OBJ)) {
                return None;
            }
            let group = tag == TAG_GROUP;
            match tag {
                TAG_USER_OBJ => user_obj = Some(perm),
                TAG_USER if group_obj.is_none() && id != NO_ID => {
                    named.push(Named { group, id, perm });
                }
                TAG_GROUP_OBJ if group_obj.is_none() => group_obj = Some(perm),
                TAG_GROUP if group_obj.is_some() && mask.is_none() && id != NO_ID => {
                    named.push(Named { group, id, perm });
                }
                TAG_MASK if group_obj.is_some() && mask.is_none() => mask = Some(perm),
                TAG_OTHER if group_obj.is_some() => other = Some(perm),
                _ => return None,
            }
        }
        let named = named.into_boxed_slice();
        let acl = Acl { user_obj: user_obj?, group_obj: group_obj?, mask, other: other?, named };
        (acl.mask.is_some() || acl.named.is_empty()).then_some(acl)
    }

    /// The value of the extended attribute.
    pub fn to_xattr(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(4 + 8 * (4 + self.named.len()));
        out.extend_from_slice(&XATTR_VERSION.to_le_bytes());
        let mut put = |tag: u16, perm: u8, id: u32| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&u16::from(perm).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        };
        let (users, groups) = self.named.split_at(self.named.partition_point(|one| !one.group));
        put(TAG_USER_OBJ, self.user_obj, NO_ID);
        users.iter().for_each(|user| put(TAG_USER, user.perm, user.id));
        put(TAG_GROUP_OBJ, self.group_obj, NO_ID);
        groups.iter().for_each(|group| put(TAG_GROUP, group.perm, group.id));
        self.mask.iter().for_each(|mask| put(TAG_MASK, *mask, NO_ID));
        put(TAG_OTHER, self.other, NO_ID);
        out.into_boxed_slice()
    }
}

// What an encoding of `Acls` has, a bit for each.
const HAS_ACCESS: u8 = 1;
const HAS_DEFAULT: u8 = 2;

/// Bit of the byte with the permissions of a [`Named`]: it is a group.
const NAMES_GROUP: u8 = 8;

/// What a default ACL without a mask has in its place.
const NO_MASK: u8 = 8;

impl Acls {
    /// Both, if there is any.
    pub fn new(access: Option<AccessAcl>, default: Option<Acl>) -> Option<Arc<Acls>> {
        (access.is_some() || default.is_some()).then(|| Arc::new(Acls { access, default }))
    }

    /// Memory that they take, bytes.
    pub fn memory_bytes(&self) -> usize {
        let named = |named: &[Named]| size_of_val(named);
        size_of::<Self>()
            + self.access.as_ref().map_or(0, |acl| named(&acl.named))
            + self.default.as_ref().map_or(0, |acl| named(&acl.named))
    }

    /// The bytes of both (`docs/format.md`, "ACLs").
    pub fn encode(&self) -> Vec<u8> {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let has_access = flag(self.access.is_some(), HAS_ACCESS);
        let mut out = vec![has_access | flag(self.default.is_some(), HAS_DEFAULT)];
        if let Some(acl) = &self.access {
            out.push(acl.group_obj);
            put_named(&mut out, &acl.named);
        }
        if let Some(acl) = &self.default {
            let mask = acl.mask.unwrap_or(NO_MASK);
            out.extend_from_slice(&[acl.user_obj, acl.group_obj, mask, acl.other]);
            put_named(&mut out, &acl.named);
        }
        out
    }

    /// Reads what [`Acls::encode`] wrote, all of it.
    ///
    /// # Errors
    /// If the bytes are truncated, too many, out of bounds, or of a later release.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let has = reader.u8()?;
        if has == 0 || has & !(HAS_ACCESS | HAS_DEFAULT) != 0 {
            return Err(DecodeError("ACLs of an unknown kind"));
        }
        let mut acls = Self { access: None, default: None };
        if has & HAS_ACCESS != 0 {
            let group_obj = perm(&mut reader)?;
            acls.access = Some(AccessAcl { group_obj, named: read_named(&mut reader)? });
        }
        if has & HAS_DEFAULT != 0 {
            let (user_obj, group_obj) = (perm(&mut reader)?, perm(&mut reader)?);
            let mask = match reader.u8()? {
                NO_MASK => None,
                mask => Some(checked_perm(mask)?),
            };
            let (other, named) = (perm(&mut reader)?, read_named(&mut reader)?);
            if mask.is_none() && !named.is_empty() {
                return Err(DecodeError("an ACL that names somebody has a mask"));
            }
            acls.default = Some(Acl { user_obj, group_obj, mask, other, named });
        }
        reader.end()?;
        Ok(acls)
    }
}

fn perm(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    checked_perm(reader.u8()?)
}

fn checked_perm(perm: u8) -> Result<u8, DecodeError> {
    if perm & !ALL == 0 { Ok(perm) } else { Err(DecodeError("permissions out of bounds")) }
}

fn put_named(out: &mut Vec<u8>, named: &[Named]) {
    put_varint(out, named.len() as u64);
    for one in named {
        out.push(one.perm | if one.group { NAMES_GROUP } else { 0 });
        put_varint(out, u64::from(one.id));
    }
}

fn read_named(reader: &mut Reader<'_>) -> Result<Box<[Named]>, DecodeError> {
    let count = usize::try_from(reader.varint()?).ok().filter(|count| *count <= ENTRIES_MAX);
    let count = count.ok_or(DecodeError("too many entries of an ACL"))?;
    let mut named: Vec<Named> = Vec::with_capacity(count.min(reader.remaining() / 2));
    for _ in 0..count {
        let byte = reader.u8()?;
        let (group, perm) = (byte & NAMES_GROUP != 0, checked_perm(byte & !NAMES_GROUP)?);
        let id = reader.varint32()?;
        if id == NO_ID || !group && named.last().is_some_and(|last| last.group) {
            return Err(DecodeError("an entry of an ACL is out of place"));
        }
        named.push(Named { group, id, perm });
    }
    Ok(named.into_boxed_slice())
}

#[cfg(test)]
pub(crate) mod tests;
