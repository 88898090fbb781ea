//! `kestrel://host[:port][,host2[:port]…]/NAME[?ca=…&tls=…&cert=…]`: a volume that servers serve.
//! `NAME` is the volume's, or `VOLUME//VERSION` for a published version that curators serve.
//!
//! What follows the question mark says how connections to other machines are encrypted, and by what
//! the servers are known. None of it is secret.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kestrel_bucket::version::check_name;
use kestrel_rpc::tls::{ClientTls, Fingerprint, OwnFiles, TlsError, TlsMode, Trust};
use kestrel_rpc::token::Token;
use kestrel_types::security::is_loopback;

use crate::error::VolumeError;

/// How such a URL begins.
pub const SCHEME: &str = "kestrel://";

/// Port of a server unless one is given.
pub const PORT_DEFAULT: u16 = 9440;

/// Most addresses in a URL.
pub const ADDRESSES_MAX: usize = 64;

/// Where a volume is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteUrl {
    /// Servers, each `host:port`, the first tried first.
    pub addresses: Vec<String>,
    /// Name under which they serve it.
    pub name: String,
    /// `tls=auto|on|off`: which connections are encrypted.
    pub tls: TlsMode,
    /// `ca=`: by what the servers are known.
    pub ca: Option<Ca>,
    /// `cert=`: a file with the certificate, and its key, that this client shows.
    pub certificate: Option<PathBuf>,
}

/// By what servers are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ca {
    /// `sha256:…`: the fingerprint of the volume's own authority.
    Fingerprint(Fingerprint),
    /// The absolute path of a file with certificates of authorities.
    File(PathBuf),
}

impl FromStr for Ca {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Path::new(text) {
            path if path.is_absolute() => Ok(Self::File(path.into())),
            _ => text.parse().map(Self::Fingerprint).map_err(|why: TlsError| why.to_string()),
        }
    }
}

impl fmt::Display for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fingerprint(fingerprint) => fmt::Display::fmt(fingerprint, f),
            Self::File(path) => fmt::Display::fmt(&path.display(), f),
        }
    }
}

impl RemoteUrl {
    /// Whether `url` names a volume that is served, well or badly.
    pub fn is_one(url: &str) -> bool {
        url.starts_with(SCHEME)
    }

    /// Servers of a volume on this machine, or known by what is added.
    pub fn new(addresses: Vec<String>, name: &str) -> Self {
        Self {
            addresses,
            name: name.to_string(),
            tls: TlsMode::default(),
            ca: None,
            certificate: None,
        }
    }

    /// Whether it is the URL of a published version, which never changes.
    pub fn is_version(&self) -> bool {
        self.name.contains("//")
    }

    /// Whether all servers are on this machine, by their addresses.
    pub fn is_loopback(&self) -> bool {
        let is_here = |address: &String| {
            let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host == "localhost" || host.parse().is_ok_and(is_loopback)
        };
        self.addresses.iter().all(is_here)
    }

    /// The URL without what concerns encryption: for people.
    pub fn place(&self) -> String {
        format!("{SCHEME}{}/{}", self.addresses.join(","), self.name)
    }

    /// How connections are made. A token says by what servers are known unless the URL does.
    ///
    /// # Errors
    /// If a file that it names cannot be used, or the token says what this program does not know.
    pub fn client_tls(&self, token: Option<&Token>) -> Result<ClientTls, VolumeError> {
        let bad = |why: TlsError| VolumeError::Invalid(why.to_string());
        let told = token.and_then(|token| token.authority.as_deref());
        let trust = match &self.ca {
            None => told.map(|told| told.parse().map(Trust::Authority).map_err(bad)).transpose()?,
            Some(Ca::Fingerprint(fingerprint)) => Some(Trust::Authority(*fingerprint)),
            Some(Ca::File(path)) => Some(Trust::read(path).map_err(bad)?),
        };
        let own = self.certificate.as_ref().map(|path| OwnFiles::open(path, path));
        ClientTls::new(self.tls, trust.as_ref(), own.transpose().map_err(bad)?).map_err(bad)
    }

