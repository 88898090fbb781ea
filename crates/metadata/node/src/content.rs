//! Where a file's bytes are, and what changes of content do to it: rows of chunks, references to
//! objects.
//!
//! Everything here belongs to the reading half of an operation: it computes what the content will
//! be and what that does to the references, on copies. [`Content::apply`] then writes it.

use kestrel_types::error::FsError;
use kestrel_types::extent::{CHUNK_BYTES, Extent, ExtentError, ExtentList, Released, Source};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Data, FILE_SIZE_MAX, Inode, Kind, chunk_of};
use kestrel_types::key::Table;
use kestrel_types::range::Range;

use crate::ref_deltas::RefDeltas;
use crate::rows::{CellId, Value};
use crate::stop::{Run, Stop, fail};
use crate::view::{Chunks, View};

/// Content to be, and what has to change for it.
#[derive(Debug, Default)]
pub struct Content {
    /// New `data` of the inode, if it changes.
    pub data: Option<Data>,
    /// Of which file the rows from a chunk on go later, because they are too many for one batch;
    /// and from where on they were going already.
    pub sweep: Option<(InodeId, u64, Option<u64>)>,
    /// What it comes to refer to another file refers to already.
    pub shared: bool,
    /// Chunk rows that change; empty ones go.
    pub chunks: Vec<(CellId, ExtentList)>,
    /// References.
    pub tally: RefDeltas,
}

impl Content {
    /// These rows go, with what they refer to.
    pub fn drop_chunks(&mut self, view: &mut View<'_>, chunks: Chunks) -> Run<()> {
        for (_, cell) in chunks {
            for released in view.extents(cell)?.references() {
                self.tally.release(released);
            }
            self.chunks.push((cell, ExtentList::new()));
        }
        Ok(())
    }

    /// Asks for the shares of objects that change. Ends the reading half but for [`View::begin`].
    pub fn want(&mut self, view: &mut View<'_>, home: usize) -> Run<()> {
        if let Some((ino, _, before)) = &mut self.sweep {
            *before = view.sweep_of(*ino)?;
        }
        view.want_objects(&mut self.tally, home, self.shared)
    }

    /// Writes chunk rows and references, and puts the new content into `inode`.
    pub fn apply(self, view: &mut View<'_>, inode: &mut Inode, home: usize) -> Run<()> {
        for (cell, list) in self.chunks {
            let gone = list.is_empty();
            if !gone || view.rows.exists(cell) {
                view.put(cell, if gone { Value::Absent } else { Value::Extents(list) });
            }
        }
        if let Some((ino, first, before)) = self.sweep {
            view.set_sweep(ino, before, Some(first));
        }
        view.book(&self.tally, home)?;
        if let Some(data) = self.data {
            inode.data = data;
        }
        Ok(())
    }
}

fn extent_error(error: ExtentError) -> Stop {
    match error {
        ExtentError::OutOfBounds => fail(libc::EINVAL, "an extent is out of bounds"),
        ExtentError::Full => fail(libc::EFBIG, "too many extents in one chunk: compact it first"),
        ExtentError::Changed => fail(libc::EAGAIN, "extents changed meanwhile"),
    }
}

/// The cell of a chunk.
pub fn chunk_cell(view: &mut View<'_>, inode: &Inode, chunk: u64) -> CellId {
    view.rows.cell(Table::Chunk, inode.ino, &chunk.to_be_bytes())
}

/// The whole content goes and `data` takes its place. `data` must not be [`Data::Chunked`].
pub fn replace(view: &mut View<'_>, inode: &Inode, data: Data) -> Run<Content> {
    let mut content = Content::default();
    match &inode.data {
        Data::None | Data::Inline(_) => {}
        Data::Packed { range, .. } => {
            content.tally.release(Released { range: *range, bytes: range.len })
        }
        Data::Chunked => {
            let (chunks, rest) = view.chunks_from(inode.ino, 0)?;
            if rest.is_some() {
                content.sweep = Some((inode.ino, 0, None));
            } else {
                content.drop_chunks(view, chunks)?;
            }
        }
    }
    if let Data::Packed { range, .. } = &data {
        content.tally.add(range.object, range.len);
    }
    content.data = Some(data);
    Ok(content)
}

