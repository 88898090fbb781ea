//! The service Node: what of a volume is mounted where on this machine.
//!
//! Of each KestrelFS volume, or snapshot or version of one, there is one mount on a machine, below
//! the state directory, by a process of its own that goes on when the driver ends. Staging and
//! publishing are bind mounts of a directory of it. The mount goes when nothing of it is staged.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use tonic::{Request, Response, Status};

use crate::Driver;
use crate::checks::{self, given};
use crate::mounts;
use crate::program::kestrel;
use crate::v1::node_service_capability::Rpc;
use crate::v1::node_service_capability::rpc::Type as Can;
use crate::v1::volume_usage::Unit;
use crate::v1::*;
use crate::volumes::{DIR, URL, internal, is_id};

/// Type of a KestrelFS mount.
const FS_TYPE: &str = "fuse.kestrel";
/// Key of a secret with a token for the servers of a volume.
const TOKEN: &str = "token";

/// FNV-1a of 64 bits (Fowler, Noll, Vo 1991), which stays the same from release to release.
fn hash(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn is_dir(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_dir())
}

impl Driver {
    /// The directory where a KestrelFS volume is mounted on this machine; it is mounted if it is
    /// not yet, or if its process has died.
    pub fn mounted(&self, url: &str, token: Option<&Path>) -> Result<PathBuf, Status> {
        let secret = token.map(fs::read).transpose().map_err(|why| internal("token", why))?;
        let key = [url.as_bytes(), b"\0", secret.as_deref().unwrap_or_default()].concat();
        let dir = self.mounts_dir().join(format!("{:016x}", hash(&key)));
        let _mounting = self.0.mounting.lock();
        let there = mounts::at(&dir).map_err(|why| internal(url, why))?;
        if there.is_some_and(|line| line.fs_type == FS_TYPE) && is_dir(&dir) {
            return Ok(dir);
        }
        if let Err(why) = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)
            && why.raw_os_error() != Some(libc::ENOTCONN)
            && why.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(internal(url, why));
        }
        let words = ["mount".as_ref(), url.as_ref(), dir.as_os_str(), "--allow-other".as_ref()];
        match kestrel(&words, token) {
            Ok(_) => Ok(dir),
            Err(why) => {
                // It is empty, or somebody else's business.
                let _ = fs::remove_dir(&dir);
                Err(Status::unavailable(format!("{url}: {why}")))
            }
        }
    }

    fn mounts_dir(&self) -> PathBuf {
        let dir = &self.0.config.state_dir;
        fs::canonicalize(dir).unwrap_or_else(|_| dir.clone()).join("mounts")
    }

    /// Unmounts KestrelFS volumes of which nothing is staged, but for the driver's own.
    fn give_up_unused(&self) {
        let _mounting = self.0.mounting.lock();
        let Ok(all) = mounts::all() else { return };
        let own = self.mounts_dir();
        for line in all.iter().filter(|line| line.dir.parent() == Some(&own)) {
            let used = all.iter().filter(|other| other.device == line.device).count() > 1;
            let config = &self.0.config;
            let secret = config.token_file.as_ref().and_then(|file| fs::read(file).ok());
            let key =
                [config.url.as_bytes(), b"\0", secret.as_deref().unwrap_or_default()].concat();
            let is_home = line.dir == own.join(format!("{:016x}", hash(&key)));
            if !used && !is_home {
                let words = ["umount".as_ref(), line.dir.as_os_str()];
                match kestrel(&words, None) {
                    Ok(_) => drop(fs::remove_dir(&line.dir)),
                    Err(why) => log::warn!("{}: {why}", line.dir.display()),
                }
            }
        }
    }

    /// The directory of a volume, in a mount.
    fn content(&self, request: &NodeStageVolumeRequest) -> Result<PathBuf, Status> {
        let config = &self.0.config;
        let url = request.volume_context.get(URL).unwrap_or(&config.url);
        let token = match request.secrets.get(TOKEN) {
            Some(token) => Some(self.token_file(token)?),
            None => config.token_file.clone(),
        };
        let dir = match (request.volume_context.get(DIR), request.volume_context.get(URL)) {
            (Some(dir), _) => dir.clone(),
            // A KestrelFS volume as a whole, or a snapshot or version of one.
            (None, Some(_)) => String::new(),
            (None, None) if is_id(&request.volume_id) => {
                format!("{}/{}", config.dir, request.volume_id)
            }
            (None, None) => {
                return Err(Status::not_found(format!(
                    "volume {} is not there",
                    request.volume_id
                )));
            }
        };
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        let dir = dir.trim_matches('/');
        if !dir.is_empty() && !dir.split('/').all(plain) {
            return Err(Status::invalid_argument(format!("{dir}: no path of a directory")));
        }
        let content = self.mounted(url, token.as_deref())?.join(dir);
        match fs::canonicalize(&content) {
            // Not by a symbolic link to somewhere else on this machine.
            Ok(real) if real == content && is_dir(&real) => Ok(content),
            Ok(_) => Err(Status::invalid_argument(format!("{dir}: a symbolic link or a file"))),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                Err(Status::not_found(format!("volume {} is not there", request.volume_id)))
            }
            Err(why) => Err(internal(dir, why)),
        }
    }

    /// A file with a token that came with a request.
    fn token_file(&self, token: &str) -> Result<PathBuf, Status> {
        let dir = self.0.config.state_dir.join("tokens");
        let path = dir.join(format!("{:016x}", hash(token.as_bytes())));
        let written = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .and_then(|()| {
                fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(&path)
            })
            .and_then(|mut file| io::Write::write_all(&mut file, token.as_bytes()));
        written.map(|()| path).map_err(|why| internal("token", why))
    }

    fn stage(&self, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let staging = Path::new(given("staging_target_path", &request.staging_target_path)?);
        let capability = request
            .volume_capability
            .as_ref()
            .ok_or_else(|| Status::invalid_argument("the volume capability is missing"))?;
        checks::capability(capability)?;
        let _turn = self.turn(id)?;
        if is_staged(staging)? {
            return Ok(NodeStageVolumeResponse {});
        }
        let content = self.content(request)?;
        fs::create_dir_all(staging).map_err(|why| internal("staging_target_path", why))?;
        mounts::bind(&content, staging, checks::only_reads(capability))
            .map_err(|why| internal("staging_target_path", why))?;
        Ok(NodeStageVolumeResponse {})
    }

    fn unstage(
        &self,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let staging = Path::new(given("staging_target_path", &request.staging_target_path)?);
        let _turn = self.turn(id)?;
        mounts::unmount(staging).map_err(|why| internal("staging_target_path", why))?;
        self.give_up_unused();
        Ok(NodeUnstageVolumeResponse {})
    }

    fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let target = Path::new(given("target_path", &request.target_path)?);
        let capability = request
            .volume_capability
            .as_ref()
            .ok_or_else(|| Status::invalid_argument("the volume capability is missing"))?;
        checks::capability(capability)?;
        let staging = Path::new(given("staging_target_path", &request.staging_target_path)?);
        let _turn = self.turn(id)?;
        if !is_staged(staging)? {
            return Err(Status::failed_precondition(format!("volume {id} is not staged")));
        }
        if is_staged(target)? {
            return Ok(NodePublishVolumeResponse {});
        }
        fs::create_dir_all(target).map_err(|why| internal("target_path", why))?;
        mounts::bind(staging, target, request.readonly || checks::only_reads(capability))
            .map_err(|why| internal("target_path", why))?;
        Ok(NodePublishVolumeResponse {})
    }

    fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let target = Path::new(given("target_path", &request.target_path)?);
        let _turn = self.turn(id)?;
        mounts::unmount(target).map_err(|why| internal("target_path", why))?;
        match fs::remove_dir(target) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(internal("target_path", why)),
            _ => Ok(NodeUnpublishVolumeResponse {}),
        }
    }

    fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let path = Path::new(given("volume_path", &request.volume_path)?);
        if !is_staged(path)? {
            return Err(Status::not_found(format!("volume {id} is not at {}", path.display())));
        }
        let room = mounts::room(path).map_err(|why| internal("volume_path", why))?;
        let usage = |unit: Unit, total: u64, available: u64| {
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            VolumeUsage {
                available: number(available),
                total: number(total),
                used: number(total.saturating_sub(available)),
                unit: unit as i32,
            }
        };
        Ok(NodeGetVolumeStatsResponse {
            usage: vec![
                usage(Unit::Bytes, room.bytes, room.free_bytes),
                usage(Unit::Inodes, room.files, room.free_files),
            ],
            volume_condition: None,
        })
    }
}

