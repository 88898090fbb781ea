//! A TCP relay that holds every byte back for a fixed time: latency between two programs of one
//! machine, where the kernel has no `netem`. It delays, it does not limit: bytes that come while
//! others wait wait beside them, so bandwidth stays what it is (up to `HELD_MAX` chunks each
//! way). What the relay itself takes (two wake-ups a chunk and direction) comes on top of the
//! delay; measure with a delay of 0 to know it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most chunks held back in one direction of a connection.
const HELD_MAX: usize = 4096;

/// Bytes and when they go on.
type Chunk = (Instant, Vec<u8>);

/// Serves for ever: every connection to `listener` is relayed to `target`, each direction `delay`
/// late.
///
/// # Errors
/// If the listener fails. A connection that fails ends alone.
pub fn serve(listener: &TcpListener, target: &str, delay: Duration) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept()?;
        match TcpStream::connect(target) {
            Ok(server) => relay(&client, &server, delay)?,
            Err(why) => {
                eprintln!("kestrel-relay: {target}: {why}");
                let _ = client.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Starts the four threads of a connection; they end with it.
fn relay(client: &TcpStream, server: &TcpStream, delay: Duration) -> io::Result<()> {
    for stream in [client, server] {
        stream.set_nodelay(true)?;
    }
    for (from, to) in [(client, server), (server, client)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (put, take) = sync_channel(HELD_MAX);
        thread::spawn(move || read_all(from, &put, delay));
        thread::spawn(move || write_all(to, &take));
    }
    Ok(())
}

fn read_all(mut from: TcpStream, put: &SyncSender<Chunk>, delay: Duration) {
    let mut buf = vec![0; 256 << 10];
    while let Ok(got) = from.read(&mut buf) {
        if got == 0 || put.send((Instant::now() + delay, buf[..got].to_vec())).is_err() {
            return;
        }
    }
}

fn write_all(mut to: TcpStream, take: &Receiver<Chunk>) {
    // The kernel would otherwise put wake-ups off by 50 µs to join them with others. Only precision
    // is lost if it refuses.
    let _ = crate::sys::timer_slack(1);
    for (due, bytes) in take {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_late_in_order_and_both_ways() {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = target.local_addr().unwrap().to_string();
        let echo = thread::spawn(move || {
            let (mut stream, _) = target.accept().unwrap();
            let mut all = Vec::new();
            let mut buf = [0; 1000];
            while let Ok(got @ 1..) = stream.read(&mut buf) {
                stream.write_all(&buf[..got]).unwrap();
                all.extend_from_slice(&buf[..got]);
            }
            all
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relayed = listener.local_addr().unwrap();
        let delay = Duration::from_millis(20);
        thread::spawn(move || serve(&listener, &address, delay));
        let mut client = TcpStream::connect(relayed).unwrap();
        let sent: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let begun = Instant::now();
        client.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        client.read_exact(&mut back).unwrap();
        assert!(begun.elapsed() >= 2 * delay, "later than both ways take");
        assert_eq!(back, sent);
        drop(client);
        assert_eq!(echo.join().unwrap(), sent);
    }
}
