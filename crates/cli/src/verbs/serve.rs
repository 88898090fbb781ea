//! `kestrel serve`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory, Parser};
use kestrel_client::volume::VolumeLock;
use kestrel_daemon::ask::ask;
use kestrel_daemon::balance::{Pace, pace_arg};
use kestrel_daemon::curator::{self, CuratorPlan};
use kestrel_daemon::failover::{Failover, failover_arg};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::logger;
use kestrel_daemon::serve::{
    LOG_NAME, ServeConfig, advertise_arg, check, in_place_of, name_arg, serve, stop,
};
use kestrel_daemon::tls::url_of;
use kestrel_daemon::units::duration_arg;
use kestrel_server::config::{Access, LEASE_MAX, LEASE_MIN};
use kestrel_types::clock::Nanos;
use kestrel_types::placement::NodeId;
use log::LevelFilter;

use crate::args::file::{self, bounded};
use crate::args::store::StoreArgs;
use crate::args::{BackupScheduleArgs, CollectorArgs, LogDirArgs, ProcessArgs, RoleArg, TlsArgs};

/// Serve a volume to clients over the network.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  kestrel serve /data/vol --listen 10.0.0.1:9440
  kestrel serve /data/vol --listen [::]:9440 --name photos --lease 60s
  kestrel serve /data/vol --foreground --log-level debug
  kestrel serve /data/vol --stop
  kestrel serve /data/node2
  kestrel serve --config /etc/kestrel/node2.toml
  kestrel serve --config /etc/kestrel/node2.toml --check
  kestrel serve /data/node2 --replace
  kestrel serve /data/node2 --in-place-of 3
  kestrel serve /data/vol//imagenet@v3 --read-only --listen 127.0.0.1:9450
  kestrel serve 's3://bucket/photos//imagenet@v3?region=eu-1' --read-only --access open

Clients mount it with `kestrel mount kestrel://HOST:PORT/NAME DIR`. Metadata goes through this
process, file data straight between them and the block store: format the volume with --storage
s3://… unless all of them run on this machine. Returns when it serves; the process stays in the
background. Clients wait while it is restarted, and go on with their open files and locks.
Connections with other machines are encrypted, and clients there show a token, which `kestrel token
create` makes, and by which they know the volume (or the fingerprint in the URL that is printed,
which `kestrel cluster ca DIR` shows again). SIGTERM and SIGINT end it cleanly. Of a volume that
several nodes share each is served like this; they find each other by the addresses that were given
when the cluster was formed. If their metadata is in a database or bucket each takes the place of
others that have died: a process for that one is started beside it, in NODE_DIR/nodes/N, which
`kestrel serve NODE_DIR/nodes/N --stop` ends, and which `kestrel serve DIR --take-over` of the
node's own directory relieves.

