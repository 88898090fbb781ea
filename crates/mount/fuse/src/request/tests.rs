use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::abi::InHeader;
use crate::attr::Timestamp;

/// Generator of test input; the seed is in the message of each failing assertion.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

const DIALECT: Dialect = Dialect { setxattr_ext: true };

fn header(opcode: u32, args: usize, extensions: usize) -> InHeader {
    InHeader {
        len: (size_of::<InHeader>() + args + extensions) as u32,
        opcode,
        unique: 77,
        nodeid: 5,
        uid: 1000,
        gid: 100,
        pid: 42,
        total_extlen: (extensions / 8) as u16,
        padding: 0,
    }
}

fn message(opcode: Opcode, args: &[&[u8]]) -> Vec<u8> {
    let args = args.concat();
    [header(opcode as u32, args.len(), 0).bytes(), &args].concat()
}

fn parse(message: &[u8]) -> Result<Request<'_>, Malformed> {
    Request::parse(message, &DIALECT)
}

/// A well-formed message of every operation.
fn samples() -> Vec<(Opcode, Vec<u8>)> {
    let zeros = [0u8; 88];
    let args = |opcode: Opcode| -> Vec<u8> {
        let fixed = |bytes: usize| zeros[..bytes].to_vec();
        match opcode {
            Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir | Opcode::Removexattr => {
                b"name\0".to_vec()
            }
            Opcode::Forget
            | Opcode::Access
            | Opcode::Interrupt
            | Opcode::Listxattr
            | Opcode::Syncfs => fixed(8),
            Opcode::BatchForget => {
                let forgets = abi::ForgetOne { nodeid: 3, nlookup: 4 };
                [
                    abi::BatchForgetIn { count: 2, dummy: 0 }.bytes(),
                    forgets.bytes(),
                    forgets.bytes(),
                ]
                .concat()
            }
            Opcode::Getattr | Opcode::Fsync | Opcode::Fsyncdir => fixed(16),
            Opcode::Setattr => fixed(88),
            Opcode::Symlink => b"name\0the/target\0".to_vec(),
            Opcode::Mknod | Opcode::Create | Opcode::Tmpfile => {
                [&fixed(16)[..], b"name\0"].concat()
            }
            Opcode::Mkdir | Opcode::Link | Opcode::Getxattr => [&fixed(8)[..], b"name\0"].concat(),
            Opcode::Rename => [&fixed(8)[..], b"old\0new\0"].concat(),
            Opcode::Rename2 => [&fixed(16)[..], b"old\0new\0"].concat(),
            Opcode::Open | Opcode::Opendir => fixed(8),
            Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => fixed(40),
            Opcode::Write => {
                [abi::WriteIn { size: 4, offset: 9, ..Default::default() }.bytes(), b"data"]
                    .concat()
            }
            Opcode::Release
            | Opcode::Releasedir
            | Opcode::Flush
            | Opcode::Lseek
            | Opcode::Statx => fixed(24),
            Opcode::Setxattr => {
                [abi::SetxattrIn { size: 3, ..Default::default() }.bytes(), b"user.x\0val"].concat()
            }
            Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => fixed(48),
            Opcode::Ioctl => {
                [abi::IoctlIn { in_size: 2, ..Default::default() }.bytes(), b"io"].concat()
            }
            Opcode::Poll => fixed(24),
            Opcode::Fallocate => fixed(32),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => fixed(56),
            Opcode::Readlink | Opcode::Statfs | Opcode::Destroy | Opcode::Init => vec![],
        }
    };
    Opcode::ALL
        .iter()
        .filter(|opcode| **opcode != Opcode::Init)
        .map(|opcode| (*opcode, message(*opcode, &[&args(*opcode)])))
        .collect()
}

#[test]
fn every_operation_parses() {
    for (opcode, message) in samples() {
        let request = parse(&message).unwrap_or_else(|e| panic!("{}: {e:?}", opcode.name()));
        assert_eq!((request.unique, request.nodeid, request.opcode), (77, 5, opcode));
        assert_eq!((request.uid, request.gid, request.pid), (1000, 100, 42));
    }
}

#[test]
fn arguments_arrive() {
    let samples = samples();
    let sample = |opcode: Opcode| &samples.iter().find(|(sample, _)| *sample == opcode).unwrap().1;
    let Ok(Operation::Write(write)) = parse(sample(Opcode::Write)).map(|r| r.op) else { panic!() };
    assert_eq!((write.data, write.offset), (&b"data"[..], 9));
    let Ok(Operation::Symlink { name, target }) = parse(sample(Opcode::Symlink)).map(|r| r.op)
    else {
        panic!()
    };
    assert_eq!((name.to_str(), target.to_str()), (Some("name"), Some("the/target")));
    let Ok(Operation::Rename { name, new_name, flags, .. }) =
        parse(sample(Opcode::Rename2)).map(|r| r.op)
    else {
        panic!()
    };
    assert_eq!((name.to_str(), new_name.to_str(), flags), (Some("old"), Some("new"), 0));
    let Ok(Operation::Setxattr { name, value, .. }) = parse(sample(Opcode::Setxattr)).map(|r| r.op)
    else {
        panic!()
    };
    assert_eq!((name.to_str(), value), (Some("user.x"), &b"val"[..]));
    for (opcode, expected) in
        [(Opcode::BatchForget, vec![(3, 4), (3, 4)]), (Opcode::Forget, vec![(5, 0)])]
    {
        let Ok(Operation::Forget(forgets)) = parse(sample(opcode)).map(|r| r.op) else { panic!() };
        assert_eq!(forgets.collect::<Vec<_>>(), expected);
    }
}

