//! Why a store cannot be created or opened.

use std::fmt;

/// Why a store cannot be created or opened: "what failed: why; what to do".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// The URL cannot be meant.
    Url(String),
    /// There are no credentials, or not whole ones.
    Credentials(String),
    /// There is no such bucket.
    NoBucket {
        /// The bucket.
        bucket: String,
        /// The URL.
        url: String,
    },
    /// The store denies access.
    Denied {
        /// The URL.
        url: String,
        /// Where the credentials are from.
        credentials: String,
        /// The store's answer.
        why: String,
    },
    /// The store's clock and ours differ by more than it allows.
    ClockSkew {
        /// The URL.
        url: String,
        /// By how much this machine's clock is ahead, seconds; none if the store's answer had no
        /// time.
        ahead_seconds: Option<i64>,
    },
    /// The prefix belongs to another volume.
    OtherVolume {
        /// The URL.
        url: String,
        /// The volume that it belongs to.
        found: String,
        /// The volume that was to be opened.
        wanted: String,
    },
    /// The prefix belongs to no volume.
    NoMarker {
        /// The URL.
        url: String,
    },
    /// There are objects below the prefix, and no marker of a volume.
    NotEmpty {
        /// The URL.
        url: String,
    },
    /// A newer version of this program made it.
    Newer {
        /// The URL.
        url: String,
        /// Version of the layout.
        version: u64,
    },
    /// The marker of its volume cannot be read.
    Damaged {
        /// The URL.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// No answer, or none that helps, within the deadline.
    Unreachable {
        /// The URL.
        url: String,
        /// What happened last.
        why: String,
    },
    /// Something else.
    Other(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(why) | Self::Credentials(why) | Self::Other(why) => f.write_str(why),
            Self::NoBucket { bucket, url } => {
                write!(
                    f,
                    "{url}: there is no bucket {bucket}; create it, or check endpoint and region"
                )
            }
            Self::Denied { url, credentials, why } => write!(
                f,
                "{url}: no permission: {why}; check the credentials from {credentials} and what \
                 they are allowed to do"
            ),
            Self::ClockSkew { url, ahead_seconds } => {
                match ahead_seconds {
                    Some(ahead) if *ahead >= 0 => {
                        write!(f, "{url}: this machine's clock is {ahead} s ahead of the store's")?;
                    }
                    Some(behind) => {
                        write!(
                            f,
                            "{url}: this machine's clock is {} s behind the store's",
                            -behind
                        )?;
                    }
                    None => write!(f, "{url}: this machine's clock and the store's differ")?,
                }
                write!(
                    f,
                    ", too much for the store; set the clock (chronyc makestep, timedatectl \
                     set-ntp true)"
                )
            }
            Self::OtherVolume { url, found, wanted } => write!(
                f,
                "{url}: belongs to the volume {found}, not to {wanted}; another bucket or prefix \
                 is meant, or the volume's \
                 descriptor is from elsewhere"
            ),
            Self::NoMarker { url } => write!(
                f,
                "{url}: belongs to no volume (no object kestrel-volume); check bucket and \
                 prefix, or create a volume with \
                 kestrel format"
            ),
            Self::NotEmpty { url } => write!(
                f,
                "{url}: there are objects below objects/ of an unknown volume; choose an empty \
                 prefix"
            ),
            Self::Newer { url, version } => {
                write!(f, "{url}: made by a newer version (layout {version}); update this program")
            }
            Self::Damaged { url, why } => write!(
                f,
                "{url}: the object kestrel-volume is damaged: {why}; restore it \
                 (docs/format/objects.md says what it holds)"
            ),
            Self::Unreachable { url, why } => {
                write!(f, "{url}: {why}; check the endpoint and the network")
            }
        }
    }
}

impl std::error::Error for OpenError {}