/// Everything from `size` on goes. For a size at or above the present one nothing changes but the
/// caller's size.
pub fn truncate(view: &mut View<'_>, inode: &Inode, size: u64) -> Run<Content> {
    if size >= inode.size {
        return Ok(Content::default());
    }
    if size == 0 {
        return replace(view, inode, Data::None);
    }
    match &inode.data {
        Data::None => Ok(Content::default()),
        Data::Inline(bytes) => {
            let keep = bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX));
            Ok(Content { data: Some(Data::Inline(bytes[..keep].into())), ..Content::default() })
        }
        Data::Packed { range, visible } => {
            let visible = (*visible).min(u32::try_from(size).unwrap_or(u32::MAX));
            Ok(Content {
                data: Some(Data::Packed { range: *range, visible }),
                ..Content::default()
            })
        }
        Data::Chunked => {
            let mut content = Content::default();
            cut(view, inode, size, &mut content)?;
            Ok(content)
        }
    }
}

/// Cuts the chunk rows of a chunked file at `size`, taking into account what `content` already
/// changed.
fn cut(view: &mut View<'_>, inode: &Inode, size: u64, content: &mut Content) -> Run<()> {
    let (last, within) = (chunk_of(size), (size % u64::from(CHUNK_BYTES)) as u32);
    let first_gone = size.div_ceil(u64::from(CHUNK_BYTES));
    view.rows.want_all(Table::Chunk, inode.ino, first_gone);
    if within > 0 {
        // Cut below, with those that `content` has changed already.
        chunk_cell(view, inode, last);
        view.ready()?;
        list_of(view, inode, last, content)?;
    }
    let (mut chunks, rest) = view.chunks_from(inode.ino, first_gone)?;
    if rest.is_some() {
        content.sweep = Some((inode.ino, first_gone, None));
        chunks.clear();
    }
    chunks.retain(|(_, cell)| content.chunks.iter().all(|(changed, _)| changed != cell));
    content.drop_chunks(view, chunks)?;
    for (cell, list) in &mut content.chunks {
        let chunk = kestrel_types::key::number_of(view.rows.suffix(*cell));
        let keep = match chunk.cmp(&last) {
            std::cmp::Ordering::Less => continue,
            std::cmp::Ordering::Equal => within,
            std::cmp::Ordering::Greater => 0,
        };
        for released in list.truncate(keep) {
            content.tally.release(released);
        }
    }
    Ok(())
}

/// The extents that a file has before it is chunked: what becomes of a packed or empty file when it
/// is patched.
fn first_chunk(inode: &Inode, tally: &mut RefDeltas) -> ExtentList {
    let mut list = ExtentList::new();
    if let Data::Packed { range, visible } = &inode.data {
        let extent =
            Extent { pos: 0, len: *visible, source: Source::Stored { range: *range, skip: 0 } };
        // A range has at most 16 MiB: it fits a chunk.
        let _ = list.overlay(extent);
        // A packed file refers to its whole range, an extent to what it shows.
        tally.release(Released { range: *range, bytes: range.len - visible });
    }
    list
}

/// A file's chunk as a list to change, from `content` if that has changed it already.
fn list_of<'c>(
    view: &mut View<'_>,
    inode: &Inode,
    chunk: u64,
    content: &'c mut Content,
) -> Run<&'c mut ExtentList> {
    let cell = chunk_cell(view, inode, chunk);
    // Patches mostly come in order: the chunk is the last one, or new.
    let position = content.chunks.iter().rposition(|(changed, _)| *changed == cell);
    let position = match position {
        Some(position) => position,
        None => {
            let list = match &inode.data {
                Data::Chunked => view.extents(cell)?.clone(),
                _ if chunk == 0 => first_chunk(inode, &mut content.tally),
                _ => ExtentList::new(),
            };
            content.chunks.push((cell, list));
            content.chunks.len() - 1
        }
    };
    Ok(&mut content.chunks[position].1)
}

