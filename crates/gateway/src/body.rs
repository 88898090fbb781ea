//! Bodies of requests: cut chunks ([`crate::chunks`]), an end to clients that send nothing, and a
//! count of the bytes.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::chunks::ChunkCutter;

/// How long a client may send nothing in the middle of a body.
pub const IDLE_MAX: Duration = Duration::from_secs(30);

/// Why a body ends early.
#[derive(Debug)]
pub enum BodyError {
    /// The client sends nothing any more.
    Idle,
    /// It sends what is no body of this kind.
    Chunks(&'static str),
    /// The connection is broken.
    Connection(hyper::Error),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => write!(f, "no bytes of the body came for {} s", IDLE_MAX.as_secs()),
            Self::Chunks(why) => f.write_str(why),
            Self::Connection(why) => write!(f, "the connection: {why}"),
        }
    }
}

impl std::error::Error for BodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connection(why) => Some(why),
            _ => None,
        }
    }
}

/// How far the body of a request has come.
#[derive(Debug, Default)]
pub struct BodyProgress {
    /// Bytes that came.
    pub bytes: AtomicU64,
    /// All of it has come.
    pub ended: AtomicBool,
}

/// The body of a request.
pub struct RequestBody {
    inner: Incoming,
    cutter: Option<ChunkCutter>,
    idle: Pin<Box<Sleep>>,
    progress: Arc<BodyProgress>,
}

impl RequestBody {
    /// A body as it comes; `is_chunked`: as chunks of AWS's clients. How far it has come is told in
    /// `progress`.
    pub fn new(inner: Incoming, is_chunked: bool, progress: Arc<BodyProgress>) -> Self {
        progress.ended.store(inner.is_end_stream(), Ordering::Relaxed);
        Self {
            inner,
            cutter: is_chunked.then(ChunkCutter::default),
            idle: Box::pin(tokio::time::sleep(IDLE_MAX)),
            progress,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.cutter.as_mut().and_then(ChunkCutter::pop) {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(this.idle.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(BodyError::Idle)));
                }
            };
            this.idle.as_mut().reset(Instant::now() + IDLE_MAX);
            if frame.is_none() || this.inner.is_end_stream() {
                this.progress.ended.store(true, Ordering::Relaxed);
            }
            let Some(frame) = frame else { return Poll::Ready(None) };
            let frame = frame.map_err(BodyError::Connection)?;
            let Ok(bytes) = frame.into_data() else { continue };
            this.progress.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            match &mut this.cutter {
                None => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(cutter) => cutter.push(bytes).map_err(BodyError::Chunks)?,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.cutter.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.cutter {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}
