//! Reads from the database, for what is not in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::row_cache::{Bytes, Cursor, RowStore, Sorted};
use kestrel_engine::{EngineError, LatencyHint};
use tokio::runtime::Handle;
use tokio_postgres::Row;

use crate::failure::{Remedy, failed, remedy};
use crate::session::{STATEMENT_MAX, reader};
use crate::shared::EngineShared;
use crate::wait;

/// Most keys in one statement.
const KEYS_MAX: usize = 4096;
/// Rows of the first page of a range, and of later ones.
const FIRST_PAGE: i64 = 128;
const PAGE: i64 = 1024;
/// Longest that a thread waits that is in a hurry ([`LatencyHint`]): by then its node has no lease
/// (`kestrel_cluster::lease`).
const HURRIED_MAX: Duration = Duration::from_secs(3);
/// Pause before a read that failed is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// The database as what lies below memory.
pub struct Database {
    shared: Arc<EngineShared>,
    runtime: Handle,
}

/// What is to be read.
enum Question {
    Rows(Vec<Vec<u8>>),
    Page { from: Vec<u8>, to: Vec<u8>, rows: i64 },
}

/// Sends a question until it is answered or the deadline is over: reading twice does no harm.
async fn query(shared: Arc<EngineShared>, question: Question) -> Result<Vec<Row>, EngineError> {
    let until = Instant::now() + shared.url.deadline;
    loop {
        shared.readable()?;
        let session = reader(&shared, until).await?;
        let answer = async {
            match &question {
                Question::Rows(keys) => {
                    session.client.query(&session.get, &[&shared.shard, keys]).await
                }
                Question::Page { from, to, rows } => {
                    session.client.query(&session.page, &[&shared.shard, from, to, rows]).await
                }
            }
        };
        let why = match tokio::time::timeout(STATEMENT_MAX, answer).await {
            Ok(Ok(rows)) => {
                shared.health.answered();
                return Ok(rows);
            }
            Ok(Err(why)) if remedy(&why) == Remedy::None => return Err(failed("reading", &why)),
            Ok(Err(why)) => failed("reading", &why),
            Err(_) => no_answer(),
        };
        if shared.is_stopping() || Instant::now() > until {
            return Err(why);
        }
        log::warn!("{why}; trying again");
        tokio::time::sleep(PAUSE).await;
    }
}

fn no_answer() -> EngineError {
    EngineError::Io("metadata in PostgreSQL: the database does not answer".into())
}

impl Database {
    /// Below this engine's memory.
    pub fn new(shared: Arc<EngineShared>, runtime: Handle) -> Self {
        Self { shared, runtime }
    }

    fn query(&self, question: Question) -> Result<Vec<Row>, EngineError> {
        let answer = query(self.shared.clone(), question);
        if !LatencyHint::is_on() {
            return wait(&self.runtime, answer);
        }
        let in_time = async {
            tokio::time::timeout(HURRIED_MAX, answer).await.unwrap_or_else(|_| Err(no_answer()))
        };
        wait(&self.runtime, in_time)
    }
}

impl RowStore for Database {
    fn get_many(
        &self,
        keys: &[Vec<u8>],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        for (part, keys) in keys.chunks(KEYS_MAX).enumerate() {
            // A caller may want the same row twice; the database would show it twice.
            let mut indices: HashMap<&[u8], Vec<usize>> = HashMap::with_capacity(keys.len());
            for (at, key) in keys.iter().enumerate() {
                indices.entry(key).or_default().push(part * KEYS_MAX + at);
            }
            let wanted = indices.keys().map(|key| key.to_vec()).collect();
            for row in self.query(Question::Rows(wanted))? {
                let (key, value): (&[u8], &[u8]) = (row.get(0), row.get(1));
                for at in indices.get(key).into_iter().flatten() {
                    visit(*at, value);
                }
            }
        }
        Ok(())
    }
}

impl Sorted for Database {
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_> {
        Box::new(Pages {
            database: self,
            next: Some(from.to_vec()),
            to: to.to_vec(),
            size: FIRST_PAGE,
            rows: VecDeque::new(),
        })
    }
}

/// Rows of a range, page by page.
struct Pages<'a> {
    database: &'a Database,
    /// Where the next page begins, if there is one.
    next: Option<Vec<u8>>,
    to: Vec<u8>,
    size: i64,
    rows: VecDeque<Row>,
}

impl Cursor for Pages<'_> {
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        if self.rows.is_empty()
            && let Some(from) = self.next.take()
        {
            let question = Question::Page { from, to: self.to.clone(), rows: self.size };
            self.rows = self.database.query(question)?.into();
            if self.rows.len() as i64 == self.size
                && let Some(last) = self.rows.back()
            {
                let mut behind: Vec<u8> = last.get(0);
                behind.push(0);
                self.next = Some(behind);
            }
            self.size = PAGE;
        }
        let row = self.rows.pop_front();
        Ok(row
            .map(|row| (Bytes::from(row.get::<_, &[u8]>(0)), Bytes::from(row.get::<_, &[u8]>(1)))))
    }
}
