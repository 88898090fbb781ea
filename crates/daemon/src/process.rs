//! The process that serves something, mount or server: its options, and how it starts and ends.
//!
//! Without `--foreground` the program starts itself again in the background and returns when that
//! copy serves ([`background`]). The copy (or the one process in the foreground) logs, tells its
//! parent once whether it serves or why not, and ends by a signal. A process in the foreground
//! tells the service manager that has started it ([`service_manager`]).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kestrel_client::descriptor::random;
use kestrel_types::hex::to_hex;
use log::LevelFilter;

use crate::failure::{ExitStatus, Failure};
use crate::{background, service_manager};

/// What tells this process from all others, wherever they run: numbers of processes are those of
/// one machine, or container.
pub fn process_word() -> &'static str {
    static WORD: OnceLock<String> = OnceLock::new();
    WORD.get_or_init(|| {
        random::<16>().map_or_else(|_| std::process::id().to_string(), |word| to_hex(&word))
    })
}

/// How a process serves something.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// Stay in the foreground and log to the terminal
    pub foreground: bool,
    /// Serve figures for Prometheus at http://ADDR/metrics, as 127.0.0.1:9464
    pub metrics: Option<SocketAddr>,
    /// Log file; in the volume's directory by default, or in the mount's runtime directory if
    /// another machine serves the volume
    pub log: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace
    pub log_level: LevelFilter,
    /// Memory for metadata rows; 512M by default, less where the machine or the control group has
    /// little
    pub metadata_memory: Option<u64>,
    /// Metadata in PostgreSQL: take it over from the process that has it open, which can write
    /// nothing any more. A node of a cluster that is served asks that process to end first
    pub take_over: bool,
    /// Set for the process in the background
    pub report_readiness: bool,
}

impl ProcessOptions {
    /// Runs `background` (which calls [`Self::start`]), or `serve` in this process if that is
    /// wanted. Why it could not serve is told to the process that waits for it.
    ///
    /// # Errors
    /// What the two say.
    pub fn run(
        &self,
        background: impl FnOnce() -> Result<ExitStatus, Failure>,
        serve: impl FnOnce() -> Result<ExitStatus, Failure>,
    ) -> Result<ExitStatus, Failure> {
        if !self.foreground {
            crate::logger::install(LevelFilter::Warn);
            return background();
        }
        crate::logger::install(self.log_level);
        if self.report_readiness {
            crate::logger::bound_file();
        }
        let served = serve();
        if let (Err(failure), true) = (&served, self.report_readiness) {
            background::report_error(&failure.reason());
        }
        served
    }

    /// Starts the copy in the background, and returns its process number and its log file when it
    /// serves. `default_log` is where it logs unless told otherwise.
    ///
    /// # Errors
    /// Why it does not serve.
    pub fn start(&self, default_log: &Path) -> Result<(u32, PathBuf), String> {
        let log = self.log.as_deref().unwrap_or(default_log);
        let log = std::path::absolute(log).unwrap_or_else(|_| log.to_path_buf());
        Ok((background::start(&log)?, log))
    }

    /// Tells the waiting process, or the service manager, that this one serves what `what` says.
    /// From then on a process in the background keeps no directory busy.
    pub fn ready(&self, what: &str) {
        if self.report_readiness {
            background::report_ready();
            let _ = std::env::set_current_dir("/");
        } else {
            service_manager::ready(what);
        }
    }

    /// Tells the service manager that this process ends.
    pub fn stopping(&self) {
        if !self.report_readiness {
            service_manager::stopping();
        }
    }
}
