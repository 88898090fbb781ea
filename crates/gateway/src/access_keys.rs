//! Access keys: which there are, and what each of them gives.
//!
//! **Of a served volume** an access key is a token: its id is the token's number, its secret is
//! derived from the token's. The gateway has the tokens in a file and opens a session at the server
//! for each one that is used, so the server judges all that is done with it: a directory it is
//! confined to, users, read-only, its end.
//!
//! **Of a volume that this process opens itself** access keys are in a file, which is made with one
//! key the first time.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kestrel_rpc::token::Token;
use kestrel_types::hex::to_hex;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use rustc_hash::FxHashMap;
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3ErrorCode, S3Result};

use crate::account::Account;
use crate::error::refused;

/// Longest file of keys or tokens, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Shortest access key and secret: S3's limits.
const ID_MIN: usize = 3;
const SECRET_MIN: usize = 8;

/// Time between two looks whether a file has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Opens the session of a token.
pub type OpenToken = dyn Fn(&Token) -> Result<Arc<Account>, OpenError> + Send + Sync;

/// Why the session of a token could not be opened.
pub enum OpenError {
    /// The server does not let the token in.
    Refused(String),
    /// The server is not there, or anything else.
    Unavailable(String),
}

/// A key of a file.
struct FileKey {
    secret: SecretKey,
    read_only: bool,
}

/// A token and its session, once there is one.
struct TokenKey {
    token: Token,
    secret: SecretKey,
    account: Arc<Mutex<Option<Arc<Account>>>>,
}

/// A file, and what was read of it.
struct WatchedFile<T> {
    path: PathBuf,
    stamp: Option<(SystemTime, u64)>,
    checked: Instant,
    keys: FxHashMap<String, T>,
}

/// Which keys there are.
enum Source {
    /// Keys of a file, for this account.
    File(Mutex<WatchedFile<FileKey>>, Arc<Account>, Arc<Account>),
    /// Tokens of a file.
    Tokens(Mutex<WatchedFile<TokenKey>>, Box<OpenToken>),
}

/// The access keys of a gateway. Files are read again when they have changed.
pub struct Keyring {
    source: Source,
}

/// The access key that a token is, and its secret.
pub fn of_token(token: &Token) -> (String, String) {
    (token.s3_access_key(), token.s3_secret())
}

impl Keyring {
    /// The keys in a file ([`make_key_file`]).
    ///
    /// # Errors
    /// In words.
    pub fn from_file(path: &Path, account: Account) -> Result<Self, String> {
        let mut file = WatchedFile::new(path);
        file.refresh(&parse_keys)?;
        let reading = Arc::new(account.read_only());
        Ok(Self { source: Source::File(Mutex::new(file), Arc::new(account), reading) })
    }

    /// The tokens in a file, one a line.
    ///
    /// # Errors
    /// In words.
    pub fn from_tokens(path: &Path, open: Box<OpenToken>) -> Result<Self, String> {
        let mut file = WatchedFile::new(path);
        file.refresh(&parse_tokens)?;
        Ok(Self { source: Source::Tokens(Mutex::new(file), open) })
    }

    /// The secret of an access key.
    fn secret(&self, id: &str) -> Option<SecretKey> {
        match &self.source {
            Source::File(file, ..) => {
                let mut file = file.lock();
                file.look(&parse_keys);
                file.keys.get(id).map(|key| key.secret.clone())
            }
            Source::Tokens(file, _) => {
                let mut file = file.lock();
                file.look(&parse_tokens);
                file.keys.get(id).map(|key| key.secret.clone())
            }
        }
    }

    /// Whether this is the secret of an access key.
    pub fn proves(&self, id: &str, secret: &str) -> bool {
        // Digests are compared: how long that takes tells nothing about the secret.
        let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let known = self.secret(id);
        let is_known = known.is_some();
        let known = digest(known.as_ref().map_or("", |known| known.expose()));
        is_known && digest(secret).as_ref() == known.as_ref()
    }

    /// What an access key gives, if nothing has to be opened for that.
    pub fn account_at_hand(&self, id: &str) -> Option<Arc<Account>> {
        match &self.source {
            Source::File(..) => self.account(id).ok(),
            Source::Tokens(file, _) => {
                let place = file.lock().keys.get(id)?.account.clone();
                place.try_lock().and_then(|open| open.clone())
            }
        }
    }