/// Lays `patches` over the content, then cuts it at `size`, the size the file will have.
///
/// `EINVAL` if an extent reaches beyond `size`, or if the content is inline and not covered.
pub fn patch(
    view: &mut View<'_>,
    inode: &Inode,
    patches: &[(u64, Extent)],
    size: u64,
) -> Run<Content> {
    if let Data::Inline(bytes) = &inode.data {
        let needed = (bytes.len() as u64).min(size);
        if covered_from_start(patches) < needed {
            return Err(fail(libc::EINVAL, "a patch of an inline file must cover all its bytes"));
        }
    }
    for (chunk, extent) in patches {
        extent.check().map_err(extent_error)?;
        let end = chunk
            .checked_mul(u64::from(CHUNK_BYTES))
            .and_then(|at| at.checked_add(u64::from(extent.end())));
        if end.is_none_or(|end| end > size) {
            return Err(fail(libc::EINVAL, "an extent reaches beyond the end of the file"));
        }
    }
    // Ask for everything first, so that it is one fetch.
    let chunked = matches!(inode.data, Data::Chunked);
    for (chunk, _) in patches.iter().filter(|_| chunked) {
        chunk_cell(view, inode, *chunk);
    }
    if chunked && size < inode.size {
        view.rows.want_all(Table::Chunk, inode.ino, size.div_ceil(u64::from(CHUNK_BYTES)));
    }
    if chunked {
        view.ready()?;
    }
    let mut content = Content { data: Some(Data::Chunked), ..Content::default() };
    if !chunked {
        list_of(view, inode, 0, &mut content)?;
    }
    for (chunk, extent) in patches {
        let freed =
            list_of(view, inode, *chunk, &mut content)?.overlay(*extent).map_err(extent_error)?;
        if let Source::Stored { range, .. } = extent.source {
            content.tally.add(range.object, extent.len);
        }
        for released in freed {
            content.tally.release(released);
        }
    }
    if size < inode.size {
        if chunked {
            cut(view, inode, size, &mut content)?;
        } else {
            for released in content.chunks[0]
                .1
                .truncate(u32::try_from(size).unwrap_or(u32::MAX).min(CHUNK_BYTES))
            {
                content.tally.release(released);
            }
        }
    }
    Ok(content)
}

/// Bytes from the start of the file that patches of chunk 0 cover without a gap.
fn covered_from_start(patches: &[(u64, Extent)]) -> u64 {
    let mut parts: Vec<(u32, u32)> = patches
        .iter()
        .filter(|(chunk, extent)| *chunk == 0 && extent.check().is_ok())
        .map(|(_, extent)| (extent.pos, extent.end()))
        .collect();
    parts.sort_unstable();
    parts.iter().fold(0, |end, (from, to)| if *from <= end { end.max(*to) } else { end }).into()
}

/// Replaces extents of a chunk that are still what the client saw. `None` if they are not.
pub fn compact(
    view: &mut View<'_>,
    inode: &Inode,
    chunk: u64,
    old: &[Extent],
    new: &[Extent],
) -> Run<Option<Content>> {
    let (Some(first), Some(last)) = (old.first(), old.last()) else {
        return Err(fail(libc::EINVAL, "an empty window cannot be compacted"));
    };
    if old.iter().any(|extent| extent.check().is_err()) || last.end() <= first.pos {
        return Err(fail(libc::EINVAL, "an extent is out of bounds"));
    }
    // Else stored bytes could come to lie where nothing was written, beyond the end even.
    if [first, last].iter().any(|extent| extent.source == Source::Hole) {
        return Err(fail(libc::EINVAL, "a window begins and ends with stored extents"));
    }
    if let Data::Packed { range, visible } = &inode.data {
        return repack(*range, *visible, chunk, old, new);
    }
    let cell = chunk_cell(view, inode, chunk);
    let mut list = view.extents(cell)?.clone();
    let mut content = Content::default();
    match list.replace_if(first.pos, last.end() - first.pos, old, new) {
        Ok(freed) => freed.into_iter().for_each(|released| content.tally.release(released)),
        Err(ExtentError::Changed) => return Ok(None),
        Err(error) => return Err(extent_error(error)),
    }
    for extent in new {
        if let Source::Stored { range, .. } = extent.source {
            content.tally.add(range.object, extent.len);
        }
    }
    content.chunks.push((cell, list));
    Ok(Some(content))
}

/// Replaces the range of a packed file if it is still what the client saw: all that is visible of
/// it, by a range that holds the same bytes from its beginning on.
fn repack(
    range: Range,
    visible: u32,
    chunk: u64,
    old: &[Extent],
    new: &[Extent],
) -> Run<Option<Content>> {
    let shown = Extent { pos: 0, len: visible, source: Source::Stored { range, skip: 0 } };
    if chunk != 0 || old != [shown] {
        return Ok(None);
    }
    let fresh = match new {
        [Extent { pos: 0, len, source: Source::Stored { range, skip: 0 } }] if *len == visible => {
            *range
        }
        _ => return Err(fail(libc::EINVAL, "a packed file is one range, from its beginning on")),
    };
    new[0].check().map_err(extent_error)?;
    let mut content =
        Content { data: Some(Data::Packed { range: fresh, visible }), ..Content::default() };
    content.tally.add(fresh.object, fresh.len);
    content.tally.release(Released { range, bytes: range.len });
    Ok(Some(content))
}

