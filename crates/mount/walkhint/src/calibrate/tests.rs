use super::*;
use crate::hint::SystemCall;

/// What the kernel would show for a walk, with the bits of Linux 6.18.
fn flags_of(number: usize) -> u32 {
    [0, 0x400, 0x1_0000, 0x3_0000, 0x7_0000, 0x1_0002, 0, 0x80, 1][number]
}

fn call_of(number: usize) -> SystemCall {
    let opens = walks::OPENS.iter().find(|&&(kind, _)| kind as usize == number);
    opens.map_or(SystemCall::default(), |&(_, flags)| SystemCall {
        number: libc::SYS_openat,
        args: [0, flags.into(), 0],
    })
}

/// Plays all probe walks, each with what `change` makes of its record.
fn play(change: impl Fn(usize, &mut Walk<'_>)) -> Probes {
    let probes = Probes::new(0x1234);
    for number in 0..WALKS {
        let digit =
            if number == WalkKind::Again as usize { WalkKind::Stale as usize } else { number };
        let name = format!(".kestrel-probe-0000000000001234-{digit}");
        let text =
            if number == WalkKind::Within as usize { format!("{name}/x") } else { name.clone() };
        let mut walk = Walk {
            flags: flags_of(number),
            depth: 0,
            component_bytes: name.len() as u32,
            caller: 1,
            call: call_of(number),
            text: text.as_bytes(),
        };
        change(number, &mut walk);
        let errno = probes.answer(name.as_bytes(), Some(walk)).unwrap();
        assert_eq!(
            errno,
            if number == WalkKind::Stale as usize { libc::ESTALE } else { libc::ENOENT }
        );
    }
    probes
}

#[test]
fn bits_are_differences() {
    let expected = Flags {
        parent: 0x400,
        open: 0x1_0000,
        create: 0x2_0000,
        exclusive: 0x4_0000,
        directory: 2,
        revalidate: 0x80,
        follow: 1,
        calls: true,
    };
    assert_eq!(play(|_, _| {}).flags(), Ok(expected));
    // What all have in common does not matter.
    assert_eq!(play(|_, walk| walk.flags |= 0x1008).flags(), Ok(expected));
}

#[test]
fn contradictions_mean_no_hints() {
    let error = |change: &dyn Fn(usize, &mut Walk<'_>)| play(change).flags().unwrap_err();
    assert!(
        error(&|n, walk| walk.flags |= u32::from(n == 1) << 4)
            .contains("LOOKUP_PARENT is not one bit")
    );
    assert!(
        error(&|n, walk| if n == 2 {
            walk.flags = 0
        })
        .contains("LOOKUP_OPEN is not one bit")
    );
    assert!(
        error(&|n, walk| if n == 0 {
            walk.flags = 8
        })
        .contains("is not one bit"),
        "a bit that goes away"
    );
    assert!(
        error(&|n, walk| if n == 7 {
            walk.flags = 0x400
        })
        .contains("share a bit")
    );
}

#[test]
fn records_of_something_else_do_not_count() {
    for number in 0..WALKS {
        for change in [
            |walk: &mut Walk<'_>| walk.text = b"x",
            |walk: &mut Walk<'_>| walk.component_bytes += 1,
            |walk: &mut Walk<'_>| walk.depth = 1,
        ] {
            let probes = play(|n, walk| {
                if n == number {
                    change(walk)
                }
            });
            assert_eq!(probes.flags(), Err(format!("probe walk {number} was not recorded")));
        }
    }
}

#[test]
fn registers_that_show_something_else_are_not_used() {
    let probes = play(|n, walk| {
        if n == WalkKind::Create as usize {
            walk.call.args[1] ^= 1
        }
    });
    assert!(!probes.flags().unwrap().calls);
    assert!(!play(|_, walk| walk.call = SystemCall::default()).flags().unwrap().calls);
}

#[test]
fn only_our_names_are_probes() {
    let probes = Probes::new(0x1234);
    for name in ["a", "", ".kestrel-probe-0000000000001234-", ".kestrel-probe-0000000000001234-9"] {
        assert!(!probes.is_name(name.as_bytes()) && probes.answer(name.as_bytes(), None).is_none());
    }
    assert!(!probes.is_name(b".kestrel-probe-0000000000001235-1"));
    assert!(!probes.is_name(b".kestrel-probe-0000000000001234-11"));
    assert!(probes.is_name(b".kestrel-probe-0000000000001234-1"));
    assert!(probes.flags().is_err());
}
