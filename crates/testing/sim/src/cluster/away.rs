//! A member that is away when all is over: cut off from the others, while clients reach it. A
//! directory is renamed without it, in bounded time, and it must not say that the directory is
//! where it was.

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::inode::Kind;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds, Op, RenameFlags, Request};

use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::feed::FeedScene;
use crate::network::MS;

/// In which time a directory that needs no row of the member must have been renamed: leases and
/// promises run out, messages take their time.
const RENAMES: Nanos = 12 * SECOND;

/// How long the member is cut off after that.
const STAYS: Nanos = 5 * SECOND;

impl ClusterRun {
    pub(super) fn rename_without_one(&mut self) {
        let placement = self.newest();
        let members: Vec<NodeId> = placement.map.members().iter().map(|member| member.id).collect();
        if members.len() < 3 || self.queue.failure.is_some() {
            return;
        }
        let away = *self.prng.pick(&members).expect("there are members");
        let name = |number: usize| Name::new(format!("away-{number}").as_bytes()).expect("a name");
        let is_own = |name: &Name| placement.owner_of(1, name.as_bytes()).id == away;
        let (mut own, mut others) =
            ((0..1000).map(name).filter(is_own), (0..1000).map(name).filter(|name| !is_own(name)));
        let (Some(from), Some(to), Some(file)) = (others.next(), others.next(), own.next()) else {
            // It owns next to nothing.
            return;
        };
        let at = |name: &Name| PathRef::new(1, name.clone());
        let mut below = PathRef::new(1, file);
        below.dirs.push(&from);

        // One that has nothing open, which a member that starts would wait for. The member learns
        // of the directory.
        self.clients[0] = self.new_client();
        self.observe(Op::MkDir(at(&from), 0o777));
        self.observe(Op::MkNod { place: below.clone(), kind: Kind::File, mode: 0o666, rdev: 0 });
        self.say(|| format!("network: {away} and all other nodes cut"));
        for other in self.hosts.keys().copied().filter(|other| *other != away).collect::<Vec<_>>() {
            for way in [(away, other), (other, away)] {
                self.cuts.insert(way, Nanos::MAX);
            }
        }
        // A member that starts has no directory in its replica, and requests the root's from its
        // owner.
        if placement.owner_of(0, b"").id != away && self.prng.chance(50) {
            self.restart_all_but(away);
        }
        let begun = self.queue.now;
        let renamed = self.observe(Op::Rename(at(&from), at(&to), RenameFlags::default()));
        if !matches!(renamed, Some(Ok(Answer::Renamed { .. }))) || self.queue.now - begun > RENAMES
        {
            let took = (self.queue.now - begun) / MS;
            return self.fail(format!(
                "a rename without node {away}, which is not needed: {renamed:?} after {took} ms"
            ));
        }
        // The history shows whether the answer may be given.
        self.call(0, Request { creds: Creds::root(), op: Op::Lookup(below.clone()) });
        let until = self.queue.now + STAYS;
        self.run_until(until, |world| !world.clients[0].waits());
        self.say(|| format!("network: {away} is connected"));
        self.cuts.clear();
        let until = self.queue.now + super::finish::REST_MAX;
        self.run_until(until, |world| !world.clients[0].waits());
        self.observe(Op::Lookup(below));
    }

    /// Processes start again at once, and have forgotten what they promised.
    fn restart_all_but(&mut self, away: NodeId) {
        let (now, placement) = (self.queue.now, self.newest());
        for node in
            placement.map.members().iter().map(|member| member.id).filter(|node| *node != away)
        {
            self.say(|| format!("node {node}: starts again"));
            self.host(node).kill(None, now);
            self.plan_in(MS, Event::Start(node));
        }
    }
}
