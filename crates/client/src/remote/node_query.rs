//! What one node is asked: its placement map, and where other nodes are.

use std::time::Duration;

use kestrel_rpc::client::Remote;
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::{Value, json};

use crate::url::is_anywhere;
use kestrel_types::hex::from_hex;

/// How long a node has to say where others are.
const ADDRESS_TIME: Duration = Duration::from_secs(1);

/// How long a node has to tell its table.
const TABLE_TIME: Duration = Duration::from_secs(5);

/// Most parts that a table is fetched in.
const PARTS_MAX: usize = 64;

/// Where a start of a node is.
pub(super) struct NodeAddress {
    pub node: NodeId,
    pub epoch: u64,
    pub address: String,
}

/// Asks a node where these are.
pub(super) fn ask_addresses(remote: &Remote, nodes: &[NodeId]) -> Result<Vec<NodeAddress>, String> {
    let question = json!({ "verb": "whereabouts", "nodes": nodes });
    let answer =
        remote.admin(&question, Some(ADDRESS_TIME), &mut |_| ()).map_err(|why| why.to_string())?;
    let read = |told: &Value| {
        let node = NodeId::try_from(told[0].as_u64()?).ok()?;
        let address = told[2].as_str().filter(|address| !is_anywhere(address))?;
        Some(NodeAddress { node, epoch: told[1].as_u64()?, address: address.into() })
    };
    Ok(answer["nodes"].as_array().map_or(Vec::new(), |told| told.iter().filter_map(read).collect()))
}

/// The table of a node: in parts, since an answer has a bound.
pub(super) fn table_of(remote: &Remote) -> Result<PlacementMap, String> {
    table_in_parts(|question| {
        remote.admin(question, Some(TABLE_TIME), &mut |_| ()).map_err(|why| why.to_string())
    })
}

/// Asks for a table part by part.
///
/// # Errors
/// What the node said, or that the table was another one, or its nodes elsewhere, before all of it
/// was there.
pub fn table_in_parts(
    mut ask: impl FnMut(&Value) -> Result<Value, String>,
) -> Result<PlacementMap, String> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut first = None;
    for _ in 0..PARTS_MAX {
        let answer = ask(&json!({ "verb": "table", "from": bytes.len() }))?;
        let part = answer["part"].as_str().and_then(from_hex).ok_or("an answer without a table")?;
        let of = ["version", "moves"].map(|name| answer[name].clone());
        if *first.get_or_insert_with(|| of.clone()) != of || part.is_empty() {
            return Err("it has changed meanwhile".into());
        }
        bytes.extend_from_slice(&part);
        if answer["bytes"].as_u64() == Some(bytes.len() as u64) {
            return PlacementMap::decode(&bytes).map_err(|why| why.to_string());
        }
    }
    Err("it is too long".into())
}

#[cfg(test)]
mod tests {
    use kestrel_types::placement::{Exceptions, Member, SlotMap};

    use super::*;
    use kestrel_types::hex::to_hex;

    #[test]
    fn parts_of_a_table_are_of_one_moment() {
        let members =
            (1..=3).map(|id| Member { id, address: format!("127.0.0.1:{}", 9440 + id) }).collect();
        let table = PlacementMap::new(SlotMap::even(members).unwrap(), Exceptions::default());
        let bytes = table.encode();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let fetch = |of: [Value; 2], then: [Value; 2]| {
            table_in_parts(|question| {
                let (part, [version, moves]) = if question["from"] == 0 {
                    (first, of.clone())
                } else {
                    (second, then.clone())
                };
                Ok(
                    json!({ "version": version, "moves": moves, "bytes": bytes.len(), "part": to_hex(part) }),
                )
            })
        };
        let at = |version: u64, moves: u64| [json!(version), json!(moves)];
        assert_eq!(fetch(at(1, 4), at(1, 4)), Ok(table));
        for then in [at(2, 4), at(1, 5)] {
            assert!(fetch(at(1, 4), then).unwrap_err().contains("meanwhile"));
        }
    }
}
