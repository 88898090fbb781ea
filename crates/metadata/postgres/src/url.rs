//! Where the rows are: the URL of a database, and the password for it.
//!
//! `postgres://USER@HOST[:PORT][,HOST…]/DATABASE?schema=NAME`, with the parameters of libpq that
//! tokio-postgres takes, and these of KestrelFS: `schema`, `deadline`, `synchronous_commit`,
//! `passfile`, `sslmode` and `sslrootcert`. A password may be in it, but is never shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kestrel_engine::elsewhere;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::tls::Tls;

/// How such URLs begin.
pub const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// PostgreSQL schema of a volume if its URL names none.
const SCHEMA_DEFAULT: &str = "kestrelfs";
/// PostgreSQL cuts longer names.
const SCHEMA_BYTES_MAX: usize = 63;
/// How long connecting to one host may take, if the URL does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After this long without an acknowledgement a connection is lost, if the URL does not say.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// A database, and where in it.
#[derive(Clone)]
pub struct PgUrl {
    /// Hosts, user, password, database.
    pub(crate) config: Config,
    /// PostgreSQL schema, which needs no quoting.
    pub(crate) schema: String,
    /// How long to wait for a database that does not answer.
    pub(crate) deadline: Duration,
    /// What a commit waits for.
    pub(crate) synchronous_commit: &'static str,
    /// The authorities that vouch for the database; none: connections are in clear.
    pub(crate) tls: Option<Tls>,
    /// The name of the sessions is in the URL.
    is_named: bool,
    shown: String,
}

impl std::fmt::Debug for PgUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

fn bad(what: &str) -> String {
    format!(
        "metadata URL: {what}; it looks like \
         postgres://USER@HOST[:PORT][,HOST2]/DATABASE?schema=NAME, and the password comes from \
         PGPASSWORD or a password file"
    )
}

impl PgUrl {
    /// Reads a URL; the password comes from there, from `PGPASSWORD`, or from a password file.
    ///
    /// # Errors
    /// In words, without any password.
    pub fn parse(url: &str) -> Result<Self, String> {
        if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(bad("it does not begin with postgres://"));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = SCHEMA_DEFAULT.to_string();
        let mut deadline = elsewhere::DEADLINE_DEFAULT;
        let mut synchronous_commit = "on";
        let (mut passfile, mut mode, mut authorities) = (None, "disable", None);
        let mut theirs = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "schema" => schema = value.to_string(),
                "deadline" => {
                    deadline = elsewhere::deadline(value)
                        .ok_or_else(|| bad("deadline is not 1s to 24h"))?
                }
                "synchronous_commit" => {
                    synchronous_commit = ["on", "remote_apply", "remote_write"]
                        .into_iter()
                        .find(|allowed| *allowed == value)
                        .ok_or_else(|| {
                            bad("synchronous_commit is on, remote_apply or remote_write")
                        })?;
                }
                "passfile" => passfile = Some(PathBuf::from(value)),
                "sslmode" => {
                    mode = ["disable", "verify-full"]
                        .into_iter().find(|allowed| *allowed == value).ok_or_else(|| {
                        bad("sslmode is disable or verify-full: without a check of its certificate \
                             anybody may answer for the database")
                    })?;
                }
                "sslrootcert" => authorities = Some(PathBuf::from(value)),
                "target_session_attrs" => {
                    return Err(bad("target_session_attrs is always read-write"));
                }
                _ => theirs.push(parameter),
            }
        }
        let first = |c: char| c.is_ascii_lowercase() || c == '_';
        let rest = |c: char| first(c) || c.is_ascii_digit();
        if !schema.starts_with(first)
            || !schema.chars().all(rest)
            || schema.len() > SCHEMA_BYTES_MAX
            || schema.starts_with("pg_")
        {
            return Err(bad(
                "schema is 1 to 63 of a-z, 0-9 and _, and does not begin with a digit or pg_",
            ));
        }
        let plain = if theirs.is_empty() {
            base.to_string()
        } else {
            format!("{base}?{}", theirs.join("&"))
        };
        // The parser's text about its errors may repeat parts of the URL.
        let mut config: Config = plain
            .parse()
            .map_err(|_| bad("it cannot be understood, or has a parameter that is not known"))?;
        if config.get_hosts().is_empty() {
            return Err(bad("it names no host"));
        }
        let tls = match mode {
            "verify-full" => Some(Tls::new(authorities)),
            _ if authorities.is_some() => {
                return Err(bad("sslrootcert is for sslmode=verify-full"));
            }
            _ => None,
        };
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX);
        }
        let is_named = config.get_application_name().is_some();
        let shown = shown(base, &schema);
        if config.get_password().is_none()
            && let Some(password) = password(&config, passfile)
        {
            config.password(password);
        }
        Ok(Self { config, schema, deadline, synchronous_commit, tls, is_named, shown }.of_node(0))
    }

    /// The same for the sessions of a node (0: the only one), with the node's name for people;
    /// unless the URL has one.
    pub(crate) fn of_node(mut self, node: u32) -> Self {
        if !self.is_named {
            let number = if node == 0 { String::new() } else { format!("node {node} ") };
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let process = std::process::id();
            // The server cuts what is longer than its names.
            self.config.application_name(format!("kestrel {number}{process} {}", host.trim()));
        }
        self
    }

    /// The URL without its password and parameters but the schema, for people.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

