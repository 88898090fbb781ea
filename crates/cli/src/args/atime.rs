//! How access times are kept, as people say it.

use clap::ValueEnum;
use kestrel_client::fs::AtimeMode;
use kestrel_daemon::atime::shown;
use kestrel_fuse::mount::Atime;

/// Which reads change access times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AtimeArg {
    /// None: they change only when set
    None,
    /// The first after a change of the file, and one a day
    Relatime,
    /// All
    Strict,
}

impl AtimeArg {
    /// For a volume.
    pub fn mode(self) -> AtimeMode {
        match self {
            Self::None => AtimeMode::None,
            Self::Relatime => AtimeMode::Relatime,
            Self::Strict => AtimeMode::Strict,
        }
    }

    /// For a mount.
    pub fn option(self) -> Atime {
        shown(self.mode())
    }
}
