//! `kestrel webdav`.

use std::sync::Arc;

use clap::Args;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_gateway::account::Buckets;
use kestrel_gateway::{Gateway, WebdavProtocol};

use super::{Face, GatewayArgs};

/// Serve a volume to desktops by WebDAV: file managers open it as a folder.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel webdav /data/vol
  kestrel webdav /data/vol --listen 10.0.0.1:9461 --tls-cert dav.pem --tls-key dav.key
  kestrel webdav kestrel://meta1/photos --tokens /etc/kestrel/dav-tokens
  kestrel webdav /data/vol@monday --access-keys /etc/kestrel/dav-keys

The first start makes a file with an access key and prints the key: clients give the key as user
and its secret as password. Of a served volume access keys are tokens (`kestrel token s3` tells
what to give), and the server judges what each of them may do. SIGTERM and SIGINT end the gateway
when the requests under way are answered. docs/operations/webdav.md tells how desktops connect.")]
pub struct WebdavArgs {
    /// Where clients of WebDAV connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9461")]
    listen: String,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Serves, in the background unless told otherwise.
pub fn run(args: &WebdavArgs) -> Result<ExitStatus, Failure> {
    let face = Face {
        name: "webdav",
        clients: "clients of WebDAV",
        args: &args.gateway,
        listen: &args.listen,
        buckets: Buckets::Directories,
    };
    face.run(&|config, keyring| {
        let metrics = Arc::default();
        Gateway::start(config, WebdavProtocol::new(keyring, Arc::clone(&metrics)), metrics)
    })
}
