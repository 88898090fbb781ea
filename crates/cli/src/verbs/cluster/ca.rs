//! `kestrel cluster ca`: by what clients know a volume's servers.

use clap::Args;
use kestrel_client::descriptor::Descriptor;
use kestrel_daemon::failure::{ExitStatus, Failure};
use serde_json::json;

use super::failed;
use crate::verbs::print_json;

/// Print the certificate of a volume's own authority, and its fingerprint. It is not secret.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster ca /data/node1
  kestrel cluster ca /data/vol > ca.pem

Every volume has an authority of its own, which all its nodes can sign for. A client on another
machine has to know it: put the fingerprint into the URL, kestrel://HOST/NAME?ca=sha256:…, or the
name of a file with what this prints, ?ca=/etc/kestrel/ca.pem. A volume of one node that has no
authority yet gets it.")]
pub struct CaArgs {
    /// The directory of a volume, or of a node: a path or file:///path; or a volume at s3://…
    pub directory: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints it.
pub fn run(args: &CaArgs) -> Result<ExitStatus, Failure> {
    let dir = crate::verbs::locate("cluster", &args.directory, None)?;
    let authority = Descriptor::authority_at(&dir).map_err(failed)?;
    let (fingerprint, certificate) =
        (authority.fingerprint().to_string(), authority.certificate_pem());
    if args.json {
        print_json(&json!({ "fingerprint": fingerprint, "certificate": certificate }));
    } else {
        // Programs that read certificates from a file take no notice of what is outside of them.
        print!("{fingerprint}\n{certificate}");
    }
    Ok(ExitStatus::Good)
}
