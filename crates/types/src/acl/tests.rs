//! ACLs against the rules of Linux, stated once more by entries as the kernel's functions walk
//! them.

use proptest::prelude::*;

use super::*;

/// An entry of the extended attribute: tag, permissions, id.
type Entry = (u16, u16, u32);

fn entries_of(value: &[u8]) -> Vec<Entry> {
    let entries = value[4..].as_chunks::<8>().0;
    let entry = |[t0, t1, p0, p1, id @ ..]: &[u8; 8]| {
        (u16::from_le_bytes([*t0, *t1]), u16::from_le_bytes([*p0, *p1]), u32::from_le_bytes(*id))
    };
    entries.iter().map(entry).collect()
}

fn value_of(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// `posix_acl_valid` with `posix_acl_from_xattr`.
fn linux_valid(entries: &[Entry]) -> bool {
    #[derive(PartialEq)]
    enum Due {
        UserObj,
        User,
        Group,
        Other,
        End,
    }
    let (mut due, mut needs_mask) = (Due::UserObj, false);
    for (tag, perm, id) in entries {
        if perm & !7 != 0 || matches!(tag, 2 | 8) && *id == u32::MAX {
            return false;
        }
        due = match (tag, due) {
            (0x01, Due::UserObj) => Due::User,
            (0x02, Due::User) => {
                needs_mask = true;
                Due::User
            }
            (0x04, Due::User) => Due::Group,
            (0x08, Due::Group) => {
                needs_mask = true;
                Due::Group
            }
            (0x10, Due::Group) => Due::Other,
            (0x20, Due::Other) => Due::End,
            (0x20, Due::Group) if !needs_mask => Due::End,
            _ => return false,
        };
    }
    due == Due::End
}

/// `acl_permission_check` with `posix_acl_permission`, for a caller that is not the superuser.
fn linux_permits(
    (mode, uid, gid): (u16, u32, u32),
    entries: &[Entry],
    (caller, groups): (u32, &[u32]),
    want: u16,
) -> bool {
    let grants = |perm: u16| perm & want == want;
    if caller == uid {
        return grants(mode >> 6);
    }
    if mode & 0o070 == 0 {
        return grants(if groups.contains(&gid) { mode >> 3 } else { mode });
    }
    let mask = entries.iter().find(|entry| entry.0 == 0x10).map_or(7, |entry| entry.1);
    let mut found = false;
    for (tag, perm, id) in entries {
        match tag {
            0x02 if *id == caller => return grants(perm & mask),
            0x04 | 0x08 => {
                let group = if *tag == 0x04 { gid } else { *id };
                if groups.contains(&group) {
                    found = true;
                    if grants(*perm) {
                        return grants(perm & mask);
                    }
                }
            }
            0x20 => return !found && grants(*perm),
            _ => {}
        }
    }
    unreachable!("a valid ACL has an entry for others");
}

/// `posix_acl_create_masq`: the mode, and the entries if they say more than it.
fn linux_inherits(entries: &[Entry], wanted: u16) -> (u16, Option<Vec<Entry>>) {
    let (mut entries, mut mode, mut more) = (entries.to_vec(), wanted, false);
    let has_mask = entries.iter().any(|entry| entry.0 == 0x10);
    for (tag, perm, _) in &mut entries {
        let shift = match *tag {
            0x01 => 6,
            0x20 => 0,
            0x10 => 3,
            0x04 if !has_mask => 3,
            _ => {
                more |= *tag != 0x04;
                continue;
            }
        };
        more |= *tag == 0x10;
        *perm &= mode >> shift & 7;
        mode &= *perm << shift | !(7 << shift);
    }
    (mode, more.then_some(entries))
}

/// `__posix_acl_chmod_masq`.
fn linux_chmod(entries: &[Entry], mode: u16) -> Vec<Entry> {
    let has_mask = entries.iter().any(|entry| entry.0 == 0x10);
    let mut entries = entries.to_vec();
    for (tag, perm, _) in &mut entries {
        match *tag {
            0x01 => *perm = mode >> 6 & 7,
            0x10 => *perm = mode >> 3 & 7,
            0x04 if !has_mask => *perm = mode >> 3 & 7,
            0x20 => *perm = mode & 7,
            _ => {}
        }
    }
    entries
}

fn named(ids: std::ops::Range<u32>) -> impl Strategy<Value = Box<[Named]>> {
    let one = (any::<bool>(), ids, 0u8..8).prop_map(|(group, id, perm)| Named { group, id, perm });
    prop::collection::vec(one, 0..6).prop_map(|mut named| {
        named.sort_by_key(|one| one.group);
        named.into()
    })
}

prop_compose! {
    /// Any ACL; those that name somebody have a mask.
    pub(crate) fn acl()(perms in [0u8..8, 0u8..8, 0u8..8, 0u8..8], masked in any::<bool>(),
        named in named(10..16)) -> Acl {
        let mask = (masked || !named.is_empty()).then_some(perms[2]);
        Acl { user_obj: perms[0], group_obj: perms[1], mask, other: perms[3], named }
    }
}

pub(crate) fn acls() -> impl Strategy<Value = Option<Arc<Acls>>> {
    (prop::option::of(acl()), prop::option::of(acl()))
        .prop_map(|(access, default)| Acls::new(access.and_then(|acl| acl.access()), default))
}

proptest! {
    /// An extended attribute comes back as it was set, and both encodings round-trip.
    #[test]
    fn acl_round_trip(acl in acl(), default in prop::option::of(acl())) {
        let value = acl.to_xattr();
        prop_assert!(linux_valid(&entries_of(&value)));
        prop_assert_eq!(Acl::from_xattr(&value).unwrap(), Some(acl.clone()));
        if let Some(access) = acl.access() {
            prop_assert_eq!(&access.with_mode(acl.mode()), &acl);
        }
        let Some(acls) = Acls::new(acl.access(), default) else { return Ok(()) };
        let bytes = acls.encode();
        prop_assert!(bytes.len() <= ACLS_BYTES_MAX);
        prop_assert_eq!(&Acls::decode(&bytes).unwrap(), &*acls);
        for len in 0..bytes.len() {
            prop_assert!(Acls::decode(&bytes[..len]).is_err());
        }
    }

    /// Entries in any order are refused exactly where Linux refuses them.
    #[test]
    fn validity_of_entries(entries in prop::collection::vec((
        prop::sample::select(vec![1u16, 2, 4, 8, 16, 32, 64]), 0u16..10,
        prop::sample::select(vec![5u32, 6, u32::MAX])), 1..8), ordered in any::<bool>()) {
        let mut entries = entries;
        if ordered {
            entries.sort_by_key(|entry| entry.0);
            entries.dedup_by_key(|entry| entry.0);
        }
        let read = Acl::from_xattr(&value_of(&entries));
        prop_assert_eq!(read.is_ok(), linux_valid(&entries), "{:?}", entries);
    }

    /// Bytes that are no ACL are an error, of either encoding.
    #[test]
    fn damaged_acls(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = Acl::from_xattr(&bytes);
        let _ = Acls::decode(&bytes);
    }

    /// The permissions of every caller are those that Linux gives; where groups are unknown, the
    /// answer is the same for all that they may be, or they are asked for.
    #[test]
    fn permissions_as_linux(acl in acl(), (uid, gid) in (10u32..14, 10u32..14),
        caller in 10u32..18, groups in prop::collection::vec(10u32..18, 1..4), want in 0u16..8) {
        let Some(access) = acl.access() else { return Ok(()) };
        let (mode, entries) = (acl.mode(), entries_of(&acl.to_xattr()));
        prop_assume!(caller != uid);
        let linux = linux_permits((mode, uid, gid), &entries, (caller, &groups), want);
        let creds = |known: bool| Creds {
            uid: caller,
            gid: groups[0],
            groups: known.then(|| groups[1..].into()),
        };
        let permits = |creds| access.permits(&creds, (mode, gid), u32::from(want));
        prop_assert_eq!(permits(creds(true)), Some(linux));
        // All groups besides the first are unknown.
        let possible: Vec<bool> = (0u32..1 << 8)
            .map(|set| (0..8).filter(move |bit| set >> bit & 1 != 0).map(|bit| 10 + bit))
            .map(|others| std::iter::once(groups[0]).chain(others).collect::<Vec<u32>>())
            .map(|all| linux_permits((mode, uid, gid), &entries, (caller, &all), want))
            .collect();
        let all_same = possible.iter().all(|one| *one == possible[0]).then_some(possible[0]);
        let named = acl.named.iter().filter(|one| one.group).map(|one| one.id);
        let mut gids: Vec<u32> = named.chain([gid]).collect();
        gids.sort_unstable();
        let has_twice = gids.windows(2).any(|two| two[0] == two[1]);
        let unknown = permits(creds(false));
        prop_assert!(unknown == all_same || has_twice && unknown.is_none());
    }

    /// What is made in a directory with a default ACL has the mode and the ACL that Linux gives it,
    /// and chmod changes the list as Linux does.
    #[test]
    fn inheritance_and_chmod_as_linux(acl in acl(), wanted in 0u16..0o10000,
        later in 0u16..0o1000) {
        let entries = entries_of(&acl.to_xattr());
        let (mode, access) = acl.inherited(wanted);
        let whole = access.as_ref().map(|access| entries_of(&access.with_mode(mode).to_xattr()));
        prop_assert_eq!((mode, whole.clone()), linux_inherits(&entries, wanted));
        if let (Some(access), Some(whole)) = (access, whole) {
            let changed = entries_of(&access.with_mode(later).to_xattr());
            prop_assert_eq!(changed, linux_chmod(&whole, later));
        }
    }
}

/// Each way for a value to be wrong has its errno, and a value without entries is none.
#[test]
fn errors_of_acl_values() {
    let errno = |value: &[u8]| Acl::from_xattr(value).map_err(|error| error.errno);
    assert_eq!(errno(&[]), Err(libc::EINVAL));
    assert_eq!(errno(&[2, 0, 0]), Err(libc::EINVAL));
    assert_eq!(errno(&[3, 0, 0, 0]), Err(libc::EOPNOTSUPP));
    assert_eq!(errno(&[2, 0, 0, 0, 1]), Err(libc::EINVAL));
    assert_eq!(errno(&[2, 0, 0, 0]), Ok(None));
    let list = |users: usize| {
        let users = (0..users).map(|id| (2, 7, id as u32));
        let ends = [(4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        value_of(&std::iter::once((1, 7, u32::MAX)).chain(users).chain(ends).collect::<Vec<_>>())
    };
    let largest = errno(&list(ENTRIES_MAX - 4)).unwrap().unwrap();
    assert_eq!(largest.to_xattr().len(), 4 + 8 * ENTRIES_MAX);
    assert_eq!(errno(&list(ENTRIES_MAX - 3)), Err(libc::E2BIG));
}
