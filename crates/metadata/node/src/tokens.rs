//! Records of tokens, in table `system`: each node has all of them, and no client sees them.

use std::ops::ControlFlow;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, Table};
use kestrel_types::token::{TokenId, TokenRecord};

use crate::stop::engine_error;
use kestrel_engine::{BatchKind, Engine, Mutation};

/// How their names begin; the token's number follows.
const NAME: &str = "token ";

fn key(id: TokenId) -> Key {
    Key::new(Table::System, 0, format!("{NAME}{id}").as_bytes())
}

/// Whether a record of this name is one of a token.
pub fn is_one(name: &[u8]) -> bool {
    name.starts_with(NAME.as_bytes())
}

/// All that are on record.
///
/// # Errors
/// `EIO` if one is damaged; the engine's.
pub fn read(engine: &dyn Engine) -> FsResult<Vec<TokenRecord>> {
    let (mut records, mut damage) = (Vec::new(), None);
    let visited = engine.scan(Table::System, 0, Some(NAME.as_bytes()), &mut |name, row, _| {
        if !is_one(name) {
            return ControlFlow::Break(());
        }
        match TokenRecord::decode(row) {
            Ok(record) => records.push(record),
            Err(why) => damage = Some((String::from_utf8_lossy(name).into_owned(), why)),
        }
        ControlFlow::Continue(())
    });
    visited.map_err(engine_error)?;
    match damage {
        None => Ok(records),
        Some((name, why)) => {
            Err(FsError::because(libc::EIO, format!("metadata: damaged record {name:?}: {why}")))
        }
    }
}

/// Puts some on record and forgets others; returns when that is durable.
///
/// # Errors
/// `EINVAL` for a record that could not be read again, by this node when it starts or by another
/// one; the engine's.
pub fn write(engine: &dyn Engine, records: &[TokenRecord], gone: &[TokenId]) -> FsResult<()> {
    for record in records {
        let again = TokenRecord::decode(&record.encode());
        if again.as_ref() != Ok(record) {
            let why = again.err().map_or("it would be another one".into(), |why| why.to_string());
            return Err(FsError::because(libc::EINVAL, format!("no record of a token: {why}")));
        }
    }
    let put =
        records.iter().map(|record| Mutation { key: key(record.id), value: Some(record.encode()) });
    let delete = gone.iter().map(|id| Mutation { key: key(*id), value: None });
    engine.commit(BatchKind::Freeing, put.chain(delete).collect()).map_err(engine_error)?;
    engine.sync().map_err(engine_error)
}
