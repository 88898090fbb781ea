//! A status as people read it: in about ten lines what matters, with `--verbose` all.

use kestrel_client::remote::MOVED_OUT;
use kestrel_daemon::logger::utc;
use kestrel_daemon::units::{bytes, count};
use serde_json::Value;

use super::clients::{ClientSummary, clients};
use crate::page::{LabelledLines, time};

/// Clients that are listed without `--verbose`.
const CLIENTS_MAX: usize = 4;

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("-")
}

/// `1 file`, `2 files`.
fn of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// The lines. `own` is the name of the process that asks, which is left out of the clients.
pub fn page(status: &Value, verbose: bool, own: &str) -> LabelledLines {
    let mut page = LabelledLines::default();
    page.line("volume", format!("{} ({})", text(status, "name"), text(status, "volume")));
    if verbose {
        let (uuid, created) = (text(status, "uuid"), text(status, "created"));
        let format = number(status, "format_version");
        page.line("uuid", format!("{uuid}, format {format}, created {created}"));
    }
    use_of(status, &mut page);
    follows(&status["follows"], verbose, &mut page);
    holds(status, verbose, &mut page);
    dumps(&status["dumps"], status["nodes"].is_array(), &mut page);
    leftovers(&status["leftovers"], verbose, &mut page);
    snapshots(&status["snapshot_schedules"], verbose, &mut page);
    if status["mounted"] == true {
        mount(status, verbose, &mut page);
    }
    let memory = &status["memory"];
    // By URL several nodes answer, each with memory of its own.
    if verbose && memory.is_object() && (status["mounted"] == true || !status["nodes"].is_array()) {
        let (bound, limit) = (bytes(number(memory, "bound_bytes")), text(memory, "limit"));
        page.line("memory", format!("at most {bound}: {limit}"));
    }
    nodes(status, verbose, &mut page);
    connections(&status["connections"], verbose, &mut page);
    if status["served"].is_object() {
        of_clients(&status["served"], verbose, own, &mut page);
    }
    page
}

/// Where it is mounted, and where it is served.
fn use_of(status: &Value, page: &mut LabelledLines) {
    let process = |prefix: &str| {
        let up = status["uptime_seconds"].as_u64().map(|seconds| format!(", up {}", time(seconds)));
        format!("{prefix}process {}{}", number(status, "pid"), up.unwrap_or_default())
    };
    let served = &status["served"];
    if status["mounted"] == true {
        let mode = if status["read_only"] == true { "read-only, " } else { "" };
        page.line("mounted", format!("{} ({})", text(status, "mount_point"), process(mode)));
    } else if served.is_null() {
        page.line("mounted", "no");
    }
    if served.is_object() {
        let place = match status["nodes"].as_array() {
            Some(nodes) => format!("by {} nodes", nodes.len()),
            None if status["mounted"] == true => format!("at {}", text(served, "address")),
            None => format!("at {} ({})", text(served, "address"), process("")),
        };
        page.line("served", format!("as {} {place}", text(served, "name")));
        let grace = served["grace_left_seconds"].as_f64().unwrap_or(0.0);
        if grace > 0.0 {
            page.warning("", format!("waits {grace:.0} s for the clients of before its restart"));
        }
    }
    if let Some(why) = status["server"].as_str() {
        page.warning("server", format!("tells this mount no more: {why}"));
    }
}

/// How far a mount has come that follows the process which writes the volume.
fn follows(told: &Value, verbose: bool, page: &mut LabelledLines) {
    if !told.is_object() {
        return;
    }
    let number = |name: &str| number(told, name);
    let seconds = |name: &str| told[name].as_f64().unwrap_or(0.0);
    let at = format!("the writer of epoch {}, batch {}", number("epoch"), number("position"));
    let (age, every) = (seconds("age_seconds"), seconds("every_seconds"));
    page.line("follows", format!("{at}; at most {age:.1} s old, looks every {every} s"));
    match (told["why"].as_str(), told["silence_seconds"].as_f64()) {
        (Some(why), _) if told["shows_nothing"] == true => {
            page.warning("", format!("shows nothing any more: {why}"));
        }
        (Some(why), _) => page.warning("", format!("is not up to date: {why}")),
        (None, Some(silence)) => {
            page.warning(
                "",
                format!("is not up to date: no answer of the store for {silence:.0} s"),
            );
        }
        (None, None) => {}
    }
    if verbose {
        let looks = format!("{} looks, {} moments", number("looks"), number("moments"));
        let repeated = of(number("repeated_requests"), "request", "requests");
        page.line("", format!("{looks}, {repeated} executed again at a later moment"));
    }
}