/// Whether something of a KestrelFS volume is mounted there and its process runs; what a dead one
/// left is taken away.
fn is_staged(dir: &Path) -> Result<bool, Status> {
    let there = mounts::at(dir).map_err(|why| internal(&dir.display().to_string(), why))?;
    if there.is_none_or(|line| line.fs_type != FS_TYPE) {
        return Ok(false);
    }
    if fs::metadata(dir).is_err_and(|why| why.raw_os_error() == Some(libc::ENOTCONN)) {
        mounts::unmount(dir).map_err(|why| internal(&dir.display().to_string(), why))?;
        return Ok(false);
    }
    Ok(true)
}

/// What this service does.
const CAN: [Can; 3] = [Can::StageUnstageVolume, Can::GetVolumeStats, Can::SingleNodeMultiWriter];

#[tonic::async_trait]
impl node_server::Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.blocking(move |driver| driver.stage(request.get_ref())).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.blocking(move |driver| driver.unstage(request.get_ref())).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.blocking(move |driver| driver.publish(request.get_ref())).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.blocking(move |driver| driver.unpublish(request.get_ref())).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.blocking(move |driver| driver.stats(request.get_ref())).await
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("a quota that has grown needs nothing on a node"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = CAN.map(|can| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: can as i32 })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.0.config.node_id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: None,
        }))
    }
}
