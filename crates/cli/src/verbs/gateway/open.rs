//! The volume that a gateway serves: opened in this process, at its server, or as a version.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kestrel_client::Fs;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::error::VolumeError;
use kestrel_client::follow::{self, FOLLOW_EVERY, FollowedVolume};
use kestrel_client::remote::{Introduction, RemoteUrl, RemoteVolume, with_token};
use kestrel_client::snapshot::SnapshotUrl;
use kestrel_client::version::{OpenVersion, VersionUrl};
use kestrel_client::volume::{MountedVolume, Resources, Volume};
use kestrel_daemon::Serving;
use kestrel_daemon::ask::{locate, locate_anew};
use kestrel_daemon::backup_schedule::{BackupScheduler, KeeperOptions, Schedule};
use kestrel_daemon::collector::{Collecting, Collector, CollectorOptions};
use kestrel_daemon::endpoints::{ControlEndpoint, Endpoints};
use kestrel_daemon::failure::Failure;
use kestrel_daemon::memory::Memory;
use kestrel_daemon::metrics::prometheus;
use kestrel_daemon::mount_status::MountStatus;
use kestrel_daemon::served_volume::ServedVolume;
use kestrel_daemon::snapshots::keeper::{KeepingSnapshots, SnapshotKeeper};
use kestrel_gateway::access_keys::OpenError;
use kestrel_rpc::tls::TlsMode;
use kestrel_rpc::token::Token;
use parking_lot::Mutex;

use super::{Face, Plan};

/// Which volume is to be served.
enum Kind {
    /// The one in this directory.
    Here(PathBuf),
    /// The one served there.
    Served(RemoteUrl),
    /// A published version of one.
    Version(VersionUrl),
    /// The one that a bucket has all of, beside the process that writes it.
    Followed(PathBuf),
}

/// Which volume is to be served, and when.
pub struct Source {
    kind: Kind,
    at: Option<SnapshotUrl>,
    named: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named)
    }
}

impl Source {
    /// What the arguments name.
    pub fn of(face: &Face<'_>) -> Result<Self, Failure> {
        let args = face.args;
        let usage = |why: VolumeError| face.usage(why);
        let fail = |why: VolumeError| face.fail(why);
        let version = VersionUrl::parse(&args.volume).map_err(usage)?;
        let at = match &version {
            // The name of a version may have an @, too.
            Some(_) => None,
            None => SnapshotUrl::parse(&args.volume).map_err(usage)?,
        };
        let volume = at.as_ref().map_or(&args.volume, |at| &at.volume);
        let find = if args.process.report_readiness { locate } else { locate_anew };
        let find = |url: &str| find(face.name, url, args.store.credentials.as_deref());
        let kind = if let Some(mut version) = version {
            if RemoteUrl::is_one(&version.volume) {
                let mut url = RemoteUrl::parse(&version.volume).map_err(usage)?;
                args.trust.add_to(face.name, &mut url)?;
                version.volume = url.to_string();
            } else {
                args.trust.is_none(face.name)?;
                version.volume = find(&version.volume)?.to_string_lossy().into_owned();
            }
            Kind::Version(version)
        } else if RemoteUrl::is_one(volume) {
            let mut url = RemoteUrl::parse(volume).map_err(usage)?;
            args.trust.add_to(face.name, &mut url)?;
            Kind::Served(url)
        } else {
            args.trust.is_none(face.name)?;
            let found = find(volume)?;
            Descriptor::read(&found).map_err(fail)?;
            match args.read_only && follow::is_followed(&found).map_err(fail)? {
                true => Kind::Followed(found),
                false => Kind::Here(found),
            }
        };
        Ok(Self { kind, at, named: args.volume.clone() })
    }

    /// Whether a server has the metadata, which judges tokens.
    pub fn is_served(&self) -> bool {
        matches!(self.kind, Kind::Served(_))
    }

    /// Whether nothing of it ever changes.
    pub fn is_immutable(&self) -> bool {
        self.at.is_some() || matches!(self.kind, Kind::Version(_))
    }

