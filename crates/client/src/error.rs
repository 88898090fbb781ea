//! Why a volume could not be formatted, opened or served: what failed, why, what to do.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// An error about a volume as a whole.
#[derive(Debug)]
pub enum VolumeError {
    /// A setting or URL is out of bounds.
    Invalid(String),
    /// There is no volume at this path, or in this bucket.
    NotAVolume(PathBuf),
    /// The place for a new volume is not empty.
    NotEmpty(PathBuf),
    /// This is in the place of a volume that is to be replaced, and no part of one.
    NotAVolumes(PathBuf),
    /// A file of the volume has a newer format than this program knows.
    Newer(PathBuf, u64),
    /// A file of the volume is damaged.
    Corrupt(PathBuf, String),
    /// Another process has the volume open.
    InUse {
        /// The volume.
        dir: PathBuf,
        /// What the holder wrote about itself: process number and what it does.
        holder: String,
    },
    /// What is there is one node's part of a volume that several nodes share.
    OneOfSeveral {
        /// The node's directory.
        dir: PathBuf,
        /// Its number.
        node: u32,
        /// The volume's URL.
        url: String,
    },
    /// The volume's key is missing, wrong or cannot be read.
    Key(String),
    /// The operating system refused something that was done to a file.
    File {
        /// What was done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system, the block store or a server refused.
    Io(String),
    /// The servers that answer serve no volume, or version, of this name.
    NotServed(String),
    /// The process that has the volume open takes no questions, not yet or not any more: this one
    /// it has not heard.
    Unanswered(String),
    /// The metadata engine refused.
    Engine {
        /// The volume, where it is one of a directory.
        dir: Option<PathBuf>,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl VolumeError {
    /// An I/O error with what was done to which file.
    pub fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        VolumeError::File { what, path: path.into(), source }
    }

    /// The errno by which a program tells what to do.
    pub fn errno(&self) -> i32 {
        match self {
            VolumeError::Invalid(_) => libc::EINVAL,
            VolumeError::NotAVolume(_) | VolumeError::NotServed(_) => libc::ENOENT,
            VolumeError::NotEmpty(_) | VolumeError::NotAVolumes(_) => libc::ENOTEMPTY,
            VolumeError::Newer(..) => libc::EPROTONOSUPPORT,
            VolumeError::Corrupt(..) => libc::EUCLEAN,
            VolumeError::InUse { .. } => libc::EBUSY,
            VolumeError::OneOfSeveral { .. } => libc::EINVAL,
            VolumeError::Key(_) => libc::EACCES,
            VolumeError::File { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            VolumeError::Unanswered(_) => libc::ETIMEDOUT,
            VolumeError::Io(_) | VolumeError::Engine { .. } => libc::EIO,
        }
    }

    /// An error of the metadata engine.
    pub fn engine(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        VolumeError::Engine { dir: None, source: source.into() }
    }

    /// An error of the metadata engine of the volume at `dir`.
    pub fn engine_at(dir: &Path, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        VolumeError::Engine { dir: Some(dir.into()), source: source.into() }
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeError::Invalid(why)
            | VolumeError::Key(why)
            | VolumeError::Io(why)
            | VolumeError::NotServed(why)
            | VolumeError::Unanswered(why) => f.write_str(why),
            VolumeError::File { what, path, source } => {
                write!(f, "cannot {what} {}: {source}", path.display())
            }
            VolumeError::Engine { dir: Some(dir), source } => {
                write!(f, "{}: {source}", dir.display())
            }
            VolumeError::Engine { dir: None, source } => write!(f, "{source}"),
            VolumeError::NotAVolume(url) if url.starts_with("s3:") => {
                let url = url.display();
                write!(
                    f,
                    "{url}: no KestrelFS volume here; check bucket and prefix, or create one with \
                     `kestrel format '{url}'`"
                )
            }
            VolumeError::NotAVolume(dir) => {
                let dir = dir.display();
                write!(f, "{dir}: no KestrelFS volume here; create one with `kestrel format {dir}`")
            }
            VolumeError::NotEmpty(dir) => write!(
                f,
                "{}: not empty; choose another place, or give --force to format it and lose what a \
                 volume there holds",
                dir.display()
            ),
            VolumeError::NotAVolumes(path) => write!(
                f,
                "{}: not a volume's, and not removed; move it away, or choose a place that is \
                 missing or empty",
                path.display()
            ),
            VolumeError::Newer(path, version) => write!(
                f,
                "{}: format version {version} is newer than this program knows; use a newer \
                 kestrel",
                path.display()
            ),
            VolumeError::Corrupt(path, why) => write!(f, "{}: damaged: {why}", path.display()),
            VolumeError::OneOfSeveral { dir, node, url } => write!(
                f,
                "{0}: node {node} of a cluster, which has only a part of the volume; serve it with \
                 `kestrel serve {0}`, as all other \
                 nodes, and use {url} instead",
                dir.display()
            ),
            VolumeError::InUse { dir, holder } => {
                write!(
                    f,
                    "{}: in use by {holder}; unmount it or end that process first",
                    dir.display()
                )
            }
        }
    }
}

impl Error for VolumeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            VolumeError::File { source, .. } => Some(source),
            VolumeError::Engine { dir: Some(_), source } => Some(source.as_ref()),
            // It prints as its cause does.
            VolumeError::Engine { dir: None, source } => source.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::error::FsError;

    use super::*;

    /// The text of an error has that of its cause, and `source()` is the cause itself.
    #[test]
    fn the_cause_of_a_volume_error() {
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        let error = VolumeError::io("write", Path::new("/v/volume.json"), full());
        assert_eq!(error.to_string(), format!("cannot write /v/volume.json: {}", full()));
        let source = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(source.and_then(io::Error::raw_os_error), Some(libc::ENOSPC));
        let damaged = FsError::new(libc::EIO, "damaged");
        let error = VolumeError::engine_at(Path::new("/v"), damaged.clone());
        assert_eq!(error.to_string(), format!("/v: {damaged}"));
        assert_eq!(error.source().and_then(|cause| cause.downcast_ref()), Some(&damaged));
        let error = VolumeError::engine(damaged.clone());
        assert_eq!(error.to_string(), damaged.to_string());
        assert!(error.source().is_none());
    }
}
