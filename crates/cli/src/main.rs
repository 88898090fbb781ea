//! The one binary, `kestrel`: arguments, output, exit code. Most of what a verb does is in
//! `kestrel_daemon`, `kestrel_admin` and `kestrel_client`.
//!
//! ```console
//! $ kestrel format /data/vol
//! $ kestrel mount /data/vol /mnt/vol
//! $ kestrel status /mnt/vol
//! $ kestrel help mount
//! ```
//!
//! The entry type is [`Cli`]: a [`Verb`] and the options that all verbs have. Every verb is a
//! module below [`verbs`]; this file only dispatches.
//!
//! | file | what it has |
//! | --- | --- |
//! | `verbs.rs` | the verbs, a module each, and how they find what an argument names |
//! | `args.rs` | options that several verbs have |
//! | `front.rs` | groups of commands in `kestrel --help`; `kestrel help`, `kestrel version` |
//! | `mount_helper.rs` | being run by mount(8) and umount(8) |
//! | `at_rest.rs` | the volume of a cluster of which no node runs |
//! | `bench.rs` | `kestrel bench` |
//! | `page.rs`, `progress.rs` | lines for people; a line that tells how far something is |
//! | `manual.rs` | `docs/cli.md`, made from the help texts |
//!
//! Invariants:
//! - The exit code is 0 if it was done, 1 if not or if what was found is not as it should be, 2 for
//!   wrong usage.
//! - What a verb prints for programs (`--json`) goes to standard output; failures and progress go
//!   to standard error.
//! - `docs/cli.md` equals the help texts: a test compares them.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "doc comments of arguments are help texts, which have words in brackets"
)]

mod args;
mod at_rest;
mod bench;
mod front;
#[cfg(test)]
mod manual;
mod mount_helper;
mod page;
mod progress;
mod verbs;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{FromArgMatches, Parser, Subcommand};
use log::LevelFilter;

use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::supervisor::taken_over;
use kestrel_daemon::{logger, units};
use verbs::{
    backup, clone, cluster, compact, config, csi, du, dump, format, fsck, gateway, gc, info, job,
    key, load, ls, mount, null_fs, objbench, policy, publish, quota, rm, serve, share_files,
    snapshot, sql, stats, status, tier, token, trash, umount, upgrade, version, warmup, watch,
};

/// KestrelFS: a distributed POSIX file system for AI and HPC, with file data in S3 or on disk.
#[derive(Debug, Parser)]
#[command(
    name = "kestrel",
    version,
    disable_help_subcommand = true,
    after_help = "\
Begin with: kestrel format VOLUME, kestrel mount VOLUME DIR, kestrel status DIR.
`kestrel help COMMAND` has the options of a command, with examples; `kestrel version` the version.

Exit codes: 0 done; 1 it could not be done, or what was found is not as it should be;
            2 wrong usage."
)]
struct Cli {
    /// File with the token for servers [default: the one that KESTREL_TOKEN_FILE names]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Access")]
    token_file: Option<PathBuf>,
    /// Wait so long for a server that is not there; by default a command fails within 2 s
    #[arg(long, global = true, value_name = "TIME", value_parser = units::duration_arg,
        help_heading = "Access")]
    wait: Option<Duration>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Format(format::FormatArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Upgrade(upgrade::UpgradeArgs),
    Serve(serve::ServeArgs),
    Gateway(Box<gateway::s3::S3GatewayArgs>),
    Webdav(Box<gateway::webdav::WebdavArgs>),
    Csi(csi::CsiArgs),
    Status(status::StatusArgs),
    Config(config::ConfigArgs),
    Key(key::KeyArgs),
    Info(info::InfoArgs),
    Ls(ls::LsArgs),
    Du(du::DuArgs),
    Rm(rm::RmArgs),
    Trash(trash::TrashArgs),
    Watch(watch::WatchArgs),
    Snapshot(snapshot::SnapshotArgs),
    Clone(clone::CloneArgs),
    Publish(publish::PublishArgs),
    Version(version::VersionArgs),
    Job(job::JobArgs),
    Sql(sql::SqlArgs),
    Stats(stats::StatsArgs),
    Fsck(fsck::FsckArgs),
    Gc(gc::GcArgs),
    Compact(compact::CompactArgs),
    Tier(tier::TierArgs),
    Warmup(warmup::WarmupArgs),
    Policy(policy::PolicyArgs),
    Quota(quota::QuotaArgs),
    Dump(dump::DumpArgs),
    Backup(backup::BackupArgs),
    Load(load::LoadArgs),
    Cluster(cluster::ClusterArgs),
    Token(token::TokenArgs),
    Bench(bench::BenchArgs),
    Objbench(objbench::ObjbenchArgs),
    #[command(hide = true)]
    NullFs(null_fs::NullFsArgs),
    #[command(hide = true)]
    ShareFiles(share_files::ShareFilesArgs),
    /// What this program can take over from another one.
    #[command(hide = true)]
    TakesOver,
    /// List the points where KESTREL_CRASH_AT=NAME:COUNT kills the process.
    #[command(hide = true)]
    CrashPoints,
    /// The child processes of bench.
    #[command(hide = true)]
    BenchWorker,
}

