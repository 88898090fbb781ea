//! PostgreSQL servers of these tests: each in a temporary directory, on a port of its own.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Where Debian has the programs of a server.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// A server that runs, or did.
pub struct Server {
    dir: PathBuf,
    pub port: u16,
    process: Option<Child>,
    _home: tempfile::TempDir,
}

/// A program of PostgreSQL, which does not run as root.
fn program(name: &str) -> Command {
    let mut command = Command::new(Path::new(PROGRAMS).join(name));
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        let id = |what| {
            let why = Command::new("id").args([what, "postgres"]).output().unwrap().stdout;
            String::from_utf8(why).unwrap().trim().parse().expect("there is a user postgres")
        };
        command.uid(id("-u")).gid(id("-g"));
    }
    command
}

/// kill -9 of a server and all its processes, each of which has a session of its own.
fn kill_all(server: u32) {
    let mut doomed = vec![server];
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if parent == Some(server.to_string().as_str()) {
            doomed.extend(entry.file_name().to_string_lossy().parse::<u32>());
        }
    }
    for process in doomed {
        // SAFETY: takes no pointers; the server has not been waited for, and its children are
        // younger.
        unsafe { libc::kill(process.cast_signed(), libc::SIGKILL) };
    }
}

fn run(command: &mut Command) {
    let done = command
        .current_dir("/tmp")
        .output()
        .expect("PostgreSQL is installed: scripts/install-deps.sh");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

impl Server {
    /// A new server.
    pub fn start() -> Self {
        let home = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let dir = home.path().join("data");
        run(program("initdb")
            .args(["-A", "trust", "-E", "UTF8", "--no-locale", "-N", "-U", "kestrel", "-D"])
            .arg(&dir));
        Self::run(home, dir)
    }

    fn run(home: tempfile::TempDir, dir: PathBuf) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { dir, port, process: None, _home: home };
        server.resume();
        server
    }

    /// A standby for which this server's commits wait from now on.
    pub fn standby(&self) -> Self {
        let home = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let dir = home.path().join("data");
        run(program("pg_basebackup")
            .args([
                "-R",
                "-c",
                "fast",
                "-h",
                "127.0.0.1",
                "-U",
                "kestrel",
                "-p",
                &self.port.to_string(),
                "-D",
            ])
            .arg(&dir));
        let standby = Self::run(home, dir);
        self.query("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.query("SELECT pg_reload_conf()");
        self.wait_for("SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync'");
        standby
    }

    /// Runs again.
    pub fn resume(&mut self) {
        let sockets = self._home.path().to_path_buf();
        let mut command = program("postgres");
        command.arg("-D").arg(&self.dir).arg("-k").arg(sockets);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-c", "max_connections=60"]);
        command.current_dir("/tmp").stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let ready = |port: u16| {
            Command::new(Path::new(PROGRAMS).join("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
                .status()
                .is_ok_and(|status| status.success())
        };
        while !ready(self.port) {
            assert!(Instant::now() < until, "the server does not start");
            thread::sleep(Duration::from_millis(50));
            // Shared memory of the one before is still being given back.
            if process.try_wait().unwrap().is_some() {
                process = command.spawn().unwrap();
            }
        }
        self.process = Some(process);
    }

    /// kill -9 of all its processes.
    pub fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        kill_all(process.id());
        process.wait().unwrap();
    }

    /// Answers with TLS from now on, with a certificate for the host `localhost` that an authority
    /// in the file given back has made.
    pub fn encrypt(&mut self) -> PathBuf {
        let at = |name: &str| self.dir.join(name);
        let openssl = |args: &[&str]| {
            let mut command = program("/usr/bin/openssl");
            run(command.args(args));
        };
        let [ca, ca_key, key, request, made, names] =
            ["ca.pem", "ca.key", "server.key", "server.csr", "server.crt", "names"].map(at);
        let [ca_text, ca_key, key, request, made, names_text] =
            [&ca, &ca_key, &key, &request, &made, &names].map(|path| path.to_str().unwrap());
        let elliptic = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        openssl(
            &[
                &[
                    "req",
                    "-x509",
                    "-days",
                    "2",
                    "-subj",
                    "/CN=the authority",
                    "-keyout",
                    ca_key,
                    "-out",
                    ca_text,
                ],
                &elliptic[..],
            ]
            .concat(),
        );
        openssl(
            &[&["req", "-subj", "/CN=database", "-keyout", key, "-out", request], &elliptic[..]]
                .concat(),
        );
        fs::write(&names, "subjectAltName=DNS:localhost\n").unwrap();
        fs::set_permissions(&names, fs::Permissions::from_mode(0o644)).unwrap();
        openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            request,
            "-CA",
            ca_text,
            "-CAkey",
            ca_key,
            "-CAcreateserial",
            "-extfile",
            names_text,
            "-out",
            made,
        ]);
        self.query("ALTER SYSTEM SET ssl = on");
        self.query("SELECT pg_reload_conf()");
        self.wait_for("SELECT setting = 'on' FROM pg_settings WHERE name = 'ssl'");
        ca
    }

    /// psql's output for a statement.
    pub fn query(&self, text: &str) -> String {
        let mut psql = Command::new("psql");
        psql.args([
            "-qAtX",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-U",
            "kestrel",
            "postgres",
            "-p",
        ]);
        let done = psql.args([&self.port.to_string(), "-c", text]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_string()
    }

    /// Returns when the answer is yes.
    pub fn wait_for(&self, question: &str) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.query(question) != "t" {
            assert!(Instant::now() < until, "{question}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The URL of a schema.
    pub fn url(&self, schema: &str, more: &str) -> String {
        format!("postgres://kestrel@127.0.0.1:{}/postgres?schema={schema}{more}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server that all tests of a process share; it ends with the process.
pub fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    extern "C" fn end() {
        if let Some(process) = SERVER.get().and_then(|server| server.process.as_ref()) {
            kill_all(process.id());
            let _ = fs::remove_dir_all(
                SERVER.get().map_or(Path::new("/nonexistent"), |server| server._home.path()),
            );
        }
    }
    SERVER.get_or_init(|| {
        // SAFETY: the function takes nothing, returns nothing, and lives for ever.
        unsafe { libc::atexit(end) };
        Server::start()
    })
}