VOLUME//NAME --read-only serves the metadata of a published version from memory, in any number of
processes beside each other and beside the volume's own server (docs/operations/versions.md). Its
clients mount kestrel://HOST:PORT/VOLUME_NAME//NAME.")]
pub struct ServeArgs {
    /// The volume: a path, file:///path or s3://…; with //NAME behind it a published version of it
    pub volume: Option<String>,
    /// TOML file with a key for each of these options, as lease = "60s"; what is given here wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say what would be served, and how, and end
    #[arg(long)]
    pub check: bool,
    /// Where to listen: ADDRESS:PORT; by default a node of a cluster at its address, any other at
    /// 127.0.0.1:9440
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where others reach this node of a cluster: HOST:PORT; by default its address in the
    /// cluster's table if it listens there, the host of that and its own port if it listens at all
    /// addresses, else where it listens
    #[arg(long, value_name = "ADDR", value_parser = advertise_arg)]
    pub advertise: Option<String>,
    /// Name by which clients ask for the volume; by default the one it was formatted with
    #[arg(long, value_name = "NAME", value_parser = name_arg)]
    pub name: Option<String>,
    /// What this node of a cluster is there for; it must be what the cluster has it for, which is
    /// also the default
    #[arg(long, value_enum, value_name = "ROLE")]
    pub role: Option<RoleArg>,
    /// A client that is not heard of for this long loses its locks and what it has open
    #[arg(long, value_name = "TIME",
        value_parser = bounded(duration_arg, nanos(LEASE_MIN), nanos(LEASE_MAX), "from 1s to 10m"),
        default_value = "30s")]
    pub lease: Duration,
    /// How long clients of before a restart are waited for; as long as the lease by default
    #[arg(long, value_name = "TIME",
        value_parser = bounded(duration_arg, Duration::ZERO, nanos(LEASE_MAX), "at most 10m"))]
    pub grace: Option<Duration>,
    /// How often the node that leads changes looks whether nodes are to be evened out: every=TIME,
    /// or off. Of a cluster
    #[arg(long, value_name = "PACE", value_parser = pace_arg, default_value = "every=10m")]
    pub balance: Pace,
    /// Which clients must show a token: auto (those on other machines), tokens (all), open (none)
    #[arg(long, value_name = "CLIENTS", value_parser = access_arg, default_value = "auto")]
    pub access: Access,
    /// Serve a published version, which never changes: VOLUME//NAME
    #[arg(long)]
    pub read_only: bool,
    /// The tokens of clients of a published version, as `kestrel token export` prints them; read
    /// again when the file changes
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Where refused and administrative operations are told, or off; audit.log in the volume's
    /// directory by default, of a version in its runtime directory
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// Whether other nodes that have died are taken over, at which ports they are served then: any,
    /// off, or PORT-PORT. Of a cluster with its metadata in a database
    #[arg(long, value_name = "PORTS", value_parser = failover_arg, default_value = "any")]
    pub failover: Failover,
    /// Serve this other node of the cluster, which is not served, from this node's directory and
    /// address
    #[arg(long, value_name = "N")]
    pub in_place_of: Option<NodeId>,
    /// Set by a process that takes a node over: whom it is taken from, by force, if that one still
    /// has it
    #[arg(
        long,
        hide = true,
        value_name = "WHO",
        requires = "in_place_of",
        conflicts_with = "take_over"
    )]
    pub take_over_from: Option<String>,
    /// Have the process that serves it at present end, and go on in its place
    #[arg(long)]
    pub replace: bool,
    /// End the process that serves the volume, or the version at the address of --listen
    #[arg(long, conflicts_with_all = ["replace", "advertise", "name", "role", "lease",
        "grace", "balance", "foreground", "check", "tls", "tls_cert", "tls_ca", "access", "audit"])]
    pub stop: bool,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Most requests that a worker executes together, for measurements: 1 switches merging off
    #[arg(long, hide = true, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch_max: Option<u16>,
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(flatten)]
    pub log_dir: LogDirArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub dumps: BackupScheduleArgs,
    #[command(flatten)]
    pub leftovers: CollectorArgs,
}

impl ServeArgs {
    /// As the daemon takes them.
    fn config(&self) -> ServeConfig {
        ServeConfig {
            volume: self.volume.clone(),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            name: self.name.clone(),
            role: self.role.map(RoleArg::role),
            lease: self.lease,
            grace: self.grace,
            balance: self.balance,
            access: self.access,
            audit: self.audit.clone(),
            failover: self.failover,
            take_over_from: self.take_over_from.clone(),
            replace: self.replace,
            stop: self.stop,
            read_only: self.read_only,
            tokens: self.tokens.clone(),
            tls: self.tls.options(),
            batch_max: self.batch_max,
            process: self.process.options(),
            store: self.store.options(),
            log_dir: self.log_dir.settings(),
            dumps: self.dumps.options(),
            leftovers: self.leftovers.options(),
            stands_in: None,
        }
    }
}

/// The options as a command line by themselves.
#[derive(Parser)]
#[command(name = "serve")]
struct ServeCommandLine {
    #[command(flatten)]
    args: ServeArgs,
}

