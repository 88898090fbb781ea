//! Dentries of other members: asking for them, and telling them.
//!
//! An answer to what was asked before a directory was invalidated may be older than that, so it is
//! thrown away and asked for again. (All of them are, whichever directory it was: that is simpler
//! than to know which, and changes of directories are rare.)

use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::perm::{Dentry, Guard};
use kestrel_meta::replica::PolicyUse;
use kestrel_meta::stop::Want;
use kestrel_meta::view::{decode_dir_id, guard_of};
use kestrel_types::clock::{MILLISECOND, Nanos};
use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;

use super::message::{Fetched, Message};
use super::work::{Stage, Work};
use super::{ClusterNode, Deferred, RESEND};

/// A question for a dentry that is under way.
pub(super) struct Fetching {
    want: Want,
    /// Where a directory with a number is said to be.
    at: Option<(InodeId, Box<[u8]>)>,
    tickets: Vec<u64>,
    /// When it was sent last, or is to be sent next.
    sent: Nanos,
    /// It waits until then before it asks again.
    rests: bool,
    /// A directory was invalidated since it was sent.
    void: bool,
}

impl ClusterNode {
    /// Asks for a dentry on behalf of a request.
    pub(super) fn fetch(&mut self, want: Want, ticket: u64) {
        if let Some(fetching) = self.fetches.values_mut().find(|fetching| fetching.want == want) {
            return fetching.tickets.push(ticket);
        }
        let tickets = vec![ticket];
        self.ask(Fetching { want, at: None, tickets, sent: 0, rests: false, void: false });
    }

    fn ask(&mut self, mut fetching: Fetching) {
        let number = self.number();
        (fetching.sent, fetching.rests, fetching.void) = (self.now, false, false);
        self.send_fetch(number, &fetching);
        self.fetches.insert(number, fetching);
    }

    fn send_fetch(&mut self, number: u64, fetching: &Fetching) {
        let want = match (&fetching.want, &fetching.at) {
            (Want::Id(ROOT), _) => Want::Name(0, Box::default()),
            (Want::Id(_), Some((parent, name))) => Want::Name(*parent, name.clone()),
            (want, _) => want.clone(),
        };
        let to = match &want {
            Want::Name(parent, name) => self.table.owner_of_entry(*parent, name),
            Want::Id(ino) => self.table.home_of(*ino),
        };
        let table = self.table.placement.version;
        self.send(to, Message::Fetch { number, table, want });
    }

    /// Tells another member, or this one, about a dentry. Not before it is durable.
    pub(super) fn look_up(&mut self, from: NodeId, number: u64, table: u64, want: &Want) {
        let key = match want {
            Want::Name(parent, name) => Key::new(Table::Entry, *parent, name),
            Want::Id(ino) => Key::new(Table::DirId, *ino, b""),
        };
        let (mut found, mut wait) = (Ok(Fetched::None), 0);
        let leaves = self.table.is_leaving(key.table, key.id, &key.suffix);
        if !self.agrees(from, table)
            || leaves
            || self.cluster().locks.bars(key.borrow(), RowLockMode::Shared)
        {
            found = Ok(Fetched::Busy);
        } else {
            let read = self.node.engine().get_many(&[key.borrow()], &mut |_, row| {
                wait = row.changed_at;
                if let Some(row) = row.value {
                    found = match want {
                        Want::Name(..) => Entry::decode(row).and_then(told_of),
                        Want::Id(_) => decode_dir_id(row)
                            .map(|(parent, name)| Fetched::At(parent, name.into())),
                    };
                }
            });
            if let Err(why) = read {
                log::error!("a dentry that another node asks for: {why}");
                return;
            }
        }
        match found {
            // Another one may have begun to serve that row while it was read.
            Ok(_) if !self.cluster().may_answer() => {}
            Ok(found) => {
                self.when_durable(wait, Deferred::Send(from, Message::Fetched(number, found)))
            }
            // No member can be told anything about it until it is repaired; the asking request
            // gives up at its deadline.
            Err(why) => log::error!("damaged row of a directory that another node asks for: {why}"),
        }
    }

    pub(super) fn fetched(&mut self, number: u64, found: Fetched) {
        let Some(mut fetching) = self.fetches.remove(&number) else { return };
        if fetching.void {
            fetching.at = None;
            return self.ask(fetching);
        }
        match found {
            Fetched::Busy => self.ask_later(fetching),
            Fetched::At(parent, name) => {
                fetching.at = Some((parent, name));
                self.ask(fetching);
            }
            Fetched::Dir { ino, mode, uid, gid, policy, acls } => {
                let (parent, name) = match (&fetching.want, &fetching.at) {
                    (Want::Name(parent, name), _) => (*parent, name.clone()),
                    (Want::Id(want), Some(at)) if *want == ino => at.clone(),
                    (Want::Id(ROOT), _) => (0, Box::default()),
                    // It has been moved since its place was told.
                    (Want::Id(_), _) => return self.ask_later(fetching),
                };
                let parent = if ino == ROOT { ROOT } else { parent };
                let guard = Guard { mode, uid, gid, dir: true, acls };
                let dir = Dentry { ino, parent, guard, policy };
                let quiet = self.node.quiesce();
                self.node.core().replica.insert(dir, &name, 0);
                drop(quiet);
                self.resume(fetching.tickets);
            }
            Fetched::None if matches!(fetching.want, Want::Id(_)) && fetching.at.is_some() => {
                // As above, or removed.
                self.ask_later(fetching);
            }
            Fetched::None => {
                for ticket in &fetching.tickets {
                    if let Some(work) = self.works.get_mut(ticket) {
                        work.no_dirs.insert(fetching.want.clone());
                    }
                }
                self.resume(fetching.tickets);
            }
        }
    }

