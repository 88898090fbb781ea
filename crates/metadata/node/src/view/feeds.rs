//! Events of change feeds for what an operation changed ([`kestrel_types::feed`]).
//!
//! What happened to names is a function of the rows: a name that stands for something else than
//! before. Only whether a change of an inode is one of its content depends on the operation.
//!
//! A directory's feed has the events of all that is below it, also where a directory further down
//! has a feed of its own; not of what is below one with `feed=none`, nor of the trash.

use std::sync::Arc;

use kestrel_types::feed::{FeedEvent, FeedEventKind, FeedPosition, FeedRow, FeedStart, FeedTarget};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Op, Request};
use kestrel_types::trash::TRASH;

use super::{Run, View, damaged};
use crate::feeds::{DirOnWay, FeedPlace, find_feed};
use crate::rows::NameChange;
use crate::stop::fail;
use kestrel_engine::Mutation;

/// What changes of an inode that keeps its name are to a feed, and the inode that a request names.
fn changed_inode(op: &Op) -> Option<(FeedEventKind, Option<&InodeRef>)> {
    use FeedEventKind::{Attributes, Modify};
    match op {
        Op::Commit(commit) => Some((Modify, Some(&commit.inode))),
        Op::Clone { to, .. } => Some((Modify, Some(to))),
        Op::SetAttr(inode, set) => {
            let kind = if set.size.is_some() { Modify } else { Attributes };
            Some((kind, Some(inode)))
        }
        Op::Open(inode, flags) if flags.truncate => Some((Modify, Some(inode))),
        Op::OpenAt(_, flags) if flags.truncate => Some((Modify, None)),
        Op::Create { flags, .. } if flags.truncate => Some((Modify, None)),
        Op::SetFlags(inode, _) | Op::SetXattr(inode, ..) | Op::RemoveXattr(inode, _) => {
            Some((Attributes, Some(inode)))
        }
        _ => None,
    }
}

