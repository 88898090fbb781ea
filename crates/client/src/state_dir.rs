//! The *state directory* of a volume that a bucket has all of: what one machine keeps of it. Such
//! a volume is named by the URL of its bucket, and has no directory of its own.
//!
//! The directory has what the directory of a volume has besides data: the lock, the control socket,
//! logs, and a copy of the descriptor. Its file [`RECORD_NAME`] says by which URL this machine last
//! opened the volume, and where the credentials are. Nothing is lost with it.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kestrel_s3::{S3_SCHEME, S3Options};
use kestrel_types::hex::to_hex;
use serde::{Deserialize, Serialize};

use crate::error::VolumeError;

/// The file that tells a state directory from the directory of a volume.
pub const RECORD_NAME: &str = "bucket.json";

/// Names the directory that all state directories of this machine lie in.
pub const PARENT_ENV: &str = "KESTREL_STATE_DIR";

/// Where they lie by default, of root.
const PARENT_OF_ROOT: &str = "/var/lib/kestrel/volumes";

const MAGIC: &str = "kestrelfs-state";
const FORMAT: u32 = 1;

/// Longest part of a prefix that stands in the name of a directory.
const PART_MAX: usize = 100;

/// Bytes of the digest that stand in the name of a directory.
const DIGEST_BYTES: usize = 8;

/// Whether a volume's URL names a bucket that has all of it.
pub fn is_bucket_url(url: &str) -> bool {
    url.starts_with(S3_SCHEME)
}

/// A volume's URL without its parameters, for people.
pub fn without_parameters(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// What a state directory says of its volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRecord {
    magic: String,
    format: u32,
    /// The URL by which this machine last opened the volume.
    pub url: String,
    /// File with the credentials, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
}

impl StateRecord {
    /// The record of a directory; `None` if that is no state directory, or its record is damaged.
    ///
    /// # Errors
    /// If the record is newer than this program, or cannot be read.
    pub fn read(dir: &Path) -> Result<Option<Self>, VolumeError> {
        let path = dir.join(RECORD_NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(why) => return Err(VolumeError::io("read", &path, why)),
        };
        let Ok(loose) = serde_json::from_slice::<serde_json::Value>(&text) else { return Ok(None) };
        let format = loose["format"].as_u64().filter(|_| loose["magic"] == MAGIC);
        match format {
            Some(format) if format > u64::from(FORMAT) => Err(VolumeError::Newer(path, format)),
            Some(_) => Ok(serde_json::from_value(loose).ok()),
            None => Ok(None),
        }
    }

    /// The file with the credentials: the one that is given, else the one that was given before, if
    /// it is still there.
    pub fn credentials(&self, given: Option<&Path>) -> Option<PathBuf> {
        let before = self.credentials.clone().filter(|file| file.exists());
        given.map(Path::to_path_buf).or(before)
    }
}

/// The file with the credentials of the store of the volume at `dir`: the one that is given, or the
/// one that its state directory names.
pub(crate) fn credentials_for(dir: &Path, given: Option<&Path>) -> Option<PathBuf> {
    // Objects may be named without a volume.
    match StateRecord::read(dir) {
        Ok(Some(record)) if !dir.as_os_str().is_empty() => record.credentials(given),
        _ => given.map(Path::to_path_buf),
    }
}

/// The state directory of a volume on this machine, which may not have been made yet.
#[derive(Debug, Clone)]
pub struct StateDir {
    url: String,
    path: PathBuf,
}

impl StateDir {
    /// That of the volume at `url`. The same bucket, prefix and endpoint lead to the same
    /// directory.
    ///
    /// # Errors
    /// If the URL is none of a bucket, or nothing says where state directories lie.
    pub fn of(url: &str) -> Result<Self, VolumeError> {
        Self::below(url, parent()?)
    }

