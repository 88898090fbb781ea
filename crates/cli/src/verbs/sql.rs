//! `kestrel sql`: queries over the published versions of a volume.
//!
//! | file | |
//! | --- | --- |
//! | `output` | rows as a table, CSV or JSON |

mod output;

use std::ffi::OsString;
use std::io::{self, BufWriter};

use clap::Args;
use kestrel_client::version::{self, VersionUrl};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, size_arg};
use kestrel_sql::{Database, SqlError, SqlOptions};

use super::snapshot::KeyArgs;
use super::volume_of;
use output::{Format, Output};

/// The verb in messages.
const VERB: &str = "sql";

/// Query published versions with SQL: their names, entries and attributes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel sql /data/vol 'select name, files, bytes from versions'
  kestrel sql /data/vol//imagenet@v3 \"select count(*), sum(size) from entries where kind = 'file'\"
  kestrel sql s3://bucket/photos//train@1 \"select path from entries where path glob 'a/*'\" --csv
  kestrel sql /mnt/data \"select path from entries where version = 'b@2' except
                         select path from entries where version = 'b@1'\"

A volume is a path in a mount, its directory, s3://… or kestrel://…; VOLUME//NAME is one version,
and the tables have that one alone. The store is read, and no process that has the volume open is
asked. The SQL is SQLite's. Only queries are taken: nothing is written.

  versions  name, id, created, user, files, directories, bytes, rows, tables, table_bytes,
            source_dir, snapshot, snapshot_id, snapshot_dir, snapshot_owned
  entries   version, path, parent, name, kind, size, mode, uid, gid, nlink, inode, mtime, ctime,
            atime, btime, target; not in *: rdev, mtime_ns, ctime_ns, atime_ns, btime_ns
  xattrs    version, path, name, value

A path begins at the version's directory, without a slash: a/b. The directory itself has the path
'' and the parent null. Kinds are file, directory, symlink, fifo, char, block and socket. Times are
seconds since 1970, those with _ns nanoseconds. What is not UTF-8 is a BLOB, shown as x'6162ff' (a
list of bytes in JSON); glob and like find it too.

Conditions with = on version, path, parent, and on name beside parent, with glob and like on path,
and two bounds (path >= 'a' and path < 'b') are look-ups: --stats shows how many rows were read.
docs/operations/versions.md tells more.")]
pub struct SqlArgs {
    /// The volume, or one version of it: VOLUME//NAME
    volume: OsString,
    /// The query
    query: String,
    /// Print CSV, with a line of column names
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON: a list of objects
    #[arg(long)]
    json: bool,
    /// Tell on standard error how much was read
    #[arg(long)]
    stats: bool,
    /// Memory for SQLite and for what is kept of tables; sorts beyond go to temporary files
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "512M")]
    memory: u64,
    #[command(flatten)]
    store: KeyArgs,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new(VERB, why)
}

fn open(args: &SqlArgs) -> Result<Database, Failure> {
    let store = args.store.store().options();
    let url = VersionUrl::parse(&args.volume.to_string_lossy());
    let url = url.map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
    let volume = match &url {
        Some(url) => url.volume.clone(),
        None => volume_of(VERB, &args.volume)?,
    };
    let registry = version::registry(&volume, &store).map_err(fail)?;
    let only = match &url {
        Some(url) => Some(url.find(&registry).map_err(fail)?),
        None => None,
    };
    let options = SqlOptions { memory_bytes: args.memory };
    Database::open(&registry, only, options).map_err(fail)
}

/// Does it.
pub fn run(args: &SqlArgs) -> Result<ExitStatus, Failure> {
    let database = open(args)?;
    let format = match (args.csv, args.json) {
        (true, _) => Format::Csv,
        (_, true) => Format::Json,
        _ => Format::Table,
    };
    let mut output = Output::new(BufWriter::new(io::stdout().lock()), format);
    let answered = database.query(&args.query, &mut output);
    let ended = answered.and_then(|()| output.end().map_err(SqlError::Output));
    if args.stats {
        let read = database.stats();
        eprintln!(
            "{} rows; {} rows of tables read by {} requests of {}",
            output.rows(),
            read.rows,
            read.requests,
            bytes(read.bytes)
        );
    }
    for name in database.absent() {
        eprintln!("kestrel {VERB}: there is no version {name}; `kestrel version list` shows all");
    }
    match ended {
        Ok(()) => Ok(ExitStatus::Good),
        Err(why @ SqlError::Statement(_)) => Err(Failure::usage(format!("{VERB}: {why}"))),
        Err(why) => Err(fail(why)),
    }
}