/// What it holds, and where.
fn holds(status: &Value, verbose: bool, page: &mut LabelledLines) {
    if status["files"].is_u64() {
        let files = of(number(status, "files"), "file", "files");
        let directories = of(number(status, "directories"), "directory", "directories");
        page.line("holds", format!("{files}, {directories}, {}", bytes(number(status, "bytes"))));
    }
    let mut metadata = status["metadata"].as_str().unwrap_or("inside the volume").to_string();
    if let Some(size) = status["metadata_disk_bytes"].as_u64().filter(|size| *size > 0) {
        metadata += &format!(", {} on disk", bytes(size));
    }
    page.line("metadata", format!("{metadata}; durability {}", text(status, "durability")));
    let backlog = &status["upload_backlog"];
    if let (Some(behind), Some(age)) =
        (backlog["bytes"].as_u64(), backlog["oldest_seconds"].as_f64())
    {
        let line = match behind {
            0 => "the bucket has every change".into(),
            _ => format!("{} not in the bucket yet, the oldest {age:.1} s old", bytes(behind)),
        };
        page.line("log directory", line);
    }
    let mut storage = status["storage"].as_str().unwrap_or("inside the volume").to_string();
    match (status["objects"].as_u64(), status["object_bytes"].as_u64()) {
        (Some(objects), Some(referred)) => {
            let objects = of(objects, "object", "objects");
            storage += &format!(", {objects} with {} in use", bytes(referred));
        }
        (None, Some(referred)) => storage += &format!(", {} in use", bytes(referred)),
        _ => {}
    }
    page.line("storage", storage);
    if verbose {
        let settings = format!(
            "blocks of {}, inline up to {}, grace {} s",
            bytes(number(status, "block_size")),
            bytes(number(status, "inline_max")),
            number(status, "grace_seconds")
        );
        page.line("settings", settings);
    }
}

/// Dumps into the block store, which the process that has the volume open takes; of a cluster the
/// coordinator alone.
fn dumps(told: &Value, of_cluster: bool, page: &mut LabelledLines) {
    if let Some(why) = told["why"].as_str() {
        page.warning("dumps", format!("the last one failed: {why}"));
    } else if let (Some(every), false) = (told["every_seconds"].as_f64(), of_cluster) {
        let newest = match told["last"]["dump"].as_i64() {
            Some(stamp) => format!("the newest of {}", utc(stamp)),
            None => "none yet".into(),
        };
        page.line("dumps", format!("{newest}; one every {}", time(every as u64)));
    }
}

/// What the process that has the volume open does about objects that a killed mount left behind.
fn leftovers(told: &Value, verbose: bool, page: &mut LabelledLines) {
    let number = |name: &str| number(told, name);
    if let Some(why) = told["why"].as_str() {
        return page.warning("leftovers", format!("not collected: {why}"));
    }
    if !told.is_object() || !verbose {
        return;
    }
    let state = match told["every_seconds"].as_f64() {
        None => "not collected (--collect-every off)".to_string(),
        _ if told["running"] == true => "being collected".into(),
        Some(every) => format!("collected every {}", time(every as u64)),
    };
    let runs = of(number("runs"), "collection", "collections");
    let objects = of(number("deleted_objects"), "object", "objects");
    let size = bytes(number("deleted_bytes"));
    page.line("leftovers", format!("{state}; {runs}, {objects} with {size} deleted"));
}

/// What the process that has the volume open does about schedules of snapshots.
fn snapshots(told: &Value, verbose: bool, page: &mut LabelledLines) {
    let number = |name: &str| number(told, name);
    if let Some(why) = told["why"].as_str() {
        return page.warning("snapshots", why);
    }
    if number("scheduled_directories") > 0 && verbose {
        let dirs = of(number("scheduled_directories"), "directory", "directories");
        let (taken, removed) = (number("taken"), number("removed"));
        page.line("snapshots", format!("{dirs} scheduled; {taken} made, {removed} removed"));
    }
}

/// How a mount works.
fn mount(status: &Value, verbose: bool, page: &mut LabelledLines) {
    let why = text(status, "shortcut_why");
    match (status["shortcut"] == true, verbose) {
        (true, false) => page.line("shortcut", "on"),
        (true, true) => page.line("shortcut", format!("on: {why}")),
        (false, _) => page.line("shortcut", format!("off: {why}")),
    }
    if !verbose {
        return;
    }
    let times = &status["access_times"];
    let directories = if times["directories"] == false { ", not of directories" } else { "" };
    page.line("access times", format!("{}{directories}", text(times, "mode")));
    let (transport, why) = (text(status, "transport"), text(status, "transport_why"));
    page.line("transport", format!("{transport} ({why})"));
    let passthrough = &status["passthrough"];
    page.line(
        "pass-through",
        match passthrough["why"].as_str() {
            Some(why) => format!("off ({why})"),
            None => format!("on, {} at present", of(number(passthrough, "live"), "file", "files")),
        },
    );
}