fn run(verb: &Verb, token_file: Option<&Path>) -> Result<ExitStatus, Failure> {
    kestrel_types::crash::arm_from_environment().map_err(Failure::usage)?;
    let serves = matches!(
        verb,
        Verb::Mount(_) | Verb::Serve(_) | Verb::Gateway(_) | Verb::Webdav(_) | Verb::Csi(_)
    );
    if !serves {
        logger::install(LevelFilter::Warn);
    }
    match verb {
        Verb::Format(args) => format::run(args),
        Verb::Mount(args) => mount::run(args),
        Verb::Umount(args) => umount::run(args),
        Verb::Upgrade(args) => upgrade::run(args),
        Verb::Serve(args) => serve::run(args),
        Verb::Gateway(args) => gateway::s3::run(args),
        Verb::Webdav(args) => gateway::webdav::run(args),
        Verb::Csi(args) => csi::run(args, token_file),
        Verb::Status(args) => status::run(args),
        Verb::Config(args) => config::run(args),
        Verb::Key(args) => key::run(args),
        Verb::Info(args) => info::run(args),
        Verb::Ls(args) => ls::run(args),
        Verb::Du(args) => du::run(args),
        Verb::Rm(args) => rm::run(args),
        Verb::Trash(args) => trash::run(args),
        Verb::Watch(args) => watch::run(args),
        Verb::Snapshot(args) => snapshot::run(args),
        Verb::Clone(args) => clone::run(args),
        Verb::Publish(args) => publish::run(args),
        Verb::Version(args) => version::run(args),
        Verb::Job(args) => job::run(args),
        Verb::Sql(args) => sql::run(args),
        Verb::Stats(args) => stats::run(args),
        Verb::Fsck(args) => fsck::run(args),
        Verb::Gc(args) => gc::run(args),
        Verb::Compact(args) => compact::run(args),
        Verb::Tier(args) => tier::run(args),
        Verb::Warmup(args) => warmup::run(args),
        Verb::Policy(args) => policy::run(args),
        Verb::Quota(args) => quota::run(args),
        Verb::Dump(args) => dump::run(args),
        Verb::Backup(args) => backup::run(args),
        Verb::Load(args) => load::run(args),
        Verb::Cluster(args) => cluster::run(args),
        Verb::Token(args) => token::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Objbench(args) => objbench::run(args),
        Verb::NullFs(args) => null_fs::run(args),
        Verb::ShareFiles(args) => share_files::run(args),
        Verb::TakesOver => {
            println!("{}", taken_over());
            Ok(ExitStatus::Good)
        }
        Verb::CrashPoints => {
            kestrel_types::crash::POINTS.iter().for_each(|point| println!("{point}"));
            Ok(ExitStatus::Good)
        }
        Verb::BenchWorker => bench::work()
            .map(|()| ExitStatus::Good)
            .map_err(|why| Failure::new("bench-worker", why)),
    }
}

/// Has memory of 256 KiB and more go back to the kernel when it is freed. Without this glibc keeps
/// more and more of it the more of it is freed, for each thread that did so: a mount that writes a
/// large file to a slow store grew to several times its bounds.
fn give_large_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: called before other threads exist. Where it is refused nothing has changed.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

fn main() -> ExitCode {
    give_large_memory_back();
    let kestrel = front::command();
    let given: Vec<OsString> = std::env::args_os().collect();
    let Some(arguments) = mount_helper::arguments(given.clone(), &kestrel) else {
        return ExitCode::SUCCESS;
    };
    if arguments != given {
        return mount_helper::run(&given, &arguments);
    }
    let matches = kestrel.get_matches_from(front::arguments(arguments));
    let cli = Cli::from_arg_matches(&matches);
    let Cli { token_file, wait, verb } = cli.unwrap_or_else(|why| why.exit());
    if let Some(file) = &token_file {
        kestrel_client::remote::read_token_from(file);
    }
    if let Some(wait) = wait {
        kestrel_client::remote::wait_for_contact(wait);
    }
    kestrel_client::remote::tell_waiting(kestrel_daemon::background::tell_waiting);
    if !matches!(verb, Verb::Mount(_) | Verb::NullFs(_) | Verb::Serve(_)) {
        // A reader that goes away (`kestrel fsck | head`) ends this program as it ends any other. A
        // server must not end because a client that asked it something went away. SAFETY: called
        // before other threads exist; SIG_DFL is a valid disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match run(&verb, token_file.as_deref()) {
        Ok(ExitStatus::Good) => ExitCode::SUCCESS,
        Ok(ExitStatus::Bad) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("kestrel {failure}");
            ExitCode::from(failure.code())
        }
    }
}
