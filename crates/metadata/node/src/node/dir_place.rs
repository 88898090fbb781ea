//! Where directories are, by the rows of an engine: of the present or of a snapshot.

use kestrel_engine::Engine;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::{KeyRef, Table};

use crate::stop::engine_error;
use crate::view::decode_dir_id;

/// The directory above one, and its name there; `(0, "")` of the root, `None` if there is no such
/// directory.
///
/// # Errors
/// The engine's; `EIO` for a damaged row.
pub(super) fn dir_place(
    engine: &dyn Engine,
    dir: InodeId,
) -> FsResult<Option<(InodeId, Box<[u8]>)>> {
    if dir == ROOT {
        return Ok(Some((0, Box::default())));
    }
    let mut place = Ok(None);
    let read = engine.get_many(&[KeyRef::new(Table::DirId, dir, b"")], &mut |_, row| {
        place = row
            .value
            .map(decode_dir_id)
            .transpose()
            .map(|place| place.map(|(parent, name)| (parent, Box::from(name))));
    });
    read.map_err(engine_error)?;
    place.map_err(|why| {
        let text = format!("metadata: damaged dirid row of {dir}: {why}; run kestrel fsck");
        FsError::because(libc::EIO, text)
    })
}
