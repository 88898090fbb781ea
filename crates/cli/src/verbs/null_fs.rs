//! `kestrel null-fs`: the file system that does nothing, from the same FUSE layer; the limit that
//! mounts are measured against.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::size_arg;
use kestrel_fuse::null::{NullOptions, run as serve};
use kestrel_fuse::{Config, MountOptions, TransportChoice};

/// Mount a file system that keeps names and nothing else, to measure what FUSE itself costs.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kestrel null-fs /mnt/null & kestrel bench /mnt/null --no-verify; kestrel umount /mnt/null")]
pub struct NullFsArgs {
    /// Where
    pub dir: PathBuf,
    /// Size that new files have at once
    #[arg(long, value_parser = size_arg, default_value = "0")]
    pub file_size: u64,
    /// No page cache: every read and write is a request
    #[arg(long)]
    pub direct_io: bool,
    /// Take part in every close, as a file system with delayed writes must
    #[arg(long)]
    pub flush: bool,
    /// Let the kernel keep pages from one open to the next
    #[arg(long)]
    pub keep_pages: bool,
    /// Threads; 0: by cores
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
    /// Over what the kernel's requests come: uring, device (/dev/fuse), or auto: uring where root
    /// has switched it on
    #[arg(long, default_value_t, value_name = "auto|uring|device")]
    pub transport: TransportChoice,
}

/// Serves it in the foreground until it is unmounted.
pub fn run(args: &NullFsArgs) -> Result<ExitStatus, Failure> {
    let options = NullOptions {
        file_bytes: args.file_size,
        direct_io: args.direct_io,
        flush: args.flush,
        keep_pages: args.keep_pages,
        ..NullOptions::default()
    };
    let config = Config { workers: args.workers, transport: args.transport, ..Config::default() };
    let mount = MountOptions { source: "kestrel-null".into(), ..MountOptions::default() };
    let ready = |session: &kestrel_fuse::Session| {
        let unmounter = session.unmounter();
        kestrel_daemon::signals::on_signal(move |_| {
            let _ = unmounter.unmount().or_else(|_| unmounter.detach());
        });
        println!("serving {} over {}", args.dir.display(), session.transport());
        let _ = std::io::stdout().flush();
    };
    serve(&args.dir, options, &mount, &config, ready)
        .map_err(|why| Failure::new("null-fs", why))?;
    Ok(ExitStatus::Good)
}
