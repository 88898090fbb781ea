//! `VOLUME//NAME`: a published version of a volume.

use std::fmt;
use std::path::Path;

use kestrel_bucket::version::check_name;
use kestrel_s3::S3_SCHEME;

use super::is_volume;
use crate::error::VolumeError;
use crate::state_dir::without_parameters;
use crate::url::{RemoteUrl, SCHEME};

/// A version of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionUrl {
    /// The volume: a path or a URL.
    pub volume: String,
    /// The version's name.
    pub name: String,
}

impl VersionUrl {
    /// Reads what names a volume, maybe a version of it; `None` if it names no version. Two slashes
    /// within a path mean a version only behind the directory of a volume.
    ///
    /// # Errors
    /// If it names a version, and that cannot have this name.
    pub fn parse(text: &str) -> Result<Option<Self>, VolumeError> {
        let scheme = [SCHEME, S3_SCHEME].into_iter().find(|scheme| text.starts_with(scheme));
        let (volume, name) = match scheme {
            Some(scheme) => {
                let (place, options) = match text.split_once('?') {
                    Some((place, options)) => (place, format!("?{options}")),
                    None => (text, String::new()),
                };
                let Some((left, name)) = place[scheme.len()..].split_once("//") else {
                    return Ok(None);
                };
                (format!("{scheme}{left}{options}"), name)
            }
            None => {
                let path = text.strip_prefix("file://").unwrap_or(text);
                match path.rsplit_once("//") {
                    Some((left, name)) if is_volume(Path::new(left)) => (left.to_string(), name),
                    _ => return Ok(None),
                }
            }
        };
        check_name(name).map_err(|why| VolumeError::Invalid(format!("{text}: {why}")))?;
        Ok(Some(Self { volume, name: name.to_string() }))
    }
}

impl fmt::Display for VersionUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match RemoteUrl::parse(&self.volume) {
            Ok(url) => url.place(),
            Err(_) => without_parameters(&self.volume).to_string(),
        };
        write!(f, "{place}//{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Durability;
    use crate::storage::StoreOptions;
    use crate::volume::{NewVolume, format};

    /// Versions by URL and by path; a path with two slashes elsewhere is a path.
    #[test]
    fn urls_of_versions() {
        let parsed = |text: &str| VersionUrl::parse(text).map_err(|why| why.to_string());
        let is = |text: &str, volume: &str, name: &str| {
            let found = parsed(text).unwrap().unwrap();
            assert_eq!((found.volume.as_str(), found.name.as_str()), (volume, name), "{text}");
        };
        is("kestrel://meta1/photos//a@3", "kestrel://meta1/photos", "a@3");
        is("kestrel://h:1,i:2/v//a?tls=on", "kestrel://h:1,i:2/v?tls=on", "a");
        is("s3://b/p/q//a?region=x", "s3://b/p/q?region=x", "a");
        for none in ["kestrel://meta1/photos", "s3://b/p?endpoint=http://h", "/data//vol", "vol"] {
            assert_eq!(parsed(none), Ok(None), "{none}");
        }
        for bad in ["s3://b/p//", "kestrel://h/v//a b", "s3://b/p//a//b"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v").to_string_lossy().into_owned();
        format(&volume, NewVolume::plain("v", Durability::Fsync), &StoreOptions::default())
            .unwrap();
        is(&format!("{volume}//a@1"), &volume, "a@1");
        is(&format!("file://{volume}//a@1"), &volume, "a@1");
        let shown = parsed("s3://b/p//a?endpoint=http://h").unwrap().unwrap().to_string();
        assert_eq!(shown, "s3://b/p//a");
    }
}
