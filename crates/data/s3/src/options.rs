//! Where a store is and how hard to use it: `s3://BUCKET/PREFIX?…`, limits.
//!
//! The URL is what the volume's descriptor keeps, so it holds nothing secret and nothing that
//! depends on the machine: credentials in it are refused, and limits are not part of it.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use crate::open_error::OpenError;

/// What the URL of an S3 store begins with.
pub const S3_SCHEME: &str = "s3://";

/// Longest prefix, bytes: S3's keys have at most 1024, ours add up to 27.
const PREFIX_BYTES_MAX: usize = 900;

/// Smallest part of a multipart upload that S3 takes (but for the last), bytes.
pub const PART_BYTES_MIN: u64 = 5 << 20;

/// Region used if neither the URL nor the environment names one.
const REGION_DEFAULT: &str = "us-east-1";

/// How hard a store may be used; differs from machine to machine, not kept in the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct S3Limits {
    /// Requests at a time that write: puts, parts, deletions.
    pub max_uploads: usize,
    /// Requests at a time that read: gets, heads, listings.
    pub max_downloads: usize,
    /// Bytes a second in bodies of requests; none: no limit.
    pub upload_bytes_per_second: Option<NonZeroU64>,
    /// Bytes a second in bodies of answers; none: no limit.
    pub download_bytes_per_second: Option<NonZeroU64>,
    /// Longest time for a request with all its attempts, from when it got its turn.
    pub deadline: Duration,
    /// Longest time for one attempt; one second is added for each
    /// `crate::retry::BYTES_PER_SECOND_MIN` bytes.
    pub attempt: Duration,
    /// Objects longer than this are uploaded in parts, bytes.
    pub multipart_bytes: u64,
}

impl Default for S3Limits {
    fn default() -> Self {
        Self {
            max_uploads: 32,
            max_downloads: 128,
            upload_bytes_per_second: None,
            download_bytes_per_second: None,
            deadline: Duration::from_secs(60),
            attempt: Duration::from_secs(15),
            multipart_bytes: 32 << 20,
        }
    }
}

impl S3Limits {
    /// Bytes of a part of a multipart upload: a quarter of the threshold, so that the smallest such
    /// upload has four at a time under way.
    pub(crate) fn part_bytes(&self) -> u64 {
        (self.multipart_bytes / 4).max(PART_BYTES_MIN)
    }
}

/// A store to create or open.
#[derive(Debug, Clone)]
pub struct S3Options {
    pub(crate) url: String,
    pub(crate) bucket: String,
    /// Without slashes at its ends; may be empty.
    pub(crate) prefix: String,
    /// `http://HOST[:PORT]` or `https://…`, no slash at the end.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) path_style: bool,
    /// Conditional puts, as the URL has them; none: found out when the volume is formatted.
    pub(crate) conditional_put: Option<bool>,
    pub(crate) sign_payload: bool,
    pub(crate) credentials_file: Option<PathBuf>,
    pub(crate) limits: S3Limits,
}