/// The nodes of a volume that several share.
fn nodes(status: &Value, verbose: bool, page: &mut LabelledLines) {
    let Some(nodes) = status["nodes"].as_array() else { return };
    let up = nodes.iter().filter(|node| node["up"] == true).count();
    let all = if up == nodes.len() { "all up".into() } else { format!("{up} up") };
    page.line("nodes", format!("{}, {all}", nodes.len()));
    for node in nodes {
        let name = format!("{} at {}", node["node"], text(node, "address"));
        if node["up"] == false {
            let moved_out = node["why"].as_str().is_some_and(|why| why.contains(MOVED_OUT));
            let why = if moved_out { MOVED_OUT } else { "does not answer" };
            page.warning("", format!("{name}: {why}; the figures lack its part"));
        } else if verbose && node["up"] == true {
            let entries = of(number(node, "entries"), "entry", "entries");
            let clients = of(number(node, "connected"), "client", "clients");
            let size = bytes(number(node, "bytes"));
            page.line("", format!("{name}: {entries}, {size}, {clients} connected"));
        }
    }
}

/// A mount's connections to the servers.
fn connections(told: &Value, verbose: bool, page: &mut LabelledLines) {
    let mut label = "connections";
    for connection in told.as_array().into_iter().flatten() {
        let address = text(connection, "address");
        if connection["up"] != true {
            let seconds = time(number(connection, "outage_seconds"));
            page.warning(label, format!("{address} does not answer, for {seconds}"));
        } else if verbose {
            let [waiting, retries, reconnects] =
                ["in_flight", "retries", "reconnects"].map(|name| count(number(connection, name)));
            let calls =
                format!("{waiting} calls in flight, {retries} sent again, {reconnects} reconnects");
            page.line(label, format!("{address}: {calls}"));
        } else {
            continue;
        }
        label = "";
    }
}

/// The clients of a served volume.
fn of_clients(served: &Value, verbose: bool, own: &str, page: &mut LabelledLines) {
    let sessions = served["sessions"].as_array().map_or(&[][..], Vec::as_slice);
    let mut clients = clients(sessions);
    clients.retain(|client| client.name != own);
    let (all, counted) = (number(served, "sessions_total"), sessions.len() as u64);
    // A server lists the first thousand sessions.
    let total = match all > counted {
        true => format!("more than {}", count(clients.len() as u64)),
        false => count(clients.len() as u64),
    };
    let opens = of(number(served, "opens"), "file", "files");
    let locks = of(number(served, "locks"), "lock", "locks");
    page.line("clients", format!("{total}, with {opens} open and {locks}"));
    let listed = clients.len() <= CLIENTS_MAX || verbose;
    let width = clients.iter().map(|client| client.name.chars().count()).max().unwrap_or(0);
    for client in &clients {
        let state = client.state();
        if !listed && state.is_none() {
            continue;
        }
        let line = client_line(client, state.as_deref(), width, verbose);
        match state {
            Some(_) => page.warning("", line),
            None => page.line("", line),
        }
    }
    if !listed {
        page.line("", "--verbose lists them");
    }
}

