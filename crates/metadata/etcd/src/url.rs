//! Where the rows are: the URL of an etcd, and the password for it.
//!
//! `etcd://[USER@]HOST[:PORT][,HOST…]/PREFIX?deadline=60s&passfile=FILE`, or `etcds://…` for TLS,
//! with `ca=FILE` if it is not the system that trusts its certificate. A password may be in it, but
//! is never shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use kestrel_engine::elsewhere;

/// How such URLs begin.
pub const SCHEMES: [&str; 2] = ["etcd://", "etcds://"];

/// Where etcd listens for clients.
const PORT_DEFAULT: u16 = 2379;
/// Most members of an etcd that a URL names.
const HOSTS_MAX: usize = 16;
/// Longest prefix, bytes.
const PREFIX_BYTES_MAX: usize = 128;

/// An etcd, and where in it.
#[derive(Clone)]
pub struct EtcdUrl {
    /// Base URL of each member, with `http` or `https`.
    pub(crate) endpoints: Vec<String>,
    /// What all keys begin with; without a slash at its end.
    pub(crate) prefix: String,
    /// User and password, if etcd wants them.
    pub(crate) user: Option<(String, String)>,
    /// The authority that signs its certificate, if not the system's roots.
    pub(crate) ca: Option<PathBuf>,
    /// How long to wait for an etcd that does not answer.
    pub(crate) deadline: Duration,
    shown: String,
}

impl std::fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

fn bad(what: &str) -> String {
    format!(
        "registry URL: {what}; it looks like etcd://[USER@]HOST[:PORT][,HOST2]/PREFIX (etcds:// \
         for TLS), and the password comes from \
         ETCDCTL_PASSWORD or ?passfile=FILE"
    )
}

impl EtcdUrl {
    /// Reads a URL; the password comes from there, from a file that it names, or from
    /// `ETCDCTL_PASSWORD`.
    ///
    /// # Errors
    /// In words, without any password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url
            .split_once("://")
            .filter(|(scheme, _)| {
                SCHEMES.iter().any(|known_scheme| known_scheme.strip_suffix("://") == Some(scheme))
            })
            .ok_or_else(|| bad("it does not begin with etcd:// or etcds://"))?;
        let is_tls = scheme == "etcds";
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may hold anything but '/'.
        let (address, prefix) =
            rest.split_once('/').ok_or_else(|| bad("it has no prefix for the volume's keys"))?;
        let (login, hosts) = match address.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, address),
        };
        let (mut deadline, mut passfile, mut ca) = (elsewhere::DEADLINE_DEFAULT, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "deadline" => {
                    deadline = elsewhere::deadline(value)
                        .ok_or_else(|| bad("deadline is not 1s to 24h"))?
                }
                "passfile" => passfile = Some(PathBuf::from(value)),
                "ca" if is_tls => ca = Some(PathBuf::from(value)),
                "ca" => return Err(bad("ca is for etcds://")),
                _ => return Err(bad("it has a parameter that is not known")),
            }
        }
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX || !prefix.chars().all(is_plain) {
            return Err(bad("the prefix is 1 to 128 of letters, digits and _-./"));
        }
        let endpoints: Option<Vec<String>> = hosts
            .split(',')
            .map(|host| endpoint(host, if is_tls { "https" } else { "http" }))
            .collect();
        let endpoints = endpoints.ok_or_else(|| bad("a host of it cannot be understood"))?;
        if endpoints.len() > HOSTS_MAX {
            return Err(bad("it names more than 16 hosts"));
        }
        let user = login.map(|login| credentials(login, passfile)).transpose()?;
        let at = user.as_ref().map(|(user, _)| format!("{user}@")).unwrap_or_default();
        let shown = format!("{scheme}://{at}{hosts}/{prefix}");
        Ok(Self { endpoints, prefix: prefix.to_string(), user, ca, deadline, shown })
    }

    /// The URL without its password and parameters, for people.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

/// The base URL of a member.
fn endpoint(host: &str, scheme: &str) -> Option<String> {
    let authority: Authority = host.parse().ok()?;
    // `host` of an authority keeps the brackets of an IPv6 address; a port that is none is not
    // caught by the parser.
    let port = match host.strip_prefix(authority.host())? {
        "" => PORT_DEFAULT,
        port => port.strip_prefix(':')?.parse().ok().filter(|port| *port > 0)?,
    };
    (!authority.host().is_empty()).then(|| format!("{scheme}://{}:{port}", authority.host()))
}

/// User and password: what stands in the URL, else the first line of the file, else the
/// environment.
fn credentials(login: &str, passfile: Option<PathBuf>) -> Result<(String, String), String> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password.to_string())),
        None => (login, None),
    };
    if user.is_empty() {
        return Err(bad("it names no user before the @"));
    }
    let password = match (password, passfile) {
        (Some(password), _) => password,
        (None, Some(file)) => {
            let failed =
                |why: std::io::Error| bad(&format!("password file {}: {why}", file.display()));
            if fs::metadata(&file).map_err(failed)?.permissions().mode() & 0o077 != 0 {
                return Err(bad(&format!(
                    "password file {}: others may read it; chmod 600",
                    file.display()
                )));
            }
            let text = fs::read_to_string(&file).map_err(failed)?;
            text.lines().next().unwrap_or_default().to_string()
        }
        (None, None) => std::env::var("ETCDCTL_PASSWORD").unwrap_or_default(),
    };
    Ok((user.to_string(), password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_passwords_not_shown() {
        let url =
            EtcdUrl::parse("etcds://me:s3c@ret@one:2390,two,[::1]:7/vol/a/?deadline=2m&ca=/ca.pem")
                .unwrap();
        assert_eq!(url.shown(), "etcds://me@one:2390,two,[::1]:7/vol/a");
        assert_eq!(format!("{url:?}"), url.shown());
        assert_eq!(url.endpoints, ["https://one:2390", "https://two:2379", "https://[::1]:7"]);
        assert_eq!((url.prefix.as_str(), url.deadline), ("vol/a", Duration::from_secs(120)));
        assert_eq!(url.user, Some(("me".into(), "s3c@ret".into())));
        let plain = EtcdUrl::parse("etcd://h/v").unwrap();
        assert_eq!((plain.endpoints, plain.user), (vec!["http://h:2379".to_string()], None));
        for bad in [
            "http://me:s3cret@h/v",
            "etcd://me:s3cret@h",
            "etcd://me:s3cret@h/",
            "etcd://me:s3cret@h/a b",
            "etcd://me:s3cret@h:port/v",
            "etcd://me:s3cret@h:/v",
            "etcd://me:s3cret@h,/v",
            "etcd://:s3cret@h/v",
            "etcd://me:s3cret@h/v?ca=x",
            "etcd://me:s3cret@h/v?deadline=0",
            "etcd://me:s3cret@h/v?nonsense=1",
        ] {
            let why = EtcdUrl::parse(bad).expect_err(bad);
            assert!(!why.contains("s3cret") && why.contains("ETCDCTL_PASSWORD"), "{why}");
        }
    }

    #[test]
    fn password_files_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pass");
        fs::write(&file, "s3cret\n").unwrap();
        let url = format!("etcd://me@h/v?passfile={}", file.display());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(EtcdUrl::parse(&url).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(EtcdUrl::parse(&url).unwrap().user, Some(("me".into(), "s3cret".into())));
    }
}
