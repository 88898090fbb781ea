//! Loading into a volume that several nodes share, of which none runs.

use kestrel_admin::check::Options;
use kestrel_admin::dump::Counts;
use kestrel_admin::dump::spread::{keep_clear_of, load_into};
use kestrel_blockstore::store::BlockStore;
use kestrel_client::volume::scratch_reserve;
use kestrel_daemon::failure::{ExitStatus, Failure};

use super::{LoadArgs, copy_objects, look, reader, tell};
use crate::at_rest::AtRest;
use crate::progress::Progress;

/// Loads; the dump has been verified.
pub fn run(
    args: &LoadArgs,
    counts: Counts,
    from: Option<&dyn BlockStore>,
) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new("load", format!("{}: {why}", args.file.display()))
    };
    let mut progress = Progress::new();
    let nodes = AtRest::open("load", &args.volume, &args.others, &args.store)?;
    let first = nodes.first()?;
    let engines = nodes.engines();
    let scratch = (&*first.dir, scratch_reserve(&first.dir));
    let mut tick = |rows| progress.tick("loading rows", rows);
    load_into(reader(&args.file)?, &engines, &nodes.placement, scratch, &mut tick)
        .map_err(|why| fail(&why))?;
    let whole = nodes.gather(&mut tick)?;
    if let Some(finding) = whole.findings.first() {
        let why =
            format!("what was loaded is not as it should be: {}: {}", finding.path, finding.detail);
        return Err(fail(&why));
    }
    if let Some(from) = from {
        copy_objects((whole.engine(), &*first.store), from, &mut progress)?;
    }
    keep_clear_of(&engines, &*first.store).map_err(|why| fail(&why))?;
    let mut options =
        Options { store: Some(&*first.store), is_of_several: true, ..Options::default() };
    let missing = look(args, whole.engine(), &mut options, &mut progress)?;
    drop(whole);
    for part in nodes.parts.values() {
        part.engine.settle().map_err(|why| fail(&why))?;
    }
    Ok(tell(args, &first.dir, &first.descriptor, counts, missing))
}
