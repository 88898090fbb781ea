use proptest::prelude::*;

use super::*;

/// Writes BTF, as pahole does for a kernel.
#[derive(Default)]
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    /// Types and string bytes of the kernel's part, for a module's.
    types_before: u32,
    strings_before: u32,
    count: u32,
}

impl Writer {
    fn kernel() -> Writer {
        Writer { strings: vec![0], ..Writer::default() }
    }

    fn module(kernel: &Writer) -> Writer {
        Writer {
            types_before: kernel.count,
            strings_before: kernel.strings.len() as u32,
            ..Writer::default()
        }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.strings_before + self.strings.len() as u32;
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        at
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// A type; its number.
    fn ty(&mut self, name: &str, kind: u32, entries: u32, size_or_type: u32, tail: &[u32]) -> u32 {
        let name = self.name(name);
        self.words(&[name, kind << 24 | entries, size_or_type]);
        self.words(tail);
        self.count += 1;
        self.types_before + self.count
    }

    fn int(&mut self, bytes: u32) -> u32 {
        self.ty("int", kind::INT, 0, bytes, &[bytes * 8])
    }

    /// A structure or union of members at byte offsets.
    fn composite(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> =
            members.iter().flat_map(|&(name, ty, at)| [self.name(name), ty, at * 8]).collect();
        self.ty(name, kind, members.len() as u32, size, &tail)
    }

    fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(kind::STRUCT, name, size, members)
    }

    fn finish(&self) -> Vec<u8> {
        let mut data = vec![0x9f, 0xeb, 1, 0];
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        data.extend([24, 0, types, types, strings].iter().flat_map(|word| word.to_le_bytes()));
        data.extend_from_slice(&self.types);
        data.extend_from_slice(&self.strings);
        data
    }
}

/// What `struct qstr` and `struct nameidata` look like, and one of every kind in between.
fn sample() -> Writer {
    let mut w = Writer::kernel();
    let u32_type = w.int(4);
    let u64_type = w.int(8);
    let pointer = w.ty("", kind::PTR, 0, 0, &[]);
    w.ty("colour", kind::ENUM, 2, 4, &[0, 0, 0, 1]);
    w.ty("big", kind::ENUM64, 1, 8, &[0, 1, 2]);
    w.ty("later", kind::FWD, 0, 0, &[]);
    let proto = w.ty("", kind::FUNC_PROTO, 1, u32_type, &[0, u32_type]);
    w.ty("fuse_simple_request", kind::FUNC, 1, proto, &[]);
    w.ty("twice", kind::FUNC, 1, proto, &[]);
    w.ty("twice", kind::FUNC, 1, proto, &[]);
    w.ty("percpu", kind::VAR, 0, u32_type, &[1]);
    w.ty(".data", kind::DATASEC, 1, 4, &[11, 0, 4]);
    w.ty("double", kind::FLOAT, 0, 8, &[]);
    w.ty("tag", kind::DECL_TAG, 0, u32_type, &[u32::MAX]);
    let tagged = w.ty("rcu", kind::TYPE_TAG, 0, pointer, &[]);
    let hash_len = w.structure("", 8, &[("hash", u32_type, 0), ("len", u32_type, 4)]);
    let hashed = w.composite(kind::UNION, "", 8, &[("", hash_len, 0), ("hash_len", u64_type, 0)]);
    let qstr = w.structure("qstr", 16, &[("", hashed, 0), ("name", tagged, 8)]);
    let qstr = w.ty("", 10, 0, qstr, &[]); // const
    let qstr = w.ty("qstr_t", kind::TYPEDEF, 0, qstr, &[]);
    let five = w.ty("", kind::ARRAY, 0, 0, &[u64_type, u32_type, 5]);
    w.structure(
        "nameidata",
        96,
        &[("path", u64_type, 0), ("last", qstr, 16), ("stack", five, 40), ("flags", u32_type, 80)],
    );
    // Of one name, at odds about a member and in harmony about another.
    w.structure("saved", 16, &[("link", u32_type, 0), ("seq", u32_type, 4)]);
    w.structure(
        "saved",
        16,
        &[("link", u32_type, 8), ("seq", u32_type, 4), ("more", u32_type, 12)],
    );
    w.structure("saved", 16, &[]);
    w
}

