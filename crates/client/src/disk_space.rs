//! How much of a disk a volume takes for itself.

use std::path::Path;

use kestrel_engine::embedded::EmbeddedOptions;

/// Most that is left free for metadata on the disk that holds the data, bytes.
const DATA_RESERVE_MAX: u64 = 192 << 20;

/// Sizes of the metadata log that suit the disk: on a small one the log must not take most of it.
pub fn fitting_options(dir: &Path) -> EmbeddedOptions {
    const MIB: u64 = 1 << 20;
    let defaults = EmbeddedOptions::default();
    let Some(disk_bytes) = disk_bytes(dir) else { return defaults };
    EmbeddedOptions {
        segment_bytes: (disk_bytes / 128).clamp(MIB, defaults.segment_bytes),
        log_bytes_max: (disk_bytes / 16).clamp(4 * MIB, defaults.log_bytes_max),
        // Half of what file data leaves free, so that data stops before metadata does.
        reserve_bytes: data_reserve(disk_bytes) / 2,
        ..defaults
    }
}

/// Bytes of a disk that file data leaves free.
pub fn data_reserve(disk_bytes: u64) -> u64 {
    (disk_bytes / 32).min(DATA_RESERVE_MAX)
}

/// Bytes of its disk that work besides serving (the copies an online check makes) leaves free in a
/// volume's directory.
pub fn scratch_reserve(dir: &Path) -> u64 {
    disk_bytes(dir).map_or(0, data_reserve)
}

/// Bytes that such work may take in a volume's directory at present.
pub fn scratch_room(dir: &Path) -> u64 {
    let room = disk(dir).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    room.saturating_sub(scratch_reserve(dir))
}

/// Size of the file system that a directory lies on, bytes.
pub fn disk_bytes(dir: &Path) -> Option<u64> {
    disk(dir).map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize))
}

fn disk(dir: &Path) -> Option<libc::statvfs> {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: statvfs is plain data for which zeros are valid.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call, and the path ends in NUL.
    let result = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) };
    (result == 0).then_some(found)
}
