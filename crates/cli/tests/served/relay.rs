//! A way to the server that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

#[derive(Default)]
struct Shared {
    cut: AtomicBool,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Passes bytes on between connections to it and an address.
pub struct Relay {
    address: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::<Shared>::default();
        let ours = shared.clone();
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if ours.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Some(there) =
                    TcpStream::connect(&target).ok().filter(|_| !ours.cut.load(Ordering::SeqCst))
                else {
                    continue;
                };
                let mut open = ours.open.lock();
                for (from, to) in [(&stream, &there), (&there, &stream)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut bytes = [0; 65536];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.extend([stream, there]);
            }
        };
        Self { address, shared, thread: Some(std::thread::spawn(accept)) }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends all connections and lets no new ones through.
    pub fn cut(&self) {
        self.shared.cut.store(true, Ordering::SeqCst);
        for stream in self.shared.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.shared.cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut();
        let _ = TcpStream::connect(&self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