    fn below(url: &str, parent: PathBuf) -> Result<Self, VolumeError> {
        let place = S3Options::parse(url).map_err(|why| VolumeError::Invalid(why.to_string()))?;
        let base = without_parameters(url);
        if base[S3_SCHEME.len()..].contains("//") {
            return Err(VolumeError::Invalid(format!(
                "{base}: a prefix has no two slashes together; write as s3://BUCKET/PREFIX"
            )));
        }
        let identity =
            [place.endpoint().unwrap_or_default(), place.bucket(), place.prefix()].join("\n");
        let digest = ring::digest::digest(&ring::digest::SHA256, identity.as_bytes());
        let part = place.prefix().rsplit('/').next().unwrap_or_default();
        let part: String = part.chars().take(PART_MAX).collect();
        let digits = to_hex(&digest.as_ref()[..DIGEST_BYTES]);
        let parts = [place.bucket(), &part, &digits];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Ok(Self { url: url.to_string(), path: parent.join(parts.join("-")) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file with the credentials: the one that is given, or the one of the last time.
    pub(crate) fn credentials(&self, given: Option<&Path>) -> Option<PathBuf> {
        credentials_for(&self.path, given)
    }

    /// Makes it if it is missing, and notes by which URL and with which credentials the volume is
    /// opened. Without a file the one of the last time stays.
    ///
    /// # Errors
    /// If it cannot be made or written, or a newer program has written it.
    pub(crate) fn make(&self, credentials: Option<&Path>) -> Result<(), VolumeError> {
        let failed = |why: std::io::Error| {
            VolumeError::Invalid(format!(
                "{}: the volume's state directory cannot be made: {why}; {PARENT_ENV} names \
                 another place for it",
                self.path.display()
            ))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(failed)?;
        let before = StateRecord::read(&self.path)?;
        let given = credentials.map(|file| std::path::absolute(file).unwrap_or(file.into()));
        let record = StateRecord {
            magic: MAGIC.into(),
            format: FORMAT,
            url: self.url.clone(),
            credentials: given
                .or_else(|| before.as_ref().and_then(|before| before.credentials.clone())),
        };
        if before.as_ref() == Some(&record) {
            return Ok(());
        }
        // Two processes may write it at a time.
        let partial = self.path.join(format!("{RECORD_NAME}.new-{}", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut options = File::options();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
            file.write_all(format!("{:#}\n", serde_json::json!(record)).as_bytes())?;
            file.sync_all()?;
            fs::rename(&partial, self.path.join(RECORD_NAME))
        };
        write().map_err(failed)
    }

    /// Removes it if it has nothing but what a format that failed has made.
    pub(crate) fn remove(&self) {
        for name in [RECORD_NAME, "lock"] {
            let _ = fs::remove_file(self.path.join(name));
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// The directory of a job's namespace on this machine, which may not have been made yet. `id`: 32
/// hexadecimal digits.
///
/// # Errors
/// If nothing says where state directories lie.
pub fn job_dir(id: &str) -> Result<PathBuf, VolumeError> {
    Ok(parent()?.join(format!("job-{id}")))
}

/// Where the state directories of this machine lie.
fn parent() -> Result<PathBuf, VolumeError> {
    let absolute = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        match value {
            Some(path) if !path.is_absolute() => Err(VolumeError::Invalid(format!(
                "{name}={}: it must be an absolute path",
                path.display()
            ))),
            other => Ok(other),
        }
    };
    if let Some(parent) = absolute(PARENT_ENV)? {
        return Ok(parent);
    }
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        return Ok(PARENT_OF_ROOT.into());
    }
    let below = |place: PathBuf| place.join("kestrel/volumes");
    if let Ok(Some(place)) = absolute("XDG_STATE_HOME") {
        return Ok(below(place));
    }
    absolute("HOME")?.map(|home| below(home.join(".local/state"))).ok_or_else(|| {
        VolumeError::Invalid(format!(
            "there is no HOME to keep the volume's state directory in; set {PARENT_ENV}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(url: &str) -> String {
        let dir = StateDir::below(url, "/p".into()).unwrap();
        dir.path().strip_prefix("/p").unwrap().to_str().unwrap().to_string()
    }

    /// Endpoint, bucket and prefix decide about the directory; other parameters do not.
    #[test]
    fn names_of_state_directories() {
        let plain = name_of("s3://bucket/a/photos?region=eu-1");
        assert!(plain.starts_with("bucket-photos-") && plain.len() == 14 + 16, "{plain}");
        assert_eq!(name_of("s3://bucket/a/photos/?region=eu-2&sign-payload=false"), plain);
        for other in ["s3://bucket/photos", "s3://bucket/a/photos?endpoint=http://h:9000"] {
            assert_ne!(name_of(other), plain, "{other}");
        }
        assert!(name_of("s3://bucket").starts_with("bucket-"));
        assert!(name_of(&format!("s3://bucket/{}", "x".repeat(900))).len() < 255);
    }

    /// What is no prefix is refused, and no secret is repeated.
    #[test]
    fn urls_without_a_state_directory() {
        for url in
            ["s3://bucket/a//b", "s3://bucket/a//", "s3://bucket//@1", "s3://bucket/a b", "s3://b"]
        {
            assert!(StateDir::below(url, "/p".into()).is_err(), "{url}");
        }
        for url in ["s3://ID:hush@bucket/a", "s3://bucket/a?endpoint=http://ID:hush@h"] {
            let why = StateDir::below(url, "/p".into()).unwrap_err().to_string();
            assert!(!why.contains("hush"), "{why}");
        }
    }

    /// The file with credentials is noted until another one is given; a damaged record is written
    /// anew; a newer one is refused.
    #[test]
    fn record_of_a_state_directory() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("credentials");
        fs::write(&file, "").unwrap();
        let url = "s3://bucket/a?region=eu-1";
        let dir = StateDir::below(url, parent.path().into()).unwrap();
        dir.make(Some(&file)).unwrap();
        dir.make(None).unwrap();
        let record = StateRecord::read(dir.path()).unwrap().unwrap();
        assert_eq!((record.url.as_str(), dir.credentials(None)), (url, Some(file.clone())));
        fs::remove_file(&file).unwrap();
        assert_eq!(dir.credentials(None), None);
        let path = dir.path().join(RECORD_NAME);
        fs::write(&path, "{\"magic\"").unwrap();
        assert_eq!(StateRecord::read(dir.path()).unwrap(), None);
        dir.make(None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
        assert!(matches!(dir.make(None), Err(VolumeError::Newer(_, 2))));
    }
}
