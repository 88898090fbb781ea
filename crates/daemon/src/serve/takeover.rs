//! Serving where another process served, or serves yet: in the place of another node's process, or
//! of one that is to end for it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kestrel_client::control::QUICK;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{NodeFanOut, RemoteUrl, table_in_parts};
use kestrel_client::volume::{Resources, Volume, VolumeLock, holder_of, stand_in};
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::json;

use super::{Plan, ServeConfig, fail, listen, reached_at};
use crate::ask::{ask, locate};
use crate::failure::Failure;
use crate::holder::END_TIME_MAX;
use crate::process::{ProcessOptions, process_word};
use crate::role::NodeRole;

/// Time between two looks whether a process that is replaced has ended: clients wait meanwhile.
const LOOK_REPLACED: Duration = Duration::from_millis(2);

/// How long the process of a node that is taken over may take to say that it ends.
const YIELD_TIME: Duration = Duration::from_secs(3);

/// The node at home on the machine that serves another one.
#[derive(Debug, Clone)]
pub struct HomeNode {
    /// Its number.
    pub node: NodeId,
    /// Its directory.
    pub dir: PathBuf,
    /// The host by which the other nodes know it.
    pub host: String,
}

/// The options for another node, from those of the node with the directory that is named.
pub fn in_place_of(config: &ServeConfig, node: NodeId) -> Result<ServeConfig, Failure> {
    let dir = locate("serve", config.volume()?, config.store.credentials.as_deref())?;
    let descriptor = Descriptor::read(&dir).map_err(fail)?;
    let Some(section) = descriptor.cluster.as_ref() else {
        return Err(fail(format!("{}: --in-place-of is for nodes of a cluster", dir.display())));
    };
    let placement = present_table(&dir)?;
    let place = stand_in(&dir, node, placement.as_ref()).map_err(fail)?;
    let known = placement.map_or_else(|| section.placement(), Ok).map_err(fail)?;
    let credentials = config.store.credentials.as_deref();
    if !config.process.take_over
        && config.take_over_from.is_none()
        && !config.stop
        && VolumeLock::holder(&place).is_none()
        && let Some(holder) =
            holder_of(&descriptor, (node, known.is_idle(node)), credentials).map_err(fail)?
    {
        return Err(fail(format!(
            "node {node} is served: {holder} has its rows open; --take-over asks that process to \
             end, and takes the node over if it does not"
        )));
    }
    let listen = listen(config, Some(section))?;
    let in_table = known.map.member(section.node).map(|member| member.address.clone());
    let address = match &config.advertise {
        Some(address) => address.clone(),
        None if config.listen.is_some() => reached_at(in_table.as_deref(), listen)
            .map_err(|why| Failure::usage(format!("serve: {why}")))?,
        None => in_table.unwrap_or_default(),
    };
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host).to_string();
    let audit = config.audit.clone().filter(|file| file.as_os_str() == "off");
    let process = ProcessOptions { log: None, metrics: None, ..config.process.clone() };
    Ok(ServeConfig {
        volume: Some(place.to_string_lossy().into_owned()),
        listen: Some(SocketAddr::new(listen.ip(), *config.failover.ports().start()).to_string()),
        advertise: None,
        role: None,
        stands_in: Some(HomeNode { node: section.node, dir, host }),
        audit,
        process,
        ..config.clone()
    })
}

/// The table that the process that serves a directory has, if one does.
fn present_table(dir: &Path) -> Result<Option<PlacementMap>, Failure> {
    let mut served = true;
    let table = table_in_parts(|question| {
        let answer = ask("serve", dir, question, QUICK).map_err(|why| why.reason().to_string())?;
        served = answer.is_some();
        answer.ok_or_else(|| "nobody serves it".into())
    });
    match table {
        Err(_) if !served => Ok(None),
        table => {
            table.map(Some).map_err(|why| fail(format!("{}: its table: {why}", dir.display())))
        }
    }
}

/// Takes the address. Of one that replaces another process: has the process with this address end,
/// and waits until it has let it go.
pub(super) fn bind(config: &ServeConfig, plan: &Plan) -> std::io::Result<TcpListener> {
    if config.stands_in.is_some() {
        let of = |port| TcpListener::bind(SocketAddr::new(plan.listen.ip(), port));
        let mut last = Err(std::io::ErrorKind::AddrInUse.into());
        for port in config.failover.ports() {
            last = of(port);
            if last.is_ok() {
                break;
            }
        }
        return last;
    }
    let question = json!({ "verb": "yield" });
    let asked =
        if config.replace { ask("serve", &plan.volume, &question, QUICK) } else { Ok(None) };
    match asked {
        Ok(Some(_)) => {}
        Ok(None) => return TcpListener::bind(plan.listen),
        Err(why) => return Err(std::io::Error::other(why.reason())),
    }
    let begun = Instant::now();
    loop {
        match TcpListener::bind(plan.listen) {
            Err(why)
                if why.kind() == std::io::ErrorKind::AddrInUse
                    && begun.elapsed() < END_TIME_MAX =>
            {
                std::thread::sleep(LOOK_REPLACED);
            }
            bound => return bound,
        }
    }
}

