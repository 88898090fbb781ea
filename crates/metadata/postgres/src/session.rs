//! Connections that certainly lead to the right rows.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kestrel_engine::{EngineError, Epoch};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Statement};

use crate::failure::{Remedy, failed, remedy};
use crate::schema::{PLANNING, ShardRecord, Texts, confirm, fence};
use crate::shared::EngineShared;
use crate::url::PgUrl;

/// Longest that one statement may take, unless the deadline is shorter: then the connection counts
/// as lost. The server lets no statement wait longer for a lock, so that those of lost connections
/// do not pile up there.
pub const STATEMENT_MAX: Duration = Duration::from_secs(30);
/// Pauses between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often the server looks whether there is still a client for a statement that takes long.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// A session that checks a shard and sends nothing for so long is ended by the server. It sends
/// something every second.
const IDLE_MAX: Duration = Duration::from_secs(8);

/// The server's function that waits for standbys: its warnings mean that the wait was ended early.
/// Their text may be in any language.
const STANDBY_WAIT: &str = "SyncRepWaitForLSN";

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPurpose {
    /// To read, or to write what comes.
    Onward,
    /// For what is durable: the rows that it reads have waited for the standbys.
    Settle,
}

/// A connection and its statements.
pub struct Session {
    pub client: Client,
    /// A transaction did not wait for the standbys to its end, and succeeded: it is visible, and
    /// may still be lost.
    unwaited: Arc<AtomicBool>,
    pub write: Statement,
    pub get: Statement,
    pub page: Statement,
    /// Which of the databases that were taken for the primary it leads to.
    pub generation: u64,
}

/// Why there is no session.
pub enum SessionError {
    /// Trying again may help.
    Passing(EngineError),
    /// Nothing will.
    Final(EngineError),
}

impl SessionError {
    /// What it is.
    pub fn why(self) -> EngineError {
        match self {
            SessionError::Passing(why) | SessionError::Final(why) => why,
        }
    }

    fn of(what: &str, why: &tokio_postgres::Error) -> Self {
        match remedy(why) {
            Remedy::None => SessionError::Final(failed(what, why)),
            Remedy::Reconnect | Remedy::Later | Remedy::Full => {
                SessionError::Passing(failed(what, why))
            }
        }
    }
}

impl Session {
    /// Whether all that has succeeded so far has waited for the standbys.
    pub fn is_waited_for(&self) -> bool {
        !self.unwaited.load(Ordering::SeqCst)
    }

    /// How the shard stands, all of that being durable.
    ///
    /// # Errors
    /// The database's; those of another epoch.
    pub async fn confirm(
        &self,
        shared: &EngineShared,
        epoch: Epoch,
    ) -> Result<ShardRecord, EngineError> {
        loop {
            self.unwaited.store(false, Ordering::SeqCst);
            let fence = confirm(&self.client, &shared.texts.confirm, shared.shard, epoch).await?;
            // The warning comes before the end of the answer.
            if self.is_waited_for() {
                return Ok(fence);
            }
            log::warn!("PostgreSQL: a wait for synchronous standbys was cancelled; waiting again");
        }
    }
}

/// Drives a connection until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, unwaited: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notice(notice)) => {
                log::debug!("PostgreSQL: {}: {}", notice.severity(), notice.message());
                if notice.routine() == Some(STANDBY_WAIT) {
                    unwaited.store(true, Ordering::SeqCst);
                }
            }
            Ok(_) => {}
            // The user of the client gets the notice too.
            Err(why) => return log::debug!("PostgreSQL: a connection ended: {why}"),
        }
    }
}

