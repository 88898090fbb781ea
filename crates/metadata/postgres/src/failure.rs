//! What errors of the database mean.

use kestrel_engine::EngineError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The connection is of no use, or the server is not: connect again.
    Reconnect,
    /// The server took nothing of the transaction, and may later.
    Later,
    /// Its disk is full.
    Full,
    /// It will not change.
    None,
}

/// What to do about an error.
pub fn remedy(why: &Error) -> Remedy {
    let Some(code) = why.code() else { return Remedy::Reconnect };
    let state = code.code();
    match state {
        _ if *code == SqlState::DISK_FULL => Remedy::Full,
        // A standby that was thought to be the primary.
        _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Remedy::Reconnect,
        // Connection exceptions, and the server going down or coming up.
        _ if state.starts_with("08") || state.starts_with("57P") => Remedy::Reconnect,
        // Conflicts, resources, cancellations.
        _ if state.starts_with("40") || state.starts_with("53") || state.starts_with("55P03") => {
            Remedy::Later
        }
        _ if *code == SqlState::QUERY_CANCELED => Remedy::Later,
        _ => Remedy::None,
    }
}

/// An error in words. The driver's do not hold passwords or rows.
pub fn failed(what: &str, why: &Error) -> EngineError {
    if remedy(why) == Remedy::Full {
        return EngineError::NoSpace;
    }
    let text = match why.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => match std::error::Error::source(why) {
            Some(source) => format!("{why}: {source}"),
            None => why.to_string(),
        },
    };
    EngineError::Io(format!("metadata in PostgreSQL: {what} failed: {text}"))
}