/// The structure with bit fields, which bit 31 of `info` marks.
fn bit_fields() -> Vec<u8> {
    let mut w = Writer::kernel();
    let u32_type = w.int(4);
    let (bit, after, name) = (w.name("bit"), w.name("after"), w.name("fields"));
    w.words(&[
        name,
        1 << 31 | kind::STRUCT << 24 | 2,
        8,
        bit,
        u32_type,
        1 << 24 | 3,
        after,
        u32_type,
        32,
    ]);
    w.count += 1;
    w.finish()
}

#[test]
fn members_are_found_through_everything() {
    let data = sample().finish();
    let btf = Btf::parse(&data, None).unwrap();
    let field = |offset, size| Ok(Field { offset, size });
    assert_eq!(btf.field("nameidata", "last.name"), field(24, 8));
    assert_eq!(btf.field("nameidata", "last.len"), field(20, 4));
    assert_eq!(btf.field("nameidata", "last.hash_len"), field(16, 8));
    assert_eq!(btf.field("nameidata", "stack"), field(40, 40));
    assert_eq!(btf.field("nameidata", "last"), field(16, 16));
    assert_eq!(btf.offset("nameidata", "flags", 4), Ok(80));
    assert_eq!(btf.struct_size("nameidata"), Ok(96));
}

#[test]
fn what_is_not_there_has_a_name() {
    let data = sample().finish();
    let btf = Btf::parse(&data, None).unwrap();
    let missing = |what: &str| Error::Missing(what.into());
    assert_eq!(btf.field("nameidata", "depth").unwrap_err(), missing("struct nameidata.depth"));
    assert_eq!(btf.field("nameidata", "flags.x").unwrap_err(), missing("struct nameidata.flags.x"));
    assert_eq!(btf.field("later", "x").unwrap_err(), missing("struct later.x"), "declared only");
    assert_eq!(btf.struct_size("none").unwrap_err(), missing("struct none"));
    assert_eq!(btf.function("none").unwrap_err(), missing("function none"));
    assert_eq!(
        btf.offset("nameidata", "flags", 8).unwrap_err().to_string(),
        "kernel BTF has an unexpected struct nameidata.flags of 4 bytes instead of 8"
    );
    // Prefixes are not names.
    assert!(btf.field("nameidat", "flags").is_err() && btf.field("nameidata", "flag").is_err());
}

#[test]
fn contradictions_are_not_resolved() {
    let data = sample().finish();
    let btf = Btf::parse(&data, None).unwrap();
    assert_eq!(
        btf.field("saved", "link").unwrap_err(),
        Error::Ambiguous("struct saved.link".into())
    );
    assert_eq!(btf.offset("saved", "seq", 4), Ok(4));
    assert_eq!(btf.offset("saved", "more", 4), Ok(12));
    assert_eq!(btf.function("twice").unwrap_err(), Error::Ambiguous("function twice".into()));
}

#[test]
fn bit_fields_by_offset() {
    let data = bit_fields();
    let btf = Btf::parse(&data, None).unwrap();
    assert_eq!(btf.field("fields", "bit").unwrap_err(), Error::Shape("bit field bit".into()));
    assert_eq!(btf.offset("fields", "after", 4), Ok(4));
}