/// Opens the volume: one that another process has, and is to give up, when that one has ended.
pub(super) fn open(
    config: &ServeConfig,
    plan: &Plan,
    role: &str,
    resources: Resources,
) -> Result<(Volume, Resources), Failure> {
    let begun = Instant::now();
    while config.replace
        && VolumeLock::holder(&plan.volume).is_some()
        && begun.elapsed() < END_TIME_MAX
    {
        std::thread::sleep(LOOK_REPLACED);
    }
    let credentials = config.store.credentials.as_deref();
    let asked = config.process.take_over
        && VolumeLock::holder(&plan.volume).is_none()
        && ask_to_end(plan, credentials);
    if asked {
        // What it still has to store it stores before it lets go of the rows.
        let politely = Resources { take_over: false, ..resources.clone() };
        match Volume::open_part(&plan.volume, role, &politely) {
            Ok(volume) => return Ok((volume, politely)),
            Err(why) => log::warn!("{why}; it is taken over"),
        }
    }
    let resources = match &config.take_over_from {
        Some(whom) => Resources { take_over: still_has(plan, whom, credentials)?, ..resources },
        None => resources,
    };
    let volume = Volume::open_part(&plan.volume, role, &resources).map_err(fail)?;
    Ok((volume, resources))
}

/// Whether this process, of which nobody hears, still has the rows; not if nobody has.
///
/// # Errors
/// If another one has.
fn still_has(plan: &Plan, whom: &str, credentials: Option<&Path>) -> Result<bool, Failure> {
    let descriptor = Descriptor::read(&plan.volume).map_err(fail)?;
    let Some((node, role)) = plan.node else { return Ok(false) };
    let asked = (node, role == NodeRole::Coordinator);
    match holder_of(&descriptor, asked, credentials).map_err(fail)? {
        None => Ok(false),
        Some(holder) if holder == whom => Ok(true),
        Some(holder) => {
            Err(fail(format!("node {node} is served again: {holder} has its rows open")))
        }
    }
}

/// Asks the process that serves this node, wherever it is, to end. Whether it said that it does, or
/// nobody has the rows.
fn ask_to_end(plan: &Plan, credentials: Option<&Path>) -> bool {
    let Ok(descriptor) = Descriptor::read(&plan.volume) else { return false };
    let Some((section, (node, role))) = descriptor.cluster.as_ref().zip(plan.node) else {
        return false;
    };
    match holder_of(&descriptor, (node, role == NodeRole::Coordinator), credentials) {
        Ok(None) => return true,
        Ok(Some(holder)) => log::info!("node {node}: {holder} is asked to end"),
        Err(why) => {
            log::warn!("node {node}: the process that serves it is not known: {why}");
            return false;
        }
    }
    let url = section.url(&descriptor.settings.name).and_then(|url| RemoteUrl::parse(&url));
    // At the address that the table has for it nobody may answer but this process, which does not
    // do so yet: others know where it is.
    let own =
        section.placement().ok().and_then(|table| Some(table.map.member(node)?.address.clone()));
    let url = url.map(|mut url| {
        url.addresses.retain(|address| Some(address) != own.as_ref());
        url
    });
    let (tell, told) = mpsc::channel();
    let work = move || {
        let asked = url.and_then(|url| {
            let who = crate::who("kestrel serve --take-over");
            let panel = NodeFanOut::connect_to(&url.to_string(), &who, |_, other| other == node)?;
            let question = json!({ "verb": "yield", "by": process_word() });
            panel.map(|panel| panel.ask(node, &question, YIELD_TIME)).transpose()
        });
        // A process that waits no longer takes it by force.
        let _ = tell.send(asked.map_err(|why| why.to_string()));
    };
    // One that hangs takes connections and says nothing.
    let asked = match std::thread::Builder::new().name("yield".into()).spawn(work) {
        Ok(_) => told.recv_timeout(YIELD_TIME).unwrap_or_else(|_| Err("it does not answer".into())),
        Err(why) => Err(why.to_string()),
    };
    match asked {
        Ok(answer) => answer.is_some(),
        Err(why) => {
            log::warn!("node {node}: the process that serves it cannot be asked to end: {why}");
            false
        }
    }
}
