//! Usage and TreeUsage: figures from the directories' shares, without walking the files.

use std::ops::ControlFlow;

use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::{KeyRef, Table, number_of};
use kestrel_types::request::Usage;
use kestrel_types::stat::DirStat;

use crate::stop::engine_error;
use kestrel_engine::{Engine, EngineError};

fn damaged(why: &DecodeError) -> FsError {
    FsError::because(libc::EIO, format!("metadata: damaged dirstat row: {why}; run kestrel fsck"))
}

/// Figures of a directory and everything below it: reads one row a directory and worker, none a
/// file. Directories made or removed meanwhile may be counted or not. Files with several names
/// count once a name, and no bytes.
pub fn tree(engine: &dyn Engine, dir: InodeId) -> FsResult<Usage> {
    let mut sum = DirStat::default();
    let mut dirs = 0;
    let mut stack = vec![dir];
    while let Some(dir) = stack.pop() {
        add_shares(engine, dir, &|_| true, &mut sum)?;
        let listed = engine.scan(Table::Subdir, dir, None, &mut |child, _, _| {
            stack.push(number_of(child));
            ControlFlow::Continue(())
        });
        listed.map_err(engine_error)?;
        dirs += 1;
    }
    Ok(usage(&sum, dirs - 1))
}

/// Adds the shares of a directory that the engine has, those with `own` suffixes.
pub fn add_shares(
    engine: &dyn Engine,
    dir: InodeId,
    own: &dyn Fn(&[u8]) -> bool,
    sum: &mut DirStat,
) -> FsResult<()> {
    let mut damage = None;
    let visited =
        engine.scan(Table::DirStat, dir, None, &mut |share, row, _| match DirStat::decode(row) {
            _ if !own(share) => ControlFlow::Continue(()),
            Ok(stat) => {
                sum.merge(&stat);
                ControlFlow::Continue(())
            }
            Err(why) => {
                damage = Some(why);
                ControlFlow::Break(())
            }
        });
    visited.map_err(engine_error)?;
    damage.map_or(Ok(()), |why| Err(damaged(&why)))
}

/// A sum and a number of directories as they are answered.
pub fn usage(sum: &DirStat, dirs: u64) -> Usage {
    let files = (sum.children - sum.subdirs).max(0).cast_unsigned();
    Usage { files, dirs, bytes: sum.bytes.max(0).cast_unsigned() }
}

/// Figures of the whole volume, by reading all shares and all files in table `link`, as far as the
/// rows are `own`: files, directories, bytes.
pub fn volume(
    engine: &dyn Engine,
    own: &dyn Fn(KeyRef<'_>) -> bool,
) -> Result<[i64; 3], EngineError> {
    let mut sum = DirStat::default();
    let mut damage = None;
    engine.scan_table(Table::DirStat, None, &mut |key, row| match DirStat::decode(row) {
        _ if !own(key) => ControlFlow::Continue(()),
        Ok(stat) => {
            sum.merge(&stat);
            ControlFlow::Continue(())
        }
        Err(why) => {
            damage = Some(corrupt("dirstat", &why));
            ControlFlow::Break(())
        }
    })?;
    if let Some(why) = damage {
        return Err(why);
    }
    let bytes = sum.bytes.wrapping_add(link_bytes(engine, own)?);
    Ok([sum.children - sum.subdirs, sum.subdirs, bytes])
}

/// Bytes of all files in table `link`, as far as the rows are `own`.
pub fn link_bytes(
    engine: &dyn Engine,
    own: &dyn Fn(KeyRef<'_>) -> bool,
) -> Result<i64, EngineError> {
    let (mut bytes, mut damage) = (0i64, None);
    engine.scan_table(Table::Link, None, &mut |key, row| {
        if !own(key) {
            return ControlFlow::Continue(());
        }
        match Inode::decode(&mut Reader::new(row)) {
            Ok(inode) => {
                bytes = bytes.wrapping_add(inode.size.cast_signed());
                ControlFlow::Continue(())
            }
            Err(why) => {
                damage = Some(corrupt("link", &why));
                ControlFlow::Break(())
            }
        }
    })?;
    damage.map_or(Ok(bytes), Err)
}

fn corrupt(table: &str, why: &DecodeError) -> EngineError {
    EngineError::Corrupt(format!("metadata: damaged {table} row: {why}"))
}
