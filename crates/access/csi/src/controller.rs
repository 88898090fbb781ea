//! The service Controller: volumes and snapshots are made, listed, resized and removed.

use tonic::{Request, Response, Status};

use crate::Driver;
use crate::checks::{self, given};
use crate::v1::controller_service_capability::Rpc;
use crate::v1::controller_service_capability::rpc::Type as Can;
use crate::v1::volume_content_source::{SnapshotSource, Type as From, VolumeSource};
use crate::v1::*;
use crate::volumes::{DIR, Snapshot as Found, URL, VolumeRecord, id_of, internal, snapshot_parts};

impl Driver {
    fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let id = id_of(given("name", &request.name)?)?;
        checks::capabilities(&request.volume_capabilities)?;
        let range = request.capacity_range.as_ref();
        let size = checks::size(range)?;
        let source = self.source(request.volume_content_source.as_ref())?;
        let _turn = self.turn(&id)?;
        let record = match self.volume(&id)? {
            Some((_, there)) if checks::fits(there.size, range) && there.source == source => there,
            Some(_) => {
                return Err(Status::already_exists(format!(
                    "volume {id} is there, with another size or source"
                )));
            }
            None => {
                let record = VolumeRecord { id, size, source };
                self.make(&record)?;
                record
            }
        };
        Ok(CreateVolumeResponse { volume: Some(self.shown(&record)) })
    }

    /// What a record has of a source, which must be there.
    fn source(&self, source: Option<&VolumeContentSource>) -> Result<String, Status> {
        match source.and_then(|source| source.r#type.as_ref()) {
            None => Ok(String::new()),
            Some(From::Volume(VolumeSource { volume_id })) => match self.volume(volume_id)? {
                Some(_) => Ok(format!("volume {volume_id}")),
                None => Err(Status::not_found(format!("volume {volume_id} is not there"))),
            },
            Some(From::Snapshot(SnapshotSource { snapshot_id })) => {
                match self.snapshot(snapshot_id)? {
                    Some(_) => Ok(format!("snapshot {snapshot_id}")),
                    None => Err(Status::not_found(format!("snapshot {snapshot_id} is not there"))),
                }
            }
        }
    }

    fn shown(&self, record: &VolumeRecord) -> Volume {
        let config = &self.0.config;
        let source = record.source.split_once(' ').map(|(kind, id)| match kind {
            "volume" => From::Volume(VolumeSource { volume_id: id.into() }),
            _ => From::Snapshot(SnapshotSource { snapshot_id: id.into() }),
        });
        Volume {
            capacity_bytes: i64::try_from(record.size).unwrap_or(i64::MAX),
            volume_id: record.id.clone(),
            volume_context: [
                (URL.to_string(), config.url.clone()),
                (DIR.to_string(), format!("{}/{}", config.dir, record.id)),
            ]
            .into(),
            content_source: source.map(|source| VolumeContentSource { r#type: Some(source) }),
            accessible_topology: Vec::new(),
        }
    }

    /// What must be there.
    fn known(&self, id: &str) -> Result<(std::path::PathBuf, VolumeRecord), Status> {
        let volume = self.volume(given("volume_id", id)?)?;
        volume.ok_or_else(|| Status::not_found(format!("volume {id} is not there")))
    }

    fn delete(&self, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let _turn = self.turn(id)?;
        if let Some((dir, record)) = self.volume(id)? {
            if !self.snapshots_of(&dir, &record)?.is_empty() {
                return Err(Status::failed_precondition(format!(
                    "volume {id} has snapshots: delete them first"
                )));
            }
            self.remove(&dir)?;
        }
        Ok(DeleteVolumeResponse {})
    }

    fn expand(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let range = request
            .capacity_range
            .as_ref()
            .ok_or_else(|| Status::invalid_argument("the capacity range is missing"))?;
        let size = checks::size(Some(range))?;
        let _turn = self.turn(id)?;
        let (dir, mut record) = self.known(id)?;
        if record.size < size {
            record.size = size;
            self.resize(&dir, &record)?;
        }
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: i64::try_from(record.size).unwrap_or(i64::MAX),
            node_expansion_required: false,
        })
    }

    fn snapshot(&self, id: &str) -> Result<Option<Found>, Status> {
        let Some((volume, name)) = snapshot_parts(id) else { return Ok(None) };
        let Some((dir, record)) = self.volume(volume)? else { return Ok(None) };
        Ok(self.snapshots_of(&dir, &record)?.into_iter().find(|one| one.name == name))
    }

    fn all_snapshots(&self) -> Result<Vec<Found>, Status> {
        let home = self.home()?;
        let mut all = Vec::new();
        for record in self.volumes()? {
            all.extend(self.snapshots_of(&home.join(&record.id), &record)?);
        }
        Ok(all)
    }

    fn take_snapshot(
        &self,
        request: &CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        let name = id_of(given("name", &request.name)?)?;
        let volume = given("source_volume_id", &request.source_volume_id)?;
        // Names of snapshots are those of the whole driver.
        let _turn = self.turn("snapshots")?;
        let found = match self.all_snapshots()?.into_iter().find(|one| one.name == name) {
            Some(there) if there.volume == volume => there,
            Some(there) => {
                return Err(Status::already_exists(format!(
                    "snapshot {name} is there, of volume {}",
                    there.volume
                )));
            }
            None => {
                let (dir, record) = self.known(volume)?;
                self.verb(&["snapshot", "create"], &dir, &[&name])?;
                let made = self.snapshots_of(&dir, &record)?;
                let made = made.into_iter().find(|one| one.name == name);
                made.ok_or_else(|| internal(&name, "the snapshot is gone again"))?
            }
        };
        Ok(CreateSnapshotResponse { snapshot: Some(shown(&found)) })
    }

    fn drop_snapshot(
        &self,
        request: &DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        let id = given("snapshot_id", &request.snapshot_id)?;
        let _turn = self.turn("snapshots")?;
        if self.snapshot(id)?.is_some()
            && let Some((volume, name)) = snapshot_parts(id)
        {
            let dir = self.home()?.join(volume);
            self.verb(&["snapshot", "remove"], &dir, &[name])?;
        }
        Ok(DeleteSnapshotResponse {})
    }

    fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let of_id = &request.snapshot_id;
        let of_volume = &request.source_volume_id;
        let mut found = match (of_id.as_str(), of_volume.as_str()) {
            ("", "") => self.all_snapshots()?,
            ("", volume) => match self.volume(volume)? {
                Some((dir, record)) => self.snapshots_of(&dir, &record)?,
                None => Vec::new(),
            },
            (id, _) => self.snapshot(id)?.into_iter().collect(),
        };
        found.retain(|one| of_volume.is_empty() || one.volume == *of_volume);
        let (range, next_token) =
            checks::page(found.len(), &request.starting_token, request.max_entries)?;
        let entries = found[range]
            .iter()
            .map(|one| list_snapshots_response::Entry { snapshot: Some(shown(one)) });
        Ok(ListSnapshotsResponse { entries: entries.collect(), next_token })
    }

    fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let volumes = self.volumes()?;
        let (range, next_token) =
            checks::page(volumes.len(), &request.starting_token, request.max_entries)?;
        let entries = volumes[range].iter().map(|record| list_volumes_response::Entry {
            volume: Some(self.shown(record)),
            status: None,
        });
        Ok(ListVolumesResponse { entries: entries.collect(), next_token })
    }

    fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        given("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume capabilities are missing"));
        }
        self.known(&request.volume_id)?;
        if let Err(why) = checks::capabilities(&request.volume_capabilities) {
            let message = why.message().to_string();
            return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        }
        let confirmed = validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        })
    }

    fn capacity(&self) -> Result<GetCapacityResponse, Status> {
        let room = crate::mounts::room(&self.home()?).map_err(|why| internal("capacity", why))?;
        let available_capacity = i64::try_from(room.free_bytes).unwrap_or(i64::MAX);
        Ok(GetCapacityResponse {
            available_capacity,
            maximum_volume_size: None,
            minimum_volume_size: None,
        })
    }
}

