//! Protocols on HTTP over a volume: S3 (`kestrel gateway`) and WebDAV (`kestrel webdav`).
//!
//! A face translates and nothing else: what files are is `kestrel_client`'s, and what a protocol is
//! (requests, signatures, XML) is the crate s3s's and the crate dav-server's. [`Keyring`] knows the
//! access keys, and an [`Account`] what each of them gives; [`Gateway`] serves a
//! [`server::Protocol`]. To S3 buckets are directories, keys are paths and objects are files; to
//! WebDAV files are files.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use kestrel_client::volume::{Resources, Volume};
//! use kestrel_gateway::access_keys::make_key_file;
//! use kestrel_gateway::account::{Account, Buckets};
//! use kestrel_gateway::server::ServerConfig;
//! use kestrel_gateway::{Gateway, Keyring, S3Protocol};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let resources = Resources::default();
//! let mounted = Volume::open("/srv/v", "example", &resources)?.serve(&resources, false)?;
//! let account = Account::new(mounted.fs.clone(), (1000, 1000), Buckets::Directories, false);
//! let file = Path::new("/srv/v.keys");
//! if let Some((access_key, secret)) = make_key_file(file)? {
//!     println!("{access_key} {secret}");
//! }
//! let keyring = Keyring::from_file(file, account)?;
//! let config = ServerConfig {
//!     listen: "127.0.0.1:9450".parse()?,
//!     connections_max: 1000,
//!     tls: None,
//!     access_log: None,
//!     stop_within: Duration::from_secs(30),
//! };
//! let metrics = Arc::default();
//! let s3 = S3Protocol::new(Arc::new(keyring), "us-east-1".into(), None, Arc::clone(&metrics))?;
//! let gateway = Gateway::start(config, s3, metrics)?;
//! println!("http://{}", gateway.address());
//! gateway.stop();
//! mounted.fs.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`server`], [`body`], [`chunks`] | connections, their limits, and bodies that come |
//! | [`s3`] | S3 on HTTP |
//! | [`service`] | the operations of S3, each in terms of the modules below |
//! | [`access_keys`], [`account`] | access keys; the file system and user that each gives |
//! | [`object_key`] | keys as paths, and what no path can be |
//! | [`object`], [`writer`] | objects that are there; objects that are being written |
//! | [`new_file`] | files that get their names when all of their bytes are there |
//! | [`uploads`] | uploads in parts, joined by reference |
//! | [`walk`], [`listing`], [`buckets`] | keys in byte order; pages of objects; buckets |
//! | [`attributes`], [`conditions`] | what extended attributes keep; conditions of requests |
//! | [`webdav`] | WebDAV on HTTP, and its operations |
//! | [`metrics`], [`access_log`], [`error`] | what is counted and logged; errors as S3's |
//!
//! # Invariants
//!
//! - An object, or a file that is put, appears whole and at once, and is durable when its request
//!   is answered.
//! - A request keeps a piece of a body in memory, never an object.
//! - No request without a good signature, or the secret of a key, gets anything but an error.

pub mod access_keys;
pub mod access_log;
pub mod account;
pub mod attributes;
pub mod body;
pub mod buckets;
pub mod chunks;
pub mod conditions;
pub mod error;
pub mod listing;
pub mod metrics;
pub mod new_file;
pub mod object;
pub mod object_key;
pub mod s3;
pub mod server;
pub mod service;
pub mod uploads;
pub mod walk;
pub mod webdav;
pub mod writer;

pub use access_keys::Keyring;
pub use account::Account;
pub use s3::S3Protocol;
pub use server::Gateway;
pub use webdav::WebdavProtocol;
