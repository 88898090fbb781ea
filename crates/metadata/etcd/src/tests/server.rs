//! etcds of these tests: each in a temporary directory, on ports of its own.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// An etcd of one or more members on this machine.
pub struct Server {
    home: tempfile::TempDir,
    members: Vec<Member>,
    /// If clients speak TLS: certificate and key.
    tls: Option<[PathBuf; 2]>,
}

struct Member {
    client: u16,
    peer: u16,
    process: Option<Child>,
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Server {
    /// A new one, of so many members.
    pub fn start(members: usize) -> Self {
        Self::start_with(members, None)
    }

    /// An etcd of one member; its clients speak TLS, with this certificate and its key.
    pub fn with_tls(files: [PathBuf; 2]) -> Self {
        Self::start_with(1, Some(files))
    }

    fn start_with(members: usize, tls: Option<[PathBuf; 2]>) -> Self {
        let home = tempfile::tempdir_in("/tmp").unwrap();
        let member = |_| Member { client: free_port(), peer: free_port(), process: None };
        let mut server = Self { home, members: (0..members).map(member).collect(), tls };
        for at in 0..members {
            server.spawn(at);
        }
        for at in 0..members {
            server.wait(at);
        }
        server
    }

    fn spawn(&mut self, at: usize) {
        let url = |port| format!("http://127.0.0.1:{port}");
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.members[at].client);
        let all: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| format!("m{at}={}", url(member.peer)))
            .collect();
        let dir = self.home.path().join(format!("m{at}"));
        let member = &mut self.members[at];
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{at}"), "--initial-cluster", &all.join(","), "--data-dir"])
            .arg(dir);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        if let Some([certificate, key]) = &self.tls {
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        }
        command.args([
            "--listen-peer-urls",
            &url(member.peer),
            "--initial-advertise-peer-urls",
            &url(member.peer),
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        member.process = Some(command.spawn().expect("etcd is installed: scripts/install-deps.sh"));
    }

    fn wait(&self, at: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.members[at].client)).is_err() {
            assert!(Instant::now() < until, "etcd does not start");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a member again.
    pub fn resume(&mut self, at: usize) {
        self.spawn(at);
        self.wait(at);
    }

    /// kill -9 of a member.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// The number of a member's process.
    pub fn process(&self, at: usize) -> u32 {
        self.members[at].process.as_ref().unwrap().id()
    }

    /// The port of the first member.
    pub fn port(&self) -> u16 {
        self.members[0].client
    }

    /// The URL of a prefix.
    pub fn url(&self, prefix: &str, more: &str) -> String {
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        format!("etcd://{}/{prefix}{more}", hosts.join(","))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.kill(at);
        }
    }
}

/// One that all tests of a process share; it ends with the process.
pub fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    extern "C" fn end() {
        if let Some(server) = SERVER.get() {
            let _ = Command::new("kill").args(["-9", &server.process(0).to_string()]).status();
            let _ = std::fs::remove_dir_all(server.home.path());
        }
    }
    SERVER.get_or_init(|| {
        // SAFETY: the function takes nothing, returns nothing, and lives for ever.
        unsafe { libc::atexit(end) };
        Server::start(1)
    })
}