    /// What an access key gives. May wait for a server.
    ///
    /// # Errors
    /// `InvalidAccessKeyId`; `AccessDenied` for a token that the server does not let in;
    /// `ServiceUnavailable`.
    pub fn account(&self, id: &str) -> S3Result<Arc<Account>> {
        match &self.source {
            Source::File(file, account, reading) => match file.lock().keys.get(id) {
                Some(FileKey { read_only: true, .. }) => Ok(reading.clone()),
                Some(_) => Ok(account.clone()),
                None => Err(unknown()),
            },
            Source::Tokens(file, open) => {
                let (token, place) = match file.lock().keys.get(id) {
                    Some(key) => (key.token.clone(), key.account.clone()),
                    None => return Err(unknown()),
                };
                let mut account = place.lock();
                if let Some(account) = &*account {
                    return Ok(account.clone());
                }
                match open(&token) {
                    Ok(opened) => Ok(account.insert(opened).clone()),
                    Err(OpenError::Refused(why)) => {
                        log::info!("gateway: token {}: {why}", token.id);
                        let why = "the server does not let this token in";
                        Err(refused(S3ErrorCode::AccessDenied, why))
                    }
                    Err(OpenError::Unavailable(why)) => {
                        log::warn!("gateway: token {}: {why}", token.id);
                        let why = "the volume's server does not answer";
                        Err(refused(S3ErrorCode::ServiceUnavailable, why))
                    }
                }
            }
        }
    }

    /// Removes what killed gateways left behind ([`Account::remove_leftovers`]), as far as it is
    /// older than `age`.
    pub fn remove_leftovers(&self, age: Duration) {
        for account in self.open_accounts().iter().filter(|account| account.may_write().is_ok()) {
            match account.remove_leftovers(account.fs.now(), age) {
                Ok(0) => {}
                Ok(count) => log::info!("gateway: {count} files of killed gateways removed"),
                Err(error) => log::warn!("gateway: files of killed gateways stay: {error}"),
            }
        }
    }

    /// The accounts that are open.
    fn open_accounts(&self) -> Vec<Arc<Account>> {
        match &self.source {
            Source::File(_, account, _) => vec![account.clone()],
            Source::Tokens(file, _) => {
                let file = file.lock();
                // One that is being opened just now is not waited for.
                let open = |key: &TokenKey| key.account.try_lock().and_then(|open| open.clone());
                file.keys.values().filter_map(open).collect()
            }
        }
    }
}

fn unknown() -> s3s::S3Error {
    refused(S3ErrorCode::InvalidAccessKeyId, "there is no such access key")
}

/// Answers questions of signatures.
pub struct KeyringAuth(pub Arc<Keyring>);

#[async_trait::async_trait]
impl S3Auth for KeyringAuth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.secret(access_key).ok_or_else(unknown)
    }
}

type Parse<T> = dyn Fn(&str) -> Result<FxHashMap<String, T>, String>;

impl<T> WatchedFile<T> {
    fn new(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        Self { path, stamp: None, checked: Instant::now(), keys: FxHashMap::default() }
    }

    /// Reads it again if it has changed and the last look is some time ago. What is wrong with it
    /// is logged; then the keys of before stay.
    fn look(&mut self, parse: &Parse<T>) {
        if self.checked.elapsed() < LOOK_EVERY {
            return;
        }
        self.checked = Instant::now();
        let about = std::fs::metadata(&self.path).ok();
        let stamp = about.and_then(|about| Some((about.modified().ok()?, about.len())));
        if stamp == self.stamp {
            return;
        }
        match self.refresh(parse) {
            Ok(()) => log::info!("gateway: {} was read again", self.path.display()),
            Err(why) => {
                log::warn!("gateway: {why}; the keys of before are used");
                self.stamp = stamp;
            }
        }
    }

