//! Where a mount of a served volume keeps its control socket, lock and log: it has no volume
//! directory of its own.
//!
//! A directory for each mount point, below `/run/kestrel` for the superuser, below
//! `$XDG_RUNTIME_DIR/kestrel` or `/tmp/kestrel-UID` for others; `KESTREL_RUNTIME_DIR` names another
//! place. Only its owner may enter.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Name of the environment variable that names the place.
const VARIABLE: &str = "KESTREL_RUNTIME_DIR";

/// Longest part of a mount point that is readable in the name of its directory, bytes.
const READABLE_MAX: usize = 64;

fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn root() -> PathBuf {
    let named =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = named(VARIABLE) {
        return dir;
    }
    match (user(), named("XDG_RUNTIME_DIR")) {
        (0, _) => "/run/kestrel".into(),
        (_, Some(dir)) => dir.join("kestrel"),
        (user, None) => format!("/tmp/kestrel-{user}").into(),
    }
}

/// Directory of the mount at `mount_point`, an absolute path.
pub fn dir_of(mount_point: &Path) -> PathBuf {
    let bytes = mount_point.as_os_str().as_bytes();
    let readable = |byte: &u8| {
        if byte.is_ascii_alphanumeric() || *byte == b'.' { char::from(*byte) } else { '-' }
    };
    let text: String = bytes.iter().skip(1).take(READABLE_MAX).map(readable).collect();
    // Two mount points may read the same.
    root().join(format!("{text}-{:08x}", crc32c::crc32c(bytes)))
}

/// Makes it, if it is not there.
///
/// # Errors
/// In words.
pub fn make(mount_point: &Path) -> Result<PathBuf, String> {
    let dir = dir_of(mount_point);
    let root = root();
    for made in [&root, &dir] {
        let fail = |why: &dyn std::fmt::Display| {
            format!("{}: {why}; set {VARIABLE} to a directory of your own", made.display())
        };
        match DirBuilder::new().mode(0o700).create(made) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => return Err(fail(&why)),
            _ => {}
        }
        let meta = fs::symlink_metadata(made).map_err(|why| fail(&why))?;
        if !meta.is_dir() || meta.uid() != user() {
            return Err(fail(&"somebody else's"));
        }
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_point_has_a_directory_of_its_own() {
        let name = |path: &str| {
            dir_of(Path::new(path)).file_name().map(|n| n.to_string_lossy().into_owned())
        };
        let one = name("/mnt/data").unwrap_or_default();
        assert!(one.starts_with("mnt-data-"), "{one}");
        assert_ne!(name("/mnt/data"), name("/mnt-data"));
        assert!(name(&format!("/{}", "x".repeat(5000))).unwrap_or_default().len() < 100);
    }
}
