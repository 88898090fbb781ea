//! `kestrel objbench`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use kestrel_blockstore::store::BlockStore;
use kestrel_blockstore::store::local::{LocalConfig, LocalStore};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{count, duration_arg, short, size_arg};
use kestrel_s3::objbench::{
    self, BenchPlan, Check, CheckOutcome as Found, Ended, Measurement, Stop,
};
use kestrel_s3::{OpenError, S3_SCHEME, S3Limits, S3Options, S3Store};
use serde_json::{Value, json};

use super::print_json;

/// Most threads.
const THREADS_MAX: usize = 1024;

/// Largest object: what the file system itself never exceeds by more than headers.
const SIZE_MAX: u64 = 256 << 20;

/// Most different sizes.
const SIZES_MAX: usize = 16;

/// Ends the benchmark after the requests under way.
static STOP: Stop = Stop::new();

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Whether the store does what is needed
    Check,
    /// How fast it is
    Measure,
}

/// Check and measure a block store.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel objbench 's3://bucket/prefix?region=eu-central-1'
  kestrel objbench 's3://bucket?endpoint=http://10.0.0.5:9000' --credentials keys --threads 64
  kestrel objbench file:///data --sizes 100K,4M --seconds 10
  kestrel objbench s3://bucket --only check --json

Everything is written below a new name under the URL and removed at the end, also after an error or
ctrl-C. Checked is that what was written is read at once by everybody, that ranges are exact, that
large objects come back whole, that listings are complete over several pages, that what was deleted
is gone, and that of several writers of one object one wins. The exit code is 1 if the store must
not be used. Columns: requests a second and megabytes (10^6) a second of all threads together; time
of one request. `range` reads 64K at random places. A local directory is measured with the kernel's
cache.")]
pub struct ObjbenchArgs {
    /// The store: s3://BUCKET/PREFIX?… as for format --storage, or file:///path
    pub url: String,
    /// Only this; both by default
    #[arg(long, value_enum)]
    pub only: Option<Part>,
    /// Sizes of objects to measure with
    #[arg(long, value_delimiter = ',', value_parser = size_arg, default_value = "64K,1M,4M")]
    pub sizes: Vec<u64>,
    /// Requests at a time
    #[arg(long, default_value_t = 16)]
    pub threads: usize,
    /// Longest time of each step
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "5s")]
    pub seconds: Duration,
    /// Most bytes written for each size
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "4G")]
    pub bytes_max: u64,
    /// File with the credentials of an s3:// store, as ~/.aws/credentials; by default those of the
    /// environment (AWS_ACCESS_KEY_ID, …) or of the machine
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl ObjbenchArgs {
    fn check(&self) -> Result<(), Failure> {
        let bad = |why: String| Err(Failure::usage(format!("objbench: {why}")));
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return bad(format!("--threads {}: from 1 to {THREADS_MAX}", self.threads));
        }
        if !(1..=SIZES_MAX).contains(&self.sizes.len())
            || self.sizes.iter().any(|size| !(1..=SIZE_MAX).contains(size))
        {
            return bad(format!("--sizes: up to {SIZES_MAX} sizes from 1 to {}", short(SIZE_MAX)));
        }
        if self.seconds.is_zero() {
            return bad("--seconds: at least one".to_string());
        }
        Ok(())
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    fn plan(&self, store: &Scratch) -> BenchPlan {
        BenchPlan {
            sizes: self.sizes.clone(),
            threads: self.threads,
            time: self.seconds,
            bytes_max: self.bytes_max,
            puts_conditionally: store.puts_conditionally(),
            // Beyond what goes up in one piece, so that parts are tried too.
            large_bytes: S3Limits::default().multipart_bytes + 1,
            seed: 1,
        }
    }
}

/// A place of our own in the store that is looked at.
enum Scratch {
    S3(Box<S3Store>),
    Dir(Box<LocalStore>, PathBuf),
}

impl Scratch {
    fn new(args: &ObjbenchArgs) -> Result<Self, Failure> {
        let failed = |why: String| Failure::new("objbench", why);
        if args.url.starts_with(S3_SCHEME) {
            let limits = S3Limits {
                max_uploads: args.threads,
                max_downloads: args.threads,
                ..S3Limits::default()
            };
            let refused = |error: OpenError| match error {
                OpenError::Url(why) => Failure::usage(format!("objbench: {why}")),
                other => failed(other.to_string()),
            };
            let options = S3Options::parse(&args.url).map_err(refused)?;
            let options = options.credentials_file(args.credentials.clone()).limits(limits);
            return Ok(Self::S3(Box::new(S3Store::scratch(options).map_err(refused)?)));
        }
        let path = match args.url.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => Path::new(path),
            None if !args.url.contains("://") => Path::new(&args.url),
            _ => {
                return Err(Failure::usage(format!(
                    "objbench: {}: a store is at s3://BUCKET/PREFIX or file:///path",
                    args.url
                )));
            }
        };
        let dir = path.join(format!("kestrel-objbench-{}", std::process::id()));
        let store = LocalStore::create(&dir, LocalConfig::default())
            .map_err(|error| failed(format!("{}: {error}", dir.display())))?;
        Ok(Self::Dir(Box::new(store), dir))
    }

    fn store(&self) -> &dyn BlockStore {
        match self {
            Self::S3(store) => &**store,
            Self::Dir(store, _) => &**store,
        }
    }

    fn puts_conditionally(&self) -> bool {
        match self {
            Self::S3(store) => store.puts_conditionally(),
            Self::Dir(..) => true,
        }
    }

    /// Removes everything that was written.
    fn remove(self) -> Result<(), Failure> {
        match self {
            Self::S3(store) => {
                store.discard().map(drop).map_err(|error| Failure::new("objbench", error))
            }
            Self::Dir(store, dir) => {
                drop(store);
                std::fs::remove_dir_all(&dir).map_err(|error| {
                    Failure::new("objbench", format!("removing {}: {error}", dir.display()))
                })
            }
        }
    }
}