/// Serves, in the background unless told otherwise.
pub fn run(args: &ServeArgs) -> Result<ExitStatus, Failure> {
    let Some(config) = &args.config else { return run_with(args, &[]) };
    // What comes after the program's name and the verb.
    let line: Vec<OsString> = std::env::args_os().skip(2).collect();
    let (args, keys) = with_file(config, &line, args.stop)?;
    run_with(&args, &keys)
}

/// The options of a command line and of a file, and which keys of that count.
fn with_file(
    config: &Path,
    line: &[OsString],
    stop: bool,
) -> Result<(ServeArgs, Vec<String>), Failure> {
    let usage = |why: String| Failure::usage(format!("serve: {why}"));
    let clap = |why: clap::Error| {
        let text = why.to_string();
        usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_string())
    };
    let verb = [OsString::from("serve")];
    let given =
        ServeCommandLine::command().try_get_matches_from([&verb, line].concat()).map_err(clap)?;
    let mut file = file::read(config, &ServeCommandLine::command(), &given).map_err(usage)?;
    if stop {
        // How it would be served is of no consequence.
        file.arguments.retain(|word| !word.as_encoded_bytes().starts_with(b"--"));
    }
    let whole = [&verb, line, &file.arguments].concat();
    Ok((ServeCommandLine::try_parse_from(whole).map_err(clap)?.args, file.keys))
}

fn run_with(args: &ServeArgs, keys: &[String]) -> Result<ExitStatus, Failure> {
    let mut config = args.config();
    if let Some(url) = curator::version_of(&config)? {
        if args.in_place_of.is_some() {
            return Err(Failure::usage("serve: --in-place-of: for the nodes of a cluster"));
        }
        if args.check || args.stop {
            logger::install(LevelFilter::Warn);
        }
        return run_curator(args, &config, &curator::check(&config, url)?);
    }
    if let Some(node) = args.in_place_of {
        if !args.process.foreground {
            logger::install(LevelFilter::Warn);
        }
        config = in_place_of(&config, node)?;
    }
    if args.check {
        logger::install(LevelFilter::Warn);
        return tell(args, &config, keys);
    }
    if args.stop {
        logger::install(LevelFilter::Warn);
        if args.listen.is_some() {
            return Err(Failure::usage(
                "serve: --stop --listen: for a published version; a volume has one process that \
                 serves it",
            ));
        }
        return stop(&config);
    }
    config.process.run(|| background(&config), || serve(&config))
}

/// Serves a published version.
fn run_curator(
    args: &ServeArgs,
    config: &ServeConfig,
    plan: &CuratorPlan,
) -> Result<ExitStatus, Failure> {
    if args.check {
        println!(
            "{}: version {} would be served at {}",
            plan.url.volume, plan.url.name, plan.listen
        );
        return Ok(ExitStatus::Good);
    }
    if args.stop {
        return curator::stop(plan);
    }
    let start = || {
        let dir = plan.runtime_dir()?;
        let (pid, log) = config.process.start(&dir.join(curator::LOG_NAME)).map_err(fail)?;
        let question = serde_json::json!({ "verb": "status" });
        let status = ask("serve", &dir, &question, kestrel_client::control::QUICK)?;
        let status = status.unwrap_or_default();
        let url = status["url"].as_str().unwrap_or_default();
        println!("{} is served at {url} (process {pid}, log {})", plan.url, log.display());
        Ok(ExitStatus::Good)
    };
    config.process.run(start, || curator::serve(config, plan))
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("serve", why)
}

/// A time that is counted in nanoseconds.
fn nanos(time: Nanos) -> Duration {
    Duration::from_nanos(time.unsigned_abs())
}

