//! Effective policies: what the directories of a path say, the nearest one first.
//!
//! A dentry has what its directory itself says. What counts below it is found by a walk up through
//! the namespace replica, and kept by each worker as long as the replica has been told to forget no
//! directory ([`crate::path_cache`]): so a rename or a change of a policy concerns one dentry, not
//! those of a subtree. Where no directory of the volume has ever had a policy, which the root's
//! record says, none of that happens.

use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Policy, PolicyRecord};

use super::{At, LocatedInode, Run, View, damaged};
use crate::perm::{self, Dentry};
use crate::replica::PolicyUse;

impl View<'_> {
    /// Whether directories of the volume have policies.
    #[inline]
    pub fn has_policies(&mut self) -> Run<bool> {
        if self.effects.dirs_changed.is_empty() {
            match self.core.replica.policy_use() {
                PolicyUse::None => return self.leased().map(|()| false),
                PolicyUse::Some => return Ok(true),
                PolicyUse::Unknown => {}
            }
        }
        self.root_says_policies()
    }

    /// Whether they may have some: where the root's record has not been read and is not needed, no
    /// request waits for it.
    #[inline]
    pub fn may_have_policies(&self) -> bool {
        self.core.replica.policy_use() == PolicyUse::Some && self.lease_view.is_held()
    }

    #[cold]
    fn root_says_policies(&mut self) -> Run<bool> {
        Ok(self.find_dir(ROOT)?.is_some_and(|root| root.policy.in_use))
    }

    /// What counts for the names in a directory.
    #[inline]
    pub fn handed_down(&mut self, dir: &Dentry) -> Run<Policy> {
        if !self.has_policies()? {
            return Ok(Policy::default());
        }
        self.walk_up(dir)
    }

    /// The same, of a directory known by number; nothing if there is none.
    pub fn handed_down_by(&mut self, dir: InodeId) -> Run<Policy> {
        if !self.has_policies()? {
            return Ok(Policy::default());
        }
        match self.find_dir(dir)? {
            Some(dir) => self.walk_up(&dir),
            None => Ok(Policy::default()),
        }
    }

    fn walk_up(&mut self, dir: &Dentry) -> Run<Policy> {
        let forgotten = self.core.replica.forgotten();
        let keeps = self.effects.dirs_changed.is_empty();
        if keeps && let Some((policy, changed_at)) = self.walks.policy(forgotten, dir.ino) {
            self.leased()?;
            self.wait = self.wait.max(changed_at);
            return Ok(policy);
        }
        let before = std::mem::take(&mut self.wait);
        let walked = self.walk_to_root(dir.ino);
        let changed_at = self.wait;
        self.wait = changed_at.max(before);
        let policy = walked?;
        if keeps {
            self.walks.keep_policy(forgotten, dir.ino, (policy, changed_at));
        }
        Ok(policy)
    }

    fn walk_to_root(&mut self, dir: InodeId) -> Run<Policy> {
        // Read anew, for the position of the change that made it what it is.
        let mut at = self.dir(dir)?;
        let mut policy = at.policy.own;
        while at.ino != ROOT {
            at = self.dir(at.parent)?;
            policy = policy.over(at.policy.own);
        }
        Ok(policy)
    }

    /// What counts for an inode that a request names. Of a directory what it says itself is
    /// included. Of a file with several names it is that of the name by which the request knows it.
    pub fn policy_of(&mut self, found: &LocatedInode, asked: &InodeRef) -> Run<Policy> {
        if !self.has_policies()? {
            return Ok(Policy::default());
        }
        match (&found.at, &asked.seen) {
            (At::Dir(_), _) => {
                let own = self.own_policy(&found.inode)?.own;
                Ok(own.over(self.policy_above(found, asked)?))
            }
            (At::Name { parent, .. }, _) => self.handed_down_by(*parent),
            (At::Link { .. }, Some((parent, name))) => {
                let cell = self.entry_cell(*parent, name.as_bytes());
                let leads = self.entry(cell)?.is_some_and(|entry| entry.ino() == found.inode.ino);
                if leads { self.handed_down_by(*parent) } else { Ok(Policy::default()) }
            }
            (At::Link { .. }, None) => Ok(Policy::default()),
        }
    }

    /// What counts for the name of a directory that a request names. Its dentry is not asked for:
    /// the request may have its row locked.
    pub fn policy_above(&mut self, dir: &LocatedInode, asked: &InodeRef) -> Run<Policy> {
        let ino = dir.inode.ino;
        if ino == ROOT || !self.has_policies()? {
            return Ok(Policy::default());
        }
        if let Some((parent, name)) = &asked.seen {
            let cell = self.entry_cell(*parent, name.as_bytes());
            if self.entry(cell)?.is_some_and(|entry| entry.ino() == ino) {
                return self.handed_down_by(*parent);
            }
        }
        match self.dir_place(ino)? {
            Some((parent, _)) => self.handed_down_by(parent),
            None => Ok(Policy::default()),
        }
    }

    /// What a directory itself says.
    pub fn own_policy(&self, dir: &Inode) -> Run<PolicyRecord> {
        dir.policy().map_err(|why| damaged("policy", &why))
    }

    /// Fails with `EPERM` if the names in a directory stay as they are; what counts for them.
    #[inline]
    pub fn check_names_change(&mut self, dir: &Dentry) -> Run<Policy> {
        let policy = self.handed_down(dir)?;
        perm::check_policy(policy)?;
        Ok(policy)
    }

    /// What counts for an inode that a request names and changes: fails with `EPERM` if it stays as
    /// it is.
    #[inline]
    pub fn check_inode_changes(&mut self, found: &LocatedInode, asked: &InodeRef) -> Run<Policy> {
        let policy = self.policy_of(found, asked)?;
        perm::check_policy(policy)?;
        Ok(policy)
    }
}
