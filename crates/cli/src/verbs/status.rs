//! `kestrel status`.

pub mod several;

use std::path::Path;

use clap::Args;
use kestrel_client::descriptor::FILE_NAME;
use kestrel_client::remote::RemoteUrl;
use kestrel_daemon::failure::{Failure, Verdict};
use kestrel_daemon::jobs::status::{ask as ask_served, describe};
use kestrel_daemon::units::{bytes, count};
use serde_json::{Value, json};

use super::{Target, control_dir, mount_above, open, print_json};
use crate::args::store::StoreArgs;

/// Show what a volume is, what it holds, whether it is mounted, and to which clients it is served.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel status /data/vol
  kestrel status file:///data/vol --json
  kestrel status kestrel://meta1/photos")]
pub struct StatusArgs {
    /// The volume: a path, file:///path or kestrel://host[:port]/NAME; or a directory of a mount
    pub volume: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The volume, or the process behind the mount that the argument lies in.
fn target(args: &StatusArgs) -> Result<Target, Failure> {
    let path = Path::new(&args.volume);
    if !RemoteUrl::is_one(&args.volume)
        && !path.join(FILE_NAME).exists()
        && let Ok(path) = std::fs::canonicalize(path)
        && let Ok(entry) = mount_above("status", &path)
    {
        return Ok(Target::Here(control_dir(&entry)));
    }
    Target::of("status", &args.volume)
}

/// Shows it.
pub fn run(args: &StatusArgs) -> Result<Verdict, Failure> {
    let target = target(args)?;
    let question = json!({ "verb": "status" });
    let asked = match &target {
        Target::Served(url) => Some(ask_served(url).map_err(|why| Failure::new("status", why))?),
        Target::Here(_) => target.ask("status", &question, kestrel_client::control::QUICK, &mut |_| {})?,
    };
    let status = match (asked, &target) {
        (Some(mut status), Target::Served(url)) => {
            status["volume"] = url.as_str().into();
            status
        }
        (Some(status), Target::Here(_)) => status,
        (None, _) => {
            let volume = open("status", &args.volume, &args.store)?;
            let mut status = describe(&volume.dir, &volume.descriptor, &*volume.engine)
                .map_err(|why| Failure::new("status", format!("{target}: {why}")))?;
            status["mounted"] = false.into();
            for name in ["pid", "mount_point", "served", "address"] {
                status[name] = Value::Null;
            }
            status
        }
    };
    if args.json {
        print_json(&status);
        return Ok(Verdict::Good);
    }
    let text = |name: &str| status[name].as_str().unwrap_or("-").to_string();
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    println!("volume       {} ({})", text("name"), text("volume"));
    println!(
        "uuid         {}, format {}, created {}",
        text("uuid"),
        number("format_version"),
        text("created")
    );
    println!("storage      {}", status["storage"].as_str().unwrap_or("inside the volume"));
    println!("metadata     {}", status["metadata"].as_str().unwrap_or("inside the volume"));
    println!(
        "settings     durability {}, blocks of {}, inline up to {}, grace {} s",
        text("durability"),
        bytes(number("block_size")),
        bytes(number("inline_max")),
        number("grace_seconds")
    );
    show_sums(&status);
    show_leftovers(&status["leftovers"]);
    several::show(&status);
    if status["served"].is_object() {
        show_served(&status);
    }
    if status["mounted"] == true {
        let mode = if status["read_only"] == true { ", read-only" } else { "" };
        println!("mounted      {} (process {}{mode})", text("mount_point"), number("pid"));
        let times = &status["access_times"];
        let directories = if times["directories"] == false { ", not of directories" } else { "" };
        println!("access times {}{directories}", times["mode"].as_str().unwrap_or("-"));
        let on = if status["shortcut"] == true { "on" } else { "off" };
        println!("shortcut     {on}: {}", text("shortcut_why"));
        println!("transport    {}: {}", text("transport"), text("transport_why"));
        match status["passthrough"]["why"].as_str() {
            Some(why) => println!("pass-through off: {why}"),
            None => println!("pass-through on: {} files at present", status["passthrough"]["live"]),
        }
    } else if status["served"].is_null() {
        println!("mounted      no");
    }
    if let (Some(limit), Some(bound)) =
        (status["memory"]["limit"].as_str(), status["memory"]["bound_bytes"].as_u64())
    {
        println!("memory       at most {}: {limit}", bytes(bound));
    }
    Ok(Verdict::Good)
}

/// What it holds, as far as that is told.
fn show_sums(status: &Value) {
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    if let Some(why) = status["server"].as_str() {
        println!("server       tells this mount no more: {why}");
    }
    if status["files"].is_u64() {
        println!(
            "holds        {} files, {} directories, {}",
            count(number("files")),
            count(number("directories")),
            bytes(number("bytes"))
        );
    }
    match (status["objects"].as_u64(), status["object_bytes"].as_u64()) {
        (Some(objects), _) => {
            println!("objects      {} with {} referred to", count(objects), bytes(number("object_bytes")));
        }
        (None, Some(referred)) => println!("objects      {} referred to", bytes(referred)),
        (None, None) => {}
    }
    if status["metadata_disk_bytes"].is_u64() {
        println!("metadata     {} on disk", bytes(number("metadata_disk_bytes")));
    }
}

/// What the process that has the volume open does about objects that a killed mount left behind.
fn show_leftovers(told: &Value) {
    if !told.is_object() {
        return;
    }
    let number = |name: &str| count(told[name].as_u64().unwrap_or(0));
    let (deleted, size) = (number("deleted_objects"), bytes(told["deleted_bytes"].as_u64().unwrap_or(0)));
    let state = match (told["every_seconds"].as_f64(), told["why"].as_str()) {
        (None, _) => "not collected (--collect-every off)".to_string(),
        (_, Some(why)) => format!("not collected: {why}"),
        _ if told["running"] == true => "being collected".into(),
        (Some(every), None) => format!("collected every {every:.0} s"),
    };
    println!("leftovers    {state}; {} collections, {deleted} objects with {size} deleted", number("runs"));
}

/// The server, and its clients.
fn show_served(status: &Value) {
    let served = &status["served"];
    let number = |name: &str| served[name].as_u64().unwrap_or(0);
    let grace = served["grace_left_seconds"].as_f64().unwrap_or(0.0);
    let place = match status["nodes"].as_array() {
        Some(nodes) => format!("by {} nodes", nodes.len()),
        None => format!("at {} (process {})", served["address"].as_str().unwrap_or("?"), status["pid"]),
    };
    let waits = if grace > 0.0 {
        format!("; waits {grace:.0} s for clients of before its restart")
    } else {
        String::new()
    };
    println!("served       as {} {place}{waits}", served["name"].as_str().unwrap_or("?"));
    println!(
        "clients      {}, {} connected, with {} files open and {} locks",
        count(number("sessions_total")),
        count(number("connected")),
        count(number("opens")),
        count(number("locks"))
    );
    for session in served["sessions"].as_array().into_iter().flatten() {
        let text = |name: &str| session[name].as_str().unwrap_or("-").to_string();
        println!(
            "  {}: {} from {} since {}, {} opens, {} locks, lease ends in {:.0} s",
            text("who"),
            text("state"),
            text("peer"),
            text("since"),
            session["opens"],
            session["locks"],
            session["lease_left_seconds"].as_f64().unwrap_or(0.0)
        );
    }
}
