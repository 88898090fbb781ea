//! The end of a sequence: names, attributes and contents as the model has them, and rows without a
//! fault.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_model::{Byte, Layout, ModelInode};
use kestrel_types::extent::{Extent, Source};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{CHUNK_BYTES, Data, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op};

use super::super::check;
use super::World;

impl World {
    /// Compares everything, and checks the rows.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.fixture().engine.set_full(false);
        self.fixture().engine.clear_commit_faults();
        self.faults = false;
        self.look_at_all()?;
        self.finish_snapshots()?;
        // All clones have ended.
        for node in self.model.nodes.values_mut().filter(|node| node.outside > 0) {
            Arc::make_mut(node).outside = 0;
        }
        let has_gone = |node: &ModelInode| (node.nlink, node.opens) == (0, 0);
        self.model.nodes.retain(|_, node| node.kind == Kind::Dir || !has_gone(node));
        self.look_at_all()?;
        let model = &self.model;
        let open =
            |ino: u64| model.nodes.get(&ino).is_some_and(|node| node.nlink == 0 && node.opens > 0);
        let found = check::check(&*self.fixture().engine, &open);
        let orphans = model.nodes.values().filter(|node| node.nlink == 0).count();
        if found.orphans != orphans {
            return Err(format!("{} files without a name, expected {orphans}", found.orphans));
        }
        if found.history != 0 {
            return Err(format!("{} rows of history are left of no snapshot", found.history));
        }
        if let Some(ino) =
            found.moved.iter().find(|ino| model.nodes.get(ino).is_none_or(|node| node.opens == 0))
        {
            return Err(format!("table moved has a row of {ino}, which is not open"));
        }
        let Ok(Answer::Usage(usage)) = self.fixture().call(Op::Usage) else {
            return Err("no usage".into());
        };
        let ours = (found.files as u64, found.dirs as u64, found.bytes as u64);
        if (usage.files, usage.dirs, usage.bytes) != ours {
            return Err(format!("usage {usage:?}, rows say {ours:?}"));
        }
        Ok(())
    }

    /// Looks at the present tree, from the root down: a listing shows the numbers of what is below
    /// a clone.
    fn look_at_all(&mut self) -> Result<(), String> {
        let (root, mut dirs) = (Creds::root(), vec![ROOT]);
        while let Some(dir) = dirs.pop() {
            self.single(&root, Op::GetAttr(InodeRef::by_id(dir)))?;
            self.single(&root, Op::ReadDir { dir, after: None, limit: 4096, check: false })?;
            let children = self.model.nodes[&dir].children.clone();
            for (name, ino) in children {
                let name = Name::new(&name).unwrap();
                self.file(dir, name.clone())?;
                let file = InodeRef { ino, seen: Some((dir, name)) };
                self.single(&root, Op::ListXattr(file.clone()))?;
                let xattrs = self.model.nodes[&ino].xattrs.clone();
                for name in xattrs.into_keys().filter(|name| *name != b"->") {
                    self.single(&root, Op::GetXattr(file.clone(), name.into()))?;
                }
                dirs.extend((self.model.nodes[&ino].kind == Kind::Dir).then_some(ino));
            }
        }
        Ok(())
    }

    fn file(&mut self, dir: u64, name: Name) -> Result<(), String> {
        let op = Op::Lookup(PathRef::new(dir, name));
        let reply = self.fixture().call(op.clone());
        self.model.now += 1_000_000;
        self.fixture().clock.advance(1_000_000);
        self.judge(&Creds::root(), &op, &reply)?;
        let Ok(Answer::Inode(inode) | Answer::Entry { inode, .. }) = reply else {
            return Err("no inode".into());
        };
        if inode.kind != Kind::File {
            return Ok(());
        }
        let mut bytes: BTreeMap<u64, Byte> = BTreeMap::new();
        let mut lay = |at: u64, extent: &Extent| {
            if let Source::Stored { range, skip } = extent.source {
                for i in 0..extent.len {
                    bytes.insert(
                        at + u64::from(extent.pos + i),
                        Byte::Stored(range.object, range.offset, skip + i),
                    );
                }
            }
        };
        match &inode.data {
            Data::None => {}
            Data::Inline(content) => {
                bytes.extend((0..).zip(content.iter().map(|byte| Byte::Inline(*byte))))
            }
            Data::Packed { range, visible } => {
                lay(0, &Extent { len: *visible, ..Extent::of_range(0, *range) })
            }
            Data::Chunked => {
                let Ok(Answer::Chunks { chunks, end: true }) =
                    self.fixture().call(Op::Chunks { ino: inode.ino, first: 0, last: 10 })
                else {
                    return Err("no chunks".into());
                };
                for (chunk, extents) in &chunks {
                    extents.iter().for_each(|extent| lay(chunk * CHUNK_BYTES, extent));
                }
            }
        }
        let node = &self.model.nodes[&inode.ino];
        assert!(node.layout != Layout::None || node.bytes.is_empty());
        if bytes != node.bytes {
            return Err(format!("content of {inode:?}: {bytes:?}, expected {:?}", node.bytes));
        }
        Ok(())
    }
}
