//! The token that this process shows to servers that ask for one: in a file that only its owner can
//! read, named on the command line or by [`TOKEN_FILE_ENV`]. A program with several volumes shows
//! each its own ([`with_token`]).

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kestrel_rpc::token::{TEXT_MAX, Token};

use crate::error::VolumeError;

/// Names the file unless the command line does.
pub const TOKEN_FILE_ENV: &str = "KESTREL_TOKEN_FILE";

static FILE: OnceLock<PathBuf> = OnceLock::new();

static OF_NODES: OnceLock<Arc<Token>> = OnceLock::new();

thread_local! {
    /// What this thread opens a volume with.
    static OF_THREAD: RefCell<Option<Arc<Token>>> = const { RefCell::new(None) };
}

/// Runs `open`, which opens a volume on this thread: servers are shown this token instead of the one
/// that the process has, now and whenever they are connected to again. For a process that acts for
/// several clients, or has several volumes.
pub fn with_token<T>(token: Option<Arc<Token>>, open: impl FnOnce() -> T) -> T {
    let before = OF_THREAD.replace(token);
    let opened = open();
    OF_THREAD.set(before);
    opened
}

/// This process is a node of a cluster with this secret, and shows the other nodes what only nodes
/// can. Once, before the first connection.
pub fn be_node(secret: &[u8], authority: String) {
    let _ = OF_NODES.set(Arc::new(Token::of_nodes(secret, Some(authority))));
}

/// Has the token read from this file. Once, before the first connection.
pub fn read_from(file: &Path) {
    // A process in the background leaves the directory that it was started in.
    let _ = FILE.set(std::path::absolute(file).unwrap_or_else(|_| file.into()));
}

/// The token, if there is one.
///
/// # Errors
/// If its file cannot be read, others can read it, or it holds none.
pub fn token() -> Result<Option<Arc<Token>>, VolumeError> {
    if let Some(token) = OF_NODES.get() {
        return Ok(Some(token.clone()));
    }
    if let Some(token) = OF_THREAD.with_borrow(Clone::clone) {
        return Ok(Some(token));
    }
    let named = std::env::var_os(TOKEN_FILE_ENV).filter(|file| !file.is_empty()).map(PathBuf::from);
    let Some(file) = FILE.get().cloned().or(named) else { return Ok(None) };
    let failed =
        |why: String| VolumeError::Invalid(format!("token file {}: {why}", file.display()));
    let mut open = File::open(&file).map_err(|why| failed(why.to_string()))?;
    let about = open.metadata().map_err(|why| failed(why.to_string()))?;
    if !about.is_file() {
        return Err(failed("it is no file".into()));
    }
    if about.mode() & 0o077 != 0 {
        return Err(failed(
            "others can read it; `chmod 600` it, and have the token revoked if they may have"
                .into(),
        ));
    }
    let mut text = String::new();
    let read = (&mut open).take(TEXT_MAX as u64 + 1).read_to_string(&mut text);
    // What was read of it is not for messages.
    read.map_err(|_| failed("it cannot be read as text".into()))?;
    let token = Token::parse(&text).map_err(|why| failed(why.into()))?;
    Ok(Some(Arc::new(token)))
}