fn shown(base: &str, schema: &str) -> String {
    let (scheme, rest) = base.split_once("://").unwrap_or(("postgres", base));
    // A password may hold anything but '/': what counts is the last '@' before the database.
    let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts = match address.rsplit_once('@') {
        Some((user, hosts)) => format!("{}@{hosts}", user.split(':').next().unwrap_or_default()),
        None => address.to_string(),
    };
    format!("{scheme}://{hosts}/{database}?schema={schema}")
}

/// The password that the environment or a password file has for the first host that it lists.
fn password(config: &Config, passfile: Option<PathBuf>) -> Option<String> {
    if let Ok(password) = std::env::var("PGPASSWORD")
        && !password.is_empty()
    {
        return Some(password);
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    let file =
        passfile.or_else(|| std::env::var_os("PGPASSFILE").map(PathBuf::from)).or_else(home)?;
    let mode = fs::metadata(&file).ok()?.permissions().mode();
    if mode & 0o077 != 0 {
        log::warn!("{}: ignored, as others may read it; chmod 600", file.display());
        return None;
    }
    let text = fs::read_to_string(&file).ok()?;
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
        let ports = config.get_ports();
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        (name_of(host), port.to_string())
    });
    hosts.into_iter().find_map(|(host, port)| {
        text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let fields = fields(line);
            let [h, p, d, u, password] = fields.as_slice() else { return None };
            let fits = |pattern: &str, is: &str| pattern == "*" || pattern == is;
            (fits(h, &host) && fits(p, &port) && fits(d, database) && fits(u, user))
                .then(|| password.clone())
        })
    })
}

/// As password files name a host.
fn name_of(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) if path == Path::new("/var/run/postgresql") => "localhost".into(),
        Host::Unix(path) => path.to_string_lossy().into_owned(),
    }
}

/// The fields of a line: separated by colons, of which a backslash takes the meaning.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, fields.last_mut()) {
            (':', _) => fields.push(String::new()),
            ('\\', Some(field)) => field.extend(chars.next()),
            (c, Some(field)) => field.push(c),
            (_, None) => {}
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_passwords_not_shown() {
        let url = "postgres://me:s3cret@one:5433,\
                   two/db?schema=vol_1&deadline=2m&synchronous_commit=remote_apply\
                   &connect_timeout=3";
        let url = PgUrl::parse(url).unwrap();
        assert_eq!(url.shown(), "postgres://me@one:5433,two/db?schema=vol_1");
        assert_eq!(format!("{url:?}"), url.shown());
        assert_eq!((url.schema.as_str(), url.synchronous_commit), ("vol_1", "remote_apply"));
        assert_eq!(url.deadline, Duration::from_secs(120));
        assert_eq!(url.config.get_password(), Some(b"s3cret".as_slice()));
        assert_eq!(url.config.get_hosts().len(), 2);
        for bad in [
            "mysql://h/db",
            "postgres://me:s3cret@h/db?schema=Vol",
            "postgres://me:s3cret@h/db?schema=pg_x",
            "postgres://me:s3cret@h/db?synchronous_commit=off",
            "postgres://me:s3cret@h/db?synchronous_commit=local",
            "postgres://me:s3cret@h/db?deadline=0",
            "postgres://me:s3cret@h/db?nonsense=1",
            "postgres://me:s3cret@h:port/db",
            "postgres://me:s3cret@h/db?sslmode=require",
            "postgres://me:s3cret@h/db?sslrootcert=/x",
            "postgres://me:s3cret@h/db?target_session_attrs=any",
            "postgres:///db",
        ] {
            let why = PgUrl::parse(bad).expect_err(bad);
            assert!(!why.contains("s3cret") && why.contains("PGPASSWORD"), "{why}");
        }
    }

    #[test]
    fn password_files_are_read_as_libpq_does() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pass");
        fs::write(&file, "# a comment\nother:*:*:*:no\nh:5432:db:me:a\\:b\\\\c\n*:*:*:*:any\n")
            .unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let found = |url: &str| {
            let url = format!("{url}?passfile={}", file.display());
            PgUrl::parse(&url).unwrap().config.get_password().map(<[u8]>::to_vec)
        };
        assert_eq!(found("postgres://me@h/db"), Some(b"a:b\\c".to_vec()));
        assert_eq!(found("postgres://you@h/db"), Some(b"any".to_vec()));
        assert_eq!(found("postgres://me:url@h/db"), Some(b"url".to_vec()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(found("postgres://me@h/db"), None);
    }
}
