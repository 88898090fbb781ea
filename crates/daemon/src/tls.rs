//! How a process that serves encrypts its connections.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{self, Ca, RemoteUrl};
use kestrel_rpc::tls::{Authority, ClientTls, OwnFiles, ServerTls, TlsMode};
use kestrel_types::placement::NodeId;
use kestrel_types::security::is_loopback;

/// What `kestrel serve` is told of encryption.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// Which connections are encrypted: auto, those with other machines; on, all; off, none
    pub tls: TlsMode,
    /// A certificate of your own for clients that go by its authority (?ca=FILE), with those that
    /// lead there; read again when it changes
    pub tls_cert: Option<PathBuf>,
    /// Its key, in a file that others cannot read
    pub tls_key: Option<PathBuf>,
    /// Serve only clients that show a certificate of an authority in this file, or of the volume's
    /// own
    pub tls_ca: Option<PathBuf>,
}

impl TlsOptions {
    /// Whether what is said of certificates has any effect on a listener there.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self, listen: IpAddr) -> Result<(), String> {
        let named = [(&self.tls_cert, "--tls-cert"), (&self.tls_ca, "--tls-ca")];
        match named.iter().find(|(file, _)| file.is_some()) {
            Some((_, name)) if !is_wanted(self.tls, listen) => Err(format!(
                "{name} is for connections that are encrypted, and with --tls {} none to {listen} \
                 is",
                self.tls
            )),
            _ => Ok(()),
        }
    }
}

/// How a process encrypts.
pub struct ServeTls {
    mode: TlsMode,
    authority: Option<Arc<Authority>>,
    /// For the listening side; none: all is in clear.
    pub server: Option<Arc<ServerTls>>,
}

impl ServeTls {
    /// Of the volume, or the node, in `dir`, served at `listen`. A volume without a secret gets one
    /// if it takes one.
    ///
    /// # Errors
    /// In words.
    pub fn new(args: &TlsOptions, dir: &Path, listen: SocketAddr) -> Result<Self, String> {
        let descriptor = Descriptor::read(dir).map_err(|why| why.to_string())?;
        let authority = match descriptor.authority().map_err(|why| why.to_string())? {
            None if is_wanted(args.tls, listen.ip()) => {
                Some(Descriptor::authority_at(dir).map_err(|why| why.to_string())?)
            }
            present => present,
        };
        Self::with(args, &descriptor, authority)
    }

    /// Of a version of the volume, served at `listen` by a process that changes nothing of the
    /// volume.
    ///
    /// # Errors
    /// In words.
    pub fn of_version(
        args: &TlsOptions,
        descriptor: &Descriptor,
        listen: SocketAddr,
    ) -> Result<Self, String> {
        let authority = descriptor.authority().map_err(|why| why.to_string())?;
        if authority.is_none() && is_wanted(args.tls, listen.ip()) {
            return Err(format!(
                "connections to {listen} are encrypted, and this machine does not have the \
                 volume's secret, from which certificates are made: name the volume by the \
                 directory or bucket that has it (`kestrel token create` makes one if there is \
                 none yet), or say --tls off --access open"
            ));
        }
        Self::with(args, descriptor, authority)
    }

    fn with(
        args: &TlsOptions,
        descriptor: &Descriptor,
        authority: Option<Arc<Authority>>,
    ) -> Result<Self, String> {
        let node = descriptor.cluster.as_ref().map_or(0, |section| section.node);
        let server = match &authority {
            Some(authority) if args.tls != TlsMode::Off => {
                let files = args.tls_cert.as_ref().zip(args.tls_key.as_ref());
                let files = files.map(|(certificate, key)| {
                    let [certificate, key] = [certificate, key].map(|path| whole(path));
                    OwnFiles::open(&certificate, &key)
                });
                let files =
                    files.transpose().map_err(|why| format!("--tls-cert, --tls-key: {why}"))?;
                let clients_of = args.tls_ca.as_deref();
                let server = ServerTls::new(authority.clone(), node, args.tls, files, clients_of);
                Some(Arc::new(server.map_err(|why| why.to_string())?))
            }
            _ => None,
        };
        Ok(Self { mode: args.tls, authority, server })
    }

    /// For connections to other nodes.
    ///
    /// # Errors
    /// In words.
    pub fn to_nodes(&self, me: NodeId) -> Result<ClientTls, String> {
        let authority = self.authority.as_ref().ok_or("the node has no secret")?;
        ClientTls::of_node(authority, me, self.mode).map_err(|why| why.to_string())
    }

    /// Has this process show the other nodes, where it is a client of theirs, that it is a node;
    /// not in clear.
    ///
    /// # Errors
    /// In words.
    pub fn be_node(&self, dir: &Path) -> Result<(), String> {
        let descriptor = Descriptor::read(dir).map_err(|why| why.to_string())?;
        if let (Some(section), Some(authority)) = (&descriptor.cluster, &self.authority)
            && self.mode != TlsMode::Off
        {
            let secret = section.secret().map_err(|why| why.to_string())?;
            remote::be_node(&secret, authority.fingerprint().to_string());
        }
        Ok(())
    }

    /// URL of the volume for clients, with what tells its server from others if it is needed there.
    pub fn url(&self, address: SocketAddr, name: &str) -> String {
        let url = RemoteUrl::new(vec![address.to_string()], name);
        let shown = self.authority.as_ref().filter(|_| is_wanted(self.mode, address.ip()));
        let ca = shown.map(|authority| Ca::Fingerprint(authority.fingerprint()));
        RemoteUrl { ca, ..url }.to_string()
    }
}

/// Whether a client that connects to this address may have to encrypt.
fn is_wanted(mode: TlsMode, listen: IpAddr) -> bool {
    mode == TlsMode::On || (mode == TlsMode::Auto && !is_loopback(listen))
}

/// The process may go elsewhere.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// The URL that clients use for what a process serves that was started with `args`.
///
/// # Errors
/// In words.
pub fn url_of(
    args: &TlsOptions,
    dir: &Path,
    address: SocketAddr,
    name: &str,
) -> Result<String, String> {
    let authority = Descriptor::read(dir).and_then(|descriptor| descriptor.authority());
    let authority = authority.map_err(|why| why.to_string())?;
    Ok(ServeTls { mode: args.tls, authority, server: None }.url(address, name))
}
