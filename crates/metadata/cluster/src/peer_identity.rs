//! What a member knows of the directory of another one, in table `system`: by it a directory that
//! was made anew, an old copy of one and a second start of one are told from the node that the
//! cluster has. And where it was last ([`super::addresses`]).

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::stop::engine_error;
use kestrel_types::codec::{DecodeError, Reader, put_string};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::placement::slot_map::ADDRESS_MAX;

/// Version of its rows.
const VERSION: u8 = 2;

/// Version of rows without an address: nodes did not tell theirs. They are read.
const VERSION_NOWHERE: u8 = 1;

/// How their names begin; the node's number follows, in decimal digits.
const NAME: &str = "peer ";

/// The newest start of another node that was heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The word that the node's directory was born with.
    pub node_uuid: u64,
    /// The newest of its starts, counted from 1.
    pub epoch: u64,
    /// The random number of that start's process.
    pub start: u64,
    /// Where others reach it, if it was one that says so; 1 to 255 bytes.
    pub address: Option<String>,
}

/// The node that a record of this name is about, if it is about one.
pub fn peer_of(name: &[u8]) -> Option<NodeId> {
    let number = std::str::from_utf8(name).ok()?.strip_prefix(NAME)?.parse().ok()?;
    (self::name(number).as_bytes() == name).then_some(number)
}

/// Deletes what is on record of a node.
pub(super) fn forget_row(node: NodeId) -> Mutation {
    Mutation { key: Key::new(Table::System, 0, name(node).as_bytes()), value: None }
}

fn name(node: NodeId) -> String {
    format!("{NAME}{node}")
}

impl PeerIdentity {
    /// What is on record of a node.
    ///
    /// # Errors
    /// `EIO` if that is damaged; the engine's.
    pub fn read(engine: &dyn Engine, node: NodeId) -> FsResult<Option<Self>> {
        let (name, mut known) = (name(node), Ok(None));
        let key = KeyRef::new(Table::System, 0, name.as_bytes());
        let read = engine.get_many(&[key], &mut |_, row| {
            known = row.value.map(Self::decode).transpose();
        });
        read.map_err(engine_error)?;
        known.map_err(|why| {
            FsError::because(libc::EIO, format!("metadata: damaged record {name:?}: {why}"))
        })
    }

    /// Puts it on record; returns when it is durable.
    ///
    /// # Errors
    /// The engine's.
    pub fn write(&self, engine: &dyn Engine, node: NodeId) -> FsResult<()> {
        let key = Key::new(Table::System, 0, name(node).as_bytes());
        let row = Mutation { key, value: Some(self.encode()) };
        engine.commit(BatchKind::Freeing, vec![row]).map_err(engine_error)?;
        engine.sync().map_err(engine_error)
    }

    /// As its row has it.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![if self.address.is_some() { VERSION } else { VERSION_NOWHERE }];
        for number in [self.node_uuid, self.epoch, self.start] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        if let Some(address) = &self.address {
            put_string(&mut out, address.as_bytes());
        }
        out.into()
    }

    /// Reads what [`PeerIdentity::encode`] wrote.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let is_somewhere = match reader.u8()? {
            VERSION => true,
            VERSION_NOWHERE => false,
            _ => return Err(DecodeError("record of another node of an unknown format version")),
        };
        let (node_uuid, epoch, start) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let address = if is_somewhere {
            let address = std::str::from_utf8(reader.string(ADDRESS_MAX)?).ok();
            Some(
                address
                    .filter(|address| !address.is_empty())
                    .ok_or(DecodeError("no address"))?
                    .to_owned(),
            )
        } else {
            None
        };
        reader.end()?;
        Ok(Self { node_uuid, epoch, start, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_have_names_of_their_own() {
        let known = PeerIdentity { node_uuid: 0x0102, epoch: 3, start: 0x0405, address: None };
        let bytes = known.encode();
        assert_eq!(bytes[..17], [1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(bytes[17..], [0, 0, 0, 0, 0, 0, 4, 5]);
        assert_eq!(PeerIdentity::decode(&bytes), Ok(known.clone()));
        assert!(
            PeerIdentity::decode(&bytes[..24]).is_err() && PeerIdentity::decode(&[3; 25]).is_err()
        );
        let somewhere = PeerIdentity { address: Some("b:94".into()), ..known };
        let bytes = somewhere.encode();
        assert_eq!((bytes[0], &bytes[25..]), (2, b"\x04b:94".as_slice()));
        assert!(
            PeerIdentity::decode(&bytes[..29]).is_err() && PeerIdentity::decode(&[2; 25]).is_err()
        );
        assert_eq!(PeerIdentity::decode(&bytes), Ok(somewhere));
        assert!(
            PeerIdentity::decode(&[&bytes[..25], b"\0"].concat()).is_err(),
            "no address at all"
        );
        assert_eq!(peer_of(b"peer 12"), Some(12));
        for other in [&b"peer 012"[..], b"peer +1", b"peer ", b"epoch", b"peer 1 "] {
            assert_eq!(peer_of(other), None);
        }
    }
}
