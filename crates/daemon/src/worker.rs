//! A thread that works from time to time, for as long as somebody wants it to.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread. It ends when this is dropped, after what it is doing.
pub struct Worker {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread is to end.
pub struct Ends;

/// How the thread rests, and learns that it is to end.
pub struct Rest(Receiver<()>);

impl Rest {
    /// Sleeps so long.
    ///
    /// # Errors
    /// As soon as the thread is to end.
    pub fn sleep(&self, time: Duration) -> Result<(), Ends> {
        match self.0.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(Ends),
        }
    }
}

impl Worker {
    /// Starts `work` on a thread of this name.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn start(name: &str, work: impl FnOnce(Rest) + Send + 'static) -> std::io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || work(Rest(ended)))?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}
