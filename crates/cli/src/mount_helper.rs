//! Being run by mount(8), for `/etc/fstab` and `mount -o remount`.
//!
//! mount(8) leaves the type `fuse.kestrel` to libfuse's helper `mount.fuse`, which runs `kestrel
//! SOURCE DIR -o OPTIONS`. Where `/sbin/mount.fuse.kestrel` is a link to this program, it runs
//! that: `mount.fuse.kestrel SOURCE DIR [-fnsvrw] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. Both
//! become `kestrel mount SOURCE DIR -o OPTIONS`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The command line as a person would give it. `None`: mount(8) only tries what it would do (`-f`).
pub fn arguments(given: Vec<OsString>) -> Option<Vec<OsString>> {
    let helper = given.first().is_some_and(is_helper);
    let is_source =
        |arg: &OsString| arg.as_bytes().contains(&b'/') && !arg.as_bytes().starts_with(b"-");
    if given.len() < 3 || !(helper || is_source(&given[1])) {
        return Some(given);
    }
    let mut given = given.into_iter();
    let mut out: Vec<OsString> = given.next().into_iter().collect();
    out.push("mount".into());
    while let Some(arg) = given.next() {
        match arg.as_bytes() {
            b"-o" => out.extend([Some(arg), given.next()].into_iter().flatten()),
            b"-N" | b"-t" if helper => drop(given.next()),
            letters if helper && letters.starts_with(b"-") && letters.len() > 1 => {
                if letters.contains(&b'f') {
                    return None;
                }
                if letters.contains(&b'r') {
                    out.extend(["-o".into(), "ro".into()]);
                }
            }
            _ => out.push(arg),
        }
    }
    Some(out)
}

/// Whether the program was run by the name of a helper of mount(8).
fn is_helper(name: &OsString) -> bool {
    Path::new(name).file_name().is_some_and(|name| name.as_bytes().starts_with(b"mount."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<String> {
        let args = arguments(line.split(' ').map(OsString::from).collect())?;
        Some(args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    /// Each way in which mount(8) runs this program, and command lines that are none of its.
    #[test]
    fn command_lines_of_mount() {
        for (line, becomes) in [
            ("kestrel /data/vol /mnt -o ro,remount", "kestrel mount /data/vol /mnt -o ro,remount"),
            ("kestrel kestrel://a:1/v /mnt", "kestrel mount kestrel://a:1/v /mnt"),
            (
                "/sbin/mount.fuse.kestrel /data/vol /mnt -sv -o rw",
                "/sbin/mount.fuse.kestrel mount /data/vol /mnt -o rw",
            ),
            ("mount.kestrel vol /mnt -r -N 7 -t kestrel", "mount.kestrel mount vol /mnt -o ro"),
            ("kestrel mount /data/vol /mnt -o ro", "kestrel mount /data/vol /mnt -o ro"),
            ("kestrel status /mnt", "kestrel status /mnt"),
            ("kestrel --token-file /t status /mnt", "kestrel --token-file /t status /mnt"),
            ("kestrel /data/vol", "kestrel /data/vol"),
            ("kestrel", "kestrel"),
        ] {
            assert_eq!(of(line).as_deref(), Some(becomes));
        }
        assert_eq!(of("mount.kestrel /data/vol /mnt -f"), None);
    }
}
