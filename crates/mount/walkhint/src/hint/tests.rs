use proptest::prelude::*;

use super::*;

/// The bits of Linux 6.18.
const FLAGS: Flags = Flags {
    parent: 0x400,
    open: 0x1_0000,
    create: 0x2_0000,
    exclusive: 0x4_0000,
    directory: 2,
    revalidate: 0x80,
    follow: 1,
    calls: true,
};

fn walk(text: &[u8], flags: u32) -> Walk<'_> {
    let component = text.iter().position(|&byte| byte == b'/').unwrap_or(text.len());
    Walk {
        flags,
        depth: 0,
        component_bytes: component as u32,
        caller: 7,
        call: SystemCall::default(),
        text,
    }
}

#[test]
fn within_a_path() {
    let hint = walk(b"a//b/c/", FLAGS.parent | FLAGS.open).hint(b"a", &FLAGS).unwrap();
    let expected = Hint {
        follows: true,
        rest: (*b"b/c/").into(),
        complete: true,
        dotdot: false,
        trailing_slash: true,
        intent: Intent::default(),
        keeps: false,
        revalidate: false,
        open_flags: None,
        caller: 7,
    };
    assert_eq!(hint, expected);
    assert!(hint.may_fake());
}

#[test]
fn at_its_end() {
    let hint = walk(b"c", FLAGS.open | FLAGS.create | FLAGS.exclusive | FLAGS.revalidate)
        .hint(b"c", &FLAGS)
        .unwrap();
    assert!(
        !hint.follows
            && hint.rest.is_empty()
            && hint.complete
            && hint.revalidate
            && !hint.may_fake()
    );
    assert_eq!(
        hint.intent,
        Intent { open: true, create: true, exclusive: true, directory: false, follow: false }
    );
    let hint = walk(b"c/", FLAGS.directory).hint(b"c", &FLAGS).unwrap();
    assert!(!hint.follows && hint.trailing_slash && hint.intent.directory && !hint.intent.open);
}

#[test]
fn within_a_link() {
    let deep = Walk { depth: 1, ..walk(b"a/b", FLAGS.parent) };
    assert!(!deep.hint(b"a", &FLAGS).unwrap().complete);
    // The last component of a link's text: more follows, but not here.
    let hint = walk(b"b", FLAGS.parent).hint(b"b", &FLAGS).unwrap();
    assert!(hint.follows && !hint.complete && !hint.may_fake());
}

#[test]
fn calls_that_keep_and_calls_that_make() {
    let at = |flags: i32| [0, flags as u64, 0];
    let call = |number, args| SystemCall { number, args };
    assert!(call(libc::SYS_openat, at(libc::O_PATH | libc::O_DIRECTORY)).keeps());
    assert!(!call(libc::SYS_openat, at(libc::O_DIRECTORY)).keeps());
    assert!(!call(libc::SYS_newfstatat, at(libc::O_PATH)).keeps());
    assert!(call(libc::SYS_mount, [0; 3]).keeps() && !call(libc::SYS_execve, [0; 3]).keeps());
    assert!(
        call(libc::SYS_mkdirat, [0; 3]).makes_a_name()
            && !call(libc::SYS_unlinkat, [0; 3]).makes_a_name()
    );
    assert!(!call(SystemCall::NONE, [0; 3]).makes_a_name());
    let kept = Walk { call: call(libc::SYS_openat, at(libc::O_PATH)), ..walk(b"a", 0) };
    assert!(kept.hint(b"a", &FLAGS).unwrap().keeps);
    let below = Walk { call: kept.call, ..walk(b"a/b", FLAGS.parent) };
    assert!(!below.hint(b"a", &FLAGS).unwrap().keeps, "only what the path leads to");
}

#[test]
fn only_whole_components_are_dotdot() {
    let dotdot = |text: &[u8]| walk(text, FLAGS.parent).hint(b"a", &FLAGS).unwrap().dotdot;
    for text in [&b"a/.."[..], b"a/../b", b"a/b/..", b"a//..//b"] {
        assert!(dotdot(text), "{text:?}");
    }
    for text in [&b"a/..b"[..], b"a/b..", b"a/...", b"a/./b", b"a/b"] {
        assert!(!dotdot(text), "{text:?}");
    }
}

#[test]
fn no_hint_from_a_walk_elsewhere() {
    let none = |text: &[u8], flags, name: &[u8]| {
        assert_eq!(walk(text, flags).hint(name, &FLAGS), None, "{text:?}")
    };
    none(b"b/c", FLAGS.parent, b"a");
    none(b"ab/c", FLAGS.parent, b"a");
    none(b"a", FLAGS.parent, b"ab");
    none(b"", FLAGS.parent, b"a");
    none(b"/a", FLAGS.parent, b"");
    // Text goes on, but the walk is marked as at its end.
    none(b"a/b", 0, b"a");
    // The length of the component is another.
    assert_eq!(Walk { component_bytes: 2, ..walk(b"a/b", FLAGS.parent) }.hint(b"a", &FLAGS), None);
}

#[test]
fn open_flags() {
    let with = |number, args| {
        let call = SystemCall { number, args };
        Walk { call, ..walk(b"f", FLAGS.open) }.hint(b"f", &FLAGS).unwrap().open_flags
    };
    const LARGE: u32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
    assert_eq!(with(libc::SYS_openat, [0, 2, 0]), Some(2 | LARGE));
    assert_eq!(with(libc::SYS_openat, [0, libc::O_CLOEXEC as u64 | 1, 0]), Some(1 | LARGE));
    assert_eq!(with(libc::SYS_openat2, [0, 99, 1]), Some(1 | LARGE));
    assert_eq!(with(libc::SYS_execve, [77, 77, 77]), Some(0x20 | LARGE));
    for number in [SystemCall::NONE, libc::SYS_read, libc::SYS_io_uring_enter, libc::SYS_newfstatat]
    {
        assert_eq!(with(number, [0, 2, 0]), None);
    }
    let call = SystemCall { number: libc::SYS_openat, args: [0, 2, 0] };
    let stat = Walk { call, ..walk(b"f", 0) };
    assert_eq!(stat.hint(b"f", &FLAGS).unwrap().open_flags, None, "without the intent");
    let opening = Walk { call, ..walk(b"f", FLAGS.open) };
    let no_calls = Flags { calls: false, ..FLAGS };
    assert_eq!(opening.hint(b"f", &no_calls).unwrap().open_flags, None, "registers not understood");
}

proptest! {
    /// Any contents of a slot: no panic, and `rest` is the end of the text.
    #[test]
    fn any_record(
        text in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), any::<u8>()],
            0..40),
        name in prop::collection::vec(prop_oneof![Just(b'.'), Just(b'a')], 0..4),
        (flags, depth, component_bytes) in (any::<u32>(), 0u32..3, 0u32..5),
        number in -1i64..500,
    ) {
        let call = SystemCall { number, args: [u64::MAX; 3] };
        let walk = Walk { flags, depth, component_bytes, caller: 1, call, text: &text };
        if let Some(hint) = walk.hint(&name, &FLAGS) {
            prop_assert!(text.starts_with(&name) && text.ends_with(&hint.rest));
            prop_assert!(!hint.rest.starts_with(b"/"));
            prop_assert!(hint.follows || hint.rest.is_empty());
        }
    }
}
