//! Turns committed batches into transactions, in order, one at a time; what queues up meanwhile
//! goes in one together.
//!
//! A transaction compares the fence with what this process left there, and moves it to the last
//! batch's position. After a lost answer a transaction is sent again: it then finds the fence where
//! it wanted it, or where it was.
//!
//! A batch that is too large for one transaction is written in parts first, which no reader looks
//! at. The transaction that moves the fence has their number: from then on the batch is in. Its
//! rows follow, and last a fence without parts. A process that opens the shard in between reads the
//! parts over the rows, and goes on with them ([`SenderState::spread`]).

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use kestrel_engine::{EngineError, Epoch, Mutation};
use kestrel_types::ids::Position;

use crate::client::{PAUSE, RequestError, io};
use crate::shared::{EngineShared, Work};
use crate::store::{
    BYTES_MAX, PART_BYTES, ROWS_MAX, RowChanges, ShardRecord, TxnOp, fence, packed, swap,
};

/// The same for an etcd that is full.
const PAUSE_FULL: Duration = Duration::from_millis(500);
/// How often the shard is looked after while there is nothing to send.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The sender's side of things.
struct SenderState {
    shared: Arc<EngineShared>,
    /// How this process left the shard.
    fence: ShardRecord,
}

/// Sends what is committed until the engine stops or fails. `left` are the rows of the last batch
/// that are still in parts.
pub async fn run(shared: Arc<EngineShared>, fence: ShardRecord, left: RowChanges) {
    let mut state = SenderState { shared, fence };
    let why = match state.serve(left).await {
        Ok(()) => EngineError::Io("metadata engine: closed".into()),
        Err(why) => {
            log::error!("{why}");
            why
        }
    };
    state.shared.fail(why);
}

fn bytes_of(rows: &RowChanges) -> usize {
    rows.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.len())).sum()
}

fn ops_of<'a>(rows: impl Iterator<Item = (&'a Vec<u8>, &'a Option<Box<[u8]>>)>) -> Vec<TxnOp<'a>> {
    rows.map(|(key, value)| match value {
        Some(value) => TxnOp::PutRow(key, value),
        None => TxnOp::DeleteRow(key),
    })
    .collect()
}

impl SenderState {
    async fn serve(&mut self, left: RowChanges) -> Result<(), EngineError> {
        if self.fence.parts > 0 {
            self.spread(&left).await?;
        }
        loop {
            match self.shared.next() {
                Some(Work::Write(batches, bytes)) => self.write(batches, bytes).await?,
                Some(Work::Claim(reply)) => self.claim(&reply).await?,
                None if self.shared.is_stopping() => return Ok(()),
                None => {
                    if tokio::time::timeout(CHECK_EVERY, self.shared.news.notified()).await.is_err()
                    {
                        self.check().await?;
                    }
                }
            }
        }
    }

