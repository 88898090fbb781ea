//! Callers: threads, other pid namespaces, io_uring.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::rig::{Rig, Seen, Way, ways};
use crate::ring;

/// Many threads, each with paths of its own: no lookup ever gets the rest of another thread's path.
#[test]
fn threads() {
    const THREADS: usize = 8;
    const WALKS: usize = 500;
    for way in ways() {
        let rig = Arc::new(Rig::new(way));
        for number in 0..THREADS {
            rig.dirs(&format!("d{number}"));
        }
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let rig = &rig;
                scope.spawn(move || {
                    for walk in 0..WALKS {
                        let _ =
                            fs::symlink_metadata(rig.path(format!("d{number}/t{number}.{walk}")));
                    }
                });
            }
        });
        let lookups = rig.lookups();
        assert_eq!(lookups.len(), THREADS * WALKS * 2);
        let mut without = 0;
        for (name, hint) in &lookups {
            let Some(hint) = hint else {
                without += 1;
                continue;
            };
            match name.strip_prefix('d') {
                Some(number) => {
                    assert!(hint.follows && hint.rest.starts_with(format!("t{number}.").as_bytes()))
                }
                None => assert!(!hint.follows && hint.rest.is_empty()),
            }
        }
        println!(
            "{way:?}: {without} of {} lookups without a hint, {:?}",
            lookups.len(),
            rig.hints().stats()
        );
        // Allowed, but it should be rare.
        assert!(without <= lookups.len() / 10);
    }
}

/// A request that waits so long that its slot is needed for others: what it finds there is not
/// taken for its own.
#[test]
fn slots_that_are_used_again() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("d");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(fs::symlink_metadata(rig.path("d/parked.a/rest"))));
            while !rig.parked() {
                std::thread::yield_now();
            }
            // More requests than there are slots.
            for number in 0..1100 {
                drop(fs::symlink_metadata(rig.path(format!("d/other.{number}"))));
            }
            rig.seen();
            rig.go_on();
            waiting.join().unwrap();
        });
        let lookups = rig.lookups();
        let (name, hint) = &lookups[0];
        assert_eq!(name, "parked.a");
        match way {
            Way::Numbers => assert_eq!(*hint, None),
            // Slots are the threads': ours has not done anything else.
            Way::Threads | Way::Function => {
                assert_eq!(hint.as_ref().map(|hint| &*hint.rest), Some(&b"rest"[..]))
            }
        }
    }
}

/// A caller in a pid namespace below this process's: its number in this one is recorded.
#[test]
fn a_container_below() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b");
        let status = Command::new("unshare")
            .args(["-p", "-f", "stat", "-t"])
            .arg(rig.path("a/b"))
            .output()
            .unwrap();
        assert!(status.status.success());
        assert_eq!(
            rig.hinted().iter().filter(|(name, hint)| name == "a" && *hint.rest == *b"b").count(),
            1
        );
    }
}

/// A caller that our pid namespace does not show: requests say thread 0. With request numbers that
/// does not matter; without them there is no hint. The server runs in a namespace of its own: this
/// program again.
#[test]
fn callers_outside_our_namespace() {
    for way in ways() {
        let mut server = Command::new("unshare")
            .args(["-p", "-f", "--kill-child"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "callers::serve_for_others", "--nocapture", "--test-threads=1"])
            .env("KESTREL_WALKHINT_SERVE", format!("{way:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
        let dir = lines.find_map(|line| Some(line.split_once("SERVING ")?.1.to_owned())).unwrap();
        fs::metadata(format!("{dir}/a/b")).unwrap();
        server.stdin.take().unwrap().write_all(b"done\n").unwrap();
        let report: Vec<_> = lines.by_ref().filter(|line| line.starts_with("LOOKUP ")).collect();
        assert!(server.wait().unwrap().success());
        let expected = match way {
            Way::Numbers => ["LOOKUP a tid 0 rest Some(\"b\")", "LOOKUP b tid 0 rest Some(\"\")"],
            Way::Threads | Way::Function => {
                ["LOOKUP a tid 0 rest None", "LOOKUP b tid 0 rest None"]
            }
        };
        assert_eq!(report, expected, "{way:?}");
    }
}

/// Not a test of its own: the server of the one above.
#[test]
fn serve_for_others() {
    let Ok(name) = std::env::var("KESTREL_WALKHINT_SERVE") else { return };
    let way = ways().into_iter().find(|way| format!("{way:?}") == name).unwrap();
    let rig = Rig::new(way);
    rig.dirs("a/b");
    println!("SERVING {}", rig.dir().display());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for seen in rig.seen() {
        if let Seen::Lookup { name, tid, hint } = seen {
            let rest = hint.map(|hint| String::from_utf8(hint.rest.into()).unwrap());
            println!("\nLOOKUP {name} tid {tid} rest {rest:?}");
        }
    }
}

/// A thread has the same name in every namespace.
#[test]
fn caller_in_each_namespace() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a");
        let hints = std::thread::scope(|scope| {
            let walk = || drop(fs::metadata(rig.path("a/b")));
            walk();
            scope.spawn(walk).join().unwrap();
            rig.hinted()
        });
        let callers: Vec<u32> = hints.iter().map(|(_, hint)| hint.caller).collect();
        assert_eq!(callers[0], callers[1]);
        assert_eq!(callers[2], callers[3]);
        assert_ne!(callers[0], callers[2]);
    }
}

/// io_uring does what might block in threads of its own.
#[test]
fn io_uring() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b");
        rig.file("a/b/f");
        match ring::open(&rig.path("a/b/f"), libc::O_RDWR) {
            Ok(result) => assert!(result >= 0, "{result}"),
            Err(e) => {
                eprintln!("skipped: no io_uring here: {e}");
                continue;
            }
        }
        let hints = rig.hinted();
        assert_eq!(hints.len(), 3);
        assert_eq!(hints[0].1.rest[..], *b"b/f");
        let last = &hints[2].1;
        assert!(last.intent.open && !last.follows);
        // The worker's registers are not those of a system call.
        assert_eq!(last.open_flags, None);
    }
}