#[test]
fn modules_build_on_the_kernel() {
    let kernel = sample();
    let mut module = Writer::module(&kernel);
    // Types and strings of the kernel, referred to from the module.
    let header = module.structure("", 24, &[("skip", 1, 0), ("h", 2, 8)]);
    module.structure("fuse_req", 80, &[("in", header, 56)]);
    module.ty("fuse_simple_request2", kind::FUNC, 1, 7, &[]);
    let (kernel, module) = (kernel.finish(), module.finish());
    let btf = Btf::parse(&kernel, Some(&module)).unwrap();
    assert_eq!(btf.offset("fuse_req", "in.h", 8), Ok(64));
    assert_eq!(btf.offset("nameidata", "flags", 4), Ok(80));
    assert!(btf.function("fuse_simple_request2").unwrap().in_module);
    assert!(!btf.function("fuse_simple_request").unwrap().in_module);
    // Without the kernel's part it makes no sense, and is no danger.
    assert!(Btf::parse(&module, None).and_then(|btf| btf.field("fuse_req", "in.h")).is_err());
}

#[test]
fn headers_are_checked() {
    let good = sample().finish();
    let parse = |data: &[u8]| Btf::parse(data, None).map(|_| ()).unwrap_err();
    assert_eq!(parse(b""), Error::Malformed("wrong magic number"));
    assert_eq!(
        parse(&[0xeb, 0x9f, 1, 0]),
        Error::Malformed("big-endian, which this program does not read")
    );
    assert_eq!(parse(&good[..23]), Error::Malformed("truncated"));
    for (at, value, what) in [
        (4, 8, "short header"),
        (4, u32::MAX, "truncated"),
        (8, u32::MAX, "truncated"),
        (12, u32::MAX, "truncated"),
        (12, 5, "truncated type"),
        (16, u32::MAX - 20, "truncated"),
        (20, u32::MAX, "truncated"),
    ] {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(parse(&bad), Error::Malformed(what), "{at} {value}");
    }
    let mut w = Writer::kernel();
    w.ty("new", 20, 0, 0, &[]);
    assert_eq!(parse(&w.finish()), Error::UnknownKind(20));
    // More members than there is room for.
    let mut w = Writer::kernel();
    w.ty("s", kind::STRUCT, 0xffff, 0, &[0, 0, 0]);
    assert_eq!(parse(&w.finish()), Error::Malformed("truncated type"));
}

#[test]
fn every_truncation_is_an_error_or_harmless() {
    let good = sample().finish();
    for len in 0..good.len() {
        assert!(Btf::parse(&good[..len], None).is_err(), "{len}");
    }
    // The header adjusted, so that what is there is all there is.
    let types = u32_at(&good, 12).unwrap();
    for len in 0..types {
        let mut short = good.clone();
        short[12..16].copy_from_slice(&len.to_le_bytes());
        look_up_everything(&short, None);
    }
}

/// Everything that is looked up in BTF. It only has to end.
fn look_up_everything(kernel: &[u8], module: Option<&[u8]>) {
    if let Ok(btf) = Btf::parse(kernel, module) {
        for path in ["last.name", "last.len", "stack", "flags", "a", "a.b"] {
            for name in ["nameidata", "saved", "qstr", "s"] {
                let _ = btf.offset(name, path, 4);
                let _ = btf.struct_size(name);
            }
        }
        let _ = btf.function("fuse_simple_request");
    }
}

#[test]
fn circles_end() {
    let error = |w: Writer| {
        let data = w.finish();
        let btf = Btf::parse(&data, None).unwrap();
        btf.field("s", "a.b").unwrap_err()
    };
    // A typedef of itself as a member's type, and two of each other.
    let mut w = Writer::kernel();
    w.ty("t", kind::TYPEDEF, 0, 1, &[]);
    w.structure("s", 8, &[("a", 1, 0)]);
    assert_eq!(error(w), Error::Malformed("typedefs that never end"));
    let mut w = Writer::kernel();
    w.ty("t", kind::TYPEDEF, 0, 2, &[]);
    w.ty("u", 9, 0, 1, &[]);
    w.structure("s", 8, &[("", 1, 0)]);
    assert_eq!(error(w), Error::Malformed("typedefs that never end"));
    // A structure with itself inside, many times over: 2^32 steps without a bound.
    let mut w = Writer::kernel();
    w.structure("s", 8, &[("", 1, 0), ("", 1, 0)]);
    assert_eq!(error(w), Error::Malformed("structures nested without end"));
    let mut w = Writer::kernel();
    let members = vec![("", 1, 0); 0xffff];
    w.structure("s", 8, &members);
    assert_eq!(error(w), Error::Malformed("structures nested without end"));
    // An array of itself.
    let mut w = Writer::kernel();
    w.ty("", kind::ARRAY, 0, 0, &[1, 1, 1]);
    w.structure("s", 8, &[("x", 1, 0)]);
    let data = w.finish();
    let btf = Btf::parse(&data, None).unwrap();
    assert_eq!(btf.field("s", "x").unwrap_err(), Error::Malformed("arrays that never end"));
}

