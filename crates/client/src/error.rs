//! Why a volume could not be formatted, opened or served: what failed, why, what to do.

use std::fmt;
use std::path::{Path, PathBuf};

/// An error about a volume as a whole.
#[derive(Debug)]
pub enum VolumeError {
    /// A setting or URL is out of bounds.
    Invalid(String),
    /// There is no volume at this path.
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
    /// The operating system refused.
    Io(String),
    /// The process that has the volume open takes no questions, not yet or not any more: this one
    /// it has not heard.
    Unanswered(String),
    /// The metadata engine refused.
    Engine(String),
}

impl VolumeError {
    /// An I/O error with what was done to which file.
    pub fn io(what: &str, path: &Path, error: &std::io::Error) -> Self {
        VolumeError::Io(format!("cannot {what} {}: {error}", path.display()))
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeError::Invalid(why)
            | VolumeError::Key(why)
            | VolumeError::Io(why)
            | VolumeError::Unanswered(why)
            | VolumeError::Engine(why) => f.write_str(why),
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

impl std::error::Error for VolumeError {}
