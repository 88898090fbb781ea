//! BTF: the kernel's own description of its types.
//!
//! A kernel built with CONFIG_DEBUG_INFO_BTF (all distributions do) carries a compact description
//! of every structure it uses, readable at `/sys/kernel/btf/vmlinux`: names, members, offsets.
//! Loadable modules have theirs beside it ("split" BTF): their type numbers and string offsets
//! continue where the kernel's end. The program of this crate reads kernel structures; their layout
//! differs from kernel to kernel, and this reader finds where a member lies on the one that runs.
//! Format: Documentation/bpf/btf.rst of the kernel.
//!
//! The reader is pure: bytes in, offsets out. It trusts nothing. Every length is checked, every
//! chain of references is bounded by [`STEPS_MAX`] steps and [`DEPTH_MAX`] levels, so truncated,
//! cyclic or absurd input is an [`Error`], never a panic and never an endless loop. All numbers are
//! little-endian; BTF of the other order is refused.
//!
//! A name may have several definitions (two source files of the kernel may each have a `struct
//! saved`). When they disagree about a member that is looked up, that is [`Error::Ambiguous`]:
//! nothing is guessed.

use std::fmt;

/// Types in both parts together. Linux 6.18 has 130,000.
const TYPES_MAX: usize = 1 << 24;

/// Bytes of one part. Linux 6.18 has 5.5 MB.
const PART_BYTES_MAX: usize = 1 << 28;

/// Members looked at in one search, so that structures that contain themselves do not keep it busy
/// for ever.
const STEPS_MAX: u32 = 1 << 20;

/// Nested anonymous members, and typedefs of typedefs.
const DEPTH_MAX: u32 = 32;

/// No member of interest lies further inside its structure (`task_struct` has 10 KiB).
const OFFSET_MAX: u32 = 1 << 20;

/// Bytes of the header this reader understands; it may be longer.
const HEADER_BYTES: usize = 24;

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The data contradicts itself or ends early. What was being read.
    Malformed(&'static str),
    /// A kind of type that is younger than this reader; what follows it cannot be found.
    UnknownKind(u32),
    /// No such structure, member or function.
    Missing(String),
    /// Several definitions that disagree.
    Ambiguous(String),
    /// The member has another size than expected, in bytes, or is a bit field.
    Shape(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Malformed(what) => write!(f, "kernel BTF is malformed: {what}"),
            Error::UnknownKind(kind) => {
                write!(f, "kernel BTF has types of the unknown kind {kind}")
            }
            Error::Missing(what) => write!(f, "kernel BTF has no {what}"),
            Error::Ambiguous(what) => {
                write!(f, "kernel BTF has contradictory definitions of {what}")
            }
            Error::Shape(what) => write!(f, "kernel BTF has an unexpected {what}"),
        }
    }
}

impl std::error::Error for Error {}

/// Result with this module's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of types, by their numbers in the format.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Where a member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the structure.
    pub offset: u32,
    /// Bytes it takes.
    pub size: u32,
}

/// A function that BTF describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its type number, by which programs are attached to it.
    pub id: u32,
    /// It is a module's, not the kernel's own.
    pub in_module: bool,
}

/// One part: the kernel's BTF, or a module's.
struct Part<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

/// BTF, parsed: an index over borrowed bytes.
pub struct Btf<'a> {
    parts: Vec<Part<'a>>,
    /// Byte offset of each type in its part's `types`, numbered from 1; entry 0 is void.
    starts: Vec<u32>,
    /// Numbers of the structures, a tenth of all types: they are searched by name often.
    structs: Vec<u32>,
    /// The first number of the module's types.
    module_from: usize,
}

/// One type's fixed part.
#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    info: u32,
    /// Size in bytes, or the number of the type referred to.
    size_or_type: u32,
    /// What follows it: members, bounds.
    tail: &'a [u8],
}