    /// The transaction that changes it may need what a waiting transaction holds, and so may the
    /// request that asks: a row that it has locked may be the dentry's own. So it gives that up,
    /// and begins again when the dentry is there.
    fn ask_later(&mut self, mut fetching: Fetching) {
        for ticket in &fetching.tickets {
            let leads = |work: &Work| matches!(work.stage, Stage::Leading(_));
            if !self.works.get(ticket).is_some_and(leads) {
                continue;
            }
            self.give_up(*ticket);
            if let Some(work) = self.works.get_mut(ticket) {
                // They may be directories by then.
                work.no_dirs.clear();
                work.stage = Stage::Fetching;
            }
        }
        fetching.at = None;
        fetching.rests = true;
        fetching.sent = self.now + 2 * MILLISECOND + self.random_time(20 * MILLISECOND);
        let number = self.number();
        self.fetches.insert(number, fetching);
    }

    fn resume(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            let Some(work) = self.works.get(&ticket) else { continue };
            match &work.stage {
                // What is no directory has to be looked at as a row, under a lock.
                Stage::Fetching if !work.no_dirs.is_empty() => self.lead(ticket),
                Stage::Fetching => self.run_alone(ticket),
                Stage::Leading(_) => self.run(ticket),
                _ => {}
            }
        }
    }

    /// Directories change: their dentries go, and whatever was asked before is void.
    pub(super) fn invalidate(&mut self, from: NodeId, changes: Vec<(TxnId, Vec<InodeId>)>) {
        let quiet = self.node.quiesce();
        for dir in changes.iter().flat_map(|(_, dirs)| dirs) {
            self.node.core().replica.remove(*dir);
            self.cluster().sums.forget_dir(*dir);
        }
        drop(quiet);
        self.doubt_policies(&changes);
        self.void_fetches();
        let txns = changes.into_iter().map(|(txn, _)| txn).collect();
        self.send(from, Message::Invalidated(txns));
    }

    /// Directories were forgotten, which may be because a policy changes. A transaction that was
    /// run before and is not decided may change what that policy makes immutable: it is run again.
    fn doubt_policies(&mut self, changes: &[(TxnId, Vec<InodeId>)]) {
        if self.node.core().replica.policy_use() == PolicyUse::None {
            return;
        }
        for (txn, ticket) in &self.leads {
            if changes.iter().any(|(changing, _)| changing == txn) {
                continue;
            }
            if let Some(Stage::Leading(lead)) =
                self.works.get_mut(ticket).map(|work| &mut work.stage)
            {
                lead.doubtful = true;
            }
        }
    }

    /// What was asked for until now is to be asked for again.
    pub(super) fn void_fetches(&mut self) {
        for fetching in self.fetches.values_mut() {
            fetching.void = true;
        }
    }

    /// There is nobody to ask any more, and an answer of this member's own may be older than a
    /// change, which locks nothing now.
    pub(super) fn end_fetches(&mut self) {
        for fetching in std::mem::take(&mut self.fetches).into_values() {
            for ticket in fetching.tickets {
                if self.works.get(&ticket).is_some_and(|work| matches!(work.stage, Stage::Fetching))
                {
                    self.run_alone(ticket);
                }
            }
        }
    }

    pub(super) fn forget_fetches(&mut self, ticket: u64) {
        self.fetches.retain(|_, fetching| {
            fetching.tickets.retain(|other| *other != ticket);
            !fetching.tickets.is_empty()
        });
    }

    pub(super) fn tick_fetches(&mut self) {
        let now = self.now;
        let due = |fetching: &Fetching| match fetching.rests {
            true => fetching.sent <= now,
            false => fetching.sent + RESEND <= now,
        };
        let due: Vec<u64> =
            self.fetches.iter().filter(|(_, f)| due(f)).map(|(number, _)| *number).collect();
        for number in due {
            let Some(mut fetching) = self.fetches.remove(&number) else { continue };
            if fetching.void || fetching.rests {
                // A new number: an answer to the old one, should it still come, is not waited for
                // any more.
                self.ask(fetching);
            } else {
                fetching.sent = now;
                self.send_fetch(number, &fetching);
                self.fetches.insert(number, fetching);
            }
        }
    }
}

fn told_of(entry: Entry) -> Result<Fetched, DecodeError> {
    Ok(match entry {
        Entry::Inode(inode) if inode.kind == Kind::Dir => Fetched::Dir {
            ino: inode.ino,
            mode: guard_of(&inode).mode,
            uid: inode.uid,
            gid: inode.gid,
            policy: inode.policy()?,
            acls: inode.acls,
        },
        _ => Fetched::None,
    })
}
