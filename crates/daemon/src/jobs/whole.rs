//! Copies of whole files in the cache, which the kernel reads by itself (docs/cache.md).

use std::sync::Arc;

use kestrel_client::fs::{Caller, Fs, WholeId, WholeMade, wait};
use kestrel_client::storage::Storage;
use serde_json::{Value, json};

use crate::progress_stream::ProgressStream;

/// Sums of answers, by name.
pub const SUMS: [&str; 6] =
    ["files", "bytes", "whole_files", "whole_bytes", "dropped_bytes", "failed"];

/// Does what a request wants: makes copies of the files it names, tells which have one, or drops
/// them.
///
/// # Errors
/// If this mount has no whole copies, or the request makes no sense.
pub fn serve(
    fs: &Arc<Fs>,
    storage: &Storage,
    question: &Value,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let files = question["files"].as_array().ok_or("the question does not name files")?;
    let listening = feed.listening();
    let act = question["act"].as_str().unwrap_or("fill");
    let copies = storage.whole.as_ref().map_err(ToString::to_string)?;
    if act == "fill" && fs.whole_copies().is_none() {
        return Err("pass-through is off on this mount; `kestrel status` says why".into());
    }
    let mut out = json!({});
    let mut sums = [0u64; SUMS.len()];
    for ino in files.iter().filter_map(Value::as_u64) {
        if !listening.is_on() {
            break;
        }
        let inode = wait(|done| fs.getattr(Caller::ROOT, ino, done));
        let whole = inode.and_then(|inode| {
            let id = WholeId { ino, change: inode.data_change, size: inode.size };
            let whole = match act {
                "evict" => {
                    sums[4] += copies.evict(ino);
                    false
                }
                "check" => copies.is_there(&id),
                _ => !matches!(fs.make_whole(ino, &|| listening.is_on())?, WholeMade::Unfit),
            };
            Ok((inode.size, whole))
        });
        match whole {
            Ok((size, whole)) => {
                sums[0] += 1;
                sums[1] += size;
                sums[2] += u64::from(whole);
                sums[3] += if whole { size } else { 0 };
            }
            Err(why) => {
                sums[5] += 1;
                feed.event(&json!({ "failure": format!("inode {ino}: {why}") }));
            }
        }
        feed.progress("bytes", sums[1]);
    }
    SUMS.iter().zip(sums).for_each(|(name, sum)| out[*name] = sum.into());
    out["unfinished"] = (!listening.is_on()).into();
    Ok(out)
}
