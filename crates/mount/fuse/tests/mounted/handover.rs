//! A connection that goes from one session to another one, as from process to process: under load,
//! and with requests that the first one read and did not answer.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kestrel_fuse::{
    Config, Entry, FileSystem, Inherited, Mount, MountOptions, Negotiated, Operation, Reply,
    Request, Session, TransportChoice,
};
use kestrel_testkit::stop::StopOnDrop;

use crate::kit::{Mounted, TempDir, can_mount, config, errno, wait_for};
use crate::replies::attr;

const LIMIT: Duration = Duration::from_secs(20);

/// Files of any name; LOOKUPs of `later` are kept.
#[derive(Default)]
struct Names {
    kept: Mutex<Vec<Reply>>,
    answered: AtomicU32,
    /// `later` is answered like any other.
    prompt: bool,
}

impl FileSystem for Names {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name } if name == "later" && !self.prompt => {
                let mut reply = reply;
                reply.set_aside();
                self.kept.lock().unwrap().push(reply);
            }
            Operation::Lookup { .. } => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                let attr = attr(2, libc::S_IFREG | 0o644, 0);
                reply.entry(&Entry { nodeid: 2, attr, ..Entry::default() });
            }
            Operation::Getattr { .. } => {
                let mode = if request.nodeid == 1 { libc::S_IFDIR } else { libc::S_IFREG };
                reply.attr(&attr(request.nodeid, mode | 0o755, 0), Duration::ZERO);
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
}

fn handing_over() -> Config {
    let mut config = Config { hands_over: true, workers: 3, spare_workers: 2, ..config() };
    config.features.resend = true;
    config
}

/// The very same descriptors, as another process gets them.
fn copies(session: &Session) -> Vec<OwnedFd> {
    session.descriptors().iter().map(|fd| fd.try_clone().unwrap()).collect()
}

fn inherited(session: &Session) -> Inherited {
    let numbers = session.negotiated().to_numbers();
    Inherited {
        descriptors: copies(session),
        negotiated: Negotiated::from_numbers(&numbers).unwrap(),
        device: session.unmounter().device(),
    }
}

/// Whether the kernel can send requests again (Linux 6.9).
fn can_resend() -> bool {
    let mounted = Mounted::null();
    let can = mounted.session().negotiated().offered & 1 << 39 != 0;
    if !can {
        eprintln!("skipped: the kernel cannot send requests again");
    }
    can
}

/// Sessions follow each other under load, and no call fails; what the first one kept is answered by
/// the next one.
#[test]
fn sessions_in_a_row() {
    if !can_mount() || crate::TRANSPORT != TransportChoice::Device || !can_resend() {
        return;
    }
    let dir = TempDir::new();
    let fs = Arc::new(Names::default());
    let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    let mut session = Some(Session::start(mount, fs.clone(), &handing_over()).unwrap());
    let (stop, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    let over = AtomicBool::new(false);
    let mut past = Vec::new();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop::new(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fs::metadata(dir.path().join("name")).unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            fs::metadata(dir.path().join("later")).unwrap();
            over.store(true, Ordering::Relaxed);
        });
        wait_for("a kept request", || !fs.kept.lock().unwrap().is_empty());
        let mut serving = session.take().unwrap();
        for round in 1..=8 {
            let before = calls.load(Ordering::Relaxed);
            wait_for("calls", || calls.load(Ordering::Relaxed) > before + 100);
            let intake = serving.intake().unwrap();
            assert!(intake.close(LIMIT));
            assert!(intake.wait_for_answers(LIMIT), "round {round}");
            intake.silence();
            // Unmounting is not for a session that has been left.
            let mount = Mount::inherit(dir.path(), inherited(&serving)).unwrap();
            past.push(serving);
            let next = Names { prompt: true, ..Names::default() };
            serving = Session::start(mount, next, &handing_over()).unwrap();
        }
        session = Some(serving);
        wait_for("the answer that was owed", || over.load(Ordering::Relaxed));
    });
    // Too late: it was answered by the next session.
    fs.kept.lock().unwrap().drain(..).for_each(|reply| reply.error(libc::EIO));
    let session = session.unwrap();
    let unmounter = session.unmounter();
    wait_for("unmount", || unmounter.unmount().is_ok());
    session.join().unwrap();
    past.iter().for_each(|session| session.intake().unwrap().open());
    wait_for("the end of all", || past.iter().all(Session::is_over));
}

/// A call waits while the intake is closed, and is answered when it opens again.
#[test]
fn intake_that_opens_again() {
    if !can_mount() || crate::TRANSPORT != TransportChoice::Device || !can_resend() {
        return;
    }
    let mounted = Mounted::with(Names::default(), &MountOptions::default(), &handing_over());
    let intake = mounted.session().intake().unwrap();
    assert!(intake.close(LIMIT));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::metadata(mounted.path("name")).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!done.load(Ordering::Relaxed), "nobody answers");
        intake.open();
    });
    assert!(done.load(Ordering::Relaxed));
    mounted.unmount();
}

/// Rings end with their process: io_uring is refused, and so is a mount without descriptors.
#[test]
fn what_cannot_be_handed_over() {
    if !can_mount() || crate::TRANSPORT != TransportChoice::Device || !can_resend() {
        return;
    }
    let dir = TempDir::new();
    let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    let config = Config { transport: TransportChoice::Uring, ..handing_over() };
    assert!(Session::start(mount, Names::default(), &config).is_err());
    let mounted = Mounted::null();
    assert!(mounted.session().intake().is_none());
    let mut none = inherited(mounted.session());
    none.descriptors.clear();
    assert!(Mount::inherit(mounted.dir(), none).is_err());
    assert_eq!(errno(fs::metadata(mounted.path("gone"))), libc::ENOENT);
    mounted.unmount();
}