    /// Takes in what follows the question mark.
    fn options(&mut self, text: &str) -> Result<(), String> {
        let mut seen = Vec::new();
        for option in text.split('&') {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            match key {
                "tls" => self.tls = value.parse().map_err(|why| format!("tls: {why}"))?,
                "ca" => {
                    self.ca = Some(
                        value
                            .parse()
                            .map_err(|why| format!("ca: {why}, or the absolute path of a file"))?,
                    )
                }
                "cert" if Path::new(value).is_absolute() => self.certificate = Some(value.into()),
                "cert" => {
                    return Err(
                        "cert: the absolute path of a file with a certificate and its key".into()
                    );
                }
                _ => return Err(format!("{key:?}: there are ca, tls and cert")),
            }
        }
        Ok(())
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, VolumeError> {
        let bad = |why: &str| {
            VolumeError::Invalid(format!(
                "{url}: {why}; write {SCHEME}HOST[:PORT][,HOST2[:PORT]…]/NAME[?ca=sha256:…]"
            ))
        };
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| bad("not the URL of a served volume"))?;
        let (hosts, name) =
            rest.split_once('/').ok_or_else(|| bad("the volume's name is missing"))?;
        let (name, options) =
            name.split_once('?').map_or((name, None), |(name, rest)| (name, Some(rest)));
        let (volume, version) = match name.split_once("//") {
            Some((volume, version)) => (volume, Some(version)),
            None => (name, None),
        };
        if volume.is_empty()
            || name.len() > 255
            || volume.contains('/')
            || volume.chars().any(char::is_control)
            || version.is_some_and(|version| check_name(version).is_err())
        {
            return Err(bad(
                "the volume's name must have 1 to 255 bytes and neither '/' nor control characters",
            ));
        }
        let addresses: Vec<String> =
            hosts.split(',').map(|host| address(host).map_err(bad)).collect::<Result<_, _>>()?;
        if addresses.len() > ADDRESSES_MAX {
            return Err(bad("more than 64 servers"));
        }
        let mut read = Self::new(addresses, name);
        options.map_or(Ok(()), |options| read.options(options)).map_err(|why| bad(&why))?;
        Ok(read)
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        let tls = (self.tls != TlsMode::default()).then(|| format!("tls={}", self.tls));
        let ca = self.ca.as_ref().map(|ca| format!("ca={ca}"));
        let certificate = self.certificate.as_ref().map(|path| format!("cert={}", path.display()));
        for (at, option) in [ca, tls, certificate].into_iter().flatten().enumerate() {
            write!(f, "{}{option}", if at == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// `host:port`, with the default port if there is none.
///
/// # Errors
/// Says what is wrong with it.
pub fn address(text: &str) -> Result<String, &'static str> {
    // An IPv6 address stands in brackets, so that its colons are not taken for the port's.
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((_, "")) => (text, None),
            Some((inner, rest)) => match rest.strip_prefix(':') {
                Some(port) => (&text[..inner.len() + 2], Some(port)),
                None => return Err("a host is followed by something other than its port"),
            },
            None => return Err("a bracket is not closed"),
        },
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("an IPv6 address must stand in brackets");
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_name = |c: char| c.is_alphanumeric() || "-._[]:%".contains(c);
    if host.is_empty() || !host.chars().all(is_name) {
        return Err("a host is missing or is none");
    }
    let port = match port.map(str::parse) {
        None => PORT_DEFAULT,
        Some(Ok(port)) if port != 0 => port,
        Some(_) => return Err("a port is not a number from 1 to 65535"),
    };
    Ok(format!("{host}:{port}"))
}

/// Whether an address says "all addresses of this machine", which is of use only for listening.
pub(crate) fn is_anywhere(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    matches!(host, "" | "*" | "0.0.0.0" | "[::]" | "::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_servers_and_a_volume() {
        let url =
            RemoteUrl::parse("kestrel://a.example,10.0.0.2:99,[::1],[fe80::1]:7/data").unwrap();
        assert_eq!(url.addresses, ["a.example:9440", "10.0.0.2:99", "[::1]:9440", "[fe80::1]:7"]);
        assert_eq!(url.name, "data");
        assert_eq!(RemoteUrl::parse(&url.to_string()).unwrap(), url);
        let version = RemoteUrl::parse("kestrel://a,b/photos//imagenet@v3?tls=on").unwrap();
        assert_eq!(version.name, "photos//imagenet@v3");
        assert!(version.is_version() && !url.is_version());
        assert_eq!(version.to_string(), "kestrel://a:9440,b:9440/photos//imagenet@v3?tls=on");
    }

    #[test]
    fn what_concerns_encryption_is_a_part_of_the_url() {
        let digits = "0123456789abcdef".repeat(4);
        for text in [
            format!("kestrel://a:9440/v?ca=sha256:{digits}"),
            format!("kestrel://a:9440/v?ca=sha256:{digits}&tls=on&cert=/etc/own.pem"),
            "kestrel://a:9440/v?ca=/etc/ca.pem".into(),
            "kestrel://a:9440/v?tls=off".into(),
        ] {
            let url = RemoteUrl::parse(&text).unwrap();
            assert_eq!(url.to_string(), text);
            assert_eq!(url.place(), "kestrel://a:9440/v");
        }
        assert_eq!(
            RemoteUrl::parse("kestrel://a/v?tls=auto").unwrap(),
            RemoteUrl::parse("kestrel://a/v").unwrap()
        );
        let is_loopback = |url| RemoteUrl::parse(url).unwrap().is_loopback();
        assert!(is_loopback("kestrel://localhost,127.0.0.2:9,[::1]/v"));
        assert!(!is_loopback("kestrel://127.0.0.1,10.0.0.1/v") && !is_loopback("kestrel://gpu7/v"));
    }

    #[test]
    fn mistakes_are_named() {
        for (url, why) in [
            ("kestrel://host", "name is missing"),
            ("kestrel://host/", "1 to 255"),
            ("kestrel://host/a/b", "neither '/'"),
            ("kestrel://host//b", "1 to 255"),
            ("kestrel://host/a//", "1 to 255"),
            ("kestrel://host/a//b/c", "neither '/'"),
            ("kestrel:///a", "host is missing"),
            ("kestrel://a,,b/v", "host is missing"),
            ("kestrel://a:0/v", "port"),
            ("kestrel://a:70000/v", "port"),
            ("kestrel://a:/v", "port"),
            ("kestrel://::1/v", "brackets"),
            ("kestrel://[::1/v", "bracket is not closed"),
            ("kestrel://[::1]9/v", "other than its port"),
            ("kestrel://a b/v", "host is missing or is none"),
            ("s3://a/v", "not the URL of a served volume"),
            ("kestrel://a/v?", "there are ca, tls and cert"),
            ("kestrel://a/v?tls=maybe", "auto, on or off"),
            ("kestrel://a/v?tls=on&tls=off", "given twice"),
            ("kestrel://a/v?ca=ca.pem", "absolute path"),
            ("kestrel://a/v?ca=sha256:00", "64 hexadecimal digits"),
            ("kestrel://a/v?cert=own.pem", "absolute path"),
            ("kestrel://a/?tls=on", "1 to 255"),
        ] {
            let error = RemoteUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(url), "{error}");
        }
        let many = format!("kestrel://{}/v", vec!["h"; 65].join(","));
        assert!(RemoteUrl::parse(&many).is_err());
    }
}