/// The name of an extended attribute may contain `/`, unlike that of an entry, and neither is
/// empty.
#[test]
fn attribute_names_with_slashes() {
    let get = |name: &[u8]| message(Opcode::Getxattr, &[&[0; 8], name]);
    for name in [&b"user.a/b\0"[..], b"/\0", b"..\0"] {
        assert!(parse(&get(name)).is_ok());
        assert!(parse(&message(Opcode::Removexattr, &[name])).is_ok());
        let set = abi::SetxattrIn { size: 1, ..Default::default() };
        assert!(parse(&message(Opcode::Setxattr, &[set.bytes(), name, b"v"])).is_ok());
    }
    for name in [&b"\0"[..], &[&[b'n'; abi::NAME_BYTES_MAX + 1][..], b"\0"].concat()] {
        assert!(parse(&get(name)).is_err());
    }
    assert!(parse(&message(Opcode::Lookup, &[b"a/b\0"])).is_err());
}

#[test]
fn setattr_takes_what_is_valid() {
    use abi::fattr;
    let arg = abi::SetattrIn {
        valid: fattr::SIZE | fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::KILL_SUIDGID,
        size: 10,
        mtime: (-3i64) as u64,
        mtimensec: 5,
        uid: 9,
        ..Default::default()
    };
    let message = message(Opcode::Setattr, &[arg.bytes()]);
    let Ok(Operation::Setattr(change)) = parse(&message).map(|r| r.op) else { panic!() };
    assert_eq!((change.size, change.uid, change.mode, change.fh), (Some(10), None, None, None));
    assert_eq!(change.atime, Some(SetTime::Now));
    assert_eq!(change.mtime, Some(SetTime::At(Timestamp { sec: -3, nsec: 5 })));
    assert!(change.kill_suidgid);
}

#[test]
fn setxattr_has_two_forms() {
    let arg = abi::SetxattrInCompat { size: 1, flags: 2 };
    let message = message(Opcode::Setxattr, &[arg.bytes(), b"user.a\0v"]);
    let request = Request::parse(&message, &Dialect { setxattr_ext: false }).unwrap();
    let Operation::Setxattr { name, value, flags, kill_sgid } = request.op else { panic!() };
    assert_eq!((name.to_str(), value, flags, kill_sgid), (Some("user.a"), &b"v"[..], 2, false));
}

#[test]
fn truncation_is_an_error_not_a_panic() {
    for (opcode, message) in samples() {
        for len in 0..message.len() {
            let mut cut = message[..len].to_vec();
            // Once with the length that the header claims, once with a header that has the right
            // one.
            assert_eq!(
                parse(&cut).err(),
                Some(Malformed::Header),
                "{} cut to {len}",
                opcode.name()
            );
            if len >= size_of::<InHeader>() {
                cut[..4].copy_from_slice(&(len as u32).to_le_bytes());
                let meaningless_tail = matches!(opcode, Opcode::Tmpfile | Opcode::Syncfs)
                    && len >= size_of::<InHeader>() + 16
                    || opcode == Opcode::Syncfs;
                if !meaningless_tail {
                    let error = Malformed::Arguments { unique: 77, opcode };
                    assert_eq!(parse(&cut).err(), Some(error), "{} cut to {len}", opcode.name());
                }
            }
        }
    }
}

#[test]
fn hostile_lengths_and_names() {
    let bad = |opcode: Opcode, args: &[&[u8]]| {
        let message = message(opcode, args);
        assert_eq!(
            parse(&message).err(),
            Some(Malformed::Arguments { unique: 77, opcode }),
            "{args:?}"
        );
    };
    bad(Opcode::Write, &[abi::WriteIn { size: u32::MAX, ..Default::default() }.bytes(), b"data"]);
    bad(
        Opcode::Setxattr,
        &[abi::SetxattrIn { size: u32::MAX, ..Default::default() }.bytes(), b"a\0v"],
    );
    bad(Opcode::Ioctl, &[abi::IoctlIn { in_size: 1 << 31, ..Default::default() }.bytes(), b"x"]);
    bad(Opcode::BatchForget, &[abi::BatchForgetIn { count: u32::MAX, dummy: 0 }.bytes(), &[0; 64]]);
    bad(Opcode::BatchForget, &[abi::BatchForgetIn { count: 1 << 28, dummy: 0 }.bytes()]);
    bad(Opcode::Lookup, &[b"no end"]);
    bad(Opcode::Lookup, &[b"\0"]);
    bad(Opcode::Lookup, &[b"a/b\0"]);
    bad(Opcode::Lookup, &[&[b'x'; abi::NAME_BYTES_MAX + 1], b"\0"]);
    bad(Opcode::Rename2, &[&[0; 16], b"old\0no end"]);
    bad(Opcode::Symlink, &[b"name\0no end"]);
    bad(Opcode::Init, &[&[0; 64]]);
}

