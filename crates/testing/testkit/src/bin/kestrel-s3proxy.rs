//! A proxy in front of an S3 store that fails on purpose and counts requests. See `--help`.

use std::fs::File;
use std::process::ExitCode;

use kestrel_testkit::args::Args;
use kestrel_testkit::s3proxy::control::request_control;
use kestrel_testkit::s3proxy::rule::Rule;
use kestrel_testkit::s3proxy::server::{Proxy, start};
use kestrel_testkit::s3proxy::socket::Address;

const HELP: &str = "\
kestrel-s3proxy: a proxy in front of an S3 store that fails on purpose, by rule and seed, and \
counts requests

usage: kestrel-s3proxy serve  --store ADDRESS [--listen ADDRESS] [--control ADDRESS] [--seed S] \
    [--rules RULES] [--log FILE] [--classes CLASS,CLASS]
       kestrel-s3proxy rules  --control ADDRESS [--set RULES]
       kestrel-s3proxy counts --control ADDRESS [--reset]
       kestrel-s3proxy restored --control ADDRESS

serve   ADDRESS of the store: HOST:PORT or unix:PATH. Listens at free ports of 127.0.0.1 unless \
    told otherwise, and prints
        one line: listening ADDRESS control ADDRESS. Nothing of a request is changed: signatures \
            stay valid.
        --log FILE   a line for each request: milliseconds, kind, method, target, range, faults
        --classes    storage classes for a store that has none: GLACIER, DEEP_ARCHIVE are archives
rules   shows the rules, or replaces them (\"\" for none); requests that hang are let go
restored  archives have made readable what they were asked for; how many objects
counts  requests by kind, requests in flight at most, faults by name, bytes; as JSON

RULES   FAULT[:NAME=VALUE,...] separated by blanks. Every rule takes
          kind=K+K   to which requests: put part copy get head list delete delete-many multipart \
              other
          rate=R     share that is hit, 0 to 1         match=TEXT  only targets that contain it
          skip=N     spare the first N                 count=N     hit N at most
        latency:ms=N,jitter=N      wait before the store is asked
        bandwidth:up=N,down=N      bytes a second of all bodies together
        status:code=N,error=CODE   this answer instead of the store's
        reset                      connection reset, the store sees nothing
        hang                       no answer until the rules change
        lost-answer                the store does it, then a reset
        truncate short long wrong-bytes      bodies: cut with the connection, whole but shorter, \
            longer, changed
        list-cut list-gap list-repeat        listings: end too early, an empty page, the same page \
            again

examples:
  kestrel-s3proxy serve --store 127.0.0.1:7070 --rules 'latency:ms=20'
  kestrel-s3proxy rules --control 127.0.0.1:4000 --set 'status:code=503,kind=put,rate=0.1 \
      wrong-bytes:rate=0.01'
  kestrel-s3proxy rules --control 127.0.0.1:4000 --set 'status:code=500,kind=list,skip=1,count=1'
";

const VALUES: &[&str] = &["store", "listen", "control", "seed", "rules", "set", "log", "classes"];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let args = Args::parse(words, VALUES, &["reset"]);
    let done = match verb.as_str() {
        "" | "help" | "--help" => {
            print!("{HELP}");
            Ok(())
        }
        "serve" => args.and_then(|args| serve(&args)),
        "rules" => args.and_then(|args| match args.value("set") {
            Some(rules) => request_control(args.need("control")?, "PUT", "/rules", rules).map(drop),
            None => request_control(args.need("control")?, "GET", "/rules", "")
                .map(|text| println!("{text}")),
        }),
        "counts" => args.and_then(|args| {
            let method = if args.flag("reset") { "POST" } else { "GET" };
            request_control(args.need("control")?, method, "/counts", "")
                .map(|text| println!("{text}"))
        }),
        "restored" => args.and_then(|args| {
            request_control(args.need("control")?, "POST", "/restored", "")
                .map(|text| println!("{text}"))
        }),
        other => Err(format!("unknown command: {other} (see --help)")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("kestrel-s3proxy: {what}");
            ExitCode::from(2)
        }
    }
}

fn serve(args: &Args) -> Result<(), String> {
    let log = args
        .value("log")
        .map(|path| File::create(path).map_err(|e| format!("{path}: {e}")))
        .transpose()?;
    let proxy = Proxy::new(Address::parse(args.need("store")?), args.number("seed", 1)?, log);
    let proxy = proxy.with_classes(args.value("classes").unwrap_or_default());
    proxy.plan.set(Rule::parse_all(args.value("rules").unwrap_or_default())?);
    let listen = args.value("listen").unwrap_or("127.0.0.1:0");
    let control = args.value("control").unwrap_or("127.0.0.1:0");
    let server =
        start(proxy, listen, control).map_err(|e| format!("listen at {listen}, {control}: {e}"))?;
    println!("listening {} control {}", server.address, server.control);
    loop {
        std::thread::park();
    }
}