#[test]
fn absurd_numbers() {
    let error = |build: &dyn Fn(&mut Writer) -> u32| {
        let mut w = Writer::kernel();
        let ty = build(&mut w);
        w.structure("s", 8, &[("a", ty, 0)]);
        let data = w.finish();
        Btf::parse(&data, None).unwrap().field("s", "a").unwrap_err()
    };
    let huge = Error::Malformed("a type of absurd size");
    assert_eq!(
        error(&|w| {
            let i = w.int(8);
            w.ty("", kind::ARRAY, 0, 0, &[i, i, u32::MAX])
        }),
        huge
    );
    assert_eq!(error(&|_| 77), Error::Malformed("reference to a type that is not there"));
    assert_eq!(error(&|_| u32::MAX), Error::Malformed("reference to a type that is not there"));
    assert_eq!(error(&|_| 0), Error::Malformed("void where a type is needed"));
    assert_eq!(
        error(&|w| w.ty("f", kind::FWD, 0, 0, &[])),
        Error::Malformed("a member that has no size")
    );
    let mut w = Writer::kernel();
    let int = w.int(4);
    w.structure("s", 8, &[("a", int, OFFSET_MAX + 8)]);
    let data = w.finish();
    let btf = Btf::parse(&data, None).unwrap();
    assert_eq!(btf.field("s", "a").unwrap_err(), Error::Malformed("a distant member"));
    // A name outside the strings.
    let mut w = Writer::kernel();
    w.words(&[1000, kind::STRUCT << 24, 0]);
    let data = w.finish();
    let btf = Btf::parse(&data, None).unwrap();
    assert_eq!(btf.struct_size("s").unwrap_err(), Error::Malformed("a name outside the strings"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Damaged BTF ends in an error or an answer.
    #[test]
    fn damage(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in 0usize..40
    ) {
        let kernel = sample();
        let mut module = Writer::module(&kernel);
        module.structure("s", 8, &[("a", 18, 0), ("", 17, 0)]);
        let (mut kernel, mut module) = (kernel.finish(), module.finish());
        let total = kernel.len() + module.len();
        for (at, byte) in changes {
            let at = at.index(total);
            if at < kernel.len() { kernel[at] = byte } else { module[at - kernel.len()] = byte }
        }
        module.truncate(module.len().saturating_sub(cut));
        look_up_everything(&kernel, Some(&module));
        look_up_everything(&kernel, None);
    }

    /// Words at random, behind a header that fits.
    #[test]
    fn noise(
        words in prop::collection::vec(prop_oneof![0u32..40, any::<u32>(), (0u32..20, 0u32..4)
            .prop_map(|(k, n)| k << 24 | n)], 0..200)
    ) {
        let mut w = Writer::kernel();
        w.name("s");
        w.name("a");
        w.words(&words);
        look_up_everything(&w.finish(), None);
    }
}

/// The real thing, where there is one.
#[test]
fn the_running_kernel() {
    let Ok(data) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        println!("skipped: this kernel has no BTF");
        return;
    };
    let btf = Btf::parse(&data, None).unwrap();
    assert_eq!(btf.field("nameidata", "last.name").unwrap().size, 8);
    assert_eq!(btf.offset("nameidata", "path.dentry", 8), Ok(8));
    assert_eq!(btf.struct_size("qstr"), Ok(16));
    assert!(!btf.function("vfs_read").unwrap().in_module);
}
