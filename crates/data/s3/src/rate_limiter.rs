//! Limits: how many requests run at a time, how many bytes pass in a second.
//!
//! Waiting for a turn is no fault of the store as long as the store answers other requests, so the
//! time for a request begins with its turn. If no request got an answer while a caller waited for a
//! whole deadline, the store is gone and the caller gets an error.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::bandwidth::Bandwidth;
use crate::options::S3Limits;

/// Which way the bytes of a request go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the store: puts, parts, deletions.
    Up,
    /// From the store: gets, heads, listings.
    Down,
}

/// The turns of one direction.
#[derive(Debug)]
struct DirectionLimit {
    turns: Semaphore,
    bandwidth: Option<Mutex<Bandwidth>>,
}

impl DirectionLimit {
    fn new(turns: usize, bytes_per_second: Option<NonZeroU64>) -> Self {
        let bandwidth =
            bytes_per_second.map(|limit| Mutex::new(Bandwidth::new(limit, Instant::now())));
        Self { turns: Semaphore::new(turns), bandwidth }
    }
}

/// All turns of a store.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    up: DirectionLimit,
    down: DirectionLimit,
    answers: AtomicU64,
    deadline: Duration,
}

/// The store answered no request for a whole deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoTurn;

impl RateLimiter {
    /// A limiter with these limits.
    pub(crate) fn new(limits: &S3Limits) -> Self {
        Self {
            up: DirectionLimit::new(limits.max_uploads, limits.upload_bytes_per_second),
            down: DirectionLimit::new(limits.max_downloads, limits.download_bytes_per_second),
            answers: AtomicU64::new(0),
            deadline: limits.deadline,
        }
    }

    /// The store answered a request.
    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for a turn.
    pub(crate) async fn turn(&self, direction: Direction) -> Result<SemaphorePermit<'_>, NoTurn> {
        let limit = self.limit(direction);
        loop {
            let seen = self.answers.load(Ordering::Relaxed);
            match tokio::time::timeout(self.deadline, limit.turns.acquire()).await {
                Ok(Ok(turn)) => return Ok(turn),
                // The semaphore is never closed.
                Ok(Err(_)) => return Err(NoTurn),
                Err(_) if self.answers.load(Ordering::Relaxed) == seen => return Err(NoTurn),
                Err(_) => {}
            }
        }
    }

    /// Waits until so many bytes may pass.
    pub(crate) async fn pass(&self, direction: Direction, bytes: u64) {
        if let Some(bandwidth) = &self.limit(direction).bandwidth {
            let wait = bandwidth.lock().book(bytes, Instant::now());
            tokio::time::sleep(wait).await;
        }
    }

    fn limit(&self, direction: Direction) -> &DirectionLimit {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn turns_are_bounded_and_directions_apart() {
        let limits =
            S3Limits { max_uploads: 2, deadline: Duration::from_millis(30), ..S3Limits::default() };
        let rate_limiter = RateLimiter::new(&limits);
        runtime().block_on(async {
            let first = rate_limiter.turn(Direction::Up).await.unwrap();
            let _second = rate_limiter.turn(Direction::Up).await.unwrap();
            assert_eq!(rate_limiter.turn(Direction::Up).await.err(), Some(NoTurn));
            assert!(rate_limiter.turn(Direction::Down).await.is_ok());
            drop(first);
            assert!(rate_limiter.turn(Direction::Up).await.is_ok());
        });
    }

    /// A request that waits for its turn does not time out while the store answers others.
    #[test]
    fn turn_deadline_while_the_store_answers() {
        let limits = S3Limits {
            max_uploads: 1,
            deadline: Duration::from_millis(400),
            ..S3Limits::default()
        };
        let rate_limiter = RateLimiter::new(&limits);
        runtime().block_on(async {
            let held = rate_limiter.turn(Direction::Up).await.unwrap();
            let others = async {
                for _ in 0..40 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    rate_limiter.answered();
                }
                drop(held);
            };
            let (got, ()) =
                futures_util::future::join(rate_limiter.turn(Direction::Up), others).await;
            assert!(got.is_ok());
        });
    }
}