/// A name that moved.
struct MovedName<'a> {
    /// A rename or an exchange.
    kind: FeedEventKind,
    /// What has the name.
    subject: (InodeId, Kind),
    /// Directory and name before.
    from: (InodeId, &'a [u8]),
    /// Directory and name now.
    to: (InodeId, &'a [u8]),
    /// What had that name before.
    before: Option<(InodeId, Kind)>,
}

impl View<'_> {
    /// Notes the events of what the operation that ran has changed.
    #[inline]
    pub fn note_feed_events(&mut self, request: &Request) -> Run<()> {
        let may_have_feeds = match self.core.cluster {
            None => self.core.feeds.in_use(),
            // A node of several knows of policies that others have set by dentries alone.
            Some(_) => self.rows.has_changes() && self.has_policies()?,
        };
        if may_have_feeds { self.note_changes(request) } else { Ok(()) }
    }

    fn note_changes(&mut self, request: &Request) -> Run<()> {
        let changes = self.rows.name_changes().map_err(|why| damaged("entry", &why))?;
        let in_place = changed_inode(&request.op);
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for NameChange { dir, name, old, new } in &changes {
            let same = matches!((old, new), (Some(old), Some(new)) if old.0 == new.0);
            if same {
                if let (Some((kind, _)), Some((ino, file))) = (in_place, new) {
                    self.note_name((kind, *ino, *file), *dir, name)?;
                }
                continue;
            }
            if let Some((ino, file)) = old {
                gone.push((*dir, name, *ino, *file));
            }
            if let Some((ino, file)) = new {
                come.push((*dir, name, *ino, *file));
            }
        }
        if changes.is_empty()
            && let Some((kind, Some(InodeRef { ino, seen: Some((dir, name)) }))) = in_place
        {
            return self.note_linked_inode(kind, *ino, (*dir, name.as_bytes()));
        }
        let is_clone = matches!(request.op, Op::CloneDir { .. });
        let came = if is_clone { FeedEventKind::MovedIn } else { FeedEventKind::Create };
        for (number, (dir, name, ino, file)) in gone.iter().enumerate() {
            let moved = come.iter().find(|(_, _, other, _)| other == ino);
            let replaced_by = come.iter().find(|(at, other, ..)| (at, other) == (dir, name));
            let Some((to_dir, to_name, ..)) = moved else {
                // Else the event of what replaced it tells.
                if replaced_by.is_none() {
                    self.note_name((FeedEventKind::Remove, *ino, *file), *dir, name)?;
                }
                continue;
            };
            let before = gone.iter().find(|(at, other, ..)| (at, other) == (to_dir, to_name));
            let before = before.map(|(_, _, ino, file)| (*ino, *file));
            let is_exchange = match (before, replaced_by) {
                (Some((before, _)), Some((_, _, new, _))) => before == *new,
                _ => false,
            };
            let is_told = if is_exchange {
                number > 0
            } else {
                replaced_by.is_some() && self.is_in_trash(*to_dir)?
            };
            if !is_told {
                let kind =
                    if is_exchange { FeedEventKind::Exchange } else { FeedEventKind::Rename };
                let (from, to) = ((*dir, &***name), (*to_dir, &***to_name));
                self.note_move(&MovedName { kind, subject: (*ino, *file), from, to, before })?;
            }
        }
        for (dir, name, ino, file) in &come {
            if !gone.iter().any(|(_, _, other, _)| other == ino) {
                self.note_name((came, *ino, *file), *dir, name)?;
            }
        }
        Ok(())
    }

    /// A change of a file with several names, which has none in its row: that by which the request
    /// knows it.
    fn note_linked_inode(
        &mut self,
        kind: FeedEventKind,
        ino: InodeId,
        (dir, name): (InodeId, &[u8]),
    ) -> Run<()> {
        if !self.rows.is_changed_link(ino) || self.feeds_above(dir)?.is_empty() {
            return Ok(());
        }
        let cell = self.entry_cell(dir, name);
        let found = self.entry(cell)?.map(|entry| (entry.ino(), entry.kind()));
        match found {
            Some((found, file)) if found == ino => self.note_name((kind, ino, file), dir, name),
            _ => Ok(()),
        }
    }

    fn note_name(
        &mut self,
        (kind, ino, file): (FeedEventKind, InodeId, Kind),
        dir: InodeId,
        name: &[u8],
    ) -> Run<()> {
        for place in self.feeds_above(dir)?.iter() {
            let event = FeedEvent { kind, ino, file, path: place.path_of(name), to: None };
            self.note_feed_event(place.feed, &event);
        }
        Ok(())
    }

    /// In the feeds that have both names it moved, in those that have one it came or went. Into the
    /// trash it was removed.
    fn note_move(&mut self, moved: &MovedName<'_>) -> Run<()> {
        let MovedName { kind, subject: (ino, file), from, to, before } = *moved;
        let ((from_dir, from), (to_dir, to)) = (from, to);
        let (left, entered) = (self.feeds_above(from_dir)?, self.feeds_above(to_dir)?);
        let event = |kind, ino, file, path| FeedEvent { kind, ino, file, path, to: None };
        // An exchange is two moves to a feed that has one of the names.
        let other = before.filter(|_| kind == FeedEventKind::Exchange);
        let is_removed = entered.is_empty() && !left.is_empty() && self.is_in_trash(to_dir)?;
        let went = if is_removed { FeedEventKind::Remove } else { FeedEventKind::MovedOut };
        for place in left.iter() {
            let path = place.path_of(from);
            let event = match entered.iter().find(|other| other.feed == place.feed) {
                Some(there) => {
                    let to = Some(FeedTarget { path: there.path_of(to), before });
                    FeedEvent { to, ..event(kind, ino, file, path) }
                }
                None => match other {
                    Some((ino, file)) => event(FeedEventKind::MovedIn, ino, file, path),
                    None => event(went, ino, file, path),
                },
            };
            self.note_feed_event(place.feed, &event);
        }
        for place in entered.iter() {
            if !left.iter().any(|other| other.feed == place.feed) {
                let event = event(FeedEventKind::MovedIn, ino, file, place.path_of(to));
                self.note_feed_event(place.feed, &event);
            }
        }
        Ok(())
    }

    /// The feed that a directory is in.
    pub fn feed_of(&mut self, dir: InodeId, from: FeedStart) -> Run<FeedPlace> {
        find_feed(dir, from, |at| {
            let feed = self.dir(at)?.policy.own.feed;
            let place = self.dir_place(at)?;
            let removed = fail(libc::ENOENT, "the directory has been removed");
            Ok(DirOnWay { feed, place: place.ok_or(removed)? })
        })
    }

    fn note_feed_event(&mut self, feed: InodeId, event: &FeedEvent) {
        let number = self.effects.feed_rows.len() as u32;
        let node = self.core.cluster.as_ref().map_or(0, |cluster| cluster.me);
        let worker = FeedPosition::worker_of(node, self.worker);
        let position = FeedPosition { stamp: self.stamp, worker, number };
        let key = FeedRow::Event(position).key(feed);
        self.effects.feed_rows.push(Mutation { key, value: Some(event.encode()) });
    }

    fn is_in_trash(&mut self, mut dir: InodeId) -> Run<bool> {
        while dir != ROOT {
            let Some((parent, name)) = self.dir_place(dir)? else { return Ok(false) };
            if parent == ROOT && *name == *TRASH {
                return Ok(true);
            }
            dir = parent;
        }
        Ok(false)
    }

    /// The feeds that have the events of names in a directory, that of the nearest directory first.
    fn feeds_above(&mut self, dir: InodeId) -> Run<Arc<[FeedPlace]>> {
        let forgotten = self.core.replica.forgotten();
        let keeps = self.effects.dirs_changed.is_empty();
        if keeps && let Some(found) = self.walks.feeds(forgotten, dir) {
            return Ok(found);
        }
        let (mut found, mut names, mut at) = (Vec::new(), Vec::<Box<[u8]>>::new(), dir);
        // A directory that has been removed has no name any more.
        while let Some(dentry) = self.find_dir(at)? {
            match dentry.policy.own.feed.map(|kept| kept.hours()) {
                Some(0) => break,
                Some(_) => found.push(FeedPlace::new(at, &names)),
                None => {}
            }
            if at == ROOT {
                break;
            }
            let Some((parent, name)) = self.dir_place(at)? else { break };
            if parent == ROOT && *name == *TRASH {
                found.clear();
                break;
            }
            names.push(name);
            at = parent;
        }
        let found: Arc<[FeedPlace]> = found.into();
        if keeps {
            self.walks.keep_feeds(forgotten, dir, found.clone());
        }
        Ok(found)
    }
}
