//! Locks of WebDAV's clients (RFC 4918, section 6): each keeps other clients of WebDAV, and nothing
//! else, from changing a path. They are in memory, so they end with this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dav_server::davpath::DavPath;
use dav_server::ls::{DavLock, DavLockSystem, LsFuture};
use parking_lot::Mutex;
use xmltree::Element;

use crate::account::random_word;

/// Time of a lock if its client names none.
const TIME_DEFAULT: Duration = Duration::from_secs(600);

/// Longest time of a lock. A client that needs it longer refreshes it.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Most locks.
const LOCKS_MAX: usize = 10_000;

/// A lock and its end.
#[derive(Debug, Clone)]
struct TimedLock {
    lock: DavLock,
    end: Instant,
}

/// The locks by path, in byte order: what is below a path follows it.
#[derive(Debug, Default)]
struct Locks {
    by_path: BTreeMap<Vec<u8>, Vec<TimedLock>>,
    count: usize,
}

/// The locks of a file system.
#[derive(Debug, Clone, Default)]
pub struct LockTable(Arc<Mutex<Locks>>);

/// A path as the table has it: names with a slash behind each of them.
fn key(path: &DavPath) -> Vec<u8> {
    let names = path.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.flat_map(|name| name.iter().copied().chain([b'/'])).collect()
}

/// The tokens that a request has, and the user that made it; the user does not count with `None`.
struct Claim<'a> {
    user: Option<Option<&'a str>>,
    tokens: &'a [String],
}

impl Claim<'_> {
    fn holds(&self, lock: &DavLock) -> bool {
        self.tokens.contains(&lock.token)
            && self.user.is_none_or(|user| user == lock.principal.as_deref())
    }

    /// A lock of which the request would have to hold the token: every exclusive one, and one of
    /// the shared ones.
    fn misses<'l>(&self, locks: impl Iterator<Item = &'l DavLock>) -> Option<&'l DavLock> {
        let (mut held, mut shared) = (false, None);
        for lock in locks {
            match (self.holds(lock), lock.shared) {
                (true, _) => held = true,
                (false, true) => shared = shared.or(Some(lock)),
                (false, false) => return Some(lock),
            }
        }
        shared.filter(|_| !held)
    }
}

impl Locks {
    fn remove_ended(&mut self, now: Instant) {
        self.by_path.retain(|_, locks| {
            locks.retain(|lock| lock.end > now);
            !locks.is_empty()
        });
        self.count = self.by_path.values().map(Vec::len).sum();
    }

    /// The locks that hold for a path: its own, and those of directories above it that hold for
    /// all that is in them.
    fn covering<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = &'a DavLock> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
        let prefixes = std::iter::once(0).chain(ends).map(|end| &path[..end]);
        prefixes.flat_map(move |prefix| {
            let here = self.by_path.get(prefix).into_iter().flatten();
            here.map(|timed| &timed.lock).filter(move |lock| prefix == path || lock.deep)
        })
    }

    /// The locks of paths below a path.
    fn below<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = &'a DavLock> {
        let range = self.by_path.range(path.to_vec()..);
        let inside = range.take_while(move |(key, _)| key.starts_with(path));
        inside.filter(move |(key, _)| *key != path).flat_map(|(_, locks)| locks).map(|it| &it.lock)
    }

    /// A lock that stands in the way of a new one.
    fn conflict(&self, path: &[u8], shared: bool, deep: bool) -> Option<DavLock> {
        let below = self.below(path).filter(|_| deep);
        self.covering(path).chain(below).find(|lock| !(shared && lock.shared)).cloned()
    }

    /// A lock that keeps a request from changing a path.
    fn hindrance(&self, path: &[u8], claim: &Claim<'_>, deep: bool) -> Option<DavLock> {
        let below = || self.below(path).filter(|_| deep);
        let hindering = claim.misses(self.covering(path)).or_else(|| claim.misses(below()));
        hindering.cloned()
    }

    fn add(&mut self, path: &[u8], lock: DavLock, end: Instant) {
        self.by_path.entry(path.to_vec()).or_default().push(TimedLock { lock, end });
        self.count += 1;
    }

    /// The lock of a token that holds for a path: of which path it is, and which of its locks.
    fn find(&self, path: &[u8], token: &str) -> Option<(Vec<u8>, usize)> {
        let lock = self.covering(path).find(|lock| lock.token == token)?;
        let of = key(&lock.path);
        let at = self.by_path.get(&of)?.iter().position(|timed| timed.lock.token == token)?;
        Some((of, at))
    }

    fn remove_tree(&mut self, path: &[u8]) {
        self.by_path.retain(|key, _| !key.starts_with(path));
        self.count = self.by_path.values().map(Vec::len).sum();
    }
}

