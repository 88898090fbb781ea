//! The thread of each cache directory that makes room and tries a failed disk out. It waits for the
//! disk as long as that takes, and no thread waits for it.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Disk, Side, c_string, marker};
use crate::faults::DiskOp;
use crate::object::ObjectIndex;
use crate::sys;

/// Between two looks at the room on the disk, and at a disk that is out of service.
const CHECK_EVERY: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(200);

/// What others did to the directory is found out at least so often.
const SCAN_EVERY: Duration = Duration::from_secs(600);

/// Bytes written to try a disk out.
const TRIAL_BYTES: usize = 4096;

/// Starts the keeper of a disk, and the thread that watches over its promises.
pub(crate) fn start(disk: &Arc<Disk>, table: &Arc<ObjectIndex>) -> io::Result<()> {
    let of = Arc::clone(disk);
    disk.completions
        .start(format!("kestrel-cache-p{}", disk.index), move || of.note_unanswered(Side::Read))?;
    let (disk, table) = (Arc::clone(disk), Arc::downgrade(table));
    let name = format!("kestrel-cache-k{}", disk.index);
    // The room that other processes have taken is not counted yet.
    disk.request_scan();
    std::thread::Builder::new().name(name).spawn(move || run(&disk, &table)).map(drop)
}

fn run(disk: &Disk, table: &Weak<ObjectIndex>) {
    let mut report = Instant::now();
    while let Some(is_requested) = wait(disk) {
        for side in [Side::Read, Side::Write] {
            let now = disk.clock.now();
            if disk.service(side).breaker.lock().is_trial_due(now) {
                let result = trial(disk, side);
                let why = result.as_ref().err().map_or(String::new(), ToString::to_string);
                disk.record(side, &why, |breaker, _| {
                    breaker.tried(result.is_ok(), disk.clock.now())
                });
            }
        }
        let is_in = disk.is_in_service(Side::Read) || disk.is_in_service(Side::Write);
        if is_in
            && (is_requested
                || report.elapsed() > SCAN_EVERY
                || disk.is_scan_due().unwrap_or(false))
        {
            scan(disk, table);
            report = Instant::now();
        }
    }
}

/// Waits for a wish or for the time to look; whether a sweep is wished. None: closed.
fn wait(disk: &Disk) -> Option<bool> {
    let is_well = disk.is_in_service(Side::Read) && disk.is_in_service(Side::Write);
    let until = Instant::now() + if is_well { CHECK_EVERY } else { TRY_EVERY };
    let mut requests = disk.requests.lock();
    while !requests.closed && !requests.scan {
        if disk.requested.wait_until(&mut requests, until).timed_out() {
            break;
        }
    }
    (!requests.closed).then(|| std::mem::take(&mut requests.scan))
}

fn scan(disk: &Disk, table: &Weak<ObjectIndex>) {
    let begun = Instant::now();
    match disk.scan() {
        Ok(Some(report)) => {
            if report.bytes == 0 {
                // Others have taken the room: looking again and again does not bring it back.
                std::thread::sleep(TRY_EVERY);
            }
            if let Some(table) = table.upgrade() {
                for object in report.removed.iter().filter_map(|id| table.find(*id)) {
                    object.state.lock().forget_file();
                }
            }
        }
        Ok(None) => {
            // Another process makes room; see in a while whether it is enough.
            std::thread::sleep(TRY_EVERY);
            disk.request_scan();
        }
        Err(error) => {
            // A failed sweep is a failed write: what cannot be made room on is not to be filled.
            disk.note(Side::Write, begun, &Err::<(), _>(error));
            std::thread::sleep(TRY_EVERY);
        }
    }
}

/// Tries a disk out that is out of service. The directory may have been replaced meanwhile (mounted
/// anew): it is opened again, but never made.
fn trial(disk: &Disk, side: Side) -> io::Result<()> {
    disk.before(if side == Side::Read { DiskOp::ProbeRead } else { DiskOp::ProbeWrite })?;
    let root = sys::open_dir(&disk.path)?;
    marker::check(&disk.path)?;
    if side == Side::Write {
        let name = c_string(format!("trial.{}", std::process::id()));
        let mut file = sys::create_at(root.as_fd(), &name)?;
        let tried =
            file.write_all(&[0x5a; TRIAL_BYTES]).and_then(|()| file.sync_data()).and_then(|()| {
                sys::forget_cached(&file);
                let mut found = [0; TRIAL_BYTES];
                file.read_exact_at(&mut found, 0)?;
                if found == [0x5a; TRIAL_BYTES] {
                    Ok(())
                } else {
                    Err(io::Error::other("it returned other bytes"))
                }
            });
        sys::unlink_at(root.as_fd(), &name)?;
        tried?;
    }
    *disk.root.write() = Arc::new(root);
    Ok(())
}