/// What was found.
#[derive(Default)]
struct Results {
    checks: Vec<Check>,
    measured: Vec<Measurement>,
}

/// Checks and measures.
pub fn run(args: &ObjbenchArgs) -> Result<ExitStatus, Failure> {
    args.check()?;
    let scratch = Scratch::new(args)?;
    kestrel_daemon::signals::on_signal(|number| {
        STOP.stop();
        if number > 1 {
            std::process::exit(130);
        }
    });
    let plan = args.plan(&scratch);
    let mut results = Results::default();
    let done = all(args, &plan, scratch.store(), &mut results);
    let mut requests = serde_json::Map::new();
    scratch.store().stats(&mut |name, value| {
        requests.insert(name.to_string(), Value::from(value));
    });
    // Whatever happened, nothing stays behind; what went wrong first is what is told.
    let removed = scratch.remove();
    done.map_err(|ended| match ended {
        Ended::Stopped => Failure::new(
            "objbench",
            "interrupted; everything it had written is removed".to_string(),
        ),
        Ended::Failed(error) => Failure::new("objbench", format!("{}: {error}", args.url)),
        Ended::Wrong(why) => {
            Failure::new("objbench", format!("{}: {why}; do not use this store", args.url))
        }
    })?;
    removed?;
    if args.json {
        print_json(&document(args, &results, requests));
    }
    let bad = results.checks.iter().any(|check| matches!(check.verdict, Found::Bad(_)));
    Ok(if bad { ExitStatus::Bad } else { ExitStatus::Good })
}

fn all(
    args: &ObjbenchArgs,
    plan: &BenchPlan,
    store: &dyn BlockStore,
    results: &mut Results,
) -> Result<(), Ended> {
    if args.wants(Part::Check) {
        objbench::check(store, plan, &STOP, &mut |check| {
            if !args.json {
                show_check(check);
            }
            results.checks.push(check.clone());
        })?;
    }
    if args.wants(Part::Measure) {
        if !args.json {
            println!(
                "{:<7} {:>6} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9}",
                "", "object", "requests", "each s", "MB/s", "median", "p99", "longest"
            );
        }
        objbench::measure(store, plan, &STOP, &mut |measured| {
            if !args.json {
                show_measurement(measured);
            }
            results.measured.push(measured.clone());
        })?;
    }
    Ok(())
}

fn show_check(check: &Check) {
    match &check.verdict {
        Found::Good => println!("good: {}", check.name),
        Found::Poor(why) => println!("poor: {}: {why}", check.name),
        Found::Bad(why) => println!("BAD:  {}: {why}", check.name),
    }
}

fn show_measurement(measured: &Measurement) {
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    println!(
        "{:<7} {:>6} {:>10} {:>10.0} {:>9.1} {:>9} {:>9} {:>9}",
        measured.operation.name(),
        short(measured.object_bytes),
        count(measured.count),
        each_second(measured, measured.count),
        each_second(measured, measured.bytes) / 1e6,
        milliseconds(measured.median),
        milliseconds(measured.p99),
        milliseconds(measured.longest),
    );
}

fn each_second(measured: &Measurement, number: u64) -> f64 {
    number as f64 / measured.took.as_secs_f64().max(1e-9)
}

fn document(
    args: &ObjbenchArgs,
    results: &Results,
    requests: serde_json::Map<String, Value>,
) -> Value {
    let checks: Vec<Value> = results
        .checks
        .iter()
        .map(|check| match &check.verdict {
            Found::Good => json!({ "check": check.name, "verdict": "good" }),
            Found::Poor(why) => json!({ "check": check.name, "verdict": "poor", "why": why }),
            Found::Bad(why) => json!({ "check": check.name, "verdict": "bad", "why": why }),
        })
        .collect();
    let measured: Vec<Value> = results
        .measured
        .iter()
        .map(|one| {
            json!({
                "operation": one.operation.name(),
                "object_bytes": one.object_bytes,
                "requests": one.count,
                "objects": one.objects,
                "bytes": one.bytes,
                "seconds": one.took.as_secs_f64(),
                "requests_per_second": each_second(one, one.count),
                "bytes_per_second": each_second(one, one.bytes),
                "median_ms": one.median.as_secs_f64() * 1e3,
                "p99_ms": one.p99.as_secs_f64() * 1e3,
                "longest_ms": one.longest.as_secs_f64() * 1e3,
            })
        })
        .collect();
    json!({
        "store": args.url,
        "threads": args.threads,
        "checks": checks,
        "measurements": measured,
        "requests": requests,
    })
}
