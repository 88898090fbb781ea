//! The status of a volume that several nodes share: each tells its part, and the asker adds them
//! up.

use kestrel_client::remote::MOVED_OUT;
use kestrel_daemon::units::{bytes, count};
use serde_json::Value;

/// Prints the nodes of a volume that several share.
pub fn show(status: &Value) {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    for (at, node) in nodes.enumerate() {
        let number = |name: &str| node[name].as_u64().unwrap_or(0);
        let head = if at == 0 { "nodes" } else { "" };
        let address = node["address"].as_str().unwrap_or("?");
        if node["up"] == true {
            println!(
                "{head:<12} {} at {address}: {} entries, {}, {} clients connected",
                node["node"],
                count(number("entries")),
                bytes(number("bytes")),
                count(number("connected"))
            );
        } else if node["up"] == false {
            let moved_out = node["why"].as_str().is_some_and(|why| why.contains(MOVED_OUT));
            let why = if moved_out { MOVED_OUT } else { "does not answer" };
            println!("{head:<12} {} at {address}: {why}; figures lack its part", node["node"]);
        }
    }
}
