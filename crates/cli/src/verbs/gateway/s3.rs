//! `kestrel gateway`: S3.

use std::sync::Arc;

use clap::Args;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_gateway::account::Buckets;
use kestrel_gateway::buckets::is_bucket_name;
use kestrel_gateway::service::REGION_DEFAULT;
use kestrel_gateway::{Gateway, S3Protocol};

use super::{Face, GatewayArgs};

/// Serve a volume to clients of S3: buckets are directories, keys are paths.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel gateway /data/vol
  kestrel gateway /data/vol --listen 10.0.0.1:9460 --tls-cert s3.pem --tls-key s3.key
  kestrel gateway kestrel://meta1/photos --tokens /etc/kestrel/s3-tokens
  kestrel gateway 's3://bucket/photos?region=eu-1' --bucket photos
  kestrel gateway /data/vol@monday --access-keys /etc/kestrel/s3-keys
  kestrel token s3 --token-file trainer.token

The first start makes a file with an access key and prints the key. Of a served volume access keys
are tokens, and the server judges what each of them may do. SIGTERM and SIGINT end the gateway when
the requests under way are answered. docs/operations/gateway.md tells what S3 can and cannot do
here.")]
pub struct S3GatewayArgs {
    /// Where clients of S3 connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9460")]
    listen: String,
    /// The whole volume is one bucket of this name, instead of a bucket for each directory in its
    /// root
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,
    /// Buckets are also names before this one: BUCKET.DOMAIN
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Region that buckets say they are in
    #[arg(long, value_name = "REGION", default_value = REGION_DEFAULT)]
    region: String,
    #[command(flatten)]
    gateway: GatewayArgs,
}

impl S3GatewayArgs {
    fn face(&self) -> Face<'_> {
        let buckets = match &self.bucket {
            Some(bucket) => Buckets::Whole(bucket.clone()),
            None => Buckets::Directories,
        };
        Face {
            name: "gateway",
            clients: "clients of S3",
            args: &self.gateway,
            listen: &self.listen,
            buckets,
        }
    }
}

/// Serves, in the background unless told otherwise.
pub fn run(args: &S3GatewayArgs) -> Result<ExitStatus, Failure> {
    let face = args.face();
    if let Some(bucket) = args.bucket.as_ref().filter(|name| !is_bucket_name(name)) {
        return Err(face.usage(format!(
            "--bucket {bucket}: no name of a bucket: 3 to 63 small letters, digits, dots, hyphens"
        )));
    }
    face.run(&|config, keyring| {
        let (metrics, region) = (Arc::default(), args.region.clone());
        let s3 = S3Protocol::new(keyring, region, args.domain.as_deref(), Arc::clone(&metrics))?;
        Gateway::start(config, s3, metrics)
    })
}
