//! What every process that serves something offers besides: answers over its control socket,
//! figures over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use kestrel_client::control::ControlSocket;
use serde_json::Value;

use super::http::MetricsPort;
use crate::metrics::{Snapshot, prometheus};

/// Knows the answers.
pub trait ControlEndpoint: Send + Sync + 'static {
    /// The figures now.
    fn snapshot(&self) -> Snapshot;

    /// Answers one question. `tell` tells what happens meanwhile, and says whether somebody still
    /// listens.
    ///
    /// # Errors
    /// In words, for the person that asked.
    fn answer(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String>;
}

/// Open doors; closed when dropped.
pub struct Endpoints {
    _metrics: Option<MetricsPort>,
    _control: ControlSocket,
}

impl Endpoints {
    /// Opens the control socket in `dir`, while the caller holds the directory's lock, and the port
    /// for figures if one is wanted.
    ///
    /// # Errors
    /// If either cannot be opened.
    pub fn open(
        dir: &Path,
        metrics: Option<SocketAddr>,
        attendant: &Arc<impl ControlEndpoint>,
    ) -> Result<Self, String> {
        let answering = attendant.clone();
        let handler = move |question: &Value, teller: &mut kestrel_client::control::Teller<'_>| {
            answering.answer(question, &mut |event| teller.tell(event))
        };
        let control =
            ControlSocket::serve(dir, Arc::new(handler)).map_err(|why| why.to_string())?;
        let stats = attendant.clone();
        let page = move || prometheus(&stats.snapshot());
        let metrics =
            metrics.map(|address| MetricsPort::serve(address, Arc::new(page))).transpose()?;
        if let Some(metrics) = &metrics {
            log::info!("figures at http://{}/metrics", metrics.address());
        }
        Ok(Self { _metrics: metrics, _control: control })
    }
}
