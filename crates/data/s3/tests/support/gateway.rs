//! A real S3 server, versitygw, on loopback for as long as the value lives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A running server with a directory of its own.
pub struct Gateway {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Gateway {
    /// A bucket that is there.
    pub const BUCKET: &str = "kestrel-test";

    const ACCESS: &str = "AKIATESTTESTTEST";
    const SECRET: &str = "secret-of-the-tests";

    /// Starts a server that speaks TLS with the certificate in `tls/`.
    pub fn start_tls() -> Option<Self> {
        let tls = Self::tls_files();
        let file = |name: &str| tls.join(name).to_string_lossy().into_owned();
        Self::start_with(&[
            "--cert".to_string(),
            file("server.pem"),
            "--key".to_string(),
            file("server.key"),
        ])
    }

    /// Where the certificates of tests are: `ca.pem` signed `server.pem`, which is for 127.0.0.1.
    pub fn tls_files() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls")
    }

    /// Starts a server. Without the program there is nothing to test against: prints a message and
    /// gives none, unless `KESTREL_REQUIRE_S3` is set, which CI does.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    fn start_with(more: &[String]) -> Option<Self> {
        let Some(program) = program() else {
            let hint = "versitygw is missing; scripts/install-deps.sh installs it";
            assert!(std::env::var_os("KESTREL_REQUIRE_S3").is_none(), "{hint}");
            // Past the capture of a passing test's output: a skipped test must be noticed.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {hint}");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("data").join(Self::BUCKET)).unwrap();
        std::fs::write(
            dir.path().join("credentials"),
            format!(
                "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
                Self::ACCESS,
                Self::SECRET
            ),
        )
        .unwrap();
        for _ in 0..20 {
            // Another process may take the port before the server does: then the server ends and
            // another port is tried.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut child = spawn(&program, more, &dir.path().join("data"), port);
            if answers(&mut child, port) {
                return Some(Self { child, dir, port });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("versitygw does not start");
    }

    /// Access key and secret that it accepts.
    pub fn keys(&self) -> (&'static str, &'static str) {
        (Self::ACCESS, Self::SECRET)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A file with credentials that it accepts.
    pub fn credentials(&self) -> PathBuf {
        self.dir.path().join("credentials")
    }

    /// A file with these credentials.
    pub fn other_credentials(&self, access: &str, secret: &str) -> PathBuf {
        let path = self.dir.path().join(format!("credentials-{access}-{}", secret.len()));
        let text =
            format!("[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Credentials with the right key and a wrong secret.
    pub fn wrong_secret(&self) -> PathBuf {
        self.other_credentials(Self::ACCESS, "wrong")
    }

    /// Where the bucket's keys are files.
    pub fn files(&self) -> PathBuf {
        self.dir.path().join("data").join(Self::BUCKET)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("KESTREL_VERSITYGW") {
        return Some(path.into());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let installed = home.join(".cache/kestrel-tools/bin/versitygw");
    if installed.exists() {
        return Some(installed);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("versitygw")).find(|path| path.exists())
}

fn spawn(program: &Path, more: &[String], data: &Path, port: u16) -> Child {
    let mut command = Command::new(program);
    command
        .args([
            "--port",
            &format!("127.0.0.1:{port}"),
            "--access",
            Gateway::ACCESS,
            "--secret",
            Gateway::SECRET,
        ])
        .args(["--quiet", "--keep-alive"])
        .args(more)
        .arg("posix")
        .arg(data)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // SAFETY: prctl is async-signal-safe and takes plain numbers. The server must not outlive a
    // test process that is killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// Waits until the server answers as itself; false if it ended.
fn answers(child: &mut Child, port: u16) -> bool {
    // Its banner is read and dropped, or the pipe would fill up.
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || BufReader::new(out).lines().for_each(drop));
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            let sent =
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").is_ok();
            // One that speaks TLS answers with an alert or goes away: it is there too.
            if sent && stream.read(&mut [0; 64]).is_ok() {
                return child.try_wait().unwrap().is_none();
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