impl S3Options {
    /// Reads `s3://BUCKET[/PREFIX][?parameter=value&…]`. Parameters:
    ///
    /// - `endpoint`: `http://HOST[:PORT]` or `https://…` of a compatible store; Amazon's of the
    ///   region by default
    /// - `region`: by default that of the environment (`AWS_REGION`, `AWS_DEFAULT_REGION`), then
    ///   `us-east-1`
    /// - `path-style`: whether the bucket goes into the path (true) or into the host's name; true
    ///   if there is an endpoint
    /// - `conditional-put`: whether the store refuses to overwrite under a condition; found out by
    ///   `format` if not given
    /// - `sign-payload`: whether the store checks a SHA-256 of what it receives; true by default
    ///
    /// # Errors
    /// [`OpenError::Url`] for everything else, credentials above all.
    pub fn parse(url: &str) -> Result<Self, OpenError> {
        let shown = redacted(url);
        let bad = |why: &str| {
            OpenError::Url(format!(
                "{shown}: {why}; write as s3://BUCKET/PREFIX?endpoint=…&region=…"
            ))
        };
        let rest = url.strip_prefix(S3_SCHEME).ok_or_else(|| bad("not an s3:// URL"))?;
        if rest.contains('#') {
            return Err(bad("a URL of a store has no fragment (#)"));
        }
        let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = base.split_once('/').unwrap_or((base, ""));
        if bucket.contains('@') || bucket.contains(':') {
            return Err(bad(
                "credentials do not belong into the URL, which the volume keeps: use the \
                 environment (AWS_ACCESS_KEY_ID, \
                 AWS_SECRET_ACCESS_KEY) or --credentials FILE",
            ));
        }
        check_bucket(bucket).map_err(&bad)?;
        let prefix = prefix.trim_end_matches('/');
        check_prefix(prefix).map_err(&bad)?;
        let mut options = Self {
            url: url.to_string(),
            bucket: bucket.to_string(),
            prefix: prefix.to_string(),
            endpoint: None,
            region: None,
            path_style: false,
            conditional_put: None,
            sign_payload: true,
            credentials_file: None,
            limits: S3Limits::default(),
        };
        let mut path_style = None;
        let mut seen = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&name) {
                return Err(bad(&format!("{name} is given twice")));
            }
            seen.push(name);
            let value = percent_decoded(value).ok_or_else(|| {
                bad(&format!("the value of {name} is not valid percent-encoded text"))
            })?;
            match name {
                "endpoint" => {
                    options.endpoint = Some(check_endpoint(&value).map_err(|why| bad(&why))?)
                }
                "region" if is_region(&value) => options.region = Some(value),
                "region" => {
                    return Err(bad("a region has letters, digits and hyphens, as eu-central-1"));
                }
                "path-style" => path_style = Some(flag(name, &value).map_err(|why| bad(&why))?),
                "conditional-put" => {
                    options.conditional_put = Some(flag(name, &value).map_err(|why| bad(&why))?);
                }
                "sign-payload" => {
                    options.sign_payload = flag(name, &value).map_err(|why| bad(&why))?
                }
                _ if is_secret(name) => {
                    return Err(bad(
                        "credentials do not belong into the URL, which the volume keeps: use the \
                         environment \
                         (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or --credentials FILE",
                    ));
                }
                _ => {
                    return Err(bad(&format!(
                        "{name} is not a parameter; there are endpoint, region, path-style, \
                         conditional-put, sign-payload"
                    )));
                }
            }
        }
        options.path_style = path_style.unwrap_or(options.endpoint.is_some());
        Ok(options)
    }

    /// Longest time for a request with all its attempts.
    pub fn deadline(&self) -> Duration {
        self.limits.deadline
    }

    /// The URL as it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// What all keys begin with, without slashes at its ends; may be empty.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// `http://HOST[:PORT]` or `https://…` of a compatible store; none: Amazon's of the region.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// Takes credentials from a file like `~/.aws/credentials` and from nowhere else.
    pub fn credentials_file(mut self, file: Option<PathBuf>) -> Self {
        self.credentials_file = file;
        self
    }

    /// Sets how hard the store may be used. Zeros count as one.
    pub fn limits(mut self, limits: S3Limits) -> Self {
        self.limits = S3Limits {
            max_uploads: limits.max_uploads.clamp(1, tokio::sync::Semaphore::MAX_PERMITS),
            max_downloads: limits.max_downloads.clamp(1, tokio::sync::Semaphore::MAX_PERMITS),
            multipart_bytes: limits.multipart_bytes.max(PART_BYTES_MIN),
            ..limits
        };
        self
    }

    /// A store below this one's prefix.
    pub fn below(mut self, name: &str) -> Self {
        self.prefix = if self.prefix.is_empty() {
            name.to_string()
        } else {
            format!("{}/{name}", self.prefix)
        };
        self
    }

    /// The full key of a name below the prefix.
    pub(crate) fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}/{name}", self.prefix) }
    }

    /// The region: the URL's, the environment's, the default.
    pub(crate) fn region_or(&self, environment: &dyn Fn(&str) -> Option<String>) -> String {
        self.region
            .clone()
            .or_else(|| environment("AWS_REGION"))
            .or_else(|| environment("AWS_DEFAULT_REGION"))
            .unwrap_or_else(|| REGION_DEFAULT.to_string())
    }

    /// URL of the bucket: every key's URL is this, a slash and the key.
    pub(crate) fn bucket_url(&self, region: &str) -> String {
        let endpoint =
            self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        match endpoint.split_once("://") {
            Some((scheme, host)) if !self.path_style => {
                format!("{scheme}://{}.{host}", self.bucket)
            }
            _ => format!("{endpoint}/{}", self.bucket),
        }
    }
}

/// The URL as it may be shown: without what might be credentials.
fn redacted(url: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let rest = base.strip_prefix(S3_SCHEME).unwrap_or(base);
    let (bucket, _) = rest.split_once('/').unwrap_or((rest, ""));
    // Secrets may hold slashes: of a URL with a user in it nothing is repeated.
    let base = if bucket.contains(':') || rest.contains('@') {
        format!("{S3_SCHEME}…")
    } else {
        base.to_string()
    };
    let query: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            // An endpoint may have been written with a password in it.
            Some((name, value)) if is_secret(name) || value.contains('@') => format!("{name}=…"),
            _ => pair.to_string(),
        })
        .collect();
    if query.is_empty() { base } else { format!("{base}?{}", query.join("&")) }
}

/// Whether a parameter looks like credentials.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["key", "secret", "token", "password", "credential"].iter().any(|word| name.contains(word))
}

fn check_bucket(bucket: &str) -> Result<(), &'static str> {
    let fits = (3..=63).contains(&bucket.len())
        && bucket.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        && bucket.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    fits.then_some(())
        .ok_or("a bucket's name has 3 to 63 lower-case letters, digits, hyphens and dots")
}

/// Keys go into URLs, listings and error messages as they are: only what needs no escaping
/// anywhere.
fn check_prefix(prefix: &str) -> Result<(), &'static str> {
    let segment_fits = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.=+,".contains(&byte))
    };
    let fits = prefix.len() <= PREFIX_BYTES_MAX
        && (prefix.is_empty() || prefix.split('/').all(segment_fits));
    fits.then_some(()).ok_or(
        "a prefix has up to 900 letters, digits and -_.=+, in parts separated by single slashes, \
         none of them . or ..",
    )
}

fn check_endpoint(value: &str) -> Result<String, String> {
    let value = value.trim_end_matches('/');
    let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
    let good = host.is_some_and(|host| {
        !host.is_empty()
            && !host.contains(['/', '@', '?', '#', ' '])
            && value.parse::<http::Uri>().is_ok()
    });
    if good {
        Ok(value.to_string())
    } else {
        Err("the endpoint must be http://HOST[:PORT] or https://HOST[:PORT]".to_string())
    }
}

fn is_region(value: &str) -> bool {
    !value.is_empty()
        && value.len() <= 64
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("{name} must be true or false")),
    }
}

/// `%3A` to `:`; none if that is not UTF-8 or cut off.
fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests;