fn shown(found: &Found) -> Snapshot {
    Snapshot {
        size_bytes: i64::try_from(found.size).unwrap_or(i64::MAX),
        snapshot_id: found.id(),
        source_volume_id: found.volume.clone(),
        creation_time: Some(found.created.into()),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}

/// What this service does.
const CAN: [Can; 8] = [
    Can::CreateDeleteVolume,
    Can::ListVolumes,
    Can::GetCapacity,
    Can::CreateDeleteSnapshot,
    Can::ListSnapshots,
    Can::CloneVolume,
    Can::ExpandVolume,
    Can::SingleNodeMultiWriter,
];

#[tonic::async_trait]
impl controller_server::Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        self.blocking(move |driver| driver.create(request.get_ref())).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        self.blocking(move |driver| driver.delete(request.get_ref())).await
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("nothing is attached to a node before it mounts"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("nothing is attached to a node before it mounts"))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        self.blocking(move |driver| driver.validate(request.into_inner())).await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        self.blocking(move |driver| driver.list(request.get_ref())).await
    }

    async fn get_capacity(
        &self,
        _: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        self.blocking(Driver::capacity).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = CAN.map(|can| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: can as i32 })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        self.blocking(move |driver| driver.take_snapshot(request.get_ref())).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        self.blocking(move |driver| driver.drop_snapshot(request.get_ref())).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        self.blocking(move |driver| driver.list_snapshots(request.get_ref())).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        self.blocking(move |driver| driver.expand(request.get_ref())).await
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("the health of volumes is in the metrics of their servers"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("a volume has no parameters that change"))
    }
}