/// What `len` bytes of a file from `offset` on consist of, in pieces that lie in one chunk each of
/// source and destination.
pub struct CopyPiece {
    /// Chunk of the destination.
    pub chunk: u64,
    /// First byte within it.
    pub pos: u32,
    /// Extents, holes included, at their places in the source.
    pub extents: Vec<Extent>,
}

/// Reads the pieces of a clone. The source must not be inline.
pub fn pieces(
    view: &mut View<'_>,
    from: &Inode,
    from_offset: u64,
    to_offset: u64,
    len: u64,
) -> Run<Vec<CopyPiece>> {
    let chunk_bytes = u64::from(CHUNK_BYTES);
    let mut out = Vec::new();
    let mut done = 0;
    while done < len {
        let (source, target) = (from_offset + done, to_offset + done);
        let (from_pos, to_pos) = (source % chunk_bytes, target % chunk_bytes);
        let part = (len - done).min(chunk_bytes - from_pos).min(chunk_bytes - to_pos);
        let (from_pos, part_len) = (from_pos as u32, part as u32);
        let chunk = chunk_of(source);
        let extents = match &from.data {
            Data::Chunked => {
                let cell = chunk_cell(view, from, chunk);
                view.extents(cell)?.slice(from_pos, part_len)
            }
            _ if chunk == 0 => {
                first_chunk(from, &mut RefDeltas::default()).slice(from_pos, part_len)
            }
            _ => vec![Extent::hole(from_pos, part_len)],
        };
        out.push(CopyPiece { chunk: chunk_of(target), pos: to_pos as u32, extents });
        done += part;
    }
    Ok(out)
}

/// Grafts pieces onto the destination of a clone, which must not be inline.
pub fn graft(view: &mut View<'_>, to: &Inode, pieces: &[CopyPiece]) -> Run<Content> {
    let mut content = Content { data: Some(Data::Chunked), ..Content::default() };
    if !matches!(to.data, Data::Chunked) {
        list_of(view, to, 0, &mut content)?;
    }
    for piece in pieces {
        let freed = list_of(view, to, piece.chunk, &mut content)?
            .graft(piece.pos, &piece.extents)
            .map_err(extent_error)?;
        for extent in &piece.extents {
            if let Source::Stored { range, .. } = extent.source {
                content.tally.add(range.object, extent.len);
            }
        }
        for released in freed {
            content.tally.release(released);
        }
    }
    Ok(content)
}

/// Fails unless the file can have this size and form: rows that were cut off and not deleted yet
/// must not come back.
pub fn check_swept(view: &mut View<'_>, ino: InodeId, size: u64, data: &Data) -> Run<()> {
    // Asked of chunked files only: of others the file's home may be another node.
    if !matches!(data, Data::Chunked) {
        return Ok(());
    }
    match view.sweep_of(ino)? {
        Some(first) if size > first.saturating_mul(u64::from(CHUNK_BYTES)) => {
            Err(Stop::Unswept(ino, first))
        }
        _ => Ok(()),
    }
}

/// A range that a client says it stored.
pub fn check_range(range: &Range) -> Run<()> {
    Extent::of_range(0, *range).check().map_err(extent_error)
}

/// Fails unless a file may have this size.
pub fn check_size(size: u64) -> Run<()> {
    if size > FILE_SIZE_MAX {
        return Err(Stop::Fail(FsError::new(libc::EFBIG, "a file has at most 8 EiB - 1")));
    }
    Ok(())
}

/// A file that loses its last name and is not open: everything that goes with its record.
#[derive(Debug)]
pub struct Removal {
    content: Content,
    xattrs: Vec<CellId>,
    home: usize,
}

impl Removal {
    /// Reads what has to go. `home`: worker that counts the file's references in its shares.
    pub fn prepare(view: &mut View<'_>, inode: &Inode, home: usize) -> Run<Self> {
        let xattrs = if inode.xattrs { view.xattrs(inode.ino)? } else { Vec::new() };
        let mut content = match inode.kind {
            Kind::File => replace(view, inode, Data::None)?,
            _ => Content::default(),
        };
        content.want(view, home)?;
        Ok(Self { content, xattrs, home })
    }

    /// Deletes it all but for the record itself.
    pub fn apply(self, view: &mut View<'_>) -> Run<()> {
        for cell in self.xattrs {
            view.put(cell, Value::Absent);
        }
        for (cell, _) in self.content.chunks {
            view.put(cell, Value::Absent);
        }
        if let Some((ino, first, before)) = self.content.sweep {
            view.set_sweep(ino, before, Some(first));
        }
        view.book(&self.content.tally, self.home)
    }
}
