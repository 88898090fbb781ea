//! Options that say how a volume's block store is reached; the same for every verb that opens a
//! volume.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use kestrel_client::storage::StoreOptions;
use kestrel_daemon::units::size_arg;

/// Most requests of a kind at a time.
const REQUESTS_MAX: usize = 1024;

/// How the block store is reached.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Block store")]
pub struct StoreArgs {
    /// File with the credentials of an s3:// store [default: AWS_ACCESS_KEY_ID, … or the machine's]
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// File with the key of an encrypted volume; by default the one that KESTREL_KEY_FILE names
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Uploads at a time
    #[arg(long, value_name = "N", value_parser = requests_arg,
        default_value_t = StoreOptions::default().max_uploads)]
    pub max_uploads: usize,
    /// Downloads at a time
    #[arg(long, value_name = "N", value_parser = requests_arg,
        default_value_t = StoreOptions::default().max_downloads)]
    pub max_downloads: usize,
    /// Most bytes a second to an s3:// store, as 50M; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "0")]
    pub upload_limit: u64,
    /// Most bytes a second from an s3:// store; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "0")]
    pub download_limit: u64,
}

/// The disk cache of a mount.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Disk cache")]
pub struct CacheArgs {
    /// Directory on a local disk that keeps what was read and written; once for each disk
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Vec<PathBuf>,
    /// Most bytes in each directory, all volumes together; 100G by default
    #[arg(long, value_name = "SIZE", value_parser = size_arg, requires = "cache_dir")]
    pub cache_size: Option<u64>,
    /// Part of each directory's disk that stays free, from 0 to 0.9; 0.1 by default
    #[arg(long, value_name = "RATIO", value_parser = ratio_arg, requires = "cache_dir")]
    pub free_space_ratio: Option<f64>,
}

fn requests_arg(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=REQUESTS_MAX).contains(&number) => Ok(number),
        _ => Err(format!("from 1 to {REQUESTS_MAX}")),
    }
}

fn ratio_arg(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=0.9).contains(&ratio) => Ok(ratio),
        _ => Err(format!("{text:?} is not a number from 0 to 0.9")),
    }
}

impl StoreArgs {
    /// As the client takes them.
    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            credentials: self.credentials.clone(),
            key_file: self.key_file.clone(),
            max_uploads: self.max_uploads,
            max_downloads: self.max_downloads,
            upload_limit: NonZeroU64::new(self.upload_limit),
            download_limit: NonZeroU64::new(self.download_limit),
            ..StoreOptions::default()
        }
    }
}

impl CacheArgs {
    /// Adds them to the others.
    pub fn add_to(&self, options: &mut StoreOptions) {
        options.cache_dirs = self.cache_dir.clone();
        options.cache_bytes = self.cache_size;
        options.free_space_ratio = self.free_space_ratio;
    }
}
