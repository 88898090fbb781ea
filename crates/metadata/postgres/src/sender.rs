//! Turns committed batches into transactions, in order.
//!
//! A transaction is one statement (`Texts::write`): it moves the shard's position from the last
//! batch before it to its own last one, if the epoch is this process's and the position is that,
//! and only then writes its rows. So if transactions are lost, sent twice, or overtake:
//! - a transaction is in the database only with all those before it, and only once;
//! - a process that was fenced writes nothing;
//! - after a connection broke with transactions under way, the position shows which of them are in,
//!   once a write behind them has waited for the standbys ([`Session::confirm`]): a transaction
//!   that was waiting when its session or server ended is seen, and may be nowhere else yet.
//!
//! With nothing to send, it checks the shard now and then ([`SenderState::check`]), so that an
//! engine that only reads finds out that it was replaced.
//!
//! That allows for several under way on one connection without waiting for the answer of the first:
//! if that fails, the others find another position and do nothing. What queues up meanwhile goes in
//! one transaction together.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{Either, MaybeDone, maybe_done, select};
use kestrel_engine::EngineError;
use kestrel_types::ids::Position;
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

use crate::failure::{Remedy, failed, remedy};
use crate::schema::{ShardRecord, fence};
use crate::session::{
    STATEMENT_MAX, Session, SessionError, SessionPurpose, establish, open, reader,
};
use crate::shared::EngineShared;

/// Transactions under way.
const UNDER_WAY_MAX: usize = 2;
/// Mutations and bytes after which a transaction takes no more batches.
const MUTATIONS_MAX: usize = 8192;
const BYTES_MAX: usize = 4 << 20;
/// Pause before a transaction that failed is sent again.
const PAUSE: Duration = Duration::from_millis(100);
/// The same for a full database.
const PAUSE_FULL: Duration = Duration::from_millis(500);
/// A database that has answered nothing for so long gets a question over another connection, and
/// has so long to answer.
const PROBE_AFTER: Duration = Duration::from_millis(500);
const PROBE_MAX: Duration = Duration::from_secs(5);
/// How often the shard is looked after while there is nothing to send.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A transaction.
struct Transaction {
    /// The shard's position before it and after it.
    from: Position,
    to: Position,
    /// By key: the value, or `None` to delete.
    rows: BTreeMap<Vec<u8>, Option<Box<[u8]>>>,
    /// As the queue counted its batches.
    bytes: usize,
}

/// How many shards the statement found, or why it was not carried out; `None` if it took too long.
type Answer = Option<Result<i64, Error>>;

/// A transaction that was sent.
struct SentTransaction {
    transaction: Arc<Transaction>,
    answer: Pin<Box<MaybeDone<futures_util::future::BoxFuture<'static, Answer>>>>,
}

/// The sender's side of things.
struct SenderState {
    shared: Arc<EngineShared>,
    session: Arc<Session>,
    /// The session has the shard's lock.
    held: bool,
    under_way: VecDeque<SentTransaction>,
    /// To be sent before anything new.
    again: VecDeque<Arc<Transaction>>,
    /// Where the newest transaction ends.
    end: Position,
    /// Since when nothing gets through.
    failing_since: Option<Instant>,
}

async fn carry_out(
    shared: Arc<EngineShared>,
    session: Arc<Session>,
    transaction: Arc<Transaction>,
) -> Answer {
    let [mut keys, mut values, mut gone]: [Vec<&[u8]>; 3] = Default::default();
    for (key, value) in &transaction.rows {
        match value {
            Some(value) => {
                keys.push(key);
                values.push(value);
            }
            None => gone.push(key),
        }
    }
    let (from, to) = (transaction.from.cast_signed(), transaction.to.cast_signed());
    let epoch = shared.epoch().0.cast_signed();
    let values: [&(dyn ToSql + Sync); 7] =
        [&to, &shared.shard, &epoch, &from, &keys, &values, &gone];
    let answer = session.client.query_one(&session.write, &values);
    shared.health.begins();
    let limit = STATEMENT_MAX.min(shared.url.deadline);
    let answer = tokio::time::timeout(limit, answer).await.ok()?;
    Some(answer.and_then(|row| row.try_get(0)))
}

