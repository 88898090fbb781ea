//! Where requests run: on the thread that makes them, each with a reactor and connections of its
//! own.
//!
//! An *executor* is a single-threaded runtime and the connections that live on it. A call takes an
//! idle executor, drives its sockets until it has its answer, and gives the executor back. So the
//! thread that wants the bytes is the one that waits for the socket: with a reactor shared by all,
//! every piece of a body cost two switches of threads, a quarter of all the CPU that reading a
//! large file took.
//!
//! **Connections** of an idle executor are not looked after until the executor is used again: a
//! call begins by letting the executor notice what happened meanwhile, so that a connection that
//! the store has closed is not used. Executors are taken last in, first out, and those that were
//! not taken for as long as connections are kept are dropped with theirs.
//!
//! **Bound.** No more executors than calls at one time, which are bounded by the caller's threads.
//! If the system refuses another one, calls wait for those there are; the first is made when the
//! store is opened.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::TokioExecutor;
use object_store::client::HttpRequestBody;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::{Builder, Runtime};

/// How long a connection is kept without use: less than the minute after which servers and
/// middleboxes drop it.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes connections.
pub(crate) type Dialer = HttpsConnector<Tcp>;

/// An HTTP client. Its connections belong to one executor.
pub(crate) type Http = Client<Dialer, HttpRequestBody>;

thread_local! {
    /// The client of the executor that this thread drives.
    static CURRENT: RefCell<Option<Http>> = const { RefCell::new(None) };
}

/// The client of the executor that this thread drives; none outside of [`Executors::block`].
pub(crate) fn current() -> Option<Http> {
    CURRENT.with_borrow(Clone::clone)
}

struct Executor {
    runtime: Runtime,
    http: Http,
}

struct Idle {
    /// Those given back last at the end, each with when that was.
    executors: VecDeque<(Executor, Instant)>,
}

/// All executors of a store.
pub(crate) struct Executors {
    dialer: Dialer,
    idle: Mutex<Idle>,
    given_back: Condvar,
}

impl Executors {
    /// Makes the first one.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn new(dialer: Dialer) -> io::Result<Self> {
        let first = Executor::new(&dialer)?;
        let idle = Idle { executors: VecDeque::from([(first, Instant::now())]) };
        Ok(Self { dialer, idle: Mutex::new(idle), given_back: Condvar::new() })
    }

    /// Runs requests on the calling thread until they are done.
    pub(crate) fn block<T>(&self, requests: impl Future<Output = T>) -> T {
        let taken = Taken { executors: self, executor: Some(self.take()) };
        taken.run(requests)
    }

    fn take(&self) -> Executor {
        let mut idle = self.idle.lock();
        loop {
            if let Some((executor, _)) = idle.executors.pop_back() {
                return executor;
            }
            drop(idle);
            match Executor::new(&self.dialer) {
                Ok(executor) => return executor,
                Err(error) => log::debug!("no further connection to the store at a time: {error}"),
            }
            idle = self.idle.lock();
            if idle.executors.is_empty() {
                // One is in use, or there would be one here.
                self.given_back.wait(&mut idle);
            }
        }
    }

    fn give_back(&self, executor: Executor) {
        let now = Instant::now();
        let mut idle = self.idle.lock();
        idle.executors.push_back((executor, now));
        // One at a time is enough: each call takes at most one out.
        let is_old = |(_, since): &(Executor, Instant)| now.duration_since(*since) > IDLE_TIMEOUT;
        let old = if idle.executors.front().is_some_and(is_old) {
            idle.executors.pop_front()
        } else {
            None
        };
        drop(idle);
        self.given_back.notify_one();
        // Closes connections, outside the lock.
        drop(old);
    }
}

impl Executor {
    fn new(dialer: &Dialer) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let http = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(dialer.clone());
        Ok(Self { runtime, http })
    }
}

/// An executor in use. It goes back also if the request panics.
struct Taken<'a> {
    executors: &'a Executors,
    executor: Option<Executor>,
}

impl Taken<'_> {
    fn run<T>(&self, requests: impl Future<Output = T>) -> T {
        let Some(Executor { runtime, http }) = &self.executor else {
            unreachable!("it is there until dropped")
        };
        CURRENT.set(Some(http.clone()));
        runtime.block_on(async {
            // Lets the reactor look at its sockets once: connections may have been closed while no
            // call drove them.
            tokio::task::yield_now().await;
            requests.await
        })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        CURRENT.set(None);
        if let Some(executor) = self.executor.take() {
            self.executors.give_back(executor);
        }
    }
}
