//! What `kestrel snapshot` prints for people.

use kestrel_daemon::ask::path_bytes;
use kestrel_daemon::units::{bytes, count};
use serde_json::Value;

use super::place::Place;
use crate::page::LabelledLines;

/// A name for people.
pub fn name(value: &Value) -> String {
    String::from_utf8_lossy(&path_bytes(value).unwrap_or_default()).into_owned()
}

/// `2026-11-25 22:00:07Z`.
fn time(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    format!("{}Z", whole.trim_end_matches('Z').replace('T', " "))
}

fn tags(one: &Value) -> Vec<String> {
    one["holds"].as_array().into_iter().flatten().map(name).collect()
}

/// A line for each snapshot: time, name, what is special.
pub fn list(found: &Value, place: &Place) {
    let all = found["snapshots"].as_array().map_or(&[][..], Vec::as_slice);
    for one in all {
        let mut line = String::new();
        if one["created"].is_string() {
            line += &format!("{}  ", time(&one["created"]));
        }
        if !place.is_dir() {
            let dir = match &one["path"] {
                Value::Null => format!("#{}", one["dir"]),
                path => name(path),
            };
            line += &format!("{dir}  ");
        }
        line += &name(&one["shown"]);
        let tags = tags(one);
        if !tags.is_empty() {
            line += &format!("  held: {}", tags.join(", "));
        }
        if one["removing"] == true {
            line += "  being removed";
        }
        println!("{line}");
    }
    if all.is_empty() {
        eprintln!("{} has no snapshots; `kestrel snapshot create` makes one", place.shown());
    }
}

/// All that is known of one.
pub fn info(one: &Value) -> LabelledLines {
    let mut page = LabelledLines::default();
    page.line("snapshot", name(&one["name"]));
    match &one["path"] {
        Value::Null => page.line("directory", format!("inode {}", one["dir"])),
        path => page.line("directory", format!("{} (inode {})", name(path), one["dir"])),
    }
    page.line("made", time(&one["created"]));
    page.line("number", one["id"].to_string());
    let tags = tags(one);
    if !tags.is_empty() {
        page.line("held by", tags.join(", "));
    }
    let tree = &one["tree"];
    if tree.is_object() {
        let number = |name: &str| tree[name].as_u64().unwrap_or(0);
        let (files, dirs) = (count(number("files")), count(number("directories")));
        page.line("tree", format!("{files} files, {dirs} directories, {}", bytes(number("bytes"))));
    }
    let removal = &one["removal"];
    if removal.is_object() {
        let number = |name: &str| removal[name].as_u64().unwrap_or(0);
        let (most, rows) = (bytes(number("bytes")), count(number("rows")));
        page.line("removal", format!("gives back at most {most}, {rows} rows of history"));
    }
    page
}

/// The schedule of a directory.
pub fn schedule(found: &Value, off: bool) {
    match found["schedule"].as_str() {
        Some(rules) => println!("{rules}"),
        None if off => println!("off; what was made stays"),
        None => println!("off; `kestrel snapshot schedule DIR 1h=24,1d=7` sets one"),
    }
    for (field, what) in [("damaged", "it cannot be read"), ("failed", "it is set, but")] {
        if let Some(why) = found[field].as_str() {
            eprintln!("kestrel snapshot: {what}: {why}");
        }
    }
}
