//! Accepting connections, as many as there may be.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kestrel_types::wire::{self, Checksum, Refused, ToClient};
use tokio::net::{TcpListener, TcpStream};

use super::channel::Channel;
use super::connection::Task;
use super::{Shared, count, sniff};

/// Pause after an accept that failed for want of something (descriptors, memory).
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts until the server stops.
pub(super) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    let (mut next, mut failing) = (0u64, false);
    loop {
        if shared.stopping() {
            return;
        }
        let accepted = tokio::time::timeout(Duration::from_secs(1), listener.accept()).await;
        let Ok(accepted) = accepted else { continue };
        match accepted {
            // Another process that listens here may serve it.
            Ok(_) if shared.stopping() => return,
            Ok((stream, peer)) => {
                next += 1;
                failing = false;
                count(&shared.counters.accepted, 1);
                if let Err(error) = begin(&shared, stream, peer, next) {
                    log::debug!("net: connection of {peer}: {error}");
                }
            }
            Err(error) => {
                // Once, not every time: it may last, for want of descriptors.
                if !std::mem::replace(&mut failing, true) {
                    log::warn!(
                        "net: accepting a connection failed: {error}; trying again until it works"
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn begin(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr, number: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let channel = Arc::new(Channel::new(peer.to_string(), shared.rounds.load(Ordering::Relaxed)));
    {
        let mut channels = shared.channels.lock();
        if channels.len() >= shared.config.connections_max {
            drop(channels);
            turn_away(shared, &stream);
            return Ok(());
        }
        channels.insert(number, channel.clone());
    }
    let entry = Entry { shared: shared.clone(), channel: channel.clone(), number, peer };
    let limits = (shared.config.unidentified_share, shared.config.unidentified_max);
    let crowded =
        shared.unidentified.lock().enter((number, peer), &channel, limits, Instant::now());
    if let Some(other) = crowded {
        count(&shared.counters.cut_off, 1);
        other.abort("it said no Hello, and others wait");
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        if let Some((stream, connection)) = sniff::sniff(&shared, &channel, stream, peer).await {
            Task::new(shared, channel, stream, connection, (number, peer)).run().await;
        }
        drop(entry);
    });
    Ok(())
}

/// A connection in the server's table; it leaves even if its handler panics.
struct Entry {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    number: u64,
    peer: SocketAddr,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.channel.shut();
        self.shared.channels.lock().remove(&self.number);
        if !self.channel.greeted.load(Ordering::Relaxed) {
            self.shared.unidentified.lock().forget(self.number, self.peer);
        }
        self.shared.gone.notify_one();
    }
}

/// Sends the reason why there is no service. A new connection has room for it; if it had not, only
/// the reason would be lost.
fn turn_away(shared: &Shared, stream: &TcpStream) {
    count(&shared.counters.turned_away, 1);
    let why = Refused {
        errno: libc::EUSERS,
        reason:
            "the metadata server has all the connections it is configured to have: try again later"
                .into(),
    };
    let mut frame = Vec::new();
    if wire::encode_to_client(&ToClient::Refused(why), Checksum::Crc32c, &mut frame).is_ok() {
        let _ = stream.try_write(&frame);
    }
}