fn client_line(client: &ClientSummary, state: Option<&str>, width: usize, verbose: bool) -> String {
    let opens = of(client.opens, "file", "files");
    let locks = of(client.locks, "lock", "locks");
    let mut line = format!("{:width$}  {opens} open, {locks}", client.name);
    if verbose {
        let host = client.host.as_deref().unwrap_or("-");
        let sessions = of(client.sessions as u64, "session", "sessions");
        line += &format!(", {sessions} from {host} since {}", client.since);
        line += &format!(", lease ends in {} s", client.lease_seconds);
    }
    state.map_or(line.clone(), |state| format!("{line}; {state}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plain(status: &Value, verbose: bool) -> String {
        page(status, verbose, "kestrel status on a, process 8").render(false)
    }

    fn mounted() -> Value {
        json!({
            "name": "photos", "volume": "/data/vol", "uuid": "0f", "format_version": 1,
            "created": "2026-01-01",
            "durability": "fsync", "files": 6, "directories": 1, "bytes": 9 << 20, "objects": 1,
            "object_bytes": 4096,
            "metadata_disk_bytes": 1 << 20, "mounted": true, "mount_point": "/mnt", "pid": 77,
            "uptime_seconds": 130,
            "shortcut": true, "shortcut_why": "walk hints", "transport": "device",
            "transport_why": "io_uring: it is switched off",
            "passthrough": { "on": false, "why": "no cache" },
            "access_times": { "mode": "none", "directories": true },
            "memory": { "limit": "all", "bound_bytes": 1024 },
            "dumps": { "every_seconds": 86_400.0, "last": null, "why": null },
            "leftovers": { "every_seconds": 86_400.0, "running": false, "runs": 1,
                "deleted_objects": 2,
                           "deleted_bytes": 10, "why": null },
        })
    }

    /// A mount in seven lines, none of which reads like a fault.
    #[test]
    fn status_of_a_mount() {
        let lines = "\
volume       photos (/data/vol)
mounted      /mnt (process 77, up 2 min)
holds        6 files, 1 directory, 9 MiB
metadata     inside the volume, 1 MiB on disk; durability fsync
storage      inside the volume, 1 object with 4 KiB in use
dumps        none yet; one every 24 h
shortcut     on
";
        assert_eq!(plain(&mounted(), false), lines);
        let all = plain(&mounted(), true);
        for line in [
            "uuid         0f, format 1, created 2026-01-01",
            "transport    device (io_uring: it is switched off)",
            "pass-through off (no cache)",
            "leftovers    collected every 24 h; 1 collection, 2 objects with 10 B deleted",
            "memory       at most 1 KiB: all",
            "shortcut     on: walk hints",
        ] {
            assert!(all.contains(&format!("{line}\n")), "{line}: {all}");
        }
    }

    /// What goes wrong is shown without --verbose.
    #[test]
    fn faults_of_a_mount() {
        let mut status = mounted();
        status["read_only"] = true.into();
        status["shortcut"] = false.into();
        status["dumps"]["why"] = "no room".into();
        status["leftovers"]["why"] = "no answer".into();
        status["connections"] = json!([
            { "address": "a:1", "up": true },
            { "address": "b:1", "up": false, "outage_seconds": 9 },
        ]);
        let lines = plain(&status, false);
        for line in [
            "mounted      /mnt (read-only, process 77, up 2 min)",
            "dumps        the last one failed: no room",
            "leftovers    not collected: no answer",
            "shortcut     off: walk hints",
            "connections  b:1 does not answer, for 9 s",
        ] {
            assert!(lines.contains(&format!("{line}\n")), "{line}: {lines}");
        }
        assert!(page(&status, false, "").render(true).contains("\x1b[33mb:1 does not answer"));
    }

    fn session(who: &str, peer: &str) -> Value {
        json!({ "who": who, "peer": peer, "state": "live", "since": "2026", "opens": 1,
            "locks": 0 })
    }

    /// A cluster in ten lines: a client with sessions at all nodes once, a node that is away by
    /// name.
    #[test]
    fn status_of_a_cluster() {
        let who = ["kestrel mount /mnt on a, process 7", "kestrel status on a, process 8"];
        let sessions = [(0, "10.0.0.8:41"), (0, "10.0.0.8:42"), (1, "10.0.0.8:43")];
        let sessions = sessions.map(|(name, peer)| session(who[name], peer));
        let mut status = json!({
            "name": "photos", "volume": "kestrel://n1/photos", "durability": "commit", "files": 2,
            "directories": 1,
            "bytes": 0, "object_bytes": 0, "storage": "s3://b/p", "metadata": "postgres://p",
            "mounted": false,
            "served": { "name": "photos", "sessions_total": 3, "opens": 2, "locks": 0,
                "sessions": sessions },
            "dumps": { "every_seconds": 86_400.0, "last": null },
            "nodes": [{ "node": 1, "address": "n1:1", "up": true, "entries": 2, "connected": 1 },
                      { "node": 2, "address": "n2:1", "up": true }],
        });
        let lines = "\
volume       photos (kestrel://n1/photos)
served       as photos by 2 nodes
holds        2 files, 1 directory, 0 B
metadata     postgres://p; durability commit
storage      s3://b/p, 0 B in use
nodes        2, all up
clients      1, with 2 files open and 0 locks
             kestrel mount /mnt on a, process 7  2 files open, 0 locks
";
        assert_eq!(plain(&status, false), lines);
        assert!(plain(&status, true).contains("2 sessions from 10.0.0.8 since 2026"));
        status["nodes"][1] = json!({ "node": 2, "address": "n2:1", "up": false, "why": "refused" });
        let lines = plain(&status, false);
        assert!(lines.contains("nodes        2, 1 up\n"), "{lines}");
        assert!(
            lines.contains("             2 at n2:1: does not answer; the figures lack its part\n"),
            "{lines}"
        );
        let many: Vec<Value> =
            (0..9).map(|n| session(&format!("mount {n}"), "10.0.0.8:41")).collect();
        status["served"]["sessions"] = many.into();
        status["served"]["sessions_total"] = 9.into();
        let lines = plain(&status, false);
        assert!(
            lines.contains("clients      9, with") && lines.ends_with("--verbose lists them\n"),
            "{lines}"
        );
        assert!(!lines.contains("mount 3") && plain(&status, true).contains("mount 3"));
    }
}
