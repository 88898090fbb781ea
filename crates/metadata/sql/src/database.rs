//! The connection to SQLite: what it may do, how much memory it may take, and one query at a time.

use std::fmt;
use std::io;
use std::sync::Arc;

use kestrel_bucket::version::{VersionManifest, VersionRegistry};
use rusqlite::ffi::ErrorCode;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Statement};

use crate::catalog::{Catalog, OPEN_MAX};
use crate::store::ReadStats;
use crate::tables;

/// Least memory with which queries work well.
const MEMORY_MIN: u64 = 32 << 20;

/// Settings of a database.
#[derive(Debug, Clone, Copy)]
pub struct SqlOptions {
    /// Memory of SQLite, and of blocks of tables: half each, about.
    pub memory_bytes: u64,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self { memory_bytes: 512 << 20 }
    }
}

/// Why a query was not answered.
#[derive(Debug)]
pub enum SqlError {
    /// The statement is wrong, or does more than read.
    Statement(String),
    /// Versions could not be read, or what was asked for needs too much.
    Failed(String),
    /// The rows could not be written.
    Output(io::Error),
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statement(why) | Self::Failed(why) => f.write_str(why),
            Self::Output(why) => write!(f, "writing the rows: {why}"),
        }
    }
}

impl std::error::Error for SqlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Output(why) => Some(why),
            Self::Statement(_) | Self::Failed(_) => None,
        }
    }
}

/// Where rows go, one by one.
pub trait RowSink {
    /// The names of the columns, before all rows.
    ///
    /// # Errors
    /// Those of writing, or `InvalidInput` for names that cannot be written.
    fn columns(&mut self, names: &[&str]) -> io::Result<()>;

    /// A row.
    ///
    /// # Errors
    /// Those of writing.
    fn row(&mut self, values: &[ValueRef<'_>]) -> io::Result<()>;
}

/// The versions of a volume as tables.
pub struct Database {
    connection: Connection,
    catalog: Arc<Catalog>,
    options: SqlOptions,
}

impl Database {
    /// Of all versions of a volume, or of `only` one of them. Reads nothing yet.
    ///
    /// # Errors
    /// Why SQLite cannot be used.
    pub fn open(
        registry: &VersionRegistry,
        only: Option<VersionManifest>,
        options: SqlOptions,
    ) -> Result<Self, SqlError> {
        let options = SqlOptions { memory_bytes: options.memory_bytes.max(MEMORY_MIN) };
        let cache_bytes = options.memory_bytes / 2 / OPEN_MAX as u64;
        let catalog = Arc::new(Catalog::new(registry, only, cache_bytes));
        let connection = connect(&catalog, options.memory_bytes / 2);
        let connection = connection.map_err(|why| SqlError::Failed(format!("SQLite: {why}")))?;
        Ok(Self { connection, catalog, options })
    }

    /// What all queries so far have read.
    pub fn stats(&self) -> ReadStats {
        self.catalog.counters.stats()
    }

    /// Names of versions that a query asked for, and that are not there: some of them.
    pub fn absent(&self) -> Vec<String> {
        self.catalog.absent()
    }

    /// Runs one statement and passes its rows on as they come.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub fn query(&self, sql: &str, sink: &mut dyn RowSink) -> Result<(), SqlError> {
        let mut statement = self.connection.prepare(sql).map_err(|why| self.error(&why))?;
        if !statement.readonly() || statement.column_count() == 0 {
            return Err(no_query());
        }
        self.pass_rows(&mut statement, sink)
    }

    fn pass_rows(
        &self,
        statement: &mut Statement<'_>,
        sink: &mut dyn RowSink,
    ) -> Result<(), SqlError> {
        let columns = statement.column_count();
        sink.columns(&statement.column_names().collect::<Vec<&str>>()).map_err(output)?;
        let mut rows = statement.query([]).map_err(|why| self.error(&why))?;
        while let Some(row) = rows.next().map_err(|why| self.error(&why))? {
            let values: Result<Vec<ValueRef<'_>>, Error> =
                (0..columns).map(|column| row.get_ref(column)).collect();
            sink.row(&values.map_err(|why| self.error(&why))?).map_err(SqlError::Output)?;
        }
        Ok(())
    }

    fn error(&self, why: &Error) -> SqlError {
        if let Some(why) = self.catalog.take_failure() {
            return SqlError::Failed(why);
        }
        let text = text_of(why);
        let is_write = ["not authorized", "may not be modified"];
        if is_write.iter().any(|part| text.contains(part)) {
            return SqlError::Statement(format!(
                "{text}: versions never change, and a query reaches nothing but them; use select"
            ));
        }
        let wrong = || {
            SqlError::Statement(format!(
                "{text}; the tables are versions, entries and xattrs, and `kestrel help sql` has \
                 their columns"
            ))
        };
        let code = match why {
            Error::MultipleStatement => {
                return SqlError::Statement(
                    "one statement is taken at a time; run the command once for each".into(),
                );
            }
            Error::Empty => return no_query(),
            Error::SqlInputError { .. } => return wrong(),
            other => other.sqlite_error_code(),
        };
        match code {
            Some(ErrorCode::OutOfMemory) => SqlError::Failed(format!(
                "the query needs more than the {} MiB of memory that SQLite may use; give more \
                 with --memory",
                (self.options.memory_bytes / 2) >> 20
            )),
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => {
                SqlError::Failed(format!(
                    "{text}: a temporary file for sorting cannot be written; name a directory with \
                 room by SQLITE_TMPDIR"
                ))
            }
            Some(ErrorCode::Unknown) => wrong(),
            _ => SqlError::Failed(text),
        }
    }
}

fn no_query() -> SqlError {
    SqlError::Statement("there is no query in it; begin with select".into())
}

/// What SQLite says, with the place in the statement.
fn text_of(why: &Error) -> String {
    match why {
        Error::SqlInputError { msg, offset, sql, .. } => {
            let at = usize::try_from(*offset).ok().and_then(|at| sql.get(at..));
            match at.filter(|rest| !rest.is_empty()) {
                Some(rest) => format!("{msg}, at {:?}", rest.chars().take(30).collect::<String>()),
                None => msg.clone(),
            }
        }
        Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    }
}

/// Names of columns that cannot be written are the statement's fault.
fn output(why: io::Error) -> SqlError {
    match why.kind() {
        io::ErrorKind::InvalidInput => SqlError::Statement(why.to_string()),
        _ => SqlError::Output(why),
    }
}

fn connect(catalog: &Arc<Catalog>, memory_bytes: u64) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    // What sorts and temporary tables keep in memory before they go to files, in KiB.
    let cache = (memory_bytes / 4) >> 10;
    connection.execute_batch(&format!(
        "pragma temp_store = file; pragma cache_size = -{cache}; pragma temp.cache_size = -{cache};
         pragma hard_heap_limit = {memory_bytes}; pragma trusted_schema = off;
         pragma query_only = on"
    ))?;
    tables::register(&connection, catalog)?;
    connection.authorizer(Some(|context: AuthContext<'_>| match context.action {
        action if may(&action) => Authorization::Allow,
        _ => Authorization::Deny,
    }))?;
    Ok(connection)
}

/// Whether a statement may do this.
fn may(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => {
            !function_name.eq_ignore_ascii_case("load_extension")
        }
        // What shows the columns of tables.
        AuthAction::Pragma { pragma_name, .. } => {
            ["table_info", "table_xinfo"].iter().any(|name| name.eq_ignore_ascii_case(pragma_name))
        }
        _ => false,
    }
}
