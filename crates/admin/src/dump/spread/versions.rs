//! Rows of versions, and of change feeds.

use std::collections::BTreeMap;

use kestrel_engine::{Engine, Mutation};
use kestrel_types::feed::{FeedRow, decode_feed_mark, encode_feed_mark};
use kestrel_types::ids::{InodeId, NodeId, ObjectId};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::{RECORD_PREFIX, decode_history_key, history_key};

use super::{Spread, first_share, is_absent};
use crate::dump::DumpError;
use crate::merge::Highest;
use crate::references::{Reference, Seen, of_row};
use crate::rows::{Rows, SHARES, decode_ceiling, encode_shares_with_history, get, put};

impl Spread<'_> {
    /// What rows were at snapshots, to their owners; how many bytes of objects the history of each
    /// node refers to.
    pub(super) fn history(
        &mut self,
        from: &dyn Engine,
        highest: &mut Highest,
    ) -> Result<BTreeMap<(ObjectId, NodeId), i64>, DumpError> {
        let (mut referenced, mut count) = (BTreeMap::new(), 0);
        for row in Rows::new(from, Table::History) {
            let (mut key, value) = row?;
            highest.add(&key, &value);
            if let Some((of, at)) = decode_history_key(key.borrow())
                && of.table == Table::DirStat
            {
                let share = first_share(self.view.home_of(of.id));
                key = history_key(KeyRef::new(of.table, of.id, &share), at);
            }
            let to = self.view.owner(Table::History, key.id, &key.suffix);
            of_row(&key, &value, &mut |seen| {
                if let Seen::Reference(Reference { range, bytes, .. }) = seen {
                    *referenced.entry((range.object, to)).or_default() += i64::from(bytes);
                }
            });
            self.send(to, Mutation { key, value: Some(value) })?;
            count += 1;
        }
        self.flush()?;
        self.count(Table::History, count)?;
        Ok(referenced)
    }

    /// Records of snapshots, which every node that serves has, and that programs which know none
    /// are to be kept away.
    pub(super) fn snapshots(&mut self, from: &dyn Engine) -> Result<(), DumpError> {
        let nodes: Vec<NodeId> = self.view.serving().collect();
        let mut found = false;
        for row in Rows::from(from, Table::System, 0, RECORD_PREFIX) {
            let (key, value) = row?;
            if !key.suffix.starts_with(RECORD_PREFIX) {
                break;
            }
            found = true;
            for node in &nodes {
                self.send(*node, Mutation { key: key.clone(), value: Some(value.clone()) })?;
            }
        }
        for node in nodes.into_iter().filter(|_| found) {
            let stored = get(self.engine(node)?, Key::new(Table::System, 0, SHARES))?;
            if let Some(shares) = stored.and_then(|row| decode_ceiling(&row).ok()) {
                let row = encode_shares_with_history(shares);
                self.send(node, put(Table::System, 0, SHARES, row))?;
            }
        }
        self.flush()
    }

    /// Rows of change feeds. Events of a node that is not there have no owner: readers of such a
    /// feed hear that events up to the newest of them are gone.
    pub(super) fn feeds(&mut self, from: &dyn Engine) -> Result<(), DumpError> {
        let mut gone: BTreeMap<InodeId, u64> = BTreeMap::new();
        for row in Rows::new(from, Table::Feed) {
            let (key, value) = row?;
            let (known, node) = (FeedRow::of(&key.suffix), FeedRow::node_of(&key.suffix));
            let stamp = match known {
                Some(FeedRow::Event(position)) if is_absent(self.nodes, node) => position.stamp,
                // The mark of a volume that one node had is where those of others are added.
                Some(FeedRow::Trimmed(node)) if node == 0 || is_absent(self.nodes, node) => {
                    decode_feed_mark(&value).map_err(|why| DumpError::Mismatch(why.to_string()))?
                }
                _ => {
                    let to = self.view.owner(Table::Feed, key.id, &key.suffix);
                    self.send(to, Mutation { key, value: Some(value) })?;
                    continue;
                }
            };
            let newest = gone.entry(key.id).or_default();
            *newest = stamp.max(*newest);
        }
        for (feed, stamp) in gone {
            let suffix = FeedRow::Trimmed(0).suffix();
            let to = self.view.owner(Table::Feed, feed, &suffix);
            self.send(to, put(Table::Feed, feed, &suffix, encode_feed_mark(stamp)))?;
        }
        self.flush()
    }
}
