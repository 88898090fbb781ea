//! `kestrel version lineage`: which versions a version was made from, and which from it.

use std::collections::{BTreeMap, HashSet};

use kestrel_client::version::VersionManifest;
use serde_json::{Value, json};

/// Versions of a volume by their identities; one that was being renamed has two names.
pub type Versions = BTreeMap<String, VersionManifest>;

/// A line of the picture: how deep it is, and the version.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    depth: usize,
    name: String,
    id: String,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Its inputs follow.
    Shown,
    /// Its inputs stand further up.
    Repeated,
    /// It has no name any more.
    Deleted,
}

/// A version, its inputs, theirs, and so on. The inputs of each are shown once, so this ends also
/// if manifests that were made by hand name each other.
fn lines(versions: &Versions, of: &VersionManifest) -> Vec<Line> {
    let mut seen = HashSet::new();
    let mut left = vec![(0, of.id.clone(), of.name.clone())];
    let mut out = Vec::new();
    while let Some((depth, id, name)) = left.pop() {
        let found = versions.get(&id);
        let state = match found {
            None => State::Deleted,
            Some(found) if !found.inputs().is_empty() && !seen.insert(id.clone()) => {
                State::Repeated
            }
            Some(_) => State::Shown,
        };
        let inputs = found.filter(|_| state == State::Shown).map(VersionManifest::inputs);
        let inputs = inputs.unwrap_or_default().iter().rev();
        left.extend(inputs.map(|input| (depth + 1, input.id.clone(), input.name.clone())));
        let name = found.map_or(name, |found| found.name.clone());
        out.push(Line { depth, name, id, state });
    }
    out
}

/// Names of the versions that were made from one, in order.
fn users_of(versions: &Versions, id: &str) -> Vec<String> {
    let uses = |one: &&VersionManifest| one.inputs().iter().any(|input| input.id == id);
    let mut names: Vec<String> =
        versions.values().filter(uses).map(|one| one.name.clone()).collect();
    names.sort_unstable();
    names
}

/// Prints the lineage of one of these versions.
pub fn print(versions: &Versions, of: &VersionManifest) {
    for line in lines(versions, of) {
        let note = match line.state {
            State::Shown => "",
            State::Repeated => "  (inputs above)",
            State::Deleted => "  (deleted)",
        };
        println!("{:width$}{}{note}", "", line.name, width = line.depth * 2);
    }
    let users = users_of(versions, &of.id);
    if !users.is_empty() {
        println!("used by {}", users.join(", "));
    }
}

/// The same for programs.
pub fn describe(versions: &Versions, of: &VersionManifest) -> Value {
    let shown = |line: Line| {
        json!({
            "depth": line.depth, "name": line.name, "id": line.id,
            "deleted": line.state == State::Deleted, "repeated": line.state == State::Repeated,
        })
    };
    let lines: Vec<Value> = lines(versions, of).into_iter().map(shown).collect();
    json!({ "lineage": lines, "users": users_of(versions, &of.id) })
}

#[cfg(test)]
mod tests {
    use kestrel_client::version::{VersionInput, VersionSource};

    use super::*;

    fn version(byte: u8, inputs: &[u8]) -> VersionManifest {
        let source = VersionSource {
            dir: 1,
            snapshot_dir: 1,
            snapshot: 5,
            snapshot_name: b"s".into(),
            owned: true,
        };
        let id = |byte: u8| [byte; 16];
        let input = |byte: &u8| VersionInput {
            id: VersionManifest::new("x", &[7; 16], &id(*byte), source.clone()).id,
            name: format!("old{byte}"),
        };
        let made = VersionManifest::new(&format!("v{byte}"), &[7; 16], &id(byte), source.clone());
        made.with_inputs(inputs.iter().map(input).collect()).unwrap()
    }

    /// Inputs are shown in their order and under their present names, those of a version once,
    /// those of a deleted one not; versions that name each other end.
    #[test]
    fn lines_of_lineages() {
        let made = [version(4, &[3, 2, 9]), version(3, &[1]), version(2, &[3]), version(1, &[])];
        let versions: Versions = made.iter().map(|one| (one.id.clone(), one.clone())).collect();
        let shown = |versions: &Versions, of: &VersionManifest| -> Vec<String> {
            let lines = lines(versions, of).into_iter();
            lines.map(|line| format!("{} {} {:?}", line.depth, line.name, line.state)).collect()
        };
        let right = [
            "0 v4 Shown",
            "1 v3 Shown",
            "2 v1 Shown",
            "1 v2 Shown",
            "2 v3 Repeated",
            "1 old9 Deleted",
        ];
        assert_eq!(shown(&versions, &made[0]), right);
        assert_eq!(users_of(&versions, &made[1].id), ["v2", "v4"]);
        let circle = [version(1, &[2]), version(2, &[1])];
        let versions: Versions = circle.iter().map(|one| (one.id.clone(), one.clone())).collect();
        let right = ["0 v1 Shown", "1 v2 Shown", "2 v1 Repeated"];
        assert_eq!(shown(&versions, &circle[0]), right);
    }
}