impl LockTable {
    /// The locks that have not ended.
    fn locks(&self, now: Instant) -> parking_lot::MutexGuard<'_, Locks> {
        let mut locks = self.0.lock();
        if locks.count > 0 {
            locks.remove_ended(now);
        }
        locks
    }
}

fn time(wanted: Option<Duration>) -> Duration {
    wanted.unwrap_or(TIME_DEFAULT).min(TIME_MAX)
}

/// What is known at once, as the future that the protocol library wants.
fn ready<T: Send + 'static>(value: T) -> LsFuture<'static, T> {
    Box::pin(std::future::ready(value))
}

impl DavLockSystem for LockTable {
    fn lock(
        &'_ self,
        path: &DavPath,
        principal: Option<&str>,
        owner: Option<&Element>,
        timeout: Option<Duration>,
        shared: bool,
        deep: bool,
    ) -> LsFuture<'_, Result<DavLock, DavLock>> {
        let (of, now, timeout) = (key(path), Instant::now(), time(timeout));
        let mut locks = self.locks(now);
        if let Some(lock) = locks.conflict(&of, shared, deep) {
            return ready(Err(lock));
        }
        let Ok(word) = random_word() else {
            log::error!("webdav: the system gives no random numbers for a lock");
            return ready(Err(unnamed(path)));
        };
        if locks.count >= LOCKS_MAX {
            log::warn!("webdav: there are {LOCKS_MAX} locks; one more is refused");
            return ready(Err(unnamed(path)));
        }
        let lock = DavLock {
            token: format!("opaquelocktoken:{word}"),
            path: Box::new(path.clone()),
            principal: principal.map(String::from),
            owner: owner.map(|owner| Box::new(owner.clone())),
            timeout_at: None,
            timeout: Some(timeout),
            shared,
            deep,
        };
        locks.add(&of, lock.clone(), now + timeout);
        ready(Ok(lock))
    }

    fn unlock(&'_ self, path: &DavPath, token: &str) -> LsFuture<'_, Result<(), ()>> {
        let mut locks = self.locks(Instant::now());
        let Some((of, at)) = locks.find(&key(path), token) else { return ready(Err(())) };
        if let Some(here) = locks.by_path.get_mut(&of) {
            here.remove(at);
            if here.is_empty() {
                locks.by_path.remove(&of);
            }
            locks.count -= 1;
        }
        ready(Ok(()))
    }

    fn refresh(
        &'_ self,
        path: &DavPath,
        token: &str,
        timeout: Option<Duration>,
    ) -> LsFuture<'_, Result<DavLock, ()>> {
        let now = Instant::now();
        let mut locks = self.locks(now);
        let found = locks.find(&key(path), token);
        let timed = found.and_then(|(of, at)| locks.by_path.get_mut(&of)?.get_mut(at));
        ready(match timed {
            None => Err(()),
            Some(timed) => {
                let timeout = time(timeout.or(timed.lock.timeout));
                timed.lock.timeout = Some(timeout);
                timed.end = now + timeout;
                Ok(timed.lock.clone())
            }
        })
    }

    fn check(
        &'_ self,
        path: &DavPath,
        principal: Option<&str>,
        ignore_principal: bool,
        deep: bool,
        submitted_tokens: &[String],
    ) -> LsFuture<'_, Result<(), DavLock>> {
        let user = (!ignore_principal).then_some(principal);
        let claim = Claim { user, tokens: submitted_tokens };
        let locks = self.locks(Instant::now());
        ready(locks.hindrance(&key(path), &claim, deep).map_or(Ok(()), Err))
    }

    fn discover(&'_ self, path: &DavPath) -> LsFuture<'_, Vec<DavLock>> {
        let locks = self.locks(Instant::now());
        ready(locks.covering(&key(path)).cloned().collect())
    }

    fn delete(&'_ self, path: &DavPath) -> LsFuture<'_, Result<(), ()>> {
        self.locks(Instant::now()).remove_tree(&key(path));
        ready(Ok(()))
    }
}

/// What stands for the lock in the way where there is none.
fn unnamed(path: &DavPath) -> DavLock {
    DavLock {
        token: String::new(),
        path: Box::new(path.clone()),
        principal: None,
        owner: None,
        timeout_at: None,
        timeout: None,
        shared: false,
        deep: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> DavPath {
        DavPath::new(text).unwrap()
    }

    fn lock(table: &LockTable, at: &str, shared: bool, deep: bool) -> Result<DavLock, DavLock> {
        let lock = table.lock(&path(at), Some("a"), None, None, shared, deep);
        futures_util::FutureExt::now_or_never(lock).unwrap()
    }

    fn check(table: &LockTable, at: &str, user: &str, deep: bool, tokens: &[String]) -> bool {
        let check = table.check(&path(at), Some(user), false, deep, tokens);
        futures_util::FutureExt::now_or_never(check).unwrap().is_ok()
    }

    /// A lock keeps others from its path, and one of a directory from all that is in it.
    #[test]
    fn locks_of_files_and_directories() {
        let table = LockTable::default();
        let dir = lock(&table, "/a/", false, true).unwrap();
        let file = lock(&table, "/ab", false, false).unwrap();
        let tokens = [dir.token.clone()];
        assert!(check(&table, "/a/x/y", "a", false, &tokens));
        assert!(!check(&table, "/a/x/y", "b", false, &tokens), "another user's token");
        assert!(!check(&table, "/a/x/y", "a", false, &[]));
        assert!(
            !check(&table, "/ab", "a", false, &tokens) && check(&table, "/abc", "a", true, &[])
        );
        assert!(lock(&table, "/a/x", true, false).is_err());
        assert!(lock(&table, "/", false, true).is_err(), "there are locks below");
        assert!(check(&table, "/", "a", false, &[]) && !check(&table, "/", "a", true, &[]));
        for lock in [dir, file] {
            let unlock = table.unlock(&lock.path, &lock.token);
            assert!(futures_util::FutureExt::now_or_never(unlock).unwrap().is_ok());
        }
        assert_eq!(table.0.lock().count, 0);
        assert!(lock(&table, "/", false, true).is_ok());
    }

    /// Of shared locks a request needs one; an exclusive one does not come beside them.
    #[test]
    fn shared_locks() {
        let table = LockTable::default();
        let (one, _two) =
            (lock(&table, "/a", true, false).unwrap(), lock(&table, "/a", true, false).unwrap());
        assert!(lock(&table, "/a", false, false).is_err());
        assert!(
            check(&table, "/a", "a", false, &[one.token]) && !check(&table, "/a", "a", false, &[])
        );
    }

    /// A lock ends when its time is over, and a refreshed one later.
    #[test]
    fn ends_of_locks() {
        let table = LockTable::default();
        let one = lock(&table, "/a", false, false).unwrap();
        assert_eq!(one.timeout, Some(TIME_DEFAULT));
        let longer = table.refresh(&one.path, &one.token, Some(Duration::MAX));
        let longer = futures_util::FutureExt::now_or_never(longer).unwrap().unwrap();
        assert_eq!(longer.timeout, Some(TIME_MAX));
        let later = Instant::now() + TIME_DEFAULT + Duration::from_secs(1);
        assert_eq!(table.locks(later).count, 1);
        assert_eq!(table.locks(later + TIME_MAX).count, 0);
        assert!(check(&table, "/a", "b", false, &[]));
    }

    /// What is removed has no locks any more.
    #[test]
    fn locks_of_what_is_removed() {
        let table = LockTable::default();
        lock(&table, "/a/b", false, false).unwrap();
        lock(&table, "/ab", false, false).unwrap();
        let delete = table.delete(&path("/a/"));
        futures_util::FutureExt::now_or_never(delete).unwrap().unwrap();
        assert!(check(&table, "/a", "a", true, &[]) && !check(&table, "/ab", "a", true, &[]));
    }
}