    /// The directory of a volume that this process opens itself.
    pub fn dir(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Here(dir) => Some(dir),
            _ => None,
        }
    }

    /// What is served of the volume that `live` is open on.
    fn seen(&self, live: &Arc<Fs>) -> Result<Arc<Fs>, VolumeError> {
        match &self.at {
            None => Ok(live.clone()),
            Some(at) => at.open(live),
        }
    }
}

/// A volume in a directory, and what every process does that has one open.
struct Here {
    _doors: Endpoints,
    _snapshots: KeepingSnapshots,
    _collecting: Collecting,
    _schedule: Schedule,
    serving: Arc<Serving>,
    mounted: MountedVolume,
}

/// Sessions of tokens at the volume's server.
pub struct Sessions {
    url: String,
    how: Introduction,
    resources: Resources,
    at: Option<SnapshotUrl>,
    open: Mutex<Vec<RemoteVolume>>,
}

impl Sessions {
    /// Opens the session of a token.
    pub fn open(&self, token: &Token) -> Result<Arc<Fs>, OpenError> {
        let shown = Some(Arc::new(token.clone()));
        let open = || RemoteVolume::open(&self.url, &self.how, &self.resources);
        let opened = with_token(shown, open);
        let volume = opened.map_err(|why| match why {
            VolumeError::Invalid(_) | VolumeError::NotServed(_) => {
                OpenError::Refused(why.to_string())
            }
            why => OpenError::Unavailable(why.to_string()),
        })?;
        let fs = match &self.at {
            None => Ok(volume.fs.clone()),
            Some(at) => at.open(&volume.fs),
        };
        self.open.lock().push(volume);
        fs.map_err(|why| OpenError::Unavailable(why.to_string()))
    }
}

enum Open {
    Here(Box<Here>),
    Remote(Box<RemoteVolume>),
    Tokens(Arc<Sessions>),
    Version(Box<OpenVersion>),
    Followed(Box<FollowedVolume>),
}

/// A volume that is open.
pub struct OpenVolume<'a> {
    source: &'a Source,
    face: &'a Face<'a>,
    open: Open,
}

impl<'a> OpenVolume<'a> {
    /// Opens the volume of a plan.
    pub fn open(
        face: &'a Face<'a>,
        plan: &'a Plan,
        memory: &Memory,
        resources: Resources,
        begun: Instant,
    ) -> Result<Self, Failure> {
        let (args, source, role) = (face.args, &plan.source, face.role(plan));
        let fail = |why: VolumeError| face.fail(why);
        let read_only = args.read_only || source.is_immutable();
        let how =
            Introduction { who: kestrel_daemon::who(&role), deadline: args.deadline, read_only };
        let open = match &source.kind {
            Kind::Here(dir) => {
                let opened = open_here(face, (dir, &role), memory, &resources, begun);
                Open::Here(Box::new(opened?))
            }
            Kind::Served(url) if args.tokens.is_some() => Open::Tokens(Arc::new(Sessions {
                url: url.to_string(),
                how,
                resources,
                at: source.at.clone(),
                open: Mutex::default(),
            })),
            Kind::Served(url) => {
                let opened = RemoteVolume::open(&url.to_string(), &how, &resources);
                Open::Remote(Box::new(opened.map_err(fail)?))
            }
            Kind::Version(url) => {
                Open::Version(Box::new(url.open(&how, &resources).map_err(fail)?))
            }
            Kind::Followed(dir) => {
                let opened = FollowedVolume::open(dir, FOLLOW_EVERY, &resources);
                Open::Followed(Box::new(opened.map_err(fail)?))
            }
        };
        Ok(Self { source, face, open })
    }

    /// The sessions of tokens, if access keys are tokens.
    pub fn sessions(&self) -> Option<Arc<Sessions>> {
        match &self.open {
            Open::Tokens(sessions) => Some(sessions.clone()),
            _ => None,
        }
    }

