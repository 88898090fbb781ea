//! Listing: pages that can be relied on.
//!
//! A caller that deletes by a listing must not take a part of it for the whole
//! (juicedata/juicefs#6479). So a page must go forward from its requested beginning, must be as
//! long as it announces (checked below, in `wire::answer`), and the one that is marked as the last
//! is not believed at once: what comes behind it is requested once more. A request with an answer
//! that fails a check is repeated; if that does not help either, there is an error and no page.
//! (Not for as long as other failures: a whole page that is wrong is seldom an accident of its
//! transfer.)
//!
//! The cursor is a key, not the store's token: a token may expire, and a key can be checked.

use kestrel_blockstore::store::{ObjectInfo, Page, key};
use object_store::list::{PaginatedListOptions, PaginatedListStore};

use super::S3Store;
use crate::client::Attempt;
use crate::fault::{Cause, Failure, Fault};
use crate::rate_limiter::Direction;

/// Most keys in one answer: S3's own bound.
const KEYS_MAX: usize = 1000;

/// Most answers without a single key that are followed for one page.
const EMPTY_ANSWERS_MAX: usize = 16;

/// How often a page is requested that is empty and then is not.
const CONTRADICTIONS_MAX: usize = 4;

/// A part of a listing as the store gave it.
struct Answer {
    /// Keys below the prefix with size and time, ascending.
    keys: Vec<(String, u64, i64)>,
    /// The token with which the store goes on.
    token: Option<String>,
}

/// Keys of a page with size and time, and the last one if there are more.
pub(crate) type KeysPage = (Vec<(String, u64, i64)>, Option<String>);

impl S3Store {
    /// One page of objects.
    pub(crate) async fn page(&self, after: Option<&str>, limit: usize) -> Result<Page, Failure> {
        let (keys, next) = self.keys_below(key::ROOT, after, limit).await?;
        Ok(paged(keys, next))
    }

    /// One page of the keys below a folder, behind a key; keys are given without the store's
    /// prefix.
    pub(crate) async fn keys_below(
        &self,
        root: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeysPage, Failure> {
        let limit = limit.clamp(1, KEYS_MAX);
        for _ in 0..CONTRADICTIONS_MAX {
            let answer = self.answer_with_keys(root, after, limit).await?;
            let last = answer.keys.last().map(|(name, ..)| name.clone());
            let more = match &answer.token {
                Some(_) => true,
                None => {
                    let behind = last.as_deref().or(after);
                    !self.answer(root, behind, 1, None).await?.keys.is_empty()
                }
            };
            if last.is_some() || !more {
                return Ok((answer.keys, last.filter(|_| more)));
            }
            // There was nothing, and then something behind it: written just now, or the store
            // contradicts itself.
        }
        Err(contradiction("the store says that there are no more keys, and then that there are"))
    }

    /// An answer that has keys, unless there are no more.
    async fn answer_with_keys(
        &self,
        root: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Answer, Failure> {
        let mut answer = self.answer(root, after, limit, None).await?;
        for _ in 0..EMPTY_ANSWERS_MAX {
            if !answer.keys.is_empty() || answer.token.is_none() {
                return Ok(answer);
            }
            answer = self.answer(root, after, limit, answer.token).await?;
        }
        Err(contradiction("the store goes on and on without giving a key"))
    }

    /// Requests keys after `after`, or from a token on.
    async fn answer(
        &self,
        root: &str,
        after: Option<&str>,
        limit: usize,
        token: Option<String>,
    ) -> Result<Answer, Failure> {
        let options = &self.client.options;
        let prefix = options.key(&format!("{root}/"));
        // Names are given without the store's prefix, which is what cursors are too.
        let own = prefix.len() - root.len() - 1;
        let folder = &prefix[..prefix.len() - 1];
        let once = async || -> Attempt<Answer> {
            let list_options = PaginatedListOptions {
                offset: after.map(|after| options.key(after)),
                max_keys: Some(limit),
                page_token: token.clone(),
                ..PaginatedListOptions::default()
            };
            let page = self.client.s3.list_paginated(Some(&prefix), list_options).await?;
            let mut keys: Vec<(String, u64, i64)> = Vec::with_capacity(page.result.objects.len());
            for meta in page.result.objects {
                let full = meta.location.as_ref();
                // `object_store` takes the slash from keys that end in one, as consoles make them
                // for folders.
                let name = full.get(own..).filter(|_| full.starts_with(&prefix) || full == folder);
                let name = name.ok_or_else(|| {
                    Fault::inconsistent(format!("the listing of {prefix} has the key {full}"))
                })?;
                let before = keys.last().map(|(last, ..)| last.as_str());
                if before.is_none() && after == Some(name) {
                    continue;
                }
                if before.or(after).is_some_and(|before| name <= before) {
                    return Err(Fault::inconsistent(format!(
                        "the listing goes backwards at {full}"
                    ))
                    .into());
                }
                let modified = meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
                keys.push((name.to_string(), meta.size, modified));
            }
            if keys.len() > limit {
                return Err(Fault::inconsistent(format!(
                    "the page has {} keys, asked for {limit}",
                    keys.len()
                ))
                .into());
            }
            Ok(Answer { keys, token: page.page_token })
        };
        self.client.request(Direction::Down, 0, once).await
    }
}

fn paged(keys: Vec<(String, u64, i64)>, next: Option<String>) -> Page {
    let mut page = Page { next, ..Page::default() };
    for (name, size, modified) in keys {
        match key::parse(&name) {
            Some(object) => page.objects.push(ObjectInfo { object, size, modified }),
            None => page.unknown.push(name),
        }
    }
    page
}

fn contradiction(text: &str) -> Failure {
    let fault = Fault::found(Cause::Broken, text);
    Failure { fault, attempts: 1, took: std::time::Duration::ZERO }
}
