//! The bytes of what nodes say of where others are.

use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::placement::slot_map::{ADDRESS_MAX, MEMBERS_MAX};

use super::{list, put_list};
use crate::addresses::NodeAddress;

/// Fewest bytes of one.
const ADDRESS_MIN: usize = 4;

pub(super) fn put(out: &mut Vec<u8>, nodes: &[NodeAddress]) {
    put_list(out, nodes, |out, NodeAddress { node, epoch, address }| {
        put_varint(out, u64::from(*node));
        put_varint(out, *epoch);
        put_string(out, address.as_bytes());
    });
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<Vec<NodeAddress>, DecodeError> {
    let one = |r: &mut Reader<'_>| {
        let (node, epoch) = (r.varint32()?, r.varint()?);
        let address = std::str::from_utf8(r.string(ADDRESS_MAX)?).ok();
        let address =
            address.filter(|address| !address.is_empty()).ok_or(DecodeError("no address"))?;
        Ok(NodeAddress { node, epoch, address: address.to_owned() })
    };
    let nodes = list(r, ADDRESS_MIN, one)?;
    if nodes.len() > MEMBERS_MAX {
        return Err(DecodeError("more nodes than a cluster has"));
    }
    Ok(nodes)
}
