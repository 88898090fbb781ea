//! Random walks in a tree of a known shape. See `--help`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use kestrel_testkit::args::Args;
use kestrel_testkit::traverse::{self, Call, Shape};

const HELP: &str = "\
kestrel-traverse: makes a tree of a known shape, and opens files in it at random

usage: kestrel-traverse make|walk --dir DIR [--levels N] [--fanout N] [--files N] [--size BYTES] \
    [--threads N]
                                  [--seconds N] [--call open|read|stat] [--seed S]

--dir DIR     where; `make` wants it empty
--levels N    directories on the way to a file (default 8)
--fanout N    subdirectories of each (default 3)
--files N     files of each of the deepest (default 10)
--size BYTES  of each file (default 0)
--threads N   threads (default 4 for make, 64 for walk)
--seconds N   how long to walk (default 5)
--call CALL   what to do with a file (default open, and close)
--seed S      seed of the order (default 1)

Prints JSON: files, failed, seconds.
";

const VALUES: &[&str] =
    &["dir", "levels", "fanout", "files", "size", "threads", "seconds", "call", "seed"];

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let verb = if words.is_empty() { "--help".into() } else { words.remove(0) };
    match Args::parse(words, VALUES, &["help"]).and_then(|args| run(&verb, &args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("kestrel-traverse: {what}");
            ExitCode::from(2)
        }
    }
}

fn run(verb: &str, args: &Args) -> Result<(), String> {
    if verb == "--help" || args.flag("help") {
        print!("{HELP}");
        return Ok(());
    }
    let shape = Shape {
        levels: u32::try_from(args.number("levels", 8)?.clamp(1, 16)).unwrap_or(16),
        fanout: args.number("fanout", 3)?.clamp(1, 1000),
        files: args.number("files", 10)?.max(1),
        size: args.number("size", 0)?.min(1 << 30),
    };
    let root = Path::new(args.need("dir")?);
    let done = match verb {
        "make" => traverse::make(root, shape, args.number("threads", 4)?)?,
        "walk" => {
            let call = match args.value("call").unwrap_or("open") {
                "open" => Call::Open,
                "read" => Call::Read,
                "stat" => Call::Stat,
                other => return Err(format!("--call: not one of open, read, stat: {other}")),
            };
            let time = Duration::from_secs(args.number("seconds", 5)?);
            traverse::walk(
                root,
                shape,
                args.number("threads", 64)?,
                time,
                call,
                args.number("seed", 1)?,
            )?
        }
        other => return Err(format!("unknown command: {other} (see --help)")),
    };
    println!(
        "{{\"files\":{},\"failed\":{},\"seconds\":{:.3},\"directories\":{}}}",
        done.files,
        done.failed,
        done.seconds,
        shape.directories()
    );
    Ok(())
}
