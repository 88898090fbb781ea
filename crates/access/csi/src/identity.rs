//! The service Identity: what the driver is.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use crate::v1::plugin_capability::service::Type as Serves;
use crate::v1::plugin_capability::volume_expansion::Type as Expands;
use crate::v1::plugin_capability::{Service, Type, VolumeExpansion};
use crate::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use crate::{DRIVER_NAME, Driver};

#[tonic::async_trait]
impl crate::v1::identity_server::Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER_NAME.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let makes = Type::Service(Service { r#type: Serves::ControllerService as i32 });
        let grows = Type::VolumeExpansion(VolumeExpansion { r#type: Expands::Online as i32 });
        let capabilities = [makes, grows].map(|one| PluginCapability { r#type: Some(one) });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
