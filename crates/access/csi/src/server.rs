//! The socket: connections, and which service a call is for.

use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::Driver;
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;

/// Most calls at a time on one connection, and most connections' worth of threads that wait for
/// processes: orchestrators make a few at a time.
const CALLS_MAX: u32 = 64;

/// The path of a socket by its URL.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, String> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
    let path = PathBuf::from(path.unwrap_or(endpoint));
    if path.is_absolute() {
        return Ok(path);
    }
    Err(format!("--endpoint {endpoint}: give unix:///PATH, where the orchestrator connects"))
}

impl Driver {
    /// Serves calls until the process ends; `ready` is called when the socket is there. A socket
    /// that an earlier process left is replaced.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn serve(&self, ready: impl FnOnce()) -> Result<(), String> {
        let path = socket_path(&self.0.config.endpoint)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(CALLS_MAX as usize)
            .enable_all()
            .build()
            .map_err(|why| format!("no threads to serve with: {why}"))?;
        runtime.block_on(async {
            let listener = listen(&path).map_err(|why| format!("{}: {why}", path.display()))?;
            ready();
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let driver = self.clone();
                        tokio::spawn(async move {
                            let serve = service_fn(|call| driver.clone().call(call));
                            let served = http2::Builder::new(TokioExecutor::new())
                                .max_concurrent_streams(CALLS_MAX)
                                .serve_connection(TokioIo::new(stream), serve)
                                .await;
                            if let Err(why) = served {
                                log::debug!("a connection ended: {why}");
                            }
                        });
                    }
                    Err(why) => {
                        log::warn!("no connection can be taken: {why}");
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                }
            }
        })
    }

    /// One call.
    async fn call(self, call: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let method = call.uri().path().to_string();
        let service = method.split('/').nth(1).unwrap_or_default();
        let answer = match service {
            "csi.v1.Identity" => IdentityServer::new(self).call(call).await,
            "csi.v1.Controller" => ControllerServer::new(self).call(call).await,
            "csi.v1.Node" => NodeServer::new(self).call(call).await,
            _ => Ok(tonic::Status::unimplemented(format!("{method}: no such call")).into_http()),
        };
        if let Ok(answer) = &answer
            && let Some(status) = tonic::Status::from_header_map(answer.headers())
            && status.code() != tonic::Code::Ok
        {
            log::info!("{method}: {:?}: {}", status.code(), status.message());
        }
        answer
    }
}

/// A socket that only the superuser reaches.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