    /// The file system.
    pub fn fs(&self) -> Result<Arc<Fs>, Failure> {
        let live = match &self.open {
            Open::Here(here) => &here.mounted.fs,
            Open::Remote(volume) => &volume.fs,
            Open::Version(version) => version.fs(),
            Open::Followed(volume) => &volume.fs,
            Open::Tokens(_) => {
                return Err(self.face.fail("each token has a file system of its own"));
            }
        };
        self.source.seen(live).map_err(|why| self.face.fail(why))
    }

    /// Whether no other process has it open.
    pub fn is_alone(&self) -> bool {
        matches!(self.open, Open::Here(_))
    }

    /// The metrics of the volume, as far as this process has any.
    pub fn metrics(&self) -> Box<dyn Fn() -> String + Send + Sync> {
        match &self.open {
            Open::Here(here) => {
                let serving = here.serving.clone();
                Box::new(move || prometheus(&serving.snapshot()))
            }
            _ => Box::new(String::new),
        }
    }

    /// Stores the last changes, and closes it.
    pub fn close(self) -> Result<(), String> {
        let text = |why: kestrel_types::error::FsError| why.to_string();
        match self.open {
            Open::Here(here) => {
                let Here { mounted, .. } = *here;
                mounted.fs.shutdown().map_err(text)?;
                mounted.volume.engine.settle().map_err(|why| why.to_string())
            }
            Open::Remote(volume) => volume.fs.shutdown().map_err(text),
            Open::Version(version) => version.fs().shutdown().map_err(text),
            Open::Followed(volume) => volume.fs.shutdown().map_err(text),
            Open::Tokens(sessions) => {
                let open = std::mem::take(&mut *sessions.open.lock());
                let closed: Vec<_> = open.iter().map(|volume| volume.fs.shutdown()).collect();
                closed.into_iter().collect::<Result<(), _>>().map_err(text)
            }
        }
    }
}

fn open_here(
    face: &Face<'_>,
    (dir, role): (&Path, &str),
    memory: &Memory,
    resources: &Resources,
    begun: Instant,
) -> Result<Here, Failure> {
    let args = face.args;
    let mounted = Volume::open(&dir.to_string_lossy(), role, resources)
        .and_then(|volume| volume.serve(resources, args.read_only))
        .map_err(|why| face.fail(why))?;
    let volume = &mounted.volume;
    let store = || args.store.options();
    let serving = Arc::new(Serving {
        volume: Arc::new(ServedVolume {
            fs: mounted.fs.clone(),
            engine: volume.engine.clone(),
            store: volume.store.clone(),
            storage: volume.storage.clone(),
            descriptor: volume.descriptor.clone(),
            dir: dir.to_path_buf(),
            mount_point: None,
            read_only: args.read_only,
            walking: Mutex::default(),
        }),
        clients: OnceLock::new(),
        node: None,
        facts: MountStatus::new(memory),
        begun,
        cutting: kestrel_daemon::cutting::Cutting::default(),
        keeper: Arc::new(BackupScheduler::new(KeeperOptions::default(), store(), TlsMode::Auto)),
        collector: Arc::new(Collector::new(CollectorOptions::default(), store(), TlsMode::Auto)),
        snapshots: Arc::new(SnapshotKeeper::default()),
        succession: OnceLock::new(),
        end: None,
    });
    let thread = |of: &str, why: std::io::Error| face.fail(format!("no thread for {of}: {why}"));
    Ok(Here {
        _schedule: Schedule::begin(&serving.keeper, &serving.volume)
            .map_err(|why| thread("dumps", why))?,
        _collecting: Collecting::begin(&serving.collector, &serving.volume)
            .map_err(|why| thread("collecting", why))?,
        _snapshots: KeepingSnapshots::begin(&serving.snapshots, &serving.volume)
            .map_err(|why| thread("snapshots", why))?,
        _doors: Endpoints::open(dir, None, &serving).map_err(|why| face.fail(why))?,
        serving,
        mounted,
    })
}