/// Says what would be done.
fn tell(args: &ServeArgs, config: &ServeConfig, keys: &[String]) -> Result<ExitStatus, Failure> {
    let plan = check(config)?;
    let what = match plan.node {
        Some((node, role)) => format!("node {node} ({}) of volume {:?}", role.word(), plan.name),
        None => format!("volume {:?}", plan.name),
    };
    println!("{}: {what} would be served at {}", plan.volume.display(), plan.listen);
    let grace = config.grace.unwrap_or(config.lease);
    println!("lease {} s, grace {} s", config.lease.as_secs_f64(), grace.as_secs_f64());
    let log = config.process.log.clone().unwrap_or_else(|| plan.volume.join(LOG_NAME));
    let place =
        if config.process.foreground { "the terminal".into() } else { log.display().to_string() };
    println!("log to {place}, level {}", config.process.log_level.as_str().to_lowercase());
    if let Some(metrics) = config.process.metrics {
        println!("figures at http://{metrics}/metrics");
    }
    if let Some(config) = &args.config {
        println!(
            "from {}: {}",
            config.display(),
            if keys.is_empty() { "nothing".into() } else { keys.join(", ") }
        );
    }
    if let Some(pid) = VolumeLock::holder(&plan.volume) {
        println!("process {pid} has it open at present");
    }
    Ok(ExitStatus::Good)
}

fn background(config: &ServeConfig) -> Result<ExitStatus, Failure> {
    let plan = check(config)?;
    let (pid, log) = config.process.start(&plan.volume.join(LOG_NAME)).map_err(fail)?;
    let question = serde_json::json!({ "verb": "status" });
    let status =
        ask("serve", &plan.volume, &question, kestrel_client::control::QUICK)?.unwrap_or_default();
    let address = status["served"]["address"].as_str().and_then(|address| address.parse().ok());
    let url = url_of(&config.tls, &plan.volume, address.unwrap_or(plan.listen), &plan.name)
        .map_err(fail)?;
    println!("{} is served at {url} (process {pid}, log {})", plan.volume.display(), log.display());
    Ok(ExitStatus::Good)
}

fn access_arg(text: &str) -> Result<Access, String> {
    match text {
        "auto" => Ok(Access::Auto),
        "tokens" => Ok(Access::Tokens),
        "open" => Ok(Access::Open),
        _ => Err("auto, tokens or open".into()),
    }
}

#[cfg(test)]
mod tests {
    use kestrel_client::descriptor::Durability;
    use kestrel_client::storage::StoreOptions;
    use kestrel_client::volume::{NewVolume, form};

    use super::*;

    /// A node does not start while a change of the settings of all nodes is unfinished.
    #[test]
    fn no_start_within_a_change_of_all_nodes() {
        let place = tempfile::tempdir().unwrap();
        let url = place.path().to_str().unwrap();
        let new = NewVolume::plain("shared", Durability::Commit);
        form(url, new, &["127.0.0.1:9441".into()], None, &StoreOptions::default()).unwrap();
        let args = ServeCommandLine::parse_from(["serve", url]).args;
        assert!(check(&args.config()).is_ok());
        // As a change of all nodes leaves it that was killed before this one had the new settings.
        std::fs::copy(place.path().join("kestrel.json"), place.path().join("kestrel.json.change"))
            .unwrap();
        let why = check(&args.config()).err().unwrap().to_string();
        assert!(why.contains("was cut short: repeat it"), "{why}");
    }

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    /// What comes of a file and a command line.
    fn read(text: &str, line: &[&str]) -> Result<(ServeArgs, Vec<String>), String> {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("node.toml");
        std::fs::write(&file, text).unwrap();
        let read = with_file(&file, &words(line), line.contains(&"--stop"));
        let there = format!("{}/", place.path().display());
        read.map_err(|why| why.to_string().replace(&there, ""))
    }

