use kestrel_meta::txn::Origin;
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::error::FsError;
use kestrel_types::ids::ROOT;
use kestrel_types::placement::{Exceptions, Member, PlacementMap, SlotMap};
use kestrel_types::request::{Creds, Request};

use super::*;
use crate::cluster::host::Host;
use crate::network::MS;

const NOW: i64 = SECOND;
const CLIENT: ClientId = ClientId([1; 16]);

/// A node alone, where a client has a file without a name open, and the file's number.
fn host() -> (Host, InodeId) {
    let member = Member { id: 1, address: "node-1".into() };
    let map = SlotMap::even(vec![member]).unwrap();
    let placement = PlacementMap::new(map, Exceptions::default());
    let clock = Arc::new(ManualClock::new(SECOND));
    let mut host = Host::new((1, false), placement, clock, (1, 2), 1, Default::default(), false);
    host.start(NOW);
    host.member().unwrap().node().end_grace().unwrap();
    let origin = Origin { client: CLIENT, seq: 1, retry: false };
    let op = Op::TmpFile { dir: ROOT, mode: 0o600, exclusive: false };
    host.submit_in_session(0, Request { creds: Creds::root(), op }, origin, NOW);
    host.sync(NOW);
    match &host.take_replies()[..] {
        [(0, 1, Ok(Answer::Opened { inode, .. }))] => (host, inode.ino),
        other => panic!("{other:?}"),
    }
}

/// What a machine does about its sessions for a while, and what it has found wrong.
fn tick(host: &mut Host) -> Option<String> {
    for step in 0..5 {
        host.release_abandoned(NOW + step * MS);
        host.tick(NOW + step * MS);
    }
    host.sessions().wrong.take()
}

/// An open of a client that is gone is being given back when the store fails. The node's process
/// has counted that in memory and gets no answer: it does not get the release a second time, which
/// it would refuse with `EBADF` (seed 2188 of three nodes).
#[test]
fn store_that_fails_during_a_release() {
    let (mut host, _) = host();
    host.sessions().expire(CLIENT);
    host.release_abandoned(NOW);
    assert_eq!(host.member().unwrap().node().stats().open_files, 0);
    assert!(host.fail_store(NOW));
    assert_eq!(tick(&mut host), None);
}

/// The same of an open that a client gives back, which is gone afterwards.
#[test]
fn store_that_fails_during_a_clients_release() {
    let (mut host, ino) = host();
    let origin = Origin { client: CLIENT, seq: 2, retry: false };
    host.submit_in_session(0, Request { creds: Creds::root(), op: Op::Release(ino) }, origin, NOW);
    assert!(host.fail_store(NOW));
    host.sessions().expire(CLIENT);
    assert_eq!(tick(&mut host), None);
}

/// An open that could not be given back since another node's store had failed is given back again,
/// and any other error is still found wrong.
#[test]
fn releases_that_fail_elsewhere() {
    let failed = |reason: &str| -> Reply {
        Err(Outcome::Failed(FsError::because(libc::EIO, format!("metadata: {reason}"))))
    };
    let mut sessions = Sessions { abandoned: vec![5], ..Sessions::default() };
    assert_eq!(sessions.take_abandoned(), [5]);
    sessions.given_back(5, &failed("the store gave no answer"));
    assert_eq!((sessions.take_abandoned(), sessions.wrong.is_none()), (vec![5], true));
    sessions.fail_store();
    sessions.given_back(5, &failed("the file is not open"));
    assert!(sessions.wrong.is_some());
}