    /// Reads it. Keys that are there already keep their sessions.
    fn refresh(&mut self, parse: &Parse<T>) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", self.path.display());
        let mut file = File::open(&self.path).map_err(|why| failed(&why))?;
        let about = file.metadata().map_err(|why| failed(&why))?;
        if about.mode() & 0o077 != 0 {
            return Err(failed(&"others can read it; `chmod 600` it, and replace the keys in it"));
        }
        let mut text = String::new();
        // What was read of it is not for messages.
        (&mut file)
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|_| failed(&"it cannot be read as text"))?;
        let mut keys = parse(&text).map_err(|why| failed(&why))?;
        for (id, key) in std::mem::take(&mut self.keys) {
            keys.entry(id).and_modify(|place| *place = key);
        }
        self.stamp = about.modified().ok().map(|time| (time, about.len()));
        self.keys = keys;
        Ok(())
    }
}

/// The lines of a file that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn parse_keys(text: &str) -> Result<FxHashMap<String, FileKey>, String> {
    let mut keys = FxHashMap::default();
    for (number, line) in lines(text) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (id, secret, read_only) = match words[..] {
            [id, secret] => (id, secret, false),
            [id, secret, "read-only"] => (id, secret, true),
            _ => {
                let form = "ACCESS-KEY SECRET, or ACCESS-KEY SECRET read-only";
                return Err(format!("line {number} is no key; a line has the form {form}"));
            }
        };
        if id.len() < ID_MIN || secret.len() < SECRET_MIN || id.contains('/') {
            return Err(format!(
                "line {number}: an access key has at least {ID_MIN} characters and no slash, a \
                 secret at least {SECRET_MIN}"
            ));
        }
        let key = FileKey { secret: SecretKey::from(secret), read_only };
        if keys.insert(id.to_string(), key).is_some() {
            return Err(format!("line {number}: the access key is there twice"));
        }
    }
    Ok(keys)
}

fn parse_tokens(text: &str) -> Result<FxHashMap<String, TokenKey>, String> {
    let mut keys = FxHashMap::default();
    for (number, line) in lines(text) {
        let token = Token::parse(line).map_err(|why| format!("line {number}: {why}"))?;
        let (id, secret) = of_token(&token);
        let (secret, account) = (SecretKey::from(secret), Arc::default());
        keys.insert(id, TokenKey { token, secret, account });
    }
    Ok(keys)
}

/// Makes a file with one key, for its owner alone, unless there is one. A key that was made is
/// returned.
///
/// # Errors
/// In words.
pub fn make_key_file(path: &Path) -> Result<Option<(String, String)>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let mut open = OpenOptions::new();
    let mut file = match open.write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == ErrorKind::AlreadyExists => return Ok(None),
        Err(why) => return Err(failed(&why)),
    };
    let (mut id, mut secret) = ([0; 8], [0; 20]);
    let random = SystemRandom::new();
    random
        .fill(&mut id)
        .and_then(|()| random.fill(&mut secret))
        .map_err(|_| failed(&"the system gives no random numbers"))?;
    let (id, secret) = (format!("KEF{}", to_hex(&id).to_uppercase()), to_hex(&secret));
    let text = format!(
        "# Access keys of `kestrel gateway`: ACCESS-KEY SECRET [read-only]\n{id} {secret}\n"
    );
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|why| failed(&why))?;
    Ok(Some((id, secret)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of keys has one a line; what is none is refused without saying it.
    #[test]
    fn file_of_keys() {
        let keys = parse_keys("# x\n\nABC secret-1\nDEF secret-2 read-only\n").unwrap();
        assert!(!keys["ABC"].read_only && keys["DEF"].read_only);
        for bad in ["ABC", "ABC secret-1 rw", "AB secret-1", "ABC short", "A/C secret-1"] {
            let why = parse_keys(bad).err().unwrap();
            assert!(why.contains("line 1") && !why.contains("secret-1"), "{why}");
        }
        assert!(parse_keys("ABC secret-1\nABC secret-2").is_err());
    }

    /// A file is made with a key once, for its owner alone.
    #[test]
    fn file_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let (id, secret) = make_key_file(&path).unwrap().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(parse_keys(&text).unwrap()[&id].secret.expose(), secret);
        assert!(make_key_file(&path).unwrap().is_none());
    }

    /// Tokens give keys that do not tell them.
    #[test]
    fn keys_of_tokens() {
        let token = Token::new(None).unwrap();
        let keys = parse_tokens(&token.reveal()).unwrap();
        let (id, secret) = of_token(&token);
        assert_eq!(keys[&id].secret.expose(), secret);
        assert!(!token.reveal().contains(&secret));
        assert!(parse_tokens("kestrel-token:1:x").is_err());
    }
}