impl Type<'_> {
    fn kind(self) -> u32 {
        self.info >> 24 & 0x1f
    }

    fn is_composite(self) -> bool {
        matches!(self.kind(), kind::STRUCT | kind::UNION)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Bytes that follow the fixed part of a type.
fn tail_bytes(info: u32) -> Result<usize> {
    let entries = (info & 0xffff) as usize;
    Ok(match info >> 24 & 0x1f {
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => entries * 12,
        kind::ENUM | kind::FUNC_PROTO => entries * 8,
        kind::PTR | kind::FWD..=kind::RESTRICT | kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
        unknown => return Err(Error::UnknownKind(unknown)),
    })
}

impl<'a> Part<'a> {
    fn parse(data: &'a [u8]) -> Result<Part<'a>> {
        const TRUNCATED: Error = Error::Malformed("truncated");
        if data.len() > PART_BYTES_MAX {
            return Err(Error::Malformed("too large"));
        }
        match data.get(..2) {
            Some([0x9f, 0xeb]) => {}
            Some([0xeb, 0x9f]) => {
                return Err(Error::Malformed("big-endian, which this program does not read"));
            }
            _ => return Err(Error::Malformed("wrong magic number")),
        }
        let word = |at| u32_at(data, at).map(|word| word as usize).ok_or(TRUNCATED);
        let header = word(4)?;
        if header < HEADER_BYTES {
            return Err(Error::Malformed("short header"));
        }
        let section = |at: usize, len: usize| {
            let start = header.checked_add(at).ok_or(TRUNCATED)?;
            data.get(start..start.checked_add(len).ok_or(TRUNCATED)?).ok_or(TRUNCATED)
        };
        Ok(Part { types: section(word(8)?, word(12)?)?, strings: section(word(16)?, word(20)?)? })
    }
}

impl<'a> Btf<'a> {
    /// Reads the kernel's BTF, and a module's on top of it.
    pub fn parse(kernel: &'a [u8], module: Option<&'a [u8]>) -> Result<Btf<'a>> {
        let mut btf = Btf {
            parts: Vec::with_capacity(2),
            starts: vec![0],
            structs: Vec::new(),
            module_from: usize::MAX,
        };
        btf.add(kernel)?;
        if let Some(module) = module {
            btf.module_from = btf.starts.len();
            btf.add(module)?;
        }
        Ok(btf)
    }

    /// Indexes one part: types have no directory, so they are walked once.
    fn add(&mut self, data: &'a [u8]) -> Result<()> {
        let part = Part::parse(data)?;
        let mut at = 0;
        while at < part.types.len() {
            let info = u32_at(part.types, at + 4).ok_or(Error::Malformed("truncated type"))?;
            let next = at + 12 + tail_bytes(info)?;
            if next > part.types.len() {
                return Err(Error::Malformed("truncated type"));
            }
            if self.starts.len() >= TYPES_MAX {
                return Err(Error::Malformed("too many types"));
            }
            // Neither can be cut off: `TYPES_MAX` and `PART_BYTES_MAX` are less than 2^32.
            if info >> 24 & 0x1f == kind::STRUCT {
                self.structs.push(self.starts.len() as u32);
            }
            self.starts.push(at as u32);
            at = next;
        }
        self.parts.push(part);
        Ok(())
    }

    fn ty(&self, id: u32) -> Result<Type<'a>> {
        const WILD: Error = Error::Malformed("reference to a type that is not there");
        let id = id as usize;
        if id == 0 {
            return Err(Error::Malformed("void where a type is needed"));
        }
        let start = *self.starts.get(id).ok_or(WILD)? as usize;
        let part = self.parts.get(usize::from(id >= self.module_from)).ok_or(WILD)?;
        let word = |at| u32_at(part.types, start + at).ok_or(WILD);
        let info = word(4)?;
        let tail = part.types.get(start + 12..start + 12 + tail_bytes(info)?).ok_or(WILD)?;
        Ok(Type { name: word(0)?, info, size_or_type: word(8)?, tail })
    }

    /// The text from string offset `at` to the end of its section; offsets beyond the kernel's
    /// strings are the module's.
    fn text(&self, at: u32) -> Result<&'a [u8]> {
        const WILD: Error = Error::Malformed("a name outside the strings");
        let at = at as usize;
        let kernel = self.parts.first().ok_or(WILD)?.strings;
        if let Some(text) = kernel.get(at..).filter(|text| !text.is_empty()) {
            return Ok(text);
        }
        let module = self.parts.get(1).ok_or(WILD)?.strings;
        module.get(at - kernel.len()..).filter(|text| !text.is_empty()).ok_or(WILD)
    }

    fn is_named(&self, name: u32, want: &str) -> Result<bool> {
        let text = self.text(name)?;
        Ok(text.starts_with(want.as_bytes()) && text.get(want.len()) == Some(&0))
    }

    /// All structures of that name.
    fn structs_named(&self, name: &str) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        for &id in &self.structs {
            if self.is_named(self.ty(id)?.name, name)? {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Looks through typedefs, const, volatile, restrict and type tags.
    fn strip(&self, mut id: u32) -> Result<(u32, Type<'a>)> {
        for _ in 0..DEPTH_MAX {
            let ty = self.ty(id)?;
            if !matches!(ty.kind(), kind::TYPEDEF..=kind::RESTRICT | kind::TYPE_TAG) {
                return Ok((id, ty));
            }
            id = ty.size_or_type;
        }
        Err(Error::Malformed("typedefs that never end"))
    }

    /// Bytes that a value of the type takes.
    fn size(&self, id: u32) -> Result<u32> {
        const HUGE: Error = Error::Malformed("a type of absurd size");
        let mut count = 1u32;
        let mut id = id;
        for _ in 0..DEPTH_MAX {
            let (_, ty) = self.strip(id)?;
            let one = match ty.kind() {
                kind::PTR => 8,
                kind::ARRAY => {
                    let elements =
                        u32_at(ty.tail, 8).ok_or(Error::Malformed("an array without bounds"))?;
                    count = count.checked_mul(elements).ok_or(HUGE)?;
                    id = u32_at(ty.tail, 0).ok_or(Error::Malformed("an array without elements"))?;
                    continue;
                }
                kind::INT
                | kind::STRUCT
                | kind::UNION
                | kind::ENUM
                | kind::FLOAT
                | kind::ENUM64 => ty.size_or_type,
                _ => return Err(Error::Malformed("a member that has no size")),
            };
            return count.checked_mul(one).ok_or(HUGE);
        }
        Err(Error::Malformed("arrays that never end"))
    }

    /// Finds a member, also in anonymous structures and unions inside: its offset and type.
    fn member(
        &self,
        ty: Type<'a>,
        want: &str,
        depth: u32,
        steps: &mut u32,
    ) -> Result<Option<(u32, u32)>> {
        const BROKEN: Error = Error::Malformed("truncated member");
        if depth == 0 {
            return Err(Error::Malformed("structures nested without end"));
        }
        for entry in ty.tail.chunks_exact(12) {
            *steps =
                steps.checked_sub(1).ok_or(Error::Malformed("structures nested without end"))?;
            let [name, id, at] = [0, 4, 8].map(|at| u32_at(entry, at));
            let (name, id, at) = (name.ok_or(BROKEN)?, id.ok_or(BROKEN)?, at.ok_or(BROKEN)?);
            // With bit fields in the structure, the upper 8 bits of a member's offset are its
            // width.
            let (bits, width) =
                if ty.info >> 31 == 1 { (at & 0xff_ffff, at >> 24) } else { (at, 0) };
            if self.is_named(name, want)? {
                if width != 0 || bits % 8 != 0 {
                    return Err(Error::Shape(format!("bit field {want}")));
                }
                return Ok(Some((bits / 8, id)));
            }
            if self.is_named(name, "")? {
                let (_, inner) = self.strip(id)?;
                if inner.is_composite()
                    && let Some((offset, id)) = self.member(inner, want, depth - 1, steps)?
                {
                    return Ok(Some((bits / 8 + offset, id)));
                }
            }
        }
        Ok(None)
    }

    fn field_of(&self, id: u32, path: &str) -> Result<Option<Field>> {
        let mut steps = STEPS_MAX;
        let (mut id, mut offset) = (id, 0u32);
        for name in path.split('.') {
            let (_, ty) = self.strip(id)?;
            if !ty.is_composite() {
                return Ok(None);
            }
            let Some((at, of)) = self.member(ty, name, DEPTH_MAX, &mut steps)? else {
                return Ok(None);
            };
            offset = offset
                .checked_add(at)
                .filter(|&at| at <= OFFSET_MAX)
                .ok_or(Error::Malformed("a distant member"))?;
            id = of;
        }
        Ok(Some(Field { offset, size: self.size(id)? }))
    }

    /// Where `path` (`a.b.c`: members of members, not through pointers) lies in `struct st`.
    pub fn field(&self, st: &str, path: &str) -> Result<Field> {
        let mut found: Option<Field> = None;
        for id in self.structs_named(st)? {
            match (self.field_of(id, path)?, found) {
                (Some(field), Some(other)) if field != other => {
                    return Err(Error::Ambiguous(format!("struct {st}.{path}")));
                }
                (Some(field), _) => found = Some(field),
                (None, _) => {}
            }
        }
        found.ok_or_else(|| Error::Missing(format!("struct {st}.{path}")))
    }

    /// As [`field`](Btf::field), for a member that must take `size` bytes.
    pub fn offset(&self, st: &str, path: &str, size: u32) -> Result<u32> {
        let field = self.field(st, path)?;
        if field.size != size {
            return Err(Error::Shape(format!(
                "struct {st}.{path} of {} bytes instead of {size}",
                field.size
            )));
        }
        Ok(field.offset)
    }

    /// Bytes of `struct st`.
    pub fn struct_size(&self, st: &str) -> Result<u32> {
        let mut found = None;
        for id in self.structs_named(st)? {
            let size = self.size(id)?;
            if found.is_some_and(|other| other != size) {
                return Err(Error::Ambiguous(format!("struct {st}")));
            }
            found = Some(size);
        }
        found.ok_or_else(|| Error::Missing(format!("struct {st}")))
    }

    /// The function of that name.
    pub fn function(&self, name: &str) -> Result<Function> {
        let mut found = None;
        // Cannot be cut off: `TYPES_MAX` is less than 2^32.
        for id in 1..self.starts.len() as u32 {
            let ty = self.ty(id)?;
            if ty.kind() == kind::FUNC && self.is_named(ty.name, name)? {
                let function = Function { id, in_module: id as usize >= self.module_from };
                if found.replace(function).is_some() {
                    return Err(Error::Ambiguous(format!("function {name}")));
                }
            }
        }
        found.ok_or_else(|| Error::Missing(format!("function {name}")))
    }
}

#[cfg(test)]
mod tests;