#[test]
fn unknown_operations_can_be_answered() {
    let message = [header(4711, 3, 0).bytes(), b"abc"].concat();
    assert_eq!(parse(&message).err(), Some(Malformed::UnknownOpcode { unique: 77, opcode: 4711 }));
}

#[test]
fn names_are_bytes() {
    let message = message(Opcode::Lookup, &[b"\xff\x01\n\0"]);
    let Ok(Operation::Lookup { name }) = parse(&message).map(|r| r.op) else { panic!() };
    assert_eq!(name.as_bytes(), b"\xff\x01\n");
}

#[test]
fn supplementary_groups() {
    let args = [abi::MkdirIn { mode: 0o755, umask: 0 }.bytes(), b"name\0\0\0\0"].concat();
    let with = |records: &[u8]| {
        [header(Opcode::Mkdir as u32, args.len(), records.len()).bytes(), &args, records].concat()
    };
    let groups = |size: u32, kind: u32, words: &[u32]| {
        let words: Vec<u8> = words.iter().flat_map(|word| word.bytes().to_vec()).collect();
        [abi::ExtHeader { size, kind }.bytes(), &words].concat()
    };
    assert_eq!(
        parse(&with(&groups(16, abi::EXT_GROUPS, &[1, 2000]))).unwrap().supp_group,
        Some(2000)
    );
    assert_eq!(parse(&with(&groups(16, abi::EXT_GROUPS, &[0, 0]))).unwrap().supp_group, None);
    assert_eq!(parse(&with(&groups(16, 7, &[1, 2000]))).unwrap().supp_group, None);
    for (size, words) in [(0, [1, 2]), (7, [1, 2]), (17, [1, 2]), (u32::MAX, [1, 2]), (8, [1, 2])] {
        let message = with(&groups(size, abi::EXT_GROUPS, &words));
        assert!(parse(&message).is_err(), "extension of size {size}");
    }
    // More extensions than there is message.
    let mut message = message(Opcode::Mkdir, &[&args]);
    message[36..38].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(parse(&message).is_err());
}

#[test]
fn split_messages_say_the_same() {
    for (opcode, message) in samples() {
        let (head, args) = message.split_at(size_of::<InHeader>());
        let head = InHeader::read(head).unwrap();
        let whole = format!("{:?}", parse(&message).unwrap());
        for cut in 0..=args.len() {
            let (fixed, payload) = args.split_at(cut);
            // Only the cut after the fixed structure is right; the others must do no harm.
            let split = Request::parse_split(&head, fixed, Some(payload), &DIALECT);
            let right = matches!(split, Ok(request) if format!("{request:?}") == whole);
            let names_only = matches!(
                opcode,
                Opcode::Lookup
                    | Opcode::Unlink
                    | Opcode::Rmdir
                    | Opcode::Removexattr
                    | Opcode::Symlink
            );
            if names_only && cut == 0 {
                assert!(right, "{}", opcode.name());
            }
        }
    }
    let message = message(Opcode::Mkdir, &[&[1, 0, 0, 0, 2, 0, 0, 0], b"name\0"]);
    let head = InHeader::read(&message).unwrap();
    // An io_uring entry has more room for the structure than it takes.
    let split =
        Request::parse_split(&head, &[1, 0, 0, 0, 2, 0, 0, 0, 9, 9, 9], Some(b"name\0"), &DIALECT);
    assert!(
        matches!(split.unwrap().op, Operation::Mkdir { name, mode: 1, umask: 2 } if name == "name")
    );
}

#[test]
fn noise_never_panics() {
    for seed in 1..=2000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (opcode, mut message) = {
            let samples = samples();
            samples[random.next() as usize % samples.len()].clone()
        };
        message.resize(message.len() + random.next() as usize % 40, 0);
        for _ in 0..random.next() % 12 {
            let at = random.next() as usize % message.len();
            message[at] = random.next() as u8;
        }
        // Half of them with a length that lets them through.
        if random.next() & 1 == 0 {
            let len = message.len() as u32;
            message[..4].copy_from_slice(len.bytes());
        }
        if let Ok(request) = parse(&message) {
            if let Operation::Forget(forgets) = &request.op {
                assert!(forgets.clone().count() < 100, "seed {seed} {}", opcode.name());
            }
            let _ = format!("{request:?}");
        }
    }
}