/// Connects, to whichever host takes writes.
pub async fn connect(url: &PgUrl) -> Result<(Client, Arc<AtomicBool>), SessionError> {
    let unwaited = Arc::new(AtomicBool::new(false));
    let failed = |why: tokio_postgres::Error| {
        SessionError::of(&format!("connecting to {}", url.shown()), &why)
    };
    let client = match &url.tls {
        None => {
            let (client, connection) = url.config.connect(NoTls).await.map_err(failed)?;
            tokio::spawn(drive(connection, unwaited.clone()));
            client
        }
        Some(tls) => {
            let connector =
                tls.connector().map_err(|why| SessionError::Final(EngineError::Refused(why)))?;
            let (client, connection) = url.config.connect(connector).await.map_err(failed)?;
            tokio::spawn(drive(connection, unwaited.clone()));
            client
        }
    };
    let settings = format!(
        "SET synchronous_commit = {}; SET default_transaction_isolation = 'read committed'; SET \
         statement_timeout = 0; \
         SET lock_timeout = {}; SET client_min_messages = 'warning'; \
         SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = \
         3; \
         SET tcp_user_timeout = 9000; {PLANNING}",
        url.synchronous_commit,
        STATEMENT_MAX.as_millis()
    );
    // The last settings: the server finds out within 10 s that a client's machine is gone, and
    // frees its locks.
    client
        .batch_execute(&settings)
        .await
        .map_err(|why| SessionError::of("preparing the session", &why))?;
    set_if_supported(&client, "client_connection_check_interval", CHECK_EVERY).await?;
    Ok((client, unwaited))
}

/// A setting that old servers do not know, and some platforms do not have: no harm.
async fn set_if_supported(
    client: &Client,
    name: &str,
    value: Duration,
) -> Result<(), SessionError> {
    let value = value.as_millis();
    let text =
        format!("SELECT set_config(name, '{value}', false) FROM pg_settings WHERE name = '{name}'");
    match client.batch_execute(&text).await {
        Err(why) if why.code().is_none() => Err(SessionError::of("preparing the session", &why)),
        Err(why) => {
            log::debug!("PostgreSQL: {}", failed("preparing the session", &why));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Has the server end the session when nothing comes from it for a while: that of a process which
/// is stopped or cut off, as any other looks after its shard.
pub async fn end_if_idle(client: &Client) {
    // The next use of a connection notices that it is lost.
    let _ = set_if_supported(client, "idle_session_timeout", IDLE_MAX).await;
}

/// Connects and makes sure that the database is the one which has what this engine wrote.
pub async fn open(
    shared: &EngineShared,
    purpose: SessionPurpose,
) -> Result<(Session, ShardRecord), SessionError> {
    let generation = shared.generation();
    // Before anything newer can become durable.
    let durable = shared.row_cache.durable();
    let (client, unwaited) = connect(&shared.url).await?;
    let texts: &Texts = &shared.texts;
    let statement = |why: tokio_postgres::Error| SessionError::of("preparing statements", &why);
    let write = client.prepare(&texts.write).await.map_err(statement)?;
    let get = client.prepare(&texts.get).await.map_err(statement)?;
    let page = client.prepare(&texts.page).await.map_err(statement)?;
    let failure = |why: EngineError| match why {
        EngineError::Io(_) | EngineError::NoSpace => SessionError::Passing(why),
        why => SessionError::Final(why),
    };
    let mut fence = fence(&client, &texts.fence, shared.shard).await.map_err(failure)?;
    shared.expects(fence, durable).map_err(SessionError::Final)?;
    let session = Session { client, unwaited, write, get, page, generation };
    if purpose == SessionPurpose::Settle {
        fence = session.confirm(shared, fence.epoch).await.map_err(failure)?;
    }
    Ok((session, fence))
}

/// As [`open`], again and again until `until`.
pub async fn establish(
    shared: &EngineShared,
    purpose: SessionPurpose,
    until: Instant,
) -> Result<(Session, ShardRecord), EngineError> {
    let mut pause = PAUSE_MIN;
    loop {
        let attempt = tokio::time::timeout(STATEMENT_MAX, open(shared, purpose)).await;
        let why = match attempt {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(SessionError::Final(why))) => return Err(why),
            Ok(Err(SessionError::Passing(why))) => why,
            Err(_) => {
                EngineError::Io("metadata in PostgreSQL: the database does not answer".into())
            }
        };
        if shared.is_stopping() || Instant::now() + pause > until {
            return Err(why);
        }
        log::warn!("{why}; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The session for reads.
pub async fn reader(shared: &EngineShared, until: Instant) -> Result<Arc<Session>, EngineError> {
    let turn = shared.next_reader();
    let mut slot = shared.readers[turn].lock().await;
    if let Some(session) = &*slot
        && !session.client.is_closed()
        && session.generation == shared.generation()
    {
        return Ok(session.clone());
    }
    *slot = None;
    let session = Arc::new(establish(shared, SessionPurpose::Onward, until).await?.0);
    *slot = Some(session.clone());
    Ok(session)
}
