//! The credentials for the store. They come, in this order, from the file that was named for this
//! volume, the environment, the shared credentials file, and what the platform gives its instances;
//! never from the volume. They are not logged, and no error repeats them.
//!
//! A file is looked at again before every request (one `stat`), so that rotating keys means
//! replacing it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use parking_lot::Mutex;

use crate::open_error::OpenError;

/// Largest credentials file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a variable of the environment; tests give their own.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment. Empty variables count as missing.
pub(crate) fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Finds credentials and gives them to the builder; answers where they come from, for error
/// messages.
pub(crate) fn provide(
    builder: AmazonS3Builder,
    file: Option<&Path>,
    environment: Environment<'_>,
) -> Result<(AmazonS3Builder, String), OpenError> {
    let profile = environment("AWS_PROFILE").unwrap_or_else(|| "default".to_string());
    let from_file = |builder: AmazonS3Builder, path: PathBuf| {
        let source = format!("{} [{profile}]", path.display());
        FileCredentials::open(path, profile.clone())
            .map(|file| (builder.with_credentials(Arc::new(file)), source))
    };
    if let Some(path) = file {
        return from_file(builder, path.to_path_buf());
    }
    match (environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            let builder = match environment("AWS_SESSION_TOKEN") {
                Some(token) => builder.with_token(token),
                None => builder,
            };
            return Ok((builder, "the environment (AWS_ACCESS_KEY_ID)".to_string()));
        }
        (None, None) => {}
        (None, _) => return Err(half("AWS_SECRET_ACCESS_KEY is set, AWS_ACCESS_KEY_ID is not")),
        (_, None) => return Err(half("AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not")),
    }
    if let Some(path) = environment("AWS_SHARED_CREDENTIALS_FILE") {
        return from_file(builder, path.into());
    }
    if let Some(found) = platform(&builder, environment) {
        return Ok(found);
    }
    if let Some(home) = environment("HOME").map(|home| Path::new(&home).join(".aws/credentials"))
        && home.exists()
    {
        return from_file(builder, home);
    }
    if environment("AWS_EC2_METADATA_DISABLED").as_deref() == Some("true") {
        return Err(OpenError::Credentials(NONE_FOUND.into()));
    }
    let builder = match environment("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
        Some(endpoint) => builder.with_metadata_endpoint(endpoint),
        None => builder,
    };
    Ok((builder, "the instance's metadata service".to_string()))
}

/// That there are no credentials, and what to do about it.
pub(crate) const NONE_FOUND: &str = "no credentials for the store: set AWS_ACCESS_KEY_ID and \
                                     AWS_SECRET_ACCESS_KEY, or name a \
                                     file with --credentials FILE";

/// What to do about missing credentials.
pub(crate) const GIVE_THEM: &str =
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with --credentials FILE";

fn half(what: &str) -> OpenError {
    OpenError::Credentials(format!("{what}; set both or neither"))
}

/// Roles that a cluster manager gives its containers, if the environment has one.
fn platform(
    builder: &AmazonS3Builder,
    environment: Environment<'_>,
) -> Option<(AmazonS3Builder, String)> {
    use AmazonS3ConfigKey::{
        ContainerAuthorizationTokenFile, ContainerCredentialsFullUri,
        ContainerCredentialsRelativeUri, RoleArn, RoleSessionName, StsEndpoint,
        WebIdentityTokenFile,
    };
    let optional =
        |builder: AmazonS3Builder, key: AmazonS3ConfigKey, name: &str| match environment(name) {
            Some(value) => builder.with_config(key, value),
            None => builder,
        };
    if let (Some(token), Some(role)) =
        (environment("AWS_WEB_IDENTITY_TOKEN_FILE"), environment("AWS_ROLE_ARN"))
    {
        let builder =
            builder.clone().with_config(WebIdentityTokenFile, token).with_config(RoleArn, role);
        let builder = optional(builder, RoleSessionName, "AWS_ROLE_SESSION_NAME");
        let builder = optional(builder, StsEndpoint, "AWS_ENDPOINT_URL_STS");
        return Some((builder, "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE".to_string()));
    }
    if let Some(uri) = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        let builder = builder.clone().with_config(ContainerCredentialsRelativeUri, uri);
        return Some((builder, "the container's role".to_string()));
    }
    let uri = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")?;
    let token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")?;
    let builder = builder
        .clone()
        .with_config(ContainerCredentialsFullUri, uri)
        .with_config(ContainerAuthorizationTokenFile, token);
    Some((builder, "the pod's identity".to_string()))
}

/// Credentials in a file.
#[derive(Debug)]
struct FileCredentials {
    path: PathBuf,
    profile: String,
    read: Mutex<(Stamp, Arc<AwsCredential>)>,
}

/// What distinguishes one state of a file from another.
type Stamp = (Option<SystemTime>, u64);

impl FileCredentials {
    fn open(path: PathBuf, profile: String) -> Result<Self, OpenError> {
        let read = read(&path, &profile)?;
        Ok(Self { path, profile, read: Mutex::new(read) })
    }
}

