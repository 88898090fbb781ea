//! The proxy's listeners.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::classes::Classes;
use super::control;
use super::counts::Counts;
use super::http::Head;
use super::kind::Kind;
use super::pace::Pace;
use super::plan::{Disturbance, FaultPlan};
use super::relay;
use super::socket::Address;

/// Connections served at once; one more is closed at once.
pub const CONNECTIONS_MAX: usize = 2048;

/// What all connections share.
pub struct Proxy {
    /// Where the store is.
    pub store: Address,
    /// The rules in force.
    pub plan: FaultPlan,
    /// Storage classes, if the store has none.
    pub classes: Classes,
    /// What passed through.
    pub counts: Counts,
    /// The limit of bytes to the store.
    pub up: Pace,
    /// The limit of bytes from the store.
    pub down: Pace,
    page: Mutex<Option<String>>,
    log: Option<Mutex<File>>,
    started: Instant,
}

impl Proxy {
    /// A proxy without rules; writes a line for each request to `log`.
    pub fn new(store: Address, seed: u64, log: Option<File>) -> Self {
        Self {
            store,
            plan: FaultPlan::new(seed),
            classes: Classes::default(),
            counts: Counts::default(),
            up: Pace::default(),
            down: Pace::default(),
            page: Mutex::new(None),
            log: log.map(Mutex::new),
            started: Instant::now(),
        }
    }

    /// The same with these storage classes ([`Classes::of`]).
    pub fn with_classes(self, names: &str) -> Self {
        Self { classes: Classes::of(names), ..self }
    }

    /// The page of a listing that was sent last.
    pub fn last_page(&self) -> Option<String> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a page for [`Self::last_page`].
    pub fn keep_page(&self, page: String) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Some(page);
    }

    /// Writes a request to the log: milliseconds, kind, method, target, range, and what hit it.
    pub fn log(&self, kind: Kind, head: &Head, disturbance: &Disturbance) {
        let Some(log) = &self.log else { return };
        let line = format!(
            "{} {} {} {} {} {}\n",
            self.started.elapsed().as_millis(),
            kind.name(),
            head.word(0),
            head.word(1),
            head.header("range").unwrap_or("-"),
            disturbance.names.join("+"),
        );
        // A log that cannot be written is not worth ending a test for.
        let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}

/// A proxy that listens.
pub struct Server {
    /// What its connections share.
    pub proxy: Arc<Proxy>,
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where rules are set and counts are read.
    pub control: SocketAddr,
}

/// Starts listening at both addresses (port 0: a free one) and serves until the process ends.
///
/// # Errors
/// If it cannot listen.
pub fn start(proxy: Proxy, listen: &str, control: &str) -> io::Result<Server> {
    let (clients, controls) = (TcpListener::bind(listen)?, TcpListener::bind(control)?);
    let (address, control) = (clients.local_addr()?, controls.local_addr()?);
    let proxy = Arc::new(proxy);
    let shared = proxy.clone();
    std::thread::Builder::new()
        .name("s3proxy-accept".into())
        .spawn(move || accept(&shared, &clients))?;
    let shared = proxy.clone();
    std::thread::Builder::new().name("s3proxy-control".into()).spawn(move || {
        for client in controls.incoming().flatten() {
            if let Err(error) = control::serve(&shared, client) {
                eprintln!("kestrel-s3proxy: control: {error}");
            }
        }
    })?;
    Ok(Server { proxy, address, control })
}

fn accept(proxy: &Arc<Proxy>, clients: &TcpListener) {
    let open = Arc::new(AtomicUsize::new(0));
    for client in clients.incoming().flatten() {
        if open.fetch_add(1, Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Relaxed);
            continue;
        }
        let (proxy, in_thread) = (proxy.clone(), open.clone());
        let spawned = std::thread::Builder::new()
            .name("s3proxy".into())
            .stack_size(256 << 10)
            .spawn(move || {
                relay::serve(&proxy, client);
                in_thread.fetch_sub(1, Relaxed);
            });
        if let Err(error) = spawned {
            open.fetch_sub(1, Relaxed);
            eprintln!("kestrel-s3proxy: no thread for a connection: {error}");
        }
    }
}
