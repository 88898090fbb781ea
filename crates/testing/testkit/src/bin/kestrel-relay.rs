//! A TCP relay with a fixed latency. See `--help`.

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use kestrel_testkit::args::Args;
use kestrel_testkit::relay;

const HELP: &str = "\
kestrel-relay: relays TCP connections and holds every byte back for a while

usage: kestrel-relay --to HOST:PORT [--listen HOST:PORT] [--delay-us N]

--to HOST:PORT      where connections go
--listen HOST:PORT  where it listens (default 127.0.0.1:0: a free port); the address is printed \
    when it does
--delay-us N        how long every byte is held back in each direction (default 0)

Runs until it is killed.

example:
  kestrel-relay --to 127.0.0.1:9440 --delay-us 100
";

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1), &["to", "listen", "delay-us"], &["help"])
        .and_then(|args| run(&args))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("kestrel-relay: {what}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    if args.flag("help") {
        print!("{HELP}");
        return Ok(());
    }
    let address = args.value("listen").unwrap_or("127.0.0.1:0");
    let listener = TcpListener::bind(address).map_err(|why| format!("{address}: {why}"))?;
    println!("{}", listener.local_addr().map_err(|why| why.to_string())?);
    let delay = Duration::from_micros(args.number("delay-us", 0)?);
    relay::serve(&listener, args.need("to")?, delay).map_err(|why| format!("{address}: {why}"))
}