    /// The settings file in docs/operations/serve.md.
    fn example() -> &'static str {
        let text = include_str!("../../../../docs/operations/serve.md");
        text.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0
    }

    #[test]
    fn a_file_says_what_flags_say_and_flags_win() {
        let text = "volume = \"node4\"\nlease = \"60s\"\ngrace = 90\nname = \"photos\"\n\
                    [process]\nlog = \"serve.log\"\nforeground = false\nlog-level = \
                    \"debug\"\n[store]\nmax-uploads = 7\n";
        let (args, keys) = read(text, &["--lease", "5s", "--foreground"]).unwrap();
        assert_eq!(
            (args.lease, args.grace),
            (Duration::from_secs(5), Some(Duration::from_secs(90)))
        );
        assert!(args.process.foreground && args.process.log_level == LevelFilter::Debug);
        assert_eq!((args.store.max_uploads, args.name.as_deref()), (7, Some("photos")));
        let beside = |path: &Path| path.is_absolute() && path.parent() != Some(Path::new("/"));
        assert!(
            beside(Path::new(args.volume.as_deref().unwrap()))
                && beside(&args.process.log.unwrap())
        );
        assert_eq!(
            keys,
            ["volume", "grace", "name", "process.log", "process.log-level", "store.max-uploads"]
        );
        let (args, _) = read(text, &["/data/other", "--stop"]).unwrap();
        assert_eq!(
            (args.volume.as_deref(), args.lease),
            (Some("/data/other"), Duration::from_secs(30))
        );
        let (args, _) = read("volume = \"file:///data/v\"", &["--stop"]).unwrap();
        assert_eq!(args.volume.as_deref().unwrap(), "file:///data/v");
        let (args, keys) = read("", &[]).unwrap();
        assert!(args.volume.is_none() && keys.is_empty());
    }

    /// An error about a configuration file names the line of the mistake and what is allowed there.
    #[test]
    fn errors_of_configuration_files() {
        for (text, why) in [
            (
                "volume = \"v\"\nleese = 5\n",
                "node.toml, line 2: there is no key \"leese\"; keys are access, advertise, audit, \
                 balance, collect-every, collect-grace, discard-log, failover, grace, lease, \
                 listen",
            ),
            (
                "\n\nlease = true",
                "line 3: lease: true or false, where a string or a number is wanted",
            ),
            ("lease = [5]", "line 1: lease: a list, where"),
            ("lease = 0x10", "not written in decimal digits"),
            (
                "lease = \"11m\"",
                "line 1: lease: invalid value '11m' for '--lease <TIME>': from 1s to 10m",
            ),
            ("lease = \"soon\"", "is not a duration"),
            ("name = \"a/b\"", "neither '/' nor '?' nor control characters"),
            ("role = \"king\"", "line 1: role: invalid value 'king' for '--role <ROLE>'"),
            ("[process]\nforeground = 1", "line 2: foreground: a number that"),
            ("[process]\nmetadata-memory = \"1M\"", "line 2: metadata-memory: invalid value '1M'"),
            (
                "[process]\nlog-levle = \"debug\"",
                "keys of [process] are foreground, log, log-level, metadata-memory, metrics",
            ),
            ("log-level = \"debug\"", "line 1: log-level stands in the table [process]"),
            (
                "[store]\nlease = \"5s\"",
                "line 2: lease stands before the first table, not in [store]",
            ),
            ("[store]\nmax-uploads = 0", "from 1 to 1024"),
            ("[proces]\nlog = \"x\"", "line 1: there is no table [proces]; keys are"),
            ("[tables]", "tables [process], [store], [tls], [dump]"),
            ("[dump]\nevery = \"0s\"", "at least 1s"),
            ("take-over = true", "only the command line"),
            ("stop = true", "line 1: stop: only the command line says that"),
            ("batch-max = 1", "there is no key \"batch-max\""),
            ("lease = 5\nlease = 6", "line 2: not TOML: duplicate key"),
            ("volume = ", "line 1: not TOML:"),
        ] {
            let told = read(text, &[]).err().unwrap_or_default();
            assert!(told.contains(why), "{text:?}: {told}");
        }
        assert!(
            with_file(Path::new("/nowhere/x.toml"), &[], false)
                .err()
                .unwrap()
                .to_string()
                .contains("/nowhere/x.toml")
        );
    }

    #[test]
    fn the_example_in_the_manual_is_one() {
        let (args, keys) = read(example(), &[]).unwrap();
        assert_eq!(
            (args.volume.as_deref(), args.role),
            (Some("/srv/coordinator"), Some(RoleArg::Coordinator))
        );
        assert!(args.process.foreground && keys.len() >= 8, "{keys:?}");
    }
}
