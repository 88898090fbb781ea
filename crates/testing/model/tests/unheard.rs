//! Requests with replies that no client got: numbers stay unknown until something shows them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kestrel_model::Model;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, DirEntry, Op};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn mkdir(path: &str) -> Op {
    Op::MkDir(PathRef::from_path(1, path.as_bytes()).unwrap(), 0o755)
}

#[test]
fn a_number_is_bound_by_the_first_reply_that_shows_it() {
    let root = Creds::root();
    let mut model = Model::without_times();
    model.assume(&root, &mkdir("a"));
    model.assume(&root, &mkdir("a/b"));
    // It failed, and changed nothing.
    model.assume(&root, &mkdir("x/y"));
    let entry = |text: &str, ino| DirEntry { name: name(text), ino, kind: Kind::Dir };
    let list = |model: &mut Model, dir, entries| {
        let op = Op::ReadDir { dir, after: None, limit: 100, check: true };
        model.judge(&root, &op, &Ok(Answer::Entries { entries, parent: 1, end: true }))
    };
    let branch = model.clone();
    list(&mut model, 1, vec![entry("a", 20)]).unwrap();
    assert_ne!(model, branch, "the number is known now");
    list(&mut model, 20, vec![entry("b", 21)]).unwrap();
    // It cannot be another one from now on, nor one that something else has.
    list(&mut model.clone(), 1, vec![entry("a", 22)]).unwrap_err();
    let mut other = branch.clone();
    list(&mut other, 1, vec![entry("a", 1)]).unwrap_err();
    let inode = Inode { mode: 0o755, nlink: 2, size: 4096, ..Inode::new(21, Kind::Dir, 77, 5) };
    let get = Op::GetAttr(InodeRef::by_id(21));
    model.judge(&root, &get, &Ok(Answer::Inode(Box::new(inode.clone())))).unwrap();
    let wrong = Inode { mode: 0o700, ..inode };
    model.judge(&root, &get, &Ok(Answer::Inode(Box::new(wrong)))).unwrap_err();
}

#[test]
fn states_that_are_the_same_are_equal() {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let root = Creds::root();
    let (mut ab, mut ba) = (Model::without_times(), Model::without_times());
    let made = |ino| {
        let inode = Inode { mode: 0o755, nlink: 2, size: 4096, ..Inode::new(ino, Kind::Dir, 0, 5) };
        Ok(Answer::Entry { parent: 1, inode: Box::new(inode) })
    };
    for (model, order) in [(&mut ab, [("a", 20), ("b", 21)]), (&mut ba, [("b", 21), ("a", 20)])] {
        for (path, ino) in order {
            model.judge(&root, &mkdir(path), &made(ino)).unwrap();
        }
    }
    let hash = |model: &Model| {
        let mut hasher = DefaultHasher::new();
        model.hash(&mut hasher);
        hasher.finish()
    };
    assert_eq!((&ab, hash(&ab)), (&ba, hash(&ba)));
}