    /// Makes sure that the shard is still as this process left it. With nothing to send it is no
    /// harm if etcd cannot be reached.
    async fn check(&self) -> Result<(), EngineError> {
        match fence(&self.shared.client, &self.shared.shard, Instant::now()).await {
            Ok(found) if found == self.fence => Ok(()),
            Ok(found) => Err(self.mismatch(found)),
            Err(EngineError::Io(_) | EngineError::NoSpace) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// What it means that the shard stands elsewhere.
    fn mismatch(&self, found: ShardRecord) -> EngineError {
        let held = self.fence;
        if found.epoch > held.epoch
            || (found.epoch == held.epoch && found.claimant != held.claimant)
        {
            return EngineError::Fenced { held: held.epoch, current: found.epoch };
        }
        EngineError::Refused(format!(
            "metadata in etcd: {} stands at batch {} of epoch {}, and this process left it at {} \
             of epoch {}: an old state of etcd was \
             restored, or somebody else writes there. Nothing more is written there. Bring back \
             the etcd that has the newest state, or \
             stop, check with `kestrel fsck`, and go on without what is missing",
            self.shared.client.url.shown(),
            found.position,
            found.epoch,
            held.position,
            held.epoch
        ))
    }

    /// Brings the shard from where it is to another fence.
    async fn go(&mut self, to: ShardRecord, ops: &[TxnOp<'_>]) -> Result<(), EngineError> {
        let url = &self.shared.client.url;
        let (mut since, mut logged) = (Instant::now(), false);
        loop {
            let (why, pause) =
                match swap(&self.shared.client, &self.shared.shard, (self.fence, to), ops).await {
                    Ok(found) if found == to => {
                        self.fence = to;
                        return Ok(());
                    }
                    Ok(found) => return Err(self.mismatch(found)),
                    Err(RequestError::Full) => {
                        self.shared.set_full();
                        // It answers, so this may go on for as long as it takes; only a caller that
                        // closes the engine does not wait.
                        if !self.shared.is_stopping() {
                            since = Instant::now();
                        }
                        (EngineError::NoSpace, PAUSE_FULL)
                    }
                    Err(RequestError::Passing(why)) => (why, PAUSE),
                    Err(why) => return Err(why.why()),
                };
            if since.elapsed() > url.deadline {
                return Err(io(format!(
                    "nothing could be written to {} for {} s ({why}); changes that were not \
                     acknowledged as durable are lost; see to etcd, \
                     then end this process and start it again",
                    url.shown(),
                    url.deadline.as_secs()
                )));
            }
            if std::mem::replace(&mut logged, true) {
                log::debug!("{why}; trying again");
            } else {
                log::warn!("{why}; trying again until it is in, for {} s", url.deadline.as_secs());
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn write(
        &mut self,
        batches: Vec<(Position, Vec<Mutation>)>,
        bytes: usize,
    ) -> Result<(), EngineError> {
        let position = batches.last().map_or(self.fence.position, |(position, _)| *position);
        let mut rows = RowChanges::new();
        for mutation in batches.into_iter().flat_map(|(_, mutations)| mutations) {
            let mut key = Vec::new();
            mutation.key.borrow().encode_into(&mut key);
            rows.insert(key, mutation.value);
        }
        // Data before metadata.
        tokio::task::block_in_place(|| (self.shared.before_sync)())?;
        let to = ShardRecord { position, ..self.fence };
        if rows.len() <= ROWS_MAX && bytes_of(&rows) <= BYTES_MAX {
            self.go(to, &ops_of(rows.iter())).await?;
        } else {
            let whole = packed(&rows);
            let mut parts = 0;
            for part in whole.chunks(PART_BYTES) {
                let name = self.shared.shard.part(parts as usize);
                self.go(self.fence, &[TxnOp::Put(name, part)]).await?;
                parts += 1;
            }
            self.go(ShardRecord { parts, ..to }, &[]).await?;
            self.spread(&rows).await?;
        }
        self.shared.mirror.apply(&rows);
        // Callbacks answer members, and may take as long as that does.
        tokio::task::block_in_place(|| self.shared.stored(position, bytes));
        Ok(())
    }

    /// Writes the rows of a batch that is in parts.
    async fn spread(&mut self, rows: &RowChanges) -> Result<(), EngineError> {
        let mut rest = rows.iter().peekable();
        while rest.peek().is_some() {
            let (mut some, mut bytes) = (Vec::new(), 0);
            while some.len() < ROWS_MAX
                && let Some((key, value)) = rest.next_if(|(key, value)| {
                    bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
                    some.is_empty() || bytes <= BYTES_MAX
                })
            {
                some.push((key, value));
            }
            self.go(self.fence, &ops_of(some.into_iter())).await?;
        }
        self.go(ShardRecord { parts: 0, ..self.fence }, &[TxnOp::DeleteParts]).await
    }

    async fn claim(
        &mut self,
        reply: &SyncSender<Result<Epoch, EngineError>>,
    ) -> Result<(), EngineError> {
        let to = ShardRecord { epoch: Epoch(self.fence.epoch.0 + 1), ..self.fence };
        let claimed = self.go(to, &[]).await;
        if claimed.is_err() {
            self.shared.unclaimed();
        }
        // The receiver is there: it waits for this.
        let _ = reply.send(claimed.clone().map(|()| to.epoch));
        claimed
    }
}
