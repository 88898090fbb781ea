//! `kestrel csi`: KestrelFS for container orchestrators, by the Container Storage Interface 1.11.
//!
//! [`Driver::serve`] answers the services Identity, Controller and Node at a Unix socket. The
//! driver has no file system code: it runs `kestrel` for what is done to a volume (mounts, quotas,
//! snapshots, clones), and the kernel does directories and bind mounts. All that it knows lies in
//! the volume, or is what the kernel has mounted, so it may be started again at any moment.
//!
//! A CSI volume that the driver has made is a directory below [`CsiConfig::dir`] of the KestrelFS
//! volume, with a quota; its record is an extended attribute of the directory. A CSI snapshot is a
//! snapshot of that directory, `VOLUME@NAME`.
//!
//! ```no_run
//! use kestrel_csi::{CsiConfig, Driver};
//!
//! # fn main() -> Result<(), String> {
//! let config = CsiConfig {
//!     endpoint: "unix:///run/csi/csi.sock".into(),
//!     node_id: "node-17".into(),
//!     url: "kestrel://meta1/photos".into(),
//!     token_file: None,
//!     dir: "csi".into(),
//!     state_dir: "/var/lib/kestrel/csi".into(),
//! };
//! Driver::new(config)?.serve(|| ())
//! # }
//! ```
//!
//! | file | what it has |
//! | --- | --- |
//! | `server.rs` | the socket, connections, which service a call is for |
//! | `identity.rs`, `controller.rs`, `node.rs` | the services |
//! | `checks.rs` | what requests may ask for |
//! | `volumes.rs` | directories as volumes, their records, quotas and snapshots |
//! | `program.rs` | running `kestrel` |
//! | `mounts.rs` | what the kernel has mounted; bind mounts |
//!
//! Invariants:
//! - Every call may come again and out of order; two calls for one volume at a time do not run: the
//!   second is answered ABORTED, and its caller asks again.
//! - A directory without a record is a creation that was cut short: it is removed and made anew.

mod checks;
mod controller;
mod identity;
mod mounts;
mod node;
mod program;
mod server;
mod volumes;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// The messages and services of the spec, as `proto/generate` makes them of `proto/csi.proto`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v1 {
    include!("../proto/csi.v1.rs.in");
}

/// The name by which orchestrators know the driver.
pub const DRIVER_NAME: &str = "csi.kestrelfs.io";

/// What a driver serves, and where.
#[derive(Debug, Clone)]
pub struct CsiConfig {
    /// The socket: `unix:///path`, or a path
    pub endpoint: String,
    /// This machine, as the orchestrator calls it
    pub node_id: String,
    /// The volume in which directories are made, and that is mounted unless a CSI volume says
    /// otherwise
    pub url: String,
    /// File with the token for its servers
    pub token_file: Option<PathBuf>,
    /// Name of the directory in the volume's root below which CSI volumes are made
    pub dir: String,
    /// Directory of this machine for mounts and their logs
    pub state_dir: PathBuf,
}

/// The driver: all three services.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    config: CsiConfig,
    /// Volumes and paths that a call is about at this moment.
    busy: Mutex<HashSet<String>>,
    /// Held while a KestrelFS mount is looked for, made or given up.
    mounting: Mutex<()>,
}

/// The right to work on a volume; it is given back when it is dropped.
struct Turn<'a> {
    busy: &'a Mutex<HashSet<String>>,
    what: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.what);
    }
}

impl Driver {
    /// A driver for this configuration. Nothing is mounted before a call needs it.
    ///
    /// # Errors
    /// If the name of the directory is none, or the state directory cannot be made.
    pub fn new(config: CsiConfig) -> Result<Self, String> {
        if config.dir.is_empty() || config.dir.contains('/') || config.dir.starts_with('.') {
            return Err(format!("--dir {}: give the name of a directory in the root", config.dir));
        }
        if config.node_id.is_empty() {
            return Err("--node-id: give the name of this machine".into());
        }
        std::fs::create_dir_all(&config.state_dir)
            .map_err(|why| format!("--state-dir {}: {why}", config.state_dir.display()))?;
        let (busy, mounting) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(Inner { config, busy, mounting })))
    }

    fn turn(&self, what: &str) -> Result<Turn<'_>, Status> {
        let busy = &self.0.busy;
        if !busy.lock().insert(what.to_string()) {
            return Err(Status::aborted(format!("{what}: another call is at work on it; repeat")));
        }
        Ok(Turn { busy, what: what.to_string() })
    }

    /// Runs a call that waits for processes and the kernel on a thread for such.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        let driver = self.clone();
        let done = tokio::task::spawn_blocking(move || call(&driver)).await;
        done.map_err(|why| Status::internal(why.to_string()))?.map(tonic::Response::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generated code has every call and every message of the spec's file.
    #[test]
    fn calls_and_messages_of_the_spec() {
        let spec = include_str!("../proto/csi.proto");
        let code = include_str!("../proto/csi.v1.rs.in");
        let mut service = "";
        for line in spec.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(name)) => {
                    let name = name.split('(').next().unwrap_or_default();
                    let path = format!("\"/csi.v1.{service}/{name}\"");
                    assert!(code.contains(&path), "{path}");
                }
                (Some("message"), Some(name)) if line.starts_with("message") => {
                    assert!(code.contains(&format!("pub struct {name}")), "{name}");
                }
                _ => {}
            }
        }
        assert_eq!(service, "Node");
    }

    fn driver(place: &std::path::Path) -> Driver {
        let config = CsiConfig {
            endpoint: "unix:///run/csi.sock".into(),
            node_id: "node-17".into(),
            url: "/nowhere".into(),
            token_file: None,
            dir: "csi".into(),
            state_dir: place.join("state"),
        };
        Driver::new(config).unwrap()
    }

    /// A second call for a volume is told to come again while the first is at work.
    #[test]
    fn one_call_a_volume() {
        let place = tempfile::tempdir().unwrap();
        let driver = driver(place.path());
        let turn = driver.turn("one").unwrap();
        assert_eq!(driver.turn("one").err().unwrap().code(), tonic::Code::Aborted);
        assert!(driver.turn("other").is_ok());
        drop(turn);
        assert!(driver.turn("one").is_ok());
    }

    /// A directory that is no name in the root, and a machine without a name.
    #[test]
    fn configurations_that_are_none() {
        let place = tempfile::tempdir().unwrap();
        let good = driver(place.path()).0.config.clone();
        for dir in ["", "a/b", "..", ".trash"] {
            assert!(Driver::new(CsiConfig { dir: dir.into(), ..good.clone() }).is_err(), "{dir}");
        }
        assert!(Driver::new(CsiConfig { node_id: String::new(), ..good }).is_err());
        for (endpoint, path) in [("unix:///a/b", "/a/b"), ("unix:/a", "/a"), ("/a", "/a")] {
            assert_eq!(server::socket_path(endpoint).unwrap(), PathBuf::from(path));
        }
        assert!(server::socket_path("tcp://127.0.0.1:1").is_err());
    }
}
