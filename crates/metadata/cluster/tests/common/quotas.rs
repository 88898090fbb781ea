//! Quotas at several members, messages carried by hand.

use kestrel_types::name::InodeRef;
use kestrel_types::quota::{QuotaInfo, QuotaLimits, QuotaSubject};
use kestrel_types::request::{Answer, Commit, NewData, Op};

use super::errno;
use super::members::{Cluster, at};

pub fn limits(bytes: impl Into<Option<u64>>, files: impl Into<Option<u64>>) -> QuotaLimits {
    QuotaLimits { bytes: bytes.into(), files: files.into(), ..QuotaLimits::default() }
}

impl Cluster {
    pub fn errno(&mut self, op: Op) -> i32 {
        errno(&self.ask(1, op))
    }

    pub fn set_quota(&mut self, of: QuotaSubject, limits: QuotaLimits) -> QuotaInfo {
        match self.ask(1, Op::QuotaSet(of, Box::new(limits))) {
            Ok(Answer::Quotas(quotas)) => quotas[0],
            other => panic!("{other:?}"),
        }
    }

    pub fn dir_quota(&mut self, path: &str, limits: QuotaLimits) -> QuotaSubject {
        let of = QuotaSubject::Dir(self.inode(1, Op::Lookup(at(path))).ino);
        self.set_quota(of, limits);
        of
    }

    pub fn quotas(&mut self, op: Op) -> Vec<QuotaInfo> {
        match self.ask(1, op) {
            Ok(Answer::Quotas(quotas)) => quotas,
            other => panic!("{other:?}"),
        }
    }

    /// Files and bytes that count towards a quota.
    pub fn used(&mut self, of: QuotaSubject) -> (i64, i64) {
        let all = self.quotas(Op::QuotaList(None));
        let found = all.into_iter().find(|info| info.of == of).unwrap();
        (found.used.files, found.used.bytes)
    }

    /// Every quota says what the names and inodes of all members give.
    pub fn quotas_are_exact(&mut self) {
        for info in self.quotas(Op::QuotaCheck { repair: false }) {
            assert_eq!(info.counted, Some(info.used), "{info:?}");
        }
    }

    /// Gives a file so many bytes.
    pub fn write(&mut self, path: &str, size: u64) -> i32 {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = if dir.is_empty() { 1 } else { self.inode(1, Op::Lookup(at(dir))).ino };
        let file = self.inode(1, Op::Lookup(at(path)));
        let name = kestrel_types::name::Name::new(last.as_bytes()).unwrap();
        let inode = InodeRef { ino: file.ino, seen: Some((parent, name)) };
        let (base, size) = (file.data_change, Some(size));
        let data = NewData::Unchanged;
        self.errno(Op::Commit(Commit { inode, base, data, size, mtime: 5, kill_suid: false }))
    }
}
