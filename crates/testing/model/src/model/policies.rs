//! The model's policies: what directories hand down, and what an immutable tree refuses.

use std::fmt::Write;

use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Policy, PolicyField, XATTR_EFFECTIVE};
use kestrel_types::request::{Creds, XattrFlags};

use super::{EXEC, MaybeReply, Model, Run, code};

/// What precedes the number of a directory in the text of an effective policy.
const NUMBER: &str = " inode=";

impl Model {
    /// What counts for the names in a directory.
    pub(super) fn handed_down(&self, dir: u64) -> Policy {
        let (mut policy, mut at) = (Policy::default(), dir);
        while let Some(node) = self.nodes.get(&at) {
            policy = policy.over(node.policy);
            if at == ROOT {
                break;
            }
            at = node.parent;
        }
        policy
    }

    /// Fails if the names in a directory stay as they are.
    pub(super) fn names_change(&self, dir: u64) -> Run<()> {
        if self.handed_down(dir).is_immutable() { Err(libc::EPERM) } else { Ok(()) }
    }

    /// Fails if an inode that a request names stays as it is. Of a file that has had several names
    /// the one that the request knows counts; where that is none of its names, a node may not know
    /// one, and its reply says which it was.
    pub(super) fn inode_changes(&self, file: &InodeRef, reply: MaybeReply<'_>) -> Run<()> {
        let node = self.node(file.ino)?;
        if node.kind == Kind::Dir {
            return self.names_change(file.ino);
        }
        if let Some((dir, _)) = file.seen.as_ref().filter(|_| self.leads(file)) {
            return self.names_change(*dir);
        }
        let kept = self.dirs_with(file.ino).any(|dir| self.names_change(dir).is_err());
        let may_change = node.linked && reply.is_none_or(|reply| code(reply) != libc::EPERM);
        if kept && !may_change { Err(libc::EPERM) } else { Ok(()) }
    }

    /// Whether something has the name by which a request knows it.
    pub(super) fn leads(&self, file: &InodeRef) -> bool {
        file.seen.as_ref().is_some_and(|(dir, name)| {
            let dir = self.nodes.get(dir);
            dir.and_then(|dir| dir.children.get(name.as_bytes())) == Some(&file.ino)
        })
    }

    /// The directories that have a name of a file.
    fn dirs_with(&self, ino: u64) -> impl Iterator<Item = u64> {
        let has = move |child: &u64| *child == ino;
        let dirs = self.nodes.iter().filter(move |(_, node)| node.children.values().any(has));
        dirs.map(|(dir, _)| *dir)
    }

    /// Whether a reply may say this policy of what it shows, in this directory if that is known: of
    /// each field nothing, or what counts there. Of how long a client may keep it nothing where not
    /// every user may look the name up, and nothing of a file with several names.
    pub(super) fn may_tell(&self, dir: Option<u64>, ino: u64, real: &Inode) -> Result<(), String> {
        if real.effective == Policy::default() {
            return Ok(());
        }
        let is_dir = real.kind == Kind::Dir;
        let own = self.nodes.get(&ino).map(|node| node.policy).unwrap_or_default();
        let is_searched = |dir: u64| {
            let all = EXEC << 6 | EXEC << 3 | EXEC;
            self.nodes.get(&dir).is_some_and(|dir| dir.mode & all == all)
        };
        let fits = |dir: u64, is_kept: bool| {
            let right = own.over(self.handed_down(dir));
            let Policy { consistency, compression, trash, feed, tier } = real.effective;
            (trash, feed) == (None, None)
                && (consistency.is_none() || is_kept && consistency == right.consistency)
                && (compression.is_none() || compression == right.compression)
                && (tier.is_none() || tier == right.tier)
        };
        let right = match dir {
            None if is_dir => fits(ino, true),
            Some(dir) => fits(dir, is_searched(dir) && (is_dir || real.nlink < 2)),
            // A file that has lost its last name, or has had none, is said to be as another.
            None if real.nlink == 0 => real.effective.consistency.is_none(),
            None => self.dirs_with(ino).any(|dir| fits(dir, is_searched(dir) && real.nlink < 2)),
        };
        if right { Ok(()) } else { Err(format!("{real:?} says a policy that does not count")) }
    }

    pub(super) fn get_policy(&self, ino: u64, field: &[u8]) -> Run<Vec<u8>> {
        let node = self.node(ino)?;
        if node.kind != Kind::Dir {
            return Err(libc::ENODATA);
        }
        if field == XATTR_EFFECTIVE {
            return Ok(self.policy_text(ino).into_bytes());
        }
        let value = PolicyField::from_name(field).and_then(|field| node.policy.value(field));
        value.map(|value| value.as_bytes().to_vec()).ok_or(libc::ENODATA)
    }

    /// Each field that counts, and which directory says it.
    fn policy_text(&self, dir: u64) -> String {
        let (mut text, mut left) = (String::new(), PolicyField::ALL.to_vec());
        let (mut at, mut above) = (dir, 0);
        while let Some(node) = self.nodes.get(&at) {
            left.retain(|field| {
                let Some(value) = node.policy.value(*field) else { return true };
                writeln!(text, "{}={value} above={above}{NUMBER}{at}", field.name()).unwrap();
                false
            });
            if at == ROOT {
                break;
            }
            (at, above) = (node.parent, above + 1);
        }
        text
    }

    /// The names under which a listing of extended attributes has a directory's policy.
    pub(super) fn policy_names(&self, ino: u64) -> Vec<Vec<u8>> {
        let policy = self.nodes[&ino].policy;
        let is_listed = |field: &PolicyField| {
            let hidden = *field == PolicyField::Consistency && policy.is_immutable();
            policy.value(*field).is_some() && !hidden
        };
        let name = |field: PolicyField| format!("kestrel.{}", field.name()).into_bytes();
        PolicyField::ALL.into_iter().filter(is_listed).map(name).collect()
    }

    /// Sets a field of a policy, or unsets it.
    pub(super) fn set_policy(
        &mut self,
        creds: &Creds,
        ino: u64,
        (field, value): (&[u8], Option<&[u8]>),
        flags: XattrFlags,
    ) -> Run<()> {
        if field == XATTR_EFFECTIVE {
            return Err(libc::EPERM);
        }
        let field = PolicyField::from_name(field).ok_or(libc::EOPNOTSUPP)?;
        let mut new = Policy::default();
        if value.is_some_and(|value| !new.set(field, value)) {
            return Err(libc::EINVAL);
        }
        let node = self.node(ino)?;
        if node.kind != Kind::Dir {
            return Err(libc::EOPNOTSUPP);
        }
        if ![0, node.uid].contains(&creds.uid) {
            return Err(libc::EPERM);
        }
        self.changeable(ino)?;
        if ino != ROOT {
            self.names_change(node.parent)?;
        }
        let is_set = node.policy.value(field).is_some();
        if is_set && flags.create {
            return Err(libc::EEXIST);
        }
        if !is_set && (flags.replace || value.is_none()) {
            return Err(libc::ENODATA);
        }
        let now = self.now;
        let node = self.node_mut(ino);
        match value {
            Some(value) => assert!(node.policy.set(field, value), "it was checked"),
            None => node.policy.unset(field),
        }
        node.ctime = now;
        Ok(())
    }
}

/// The text of an effective policy without the numbers of directories, if it has any: of one that
/// was made unheard the number is not known.
pub(super) fn without_numbers(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().map(|line| line.split(NUMBER).next().unwrap_or_default()).collect()
}
