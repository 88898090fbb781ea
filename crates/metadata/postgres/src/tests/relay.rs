//! A relay before a server that loses answers: what the client sends arrives, and then the
//! connection is gone.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// See the module's header.
pub struct Relay {
    pub port: u16,
    pub state: Arc<State>,
}

#[derive(Default)]
pub struct State {
    armed: AtomicBool,
    swallowed: AtomicU32,
    /// Nothing gets through, and neither side gets an error.
    pub frozen: AtomicBool,
}

impl State {
    /// Waits as long as nothing gets through.
    fn thawed(&self) {
        while self.frozen.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn forward(state: &Arc<State>, mut client: TcpStream, port: u16) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else { return };
    let (mut to_server, mut from_client) =
        (server.try_clone().unwrap(), client.try_clone().unwrap());
    let shared = state.clone();
    let up = thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while let Ok(count) = from_client.read(&mut bytes)
            && count > 0
        {
            shared.thawed();
            if to_server.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The server may go on with what it has got.
        thread::sleep(Duration::from_millis(100));
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 1 << 16];
    while let Ok(count) = server.read(&mut bytes)
        && count > 0
    {
        state.thawed();
        if state.armed.swap(false, Ordering::SeqCst) {
            state.swallowed.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = up.join();
}

impl Relay {
    /// A relay before the server at this port, until the process ends.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = shared.clone();
                thread::spawn(move || forward(&state, client, server));
            }
        });
        Self { port, state }
    }

    /// The server's next message is lost, with its connection.
    pub fn swallow_next_answer(&self) {
        self.state.armed.store(true, Ordering::SeqCst);
    }

    /// Answers that were lost.
    pub fn swallowed(&self) -> u32 {
        self.state.swallowed.load(Ordering::SeqCst)
    }
}
