//! What a reader of a change feed has that applies every event: the names below the directory.

use std::collections::BTreeMap;

use kestrel_types::feed::{FeedEvent, FeedEventKind};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;

/// Paths, and what they stand for.
pub type NamesBelow = BTreeMap<Vec<u8>, InodeId>;

/// See the module's header.
#[derive(Debug, Default, Clone)]
pub struct FeedMirror {
    /// All names.
    pub names: NamesBelow,
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path == dir || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"))
}

impl FeedMirror {
    /// Takes a name and all below it out: paths from there.
    fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, InodeId)> {
        let below: Vec<Vec<u8>> =
            self.names.keys().filter(|name| is_below(name, path)).cloned().collect();
        let taken = below.iter().map(|name| (name[path.len()..].to_vec(), self.names.remove(name)));
        taken.filter_map(|(rest, ino)| Some((rest, ino?))).collect()
    }

    fn put(&mut self, path: &[u8], tree: Vec<(Vec<u8>, InodeId)>) {
        self.names.extend(tree.into_iter().map(|(rest, ino)| ([path, &*rest].concat(), ino)));
    }

    /// Applies an event. `scan` adds the names below a directory that came from elsewhere.
    ///
    /// # Errors
    /// If the event does not fit what is there.
    pub fn apply(
        &mut self,
        event: &FeedEvent,
        scan: &mut dyn FnMut(InodeId, &[u8], &mut NamesBelow),
    ) -> Result<(), String> {
        let FeedEvent { kind, ino, file, path, to } = event;
        let has = |mirror: &Self, path: &[u8]| mirror.names.get(path).copied();
        let fits = |fits: bool| match fits {
            true => Ok(()),
            false => Err(format!("{event:?} does not fit {:?}", self.names)),
        };
        // A name comes after the directory that it is in.
        let has_parent = |mirror: &Self, path: &[u8]| {
            let parent = path.iter().rposition(|byte| *byte == b'/');
            parent.is_none_or(|end| mirror.names.contains_key(&path[..end]))
        };
        let target = to.as_ref().map(|to| (&*to.path, to.before.map(|(ino, _)| ino)));
        match (kind, target) {
            (FeedEventKind::Create, None) => {
                fits(has(self, path).is_none() && has_parent(self, path))?;
                self.names.insert(path.to_vec(), *ino);
            }
            (FeedEventKind::Remove | FeedEventKind::MovedOut, None) => {
                fits(has(self, path) == Some(*ino))?;
                self.take(path);
            }
            (FeedEventKind::Rename, Some((to, replaced))) => {
                fits(has(self, path) == Some(*ino) && has(self, to) == replaced)?;
                fits(has_parent(self, to))?;
                self.take(to);
                let tree = self.take(path);
                self.put(to, tree);
            }
            (FeedEventKind::Exchange, Some((to, other))) => {
                fits(has(self, path) == Some(*ino) && has(self, to) == other && other.is_some())?;
                let (one, two) = (self.take(path), self.take(to));
                self.put(path, two);
                self.put(to, one);
            }
            (FeedEventKind::MovedIn, None) => {
                fits(has_parent(self, path))?;
                self.take(path);
                self.names.insert(path.to_vec(), *ino);
                if *file == Kind::Dir {
                    scan(*ino, path, &mut self.names);
                }
            }
            (FeedEventKind::Modify | FeedEventKind::Attributes, None) => {
                fits(has(self, path) == Some(*ino))?;
            }
            _ => return Err(format!("{event:?} has a wrong number of names")),
        }
        Ok(())
    }
}