#[async_trait]
impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let stamp = std::fs::metadata(&self.path).ok().map(|meta| stamp(&meta));
        let mut kept = self.read.lock();
        if stamp.is_some_and(|stamp| stamp != kept.0) {
            match read(&self.path, &self.profile) {
                Ok(fresh) => *kept = fresh,
                // It may be half written; what was read before may still be good.
                Err(error) => log::warn!("{error}; going on with the credentials read before"),
            }
        }
        Ok(Arc::clone(&kept.1))
    }
}

fn stamp(meta: &std::fs::Metadata) -> Stamp {
    (meta.modified().ok(), meta.len())
}

fn read(path: &Path, profile: &str) -> Result<(Stamp, Arc<AwsCredential>), OpenError> {
    let failed =
        |why: String| OpenError::Credentials(format!("credentials file {}: {why}", path.display()));
    let meta = std::fs::metadata(path)
        .map_err(|error| failed(format!("{error}; name another with --credentials FILE")))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(failed("it is too large to be one".to_string()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let found = parse(&text, profile).map_err(|why| {
        failed(format!(
            "{why}; write\n[{profile}]\naws_access_key_id = …\naws_secret_access_key = …"
        ))
    })?;
    Ok((stamp(&meta), Arc::new(found)))
}

/// Reads a section of an INI file as Amazon's tools write it.
fn parse(text: &str, profile: &str) -> Result<AwsCredential, String> {
    let (mut within, mut found) = (false, false);
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            within = section.trim() == profile;
            found |= within;
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| {
            format!("line {} is neither a [section] nor name = value", number + 1)
        })?;
        if within {
            let value = Some(value.trim().to_string()).filter(|value| !value.is_empty());
            match name.trim() {
                "aws_access_key_id" => key_id = value,
                "aws_secret_access_key" => secret_key = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    match (key_id, secret_key) {
        _ if !found => Err(format!("it has no section [{profile}]")),
        (Some(key_id), Some(secret_key)) => Ok(AwsCredential { key_id, secret_key, token }),
        (None, _) => Err(format!("its section [{profile}] has no aws_access_key_id")),
        (_, None) => Err(format!("its section [{profile}] has no aws_secret_access_key")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn source(variables: &[(&str, &str)], file: Option<&Path>) -> Result<String, OpenError> {
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        provide(AmazonS3Builder::new(), file, &|name| variables.get(name).cloned())
            .map(|(_, source)| source)
    }

    #[test]
    fn order_of_sources() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials");
        std::fs::write(&file, "[default]\naws_access_key_id=a\naws_secret_access_key=b\n").unwrap();
        let keys = [("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y")];
        assert!(source(&keys, Some(&file)).unwrap().contains("credentials"));
        assert!(source(&keys, None).unwrap().contains("AWS_ACCESS_KEY_ID"));
        let shared = [("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())];
        assert!(source(&shared, None).unwrap().contains("credentials"));
        let identity = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn")];
        assert!(source(&identity, None).unwrap().contains("web identity"));
        assert!(
            source(&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")], None)
                .unwrap()
                .contains("role")
        );
        assert!(source(&[], None).unwrap().contains("metadata"));
    }

    #[test]
    fn missing_and_half_credentials() {
        let refusal = |variables: &[(&str, &str)]| source(variables, None).unwrap_err().to_string();
        assert!(refusal(&[("AWS_ACCESS_KEY_ID", "x")]).contains("AWS_SECRET_ACCESS_KEY is not"));
        assert!(refusal(&[("AWS_SECRET_ACCESS_KEY", "x")]).contains("AWS_ACCESS_KEY_ID is not"));
        assert!(refusal(&[("AWS_EC2_METADATA_DISABLED", "true")]).contains("--credentials FILE"));
        assert!(refusal(&[("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/x")]).contains("/nowhere/x"));
    }

    #[test]
    fn profiles_without_secrets_in_errors() {
        let text = "# keys\n[a]\naws_access_key_id = ida\naws_secret_access_key = topsecret\n\n[ b \
                    ]\n\
                    aws_access_key_id=idb\naws_secret_access_key=x=y\n\
                    aws_session_token=t\nregion=q\n[c]\n";
        let b = parse(text, "b").unwrap();
        assert_eq!(
            (b.key_id.as_str(), b.secret_key.as_str(), b.token.as_deref()),
            ("idb", "x=y", Some("t"))
        );
        for (text, profile) in [
            (text, "c"),
            (text, "d"),
            ("[d]\naws_access_key_id=topsecret\n", "d"),
            ("topsecret", "d"),
        ] {
            let why = parse(text, profile).unwrap_err();
            assert!(!why.contains("topsecret"), "{why}");
        }
    }

    /// A credentials file that was replaced is read again, and a broken one does not replace good
    /// credentials.
    #[test]
    fn replaced_and_broken_credentials_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("[default]\naws_access_key_id=first\naws_secret_access_key=b\n");
        let file = FileCredentials::open(path.clone(), "default".to_string()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let id = || runtime.block_on(file.get_credential()).unwrap().key_id.clone();
        assert_eq!(id(), "first");
        write("[default]\naws_access_key_id=the-second\naws_secret_access_key=b\n");
        assert_eq!(id(), "the-second");
        write("[default]\n");
        assert_eq!(id(), "the-second");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(id(), "the-second");
    }
}
