//! The thread that fetches newer placement maps, asks again what was redirected, and moves out of
//! nodes that leave: one per volume ([`super::redirects`], [`super::leaving`]).

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use kestrel_rpc::client::ask_for_others;
use kestrel_types::error::FsError;
use kestrel_types::placement::{NodeId, PlacementMap};
use parking_lot::Mutex;

use super::calls::RemoteShared;
use super::leaving::{Moves, let_go};
use super::node_query::table_of;
use super::redirects::{CLOSED, ParkedCall, Step};
use crate::error::VolumeError;

const TOO_LATE: FsError = FsError::new(
    libc::EIO,
    "the metadata nodes could not agree on which of them keeps this in the time that a call may take; see `kestrel cluster status`",
);

/// The thread that fetches tables, asks again, and moves out.
pub(super) struct MapRefresher(Mutex<Option<JoinHandle<()>>>);

impl MapRefresher {
    /// Starts it, unless there is only one node.
    pub fn start(shared: &Arc<RemoteShared>) -> Result<Self, VolumeError> {
        if shared.nodes.known().placement.is_none() {
            return Ok(Self(Mutex::default()));
        }
        let weak = Arc::downgrade(shared);
        let thread = std::thread::Builder::new()
            .name("kestrel-map".into())
            .spawn(move || run(&weak))
            .map_err(|why| {
                VolumeError::Io(format!("cannot start the thread kestrel-map: {why}"))
            })?;
        Ok(Self(Mutex::new(Some(thread))))
    }

    /// Ends it; what waits fails.
    pub fn end(&self, shared: &RemoteShared) {
        shared.redirects.close();
        let thread = self.0.lock().take();
        if let Some(thread) =
            thread.filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

fn run(weak: &Weak<RemoteShared>) {
    ask_for_others();
    let moves = Arc::<Moves>::default();
    let (mut fetched, mut move_out) = (None, Some(Instant::now()));
    while let Some(shared) = weak.upgrade() {
        match shared.redirects.next_step(&shared.nodes, fetched, move_out) {
            None => {}
            Some(Step::Fetch(node, version)) => {
                let got = fetch(&shared, node, version);
                fetched = (!got).then(Instant::now);
                move_out = if got { Some(Instant::now()) } else { move_out };
            }
            Some(Step::MoveOut) => {
                move_out = moves.move_out(&shared).map(|pause| Instant::now() + pause);
            }
            Some(Step::Ask(waiting)) => {
                for ParkedCall { redirected_call, .. } in waiting {
                    match shared.time_left(redirected_call.since()).is_zero() {
                        true => shared.end(redirected_call, TOO_LATE),
                        false => shared.go_on(redirected_call),
                    }
                }
            }
            Some(Step::End(waiting)) => {
                return waiting
                    .into_iter()
                    .for_each(|waiting| shared.end(waiting.redirected_call, CLOSED));
            }
        }
    }
}

/// Gets a table of this version or a newer one, from the node that mentioned it or any other.
/// Whether there is a newer one now.
fn fetch(shared: &RemoteShared, from: NodeId, version: u64) -> bool {
    let known = shared.nodes.known();
    let mut links: Vec<_> = known.links.iter().filter(|link| link.remote.is_up()).collect();
    links.sort_by_key(|link| link.node != from);
    let mut best: Option<PlacementMap> = None;
    for link in links {
        match table_of(&link.remote) {
            Ok(table) if best.as_ref().is_none_or(|best| best.version < table.version) => {
                best = Some(table);
            }
            Ok(_) => {}
            Err(why) => {
                log::debug!("node {} at {}: its table: {why}", link.node, link.address());
            }
        }
        if best.as_ref().is_some_and(|best| best.version >= version) {
            break;
        }
    }
    let Some(table) = best.filter(|table| table.version > known.version()) else {
        return false;
    };
    match shared.nodes.adopt(table) {
        Ok(gone) => {
            gone.iter().for_each(|link| let_go(shared, link));
            true
        }
        Err(why) => {
            log::error!("a newer table of the metadata nodes cannot be used: {why}");
            false
        }
    }
}
