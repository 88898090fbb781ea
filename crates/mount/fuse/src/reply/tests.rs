use std::ffi::OsStr;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::attr::Timestamp;
use crate::dirents::FileKind;

/// Keeps what was sent.
#[derive(Default)]
struct Sent(Mutex<Vec<Vec<u8>>>);

impl ReplyChannel for Sent {
    fn send(&self, slot: u64, parts: &[IoSlice<'_>]) {
        assert_eq!(slot, 3);
        assert!(parts[0].len() >= size_of::<OutHeader>(), "the header is in the first piece");
        self.0.lock().push(parts.iter().flat_map(|part| part.to_vec()).collect());
    }
}

/// Answers an operation and returns error number and body of the one message sent.
fn sent(opcode: Opcode, answer: impl FnOnce(Reply)) -> (i32, Vec<u8>) {
    let channel = Arc::new(Sent::default());
    answer(Reply::new(channel.clone(), 99, 3, opcode));
    let messages = std::mem::take(&mut *channel.0.lock());
    assert_eq!(messages.len(), 1, "exactly one reply");
    let header = OutHeader::read(&messages[0]).unwrap();
    assert_eq!((header.len as usize, header.unique), (messages[0].len(), 99));
    (-header.error, messages[0][size_of::<OutHeader>()..].to_vec())
}

#[test]
fn errors() {
    assert_eq!(sent(Opcode::Open, |reply| reply.error(libc::ENOENT)), (libc::ENOENT, vec![]));
    // What the kernel would refuse, leaving the caller to wait for ever.
    for wrong in [0, -5, 512, i32::MAX, i32::MIN] {
        assert_eq!(sent(Opcode::Open, |reply| reply.error(wrong)).0, libc::EIO, "{wrong}");
    }
}

#[test]
fn dropped_replies_answer_eio() {
    assert_eq!(sent(Opcode::Read, drop), (libc::EIO, vec![]));
    let channel = Arc::new(Sent::default());
    let token = channel.clone();
    let panicked = std::thread::spawn(move || {
        let _reply = Reply::new(token, 1, 3, Opcode::Read);
        panic!("expected by the test");
    });
    assert!(panicked.join().is_err());
    assert_eq!(channel.0.lock().len(), 1);
}

#[test]
fn some_operations_have_no_answer() {
    for opcode in [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt] {
        let channel = Arc::new(Sent::default());
        drop(Reply::new(channel.clone(), 1, 3, opcode));
        Reply::new(channel.clone(), 1, 3, opcode).error(libc::EIO);
        assert!(channel.0.lock().is_empty());
    }
}

#[test]
fn structures_have_their_size() {
    let (entry, opened) = (Entry::default(), Opened::default());
    let body = |opcode, answer: &dyn Fn(Reply)| {
        let (errno, body) = sent(opcode, answer);
        assert_eq!(errno, 0);
        body.len()
    };
    assert_eq!(body(Opcode::Lookup, &|r| r.entry(&entry)), 128);
    assert_eq!(body(Opcode::Getattr, &|r| r.attr(&entry.attr, Duration::ZERO)), 104);
    assert_eq!(body(Opcode::Open, &|r| r.opened(opened)), 16);
    assert_eq!(body(Opcode::Create, &|r| r.created(&entry, opened)), 144);
    assert_eq!(body(Opcode::Write, &|r| r.written(5)), 8);
    assert_eq!(body(Opcode::CopyFileRange, &|r| r.copied(5)), 8);
    assert_eq!(body(Opcode::CopyFileRange64, &|r| r.copied(5 << 32)), 8);
    assert_eq!(body(Opcode::Statfs, &|r| r.statfs(&Statfs::default())), 80);
    assert_eq!(body(Opcode::Statx, &|r| r.statx(&Statx::default())), 288);
    assert_eq!(body(Opcode::Lseek, &|r| r.lseek(5)), 8);
    assert_eq!(body(Opcode::Ioctl, &|r| r.ioctl(0, b"abc")), 19);
    assert_eq!(body(Opcode::Poll, &|r| r.poll(1)), 8);
    assert_eq!(body(Opcode::Unlink, &|r| r.empty()), 0);
}

#[test]
fn node_id_and_inode_number_are_apart() {
    let attr = Attr { ino: 1234, mtime: Timestamp { sec: -1, nsec: 7 }, ..Attr::default() };
    let entry = Entry { nodeid: 9, attr, attr_ttl: Duration::new(1, 2), ..Entry::default() };
    let (_, body) = sent(Opcode::Lookup, |reply| reply.entry(&entry));
    let wire = abi::EntryOut::read(&body).unwrap();
    assert_eq!((wire.nodeid, wire.attr.ino), (9, 1234));
    assert_eq!((wire.attr.mtime as i64, wire.attr.mtimensec), (-1, 7));
    assert_eq!((wire.attr_valid, wire.attr_valid_nsec, wire.entry_valid), (1, 2, 0));
}

#[test]
fn negative_entries() {
    assert_eq!(
        sent(Opcode::Lookup, |reply| reply.negative(Duration::ZERO)),
        (libc::ENOENT, vec![])
    );
    let (errno, body) = sent(Opcode::Lookup, |reply| reply.negative(Duration::from_secs(2)));
    let wire = abi::EntryOut::read(&body).unwrap();
    assert_eq!((errno, wire.nodeid, wire.entry_valid), (0, 0, 2));
}

#[test]
fn data_of_any_number_of_pieces() {
    assert_eq!(sent(Opcode::Read, |reply| reply.data(b"")).1, b"");
    for count in [0, 1, 2, 15, 16, 17, 1023, 1024, 3000] {
        let pieces: Vec<Vec<u8>> = (0..count).map(|n: usize| vec![n as u8; n % 5]).collect();
        let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let (errno, body) = sent(Opcode::Read, |reply| reply.data_vectored(&slices));
        assert_eq!((errno, body), (0, pieces.concat()), "{count} pieces");
    }
}

#[test]
fn xattr_sizes() {
    let (_, body) = sent(Opcode::Getxattr, |reply| reply.xattr(0, b"value"));
    assert_eq!(body, [5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(sent(Opcode::Getxattr, |reply| reply.xattr(4, b"value")).0, libc::ERANGE);
    assert_eq!(sent(Opcode::Getxattr, |reply| reply.xattr(5, b"value")), (0, b"value".to_vec()));
    assert_eq!(sent(Opcode::Listxattr, |reply| reply.xattr(9, b"")), (0, vec![]));
}

#[test]
fn directory_records() {
    let mut dirents = Dirents::plain(80);
    assert!(dirents.push(OsStr::new("a"), 7, FileKind::Regular, 1));
    assert!(dirents.push(OsStr::new("12345678"), 8, FileKind::Directory, 2));
    assert!(
        !dirents.push(OsStr::new("x"), 9, FileKind::Regular, 3),
        "32 + 32 + 32 is more than 80"
    );
    assert_eq!(dirents.len(), 2);
    let (_, body) = sent(Opcode::Readdir, |reply| reply.dirents(dirents));
    assert_eq!(body.len(), 64);
    let second = abi::Dirent::read(&body[32..]).unwrap();
    assert_eq!((second.ino, second.off, second.namelen, second.kind), (8, 2, 8, 4));
    assert_eq!(&body[56..64], b"12345678");

    let mut plus = Dirents::plus(160);
    let attr = Attr { ino: 5, mode: libc::S_IFREG, ..Attr::default() };
    assert!(plus.push_plus(OsStr::new("f"), &Entry { nodeid: 3, attr, ..Entry::default() }, 1));
    assert!(!plus.push_plus(OsStr::new("f"), &Entry::default(), 2));
    let (_, body) = sent(Opcode::Readdirplus, |reply| reply.dirents(plus));
    assert_eq!(body.len(), 160);
    assert_eq!(abi::EntryOut::read(&body).unwrap().nodeid, 3);
    assert_eq!(abi::Dirent::read(&body[128..]).unwrap().ino, 5);

    // A size from a hostile request allocates no more than a bound.
    assert!(Dirents::plain(u32::MAX).is_empty());
    assert!(sent(Opcode::Readdir, |reply| reply.dirents(Dirents::plain(0))).1.is_empty());
}
