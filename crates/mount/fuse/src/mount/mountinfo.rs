//! `/proc/self/mountinfo`: which file systems are mounted where.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// One mount of this process's name space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the mount.
    pub id: u64,
    /// Number of the mount it is mounted on.
    pub parent: u64,
    /// Major and minor device number, `st_dev` of its files. The minor names a FUSE connection for
    /// [`abort`](super::abort).
    pub device: (u32, u32),
    /// Which directory of the file system is mounted (not `/` for bind mounts).
    pub root: PathBuf,
    /// Where.
    pub mount_point: PathBuf,
    /// Options of the mount.
    pub options: String,
    /// Type, as `fuse.kestrel`.
    pub fs_type: String,
    /// Device or other source.
    pub source: OsString,
    /// Options of the file system.
    pub super_options: String,
}

impl MountEntry {
    /// Whether it is any FUSE file system.
    pub fn is_fuse(&self) -> bool {
        self.fs_type == "fuse" || self.fs_type.starts_with("fuse.")
    }

    /// Whether nothing can be changed through it.
    pub fn is_read_only(&self) -> bool {
        [&self.options, &self.super_options]
            .into_iter()
            .any(|options| options.split(',').any(|one| one == "ro"))
    }

    /// Whether it is one of ours.
    pub fn is_kestrel(&self) -> bool {
        self.fs_type == "fuse.kestrel"
    }
}

/// All mounts, in the kernel's order.
pub fn mounts() -> Result<Vec<MountEntry>> {
    const PATH: &str = "/proc/self/mountinfo";
    let text = fs::read(PATH).map_err(|e| Error::new(format!("cannot read {PATH}"), e))?;
    Ok(parse(&text))
}

/// The mount on top of exactly this directory.
pub(super) fn top(dir: &Path) -> Result<Option<MountEntry>> {
    Ok(top_of(&mounts()?, dir).cloned())
}

/// As [`top`], among the given ones.
pub(super) fn top_of<'a>(mounts: &'a [MountEntry], dir: &Path) -> Option<&'a MountEntry> {
    let here = || mounts.iter().filter(|mount| mount.mount_point == dir);
    // Several mounts on one directory lie on each other; the top one is the parent of none.
    here().find(|mount| here().all(|other| other.parent != mount.id || other.id == mount.id))
}

/// Parses the file; lines that make no sense are left out.
fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point options shared:1 master:2 - type source super-options`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let mut device = fields.next()?.splitn(2, |byte| *byte == b':');
    let device = (number(device.next()?)?, number(device.next()?)?);
    let root = unescape(fields.next()?).into();
    let mount_point = unescape(fields.next()?).into();
    let options = lossy(fields.next()?);
    // Optional fields end with a lone hyphen.
    fields.by_ref().find(|field| *field == b"-")?;
    let fs_type = lossy(fields.next()?);
    let source = unescape(fields.next()?);
    let super_options = fields.next().map(lossy).unwrap_or_default();
    Some(MountEntry {
        id,
        parent,
        device,
        root,
        mount_point,
        options,
        fs_type,
        source,
        super_options,
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn lossy(field: &[u8]) -> String {
    unescape(field).to_string_lossy().into_owned()
}

/// Undoes the kernel's escapes: a backslash and three octal digits, for space, tab, newline,
/// backslash and `#`.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:35 / /mnt/a\040b\134c rw,nosuid - fuse.kestrel /data/vol\011x rw,user_id=0
41 40 0:36 / /mnt/a\040b\134c rw - fuse.other src rw
42 22 0:37 /sub /mnt/\1 rw master:3 propagate_from:2 - fuse source
garbage
43 22 0: / /x rw - fuse s rw
44 22 0:40 / /x rw fuse s rw";

    #[test]
    fn parses_escapes_and_optional_fields() {
        let all = parse(SAMPLE.as_bytes());
        assert_eq!(all.iter().map(|m| m.id).collect::<Vec<_>>(), [22, 40, 41, 42]);
        assert_eq!(all[1].mount_point, Path::new(r"/mnt/a b\c"));
        assert_eq!(all[1].source, "/data/vol\tx");
        assert_eq!(all[1].device, (0, 35));
        assert!(all[1].is_kestrel() && all[2].is_fuse() && !all[0].is_fuse());
        assert_eq!(
            (all[3].mount_point.to_str(), all[3].super_options.as_str()),
            (Some(r"/mnt/\1"), "")
        );
    }

    #[test]
    fn the_top_mount_covers_the_others() {
        let dir = Path::new(r"/mnt/a b\c");
        let mut all = parse(SAMPLE.as_bytes());
        assert_eq!(top_of(&all, dir).map(|m| m.id), Some(41));
        all.reverse();
        assert_eq!(top_of(&all, dir).map(|m| m.id), Some(41));
        assert_eq!(top_of(&all, Path::new("/mnt")), None);
    }

    #[test]
    fn reads_the_real_file() {
        assert!(mounts().unwrap().iter().any(|mount| mount.mount_point == Path::new("/")));
    }
}
