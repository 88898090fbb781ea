//! The processes that share a job: each serves one of its servers' directories.

use std::collections::BTreeMap;
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use kestrel_client::job::{BegunJob, JobServer, Jobs, server_dir};
use kestrel_client::remote::RemoteUrl;
use kestrel_daemon::failure::{ExitStatus, Failure};

use super::super::snapshot::KeyArgs;
use super::fail;
use super::server::{
    LISTEN_DEFAULT, ServerArgs, is_served, output_of, print_address, program, store_options,
    upload_option,
};

/// How long a process that was killed may take to end, and the pause between two looks.
const ENDING_TIME_MAX: Duration = Duration::from_secs(5);
const ENDING_LOOK: Duration = Duration::from_millis(50);

/// Host and port of an address to listen at.
fn host_and_port(listen: &str) -> Result<(String, u16), Failure> {
    let bad = |why: &str| Failure::usage(format!("job: --listen {listen}: {why}"));
    let (host, port) = listen.rsplit_once(':').ok_or_else(|| bad("give ADDRESS:PORT"))?;
    let port = port.parse().map_err(|_| bad("give ADDRESS:PORT"))?;
    let found = listen.to_socket_addrs().map_err(|why| bad(&why.to_string()))?;
    match found.into_iter().any(|address| address.ip().is_unspecified()) {
        true => {
            Err(bad("give an address at which the other servers and the job's processes reach \
                         this machine"))
        }
        false => Ok((host.into(), port)),
    }
}

/// Addresses on this machine for so many servers.
pub fn addresses(listen: Option<&str>, count: usize) -> Result<Vec<String>, Failure> {
    let (host, port) = host_and_port(listen.unwrap_or(LISTEN_DEFAULT))?;
    if port > 0 {
        let port_of = |index: usize| u16::try_from(usize::from(port) + index).ok();
        let ports: Option<Vec<u16>> = (0..count).map(port_of).collect();
        let ports = ports.ok_or_else(|| {
            Failure::usage(format!(
                "job: --listen {host}:{port}: no {count} ports from this one on"
            ))
        })?;
        return Ok(ports.into_iter().map(|port| format!("{host}:{port}")).collect());
    }
    // All at once, so that each gets another one; they are free again when the servers take them.
    let bind = |_| TcpListener::bind(format!("{host}:0")).and_then(|it| Ok((it.local_addr()?, it)));
    let bound: std::io::Result<Vec<_>> = (0..count).map(bind).collect();
    let bound = bound.map_err(|why| fail(format!("--listen {host}:0: {why}")))?;
    Ok(bound.iter().map(|(address, _)| format!("{host}:{}", address.port())).collect())
}

/// The servers of a job that this machine is to serve: those that no process has open, or all that
/// are not served here if they are to be taken over. A process that served one here and does not
/// answer may be ending: it is waited for.
pub fn to_be_served(jobs: &Jobs, job: &BegunJob, take_over: bool) -> Result<Vec<u32>, Failure> {
    let until = Instant::now() + ENDING_TIME_MAX;
    let found = loop {
        let (mut found, mut others, mut is_ending) = (Vec::new(), 0, false);
        for server in jobs.servers(&job.record).map_err(fail)? {
            let dir = server_dir(&job.record, server.number).map_err(fail)?;
            if is_served(&dir) {
                continue;
            }
            match take_over || server.open_by.is_none() {
                true => found.push(server.number),
                false => (others, is_ending) = (others + 1, is_ending || dir.exists()),
            }
        }
        let is_settled = others == 0 || (!is_ending && !found.is_empty());
        if is_settled || Instant::now() > until {
            break found;
        }
        thread::sleep(ENDING_LOOK);
    };
    match found.is_empty() {
        false => Ok(found),
        true => Err(fail(format!(
            "job {}: processes have all of its servers open; --take-over cuts those off that other \
             machines serve",
            job.record.number()
        ))),
    }
}

/// Where the servers with these numbers are to be: as told, else where each was before if this
/// machine has that address, else anywhere.
fn places(
    servers: &[JobServer],
    numbers: &[u32],
    listen: Option<&str>,
) -> Result<BTreeMap<u32, String>, Failure> {
    if listen.is_some() {
        return Ok(numbers.iter().copied().zip(addresses(listen, numbers.len())?).collect());
    }
    let before: BTreeMap<u32, &str> =
        servers.iter().map(|server| (server.number, server.address.as_str())).collect();
    let (mut places, mut others) = (BTreeMap::new(), Vec::new());
    for number in numbers {
        match before.get(number).filter(|address| TcpListener::bind(address).is_ok()) {
            Some(address) => drop(places.insert(*number, (*address).to_string())),
            None => others.push(*number),
        }
    }
    let free = addresses(None, others.len())?;
    places.extend(others.into_iter().zip(free));
    Ok(places)
}

/// Serves these servers of a job from this machine, and prints how processes find the job.
pub fn start(
    jobs: &Jobs,
    job: &BegunJob,
    numbers: &[u32],
    (args, store): (&ServerArgs, &KeyArgs),
    take_over: bool,
) -> Result<ExitStatus, Failure> {
    let servers = jobs.servers(&job.record).map_err(fail)?;
    let places = places(&servers, numbers, args.listen.as_deref())?;
    jobs.place_servers(&job.record, &places).map_err(fail)?;
    let mut starting = Vec::new();
    for (number, address) in &places {
        let dir = jobs.make_server_dir(&job.record, *number).map_err(fail)?;
        let mut serve = program()?;
        serve.arg("serve").arg(&dir).args(["--listen", address]).args(store_options(store));
        // Which server has which names never changes, and `job resume` replaces one that died.
        serve.args(upload_option(args.upload_every));
        serve.args(["--balance", "off", "--failover", "off", "--collect-every", "off"]);
        if take_over {
            serve.arg("--take-over");
        }
        starting.push((dir, serve));
    }
    let dirs: Vec<PathBuf> = starting.iter().map(|(dir, _)| dir.clone()).collect();
    let failed = each_at_once(starting.into_iter().map(|(_, serve)| serve).collect());
    if let Some(why) = failed {
        stop(&dirs)?;
        return Err(why);
    }
    let servers = jobs.servers(&job.record).map_err(fail)?;
    let addresses = servers.into_iter().map(|server| server.address).collect();
    let name = format!("job-{}", job.record.number());
    let address = RemoteUrl::new(addresses, &name).to_string();
    let Some(first) = dirs.first() else { return Err(fail("no server was started")) };
    print_address(job, first, &address)
}

/// Has the processes end that serve these directories, of those that are served.
pub fn stop(dirs: &[PathBuf]) -> Result<(), Failure> {
    let served: Vec<&Path> =
        dirs.iter().map(PathBuf::as_path).filter(|dir| is_served(dir)).collect();
    let mut stops = Vec::new();
    for dir in served {
        let mut stop = program()?;
        stop.arg("serve").arg(dir).arg("--stop");
        stops.push(stop);
    }
    each_at_once(stops).map_or(Ok(()), Err)
}

/// Runs commands at one time, and waits for all; why one of them has failed.
fn each_at_once(commands: Vec<Command>) -> Option<Failure> {
    thread::scope(|scope| {
        let run = |mut command: Command| scope.spawn(move || output_of(&mut command).err());
        let running: Vec<_> = commands.into_iter().map(run).collect();
        let panicked = || Some(fail("a thread panicked"));
        running.into_iter().filter_map(|one| one.join().unwrap_or_else(|_| panicked())).last()
    })
}