/// Makes sure that what the session has written has waited for the standbys, though that wait may
/// have been cancelled.
async fn waited_for(shared: &EngineShared, session: &Session) -> Result<(), EngineError> {
    if session.is_waited_for() {
        return Ok(());
    }
    let limit = STATEMENT_MAX.min(shared.url.deadline);
    let confirmed = tokio::time::timeout(limit, session.confirm(shared, shared.epoch())).await;
    confirmed.unwrap_or_else(|_| Err(no_answer())).map(drop)
}

/// Checks in a full database whether the shard is still this process's: by a write that takes no
/// room and waits for the standbys like any other, as a primary that was replaced may be full as
/// well.
async fn stands_though_full(shared: &EngineShared, session: &Session) -> Result<(), EngineError> {
    let limit = STATEMENT_MAX.min(shared.url.deadline);
    match tokio::time::timeout(limit, session.confirm(shared, shared.epoch())).await {
        Ok(Ok(_)) => {
            shared.confirmed();
            Ok(())
        }
        Ok(Err(why @ (EngineError::Fenced { .. } | EngineError::Refused(_)))) => Err(why),
        // The next transaction fails with what is wrong.
        Ok(Err(_)) | Err(_) => Ok(()),
    }
}

/// How the shard stands, by the session or by a new one if that is of no use; `None` while the
/// database cannot be reached, which is no harm as long as there is nothing to send.
async fn check(
    shared: &EngineShared,
    session: &Session,
) -> Result<Option<(Option<Session>, ShardRecord)>, EngineError> {
    if !session.client.is_closed() {
        let durable = shared.row_cache.durable();
        let answer = fence(&session.client, &shared.texts.fence, shared.shard);
        if let Ok(Ok(fence)) = tokio::time::timeout(STATEMENT_MAX, answer).await {
            shared.expects(fence, durable)?;
            return Ok(Some((None, fence)));
        }
    }
    if session.generation == shared.generation() {
        log::warn!("PostgreSQL: the connection is lost; connecting again");
        shared.next_generation();
    }
    match tokio::time::timeout(STATEMENT_MAX, open(shared, SessionPurpose::Onward)).await {
        Ok(Ok((session, fence))) => Ok(Some((Some(session), fence))),
        Ok(Err(SessionError::Final(
            why @ (EngineError::Fenced { .. } | EngineError::Refused(_)),
        ))) => Err(why),
        // What else is wrong the next transaction finds out.
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// Sends a question over another connection while a transaction takes long, as one does that waits
/// for standbys or behind a checkpoint: only a database that answers nothing is silent.
pub async fn probe(shared: Arc<EngineShared>) {
    while !shared.is_stopping() {
        tokio::time::sleep(PROBE_AFTER).await;
        if shared.health.silence() < PROBE_AFTER {
            continue;
        }
        let answer = async {
            let session = reader(&shared, Instant::now()).await?;
            fence(&session.client, &shared.texts.fence, shared.shard).await
        };
        if let Ok(Ok(_)) = tokio::time::timeout(PROBE_MAX, answer).await {
            shared.health.answered();
        }
    }
}

/// Sends what is committed until the engine stops or fails.
pub async fn run(shared: Arc<EngineShared>, session: Session, end: Position) {
    let mut state = SenderState {
        session: Arc::new(session),
        held: true,
        under_way: VecDeque::new(),
        again: VecDeque::new(),
        end,
        failing_since: None,
        shared,
    };
    loop {
        match state.step().await {
            Ok(true) => {}
            Ok(false) => {
                return state.shared.fail(EngineError::Io("metadata engine: closed".into()));
            }
            Err(why) => {
                log::error!("{why}");
                return state.shared.fail(why);
            }
        }
    }
}

impl SenderState {
    /// Does something, or waits; false when all is done.
    async fn step(&mut self) -> Result<bool, EngineError> {
        while self.under_way.len() < UNDER_WAY_MAX
            && let Some(transaction) = self.next()?
        {
            self.send(transaction).await;
        }
        let shared = self.shared.clone();
        let news = shared.news.notified();
        let room = self.under_way.len() < UNDER_WAY_MAX;
        let Some(first) = self.under_way.front_mut() else {
            if shared.is_stopping() {
                return Ok(false);
            }
            if tokio::time::timeout(CHECK_EVERY, news).await.is_err() {
                self.check().await?;
            }
            return Ok(true);
        };
        if !room {
            first.answer.as_mut().await;
        } else if let Either::Right(_) = select(first.answer.as_mut(), Box::pin(news)).await {
            return Ok(true);
        }
        self.answered().await?;
        Ok(true)
    }

    /// Makes sure that the shard is still ours, and has a session and its lock; breaks off when
    /// there is something to do.
    async fn check(&mut self) -> Result<(), EngineError> {
        let (shared, session) = (self.shared.clone(), self.session.clone());
        shared.health.begins();
        let checking = Box::pin(check(&shared, &session));
        let Either::Left((seen, _)) = select(checking, Box::pin(shared.news.notified())).await
        else {
            return Ok(());
        };
        let Some((new, fence)) = seen? else { return Ok(()) };
        if let Some(new) = new {
            self.session = Arc::new(new);
            self.held = false;
        }
        self.stands(fence)?;
        self.note_answer();
        if !self.held {
            self.held = crate::advisory_lock::again(&self.session.client, &self.shared).await;
        }
        Ok(())
    }

    /// The database has answered; perhaps it has something else to answer.
    fn note_answer(&self) {
        self.shared.health.answered();
        if self.under_way.is_empty() && self.again.is_empty() {
            self.shared.health.rests();
        }
    }

    /// Refuses a shard that stands elsewhere than this process left it.
    fn stands(&self, fence: ShardRecord) -> Result<(), EngineError> {
        let expected = self.again.front().map_or(self.end, |first| first.from);
        if fence.position == expected {
            return Ok(());
        }
        Err(EngineError::Refused(format!(
            "metadata in PostgreSQL: {} stands at batch {}, and this process left it at \
             {expected}; somebody else writes there; see that \
             only one process runs on it",
            self.shared.url.shown(),
            fence.position
        )))
    }

    /// The next transaction, if there is anything to do.
    fn next(&mut self) -> Result<Option<Arc<Transaction>>, EngineError> {
        if let Some(transaction) = self.again.pop_front() {
            return Ok(Some(transaction));
        }
        let batches = self.shared.take(MUTATIONS_MAX, BYTES_MAX);
        let Some((to, _)) = batches.last() else { return Ok(None) };
        let (from, to) = (self.end, *to);
        let bytes = EngineShared::weigh(&batches);
        let mut rows = BTreeMap::new();
        for mutation in batches.into_iter().flat_map(|(_, mutations)| mutations) {
            let mut key = Vec::new();
            mutation.key.borrow().encode_into(&mut key);
            rows.insert(key, mutation.value);
        }
        // Data before metadata.
        tokio::task::block_in_place(|| (self.shared.before_sync)())?;
        self.end = to;
        Ok(Some(Arc::new(Transaction { from, to, rows, bytes })))
    }

    /// Sends a transaction: its statement is in the connection's queue when this returns, behind
    /// those before it.
    async fn send(&mut self, transaction: Arc<Transaction>) {
        let answer =
            carry_out(self.shared.clone(), self.session.clone(), transaction.clone()).boxed();
        let mut answer = Box::pin(maybe_done(answer));
        poll_fn(|context| {
            let _ = Future::poll(answer.as_mut(), context);
            Poll::Ready(())
        })
        .await;
        self.under_way.push_back(SentTransaction { transaction, answer });
    }

    /// The first transaction under way is answered.
    async fn answered(&mut self) -> Result<(), EngineError> {
        let Some(mut first) = self.under_way.pop_front() else { return Ok(()) };
        let why = match first.answer.as_mut().take_output().flatten() {
            Some(Ok(1)) => match waited_for(&self.shared, &self.session).await {
                Ok(()) => {
                    self.stored(&first.transaction);
                    return Ok(());
                }
                Err(why) => why,
            },
            // Another epoch, or another position: the shard's record shows which.
            Some(Ok(_)) => {
                EngineError::Io("metadata in PostgreSQL: the shard is not as expected".into())
            }
            Some(Err(why)) if remedy(&why) == Remedy::None => return Err(failed("writing", &why)),
            Some(Err(why)) => failed("writing", &why),
            None => no_answer(),
        };
        self.under_way.push_front(first);
        match why {
            EngineError::NoSpace => self.full().await,
            why => self.resume(why).await,
        }
    }

    /// The database is full: has everything sent again after a while. It answers, so this may go on
    /// for as long as it takes; only a caller that closes the engine does not wait longer than for
    /// one that does not answer.
    async fn full(&mut self) -> Result<(), EngineError> {
        self.shared.set_full();
        self.shared.health.answered();
        if self.shared.is_stopping() {
            self.until(&EngineError::NoSpace)?;
        } else {
            self.failing_since = None;
        }
        self.take_back();
        if !self.shared.is_stopping() {
            let (shared, session) = (self.shared.clone(), self.session.clone());
            stands_though_full(&shared, &session).await?;
        }
        tokio::time::sleep(PAUSE_FULL).await;
        Ok(())
    }

    /// What is under way is to be sent again. What of it the server still carries out changes the
    /// position, and the rest does nothing.
    fn take_back(&mut self) {
        while let Some(flight) = self.under_way.pop_back() {
            self.again.push_front(flight.transaction);
        }
    }

    /// Until when to try, nothing getting through.
    fn until(&mut self, why: &EngineError) -> Result<Instant, EngineError> {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let until = since + self.shared.url.deadline;
        if Instant::now() > until {
            return Err(given_up(&self.shared, why));
        }
        Ok(until)
    }

    fn stored(&mut self, transaction: &Transaction) {
        self.failing_since = None;
        self.note_answer();
        // Callbacks answer clients, and may take as long as that does.
        tokio::task::block_in_place(|| self.shared.stored(transaction.to, transaction.bytes));
    }

    /// Connects again after `why`, finds out what is in, and has the rest sent again.
    async fn resume(&mut self, why: EngineError) -> Result<(), EngineError> {
        let until = self.until(&why)?;
        log::warn!("{why}; connecting again to see what is in");
        self.take_back();
        self.shared.next_generation();
        self.shared.health.begins();
        tokio::time::sleep(PAUSE).await;
        let purpose =
            if self.again.is_empty() { SessionPurpose::Onward } else { SessionPurpose::Settle };
        let (session, fence) = match establish(&self.shared, purpose, until).await {
            Ok(established) => established,
            Err(EngineError::NoSpace) => return self.full().await,
            Err(why @ EngineError::Io(_)) => return Err(given_up(&self.shared, &why)),
            Err(why) => return Err(why),
        };
        self.session = Arc::new(session);
        self.held = crate::advisory_lock::again(&self.session.client, &self.shared).await;
        while let Some(first) =
            self.again.front().filter(|first| first.to <= fence.position).cloned()
        {
            self.stored(&first);
            self.again.pop_front();
        }
        self.note_answer();
        self.stands(fence)
    }
}

fn no_answer() -> EngineError {
    EngineError::Io("metadata in PostgreSQL: the database does not answer".into())
}

fn given_up(shared: &EngineShared, why: &EngineError) -> EngineError {
    EngineError::Io(format!(
        "metadata in PostgreSQL: nothing could be written to {} for {} s ({why}); changes that \
         were not acknowledged as durable are lost; \
         see to the database, then end this process and start it again",
        shared.url.shown(),
        shared.url.deadline.as_secs()
    ))
}
