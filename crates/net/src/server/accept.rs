//! Accepting connections, as many as there is room for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kestrel_types::wire::{self, Checksum, Refused, ToClient};
use tokio::net::{TcpListener, TcpStream};

use super::channel::Channel;
use super::connection::Task;
use super::{Shared, count, settle};

/// Pause after an accept that failed for want of something (descriptors, memory).
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts until the server stops.
pub(super) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    let (mut next, mut failing) = (0u64, false);
    loop {
        let room = shared.room.notified();
        if shared.stopping() {
            return;
        }
        if shared.strangers.load(Ordering::SeqCst) >= shared.config.strangers_max {
            room.await;
            continue;
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
                    log::warn!("net: accepting a connection failed: {error}; trying again until it works");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn begin(shared: &Arc<Shared>, stream: TcpStream, peer: std::net::SocketAddr, number: u64) -> io::Result<()> {
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
    shared.strangers.fetch_add(1, Ordering::SeqCst);
    let entry = Entry { shared: shared.clone(), channel: channel.clone(), number };
    let shared = shared.clone();
    tokio::spawn(async move {
        if let Some((stream, connection)) = settle::settle(&shared, &channel, stream, peer).await {
            Task::new(shared, channel, stream, connection).run().await;
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
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.channel.shut();
        self.shared.channels.lock().remove(&self.number);
        if !self.channel.greeted.load(Ordering::Relaxed) {
            self.shared.strangers.fetch_sub(1, Ordering::SeqCst);
            self.shared.room.notify_one();
        }
        self.shared.gone.notify_one();
    }
}

/// Says why there is no service. A new connection has room for that; if it had not, the reason would be lost, no more.
fn turn_away(shared: &Shared, stream: &TcpStream) {
    count(&shared.counters.turned_away, 1);
    let why = Refused {
        errno: libc::EUSERS,
        reason: "the metadata server has all the connections it is configured to have: try again later"
            .into(),
    };
    let mut frame = Vec::new();
    if wire::encode_to_client(&ToClient::Refused(why), Checksum::Crc32c, &mut frame).is_ok() {
        let _ = stream.try_write(&frame);
    }
}
