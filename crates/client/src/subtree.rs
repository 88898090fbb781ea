//! A client that is confined to a subtree: above this, the subtree's directory is the root and has
//! the root's number; below, and on the wire, it has its own.

use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Named, Op, Outcome, Reply};

/// Changes a reference to what it is on the wire.
pub fn reference_below(root: InodeId, inode: &mut InodeRef) {
    below(root, &mut inode.ino);
    if let Some((dir, _)) = &mut inode.seen {
        below(root, dir);
    }
}

fn below(root: InodeId, ino: &mut InodeId) {
    if *ino == ROOT {
        *ino = root;
    }
}

fn above(root: InodeId, ino: &mut InodeId) {
    if *ino == root {
        *ino = ROOT;
    }
}

/// Changes an operation to what it is on the wire.
pub fn op_below(root: InodeId, op: &mut Op) {
    op.visit_named(&mut |named| match named {
        Named::Dir(ino) | Named::File(ino) => below(root, ino),
        Named::Ref(inode) => reference_below(root, inode),
    });
}

/// Changes a reply to what it is for the file system.
pub fn reply_above(root: InodeId, reply: &mut Reply) {
    match reply {
        Ok(Answer::Inode(inode) | Answer::Removed(inode)) | Err(Outcome::Conflict(inode)) => {
            above(root, &mut inode.ino);
        }
        Ok(Answer::Entry { parent, inode }) => {
            above(root, parent);
            above(root, &mut inode.ino);
        }
        Ok(Answer::Opened { inode, parent, .. }) => {
            above(root, &mut inode.ino);
            parent.iter_mut().for_each(|parent| above(root, parent));
        }
        Ok(Answer::Renamed { moved, other, from, to }) => {
            for ino in [moved, from, to] {
                above(root, ino);
            }
            other.iter_mut().for_each(|inode| above(root, &mut inode.ino));
        }
        Ok(Answer::Entries { entries, parent, .. }) => {
            above(root, parent);
            entries.iter_mut().for_each(|entry| above(root, &mut entry.ino));
        }
        Err(Outcome::Symlink { dir, .. }) => above(root, dir),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::inode::{Inode, Kind};
    use kestrel_types::name::{Name, PathRef};

    use super::*;

    #[test]
    fn the_root_has_its_own_number_on_the_wire() {
        let name = || Name::new(b"f").unwrap();
        let mut link =
            Op::Link(InodeRef { ino: 7, seen: Some((ROOT, name())) }, PathRef::new(ROOT, name()));
        op_below(50, &mut link);
        assert_eq!(
            link,
            Op::Link(InodeRef { ino: 7, seen: Some((50, name())) }, PathRef::new(50, name()))
        );
        let mut get = Op::GetAttr(InodeRef::by_id(ROOT));
        op_below(50, &mut get);
        assert_eq!(get, Op::GetAttr(InodeRef::by_id(50)));
        let mut reply =
            Ok(Answer::Entry { parent: 50, inode: Box::new(Inode::new(8, Kind::Dir, 0, 0)) });
        reply_above(50, &mut reply);
        assert!(matches!(reply, Ok(Answer::Entry { parent: ROOT, inode }) if inode.ino == 8));
        let mut reply = Ok(Answer::Entries { entries: Vec::new(), parent: 50, end: true });
        reply_above(50, &mut reply);
        assert!(matches!(reply, Ok(Answer::Entries { parent: ROOT, .. })));
    }
}
