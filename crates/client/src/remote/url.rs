//! `kestrel://host[:port][,host2[:port]…]/NAME`: a volume that servers serve.

use std::fmt;

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
}

impl RemoteUrl {
    /// Whether `url` names a volume that is served, well or badly.
    pub fn is_one(url: &str) -> bool {
        url.starts_with(SCHEME)
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, VolumeError> {
        let bad = |why: &str| {
            VolumeError::Invalid(format!("{url}: {why}; write {SCHEME}HOST[:PORT][,HOST2[:PORT]…]/NAME"))
        };
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| bad("not the URL of a served volume"))?;
        let (hosts, name) = rest.split_once('/').ok_or_else(|| bad("the volume's name is missing"))?;
        if name.is_empty() || name.len() > 255 || name.contains('/') || name.chars().any(char::is_control) {
            return Err(bad(
                "the volume's name must have 1 to 255 bytes and neither '/' nor control characters",
            ));
        }
        let addresses: Vec<String> =
            hosts.split(',').map(|host| address(host).map_err(bad)).collect::<Result<_, _>>()?;
        if addresses.len() > ADDRESSES_MAX {
            return Err(bad("more than 64 servers"));
        }
        Ok(Self { addresses, name: name.to_string() })
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.addresses.join(","), self.name)
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
            Some((host, _)) if host.contains(':') => return Err("an IPv6 address must stand in brackets"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_servers_and_a_volume() {
        let url = RemoteUrl::parse("kestrel://a.example,10.0.0.2:99,[::1],[fe80::1]:7/data").unwrap();
        assert_eq!(url.addresses, ["a.example:9440", "10.0.0.2:99", "[::1]:9440", "[fe80::1]:7"]);
        assert_eq!(url.name, "data");
        assert_eq!(RemoteUrl::parse(&url.to_string()).unwrap(), url);
    }

    #[test]
    fn mistakes_are_named() {
        for (url, why) in [
            ("kestrel://host", "name is missing"),
            ("kestrel://host/", "1 to 255"),
            ("kestrel://host/a/b", "neither '/'"),
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
        ] {
            let error = RemoteUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(url), "{error}");
        }
        let many = format!("kestrel://{}/v", vec!["h"; 65].join(","));
        assert!(RemoteUrl::parse(&many).is_err());
    }
}
