//! Being run by mount(8) and umount(8), for `/etc/fstab`, `mount -t kestrel`, `mount -o remount`
//! and `umount`.
//!
//! For the type `kestrel` mount(8) runs `/sbin/mount.kestrel SOURCE DIR [-fnsvrw] [-N NAMESPACE]
//! [-o OPTIONS] [-t TYPE]`, a link to this program, and for `fuse.kestrel`, the type of a mount
//! that is there, `mount.fuse.kestrel`. Without such a link it leaves the type `fuse.kestrel` to
//! libfuse's helper `mount.fuse`, which runs `kestrel SOURCE DIR -o OPTIONS`. All become `kestrel
//! mount SOURCE DIR -o OPTIONS`. In OPTIONS the flags of `kestrel mount` stand without their
//! dashes: `cache-dir=/ssd` is `--cache-dir=/ssd`. As mount(8) says nothing for `suid` and `dev`, a
//! mount has them unless it says `nosuid` and `nodev`.
//!
//! umount(8) runs `/sbin/umount.fuse.kestrel DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`, which becomes
//! `kestrel umount DIR`: umount(8) then returns when everything is stored. It looks for a helper of
//! the type without what stands behind the dot, unless its table has an entry, so a mount that
//! mount(8) has made is put into that table.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode, Stdio};

use clap::{Arg, Command};
use kestrel_fuse::mount::find;

/// Flags of `kestrel mount` that are none of mount(8)'s options: a mount from `/etc/fstab` does not
/// stay in the foreground, and `atime` is an option of its own.
const NO_OPTIONS: [&str; 5] = ["foreground", "atime", "help", "help-all", "version"];

/// What mount(8) means when it says neither, and cannot say: it takes the words out of the options.
const DEFAULTS: &[u8] = b"suid,dev";

/// Which program runs this one, by the name that it gives it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Helper {
    Mount,
    Umount,
    Neither,
}

/// The command line as a person would give it. `None`: mount(8) only tries what it would do (`-f`).
pub fn arguments(given: Vec<OsString>, kestrel: &Command) -> Option<Vec<OsString>> {
    let helper = given.first().map_or(Helper::Neither, helper_of);
    if helper == Helper::Umount {
        return Some(umount(given));
    }
    let is_helper = helper == Helper::Mount;
    let is_source =
        |arg: &OsString| arg.as_bytes().contains(&b'/') && !arg.as_bytes().starts_with(b"-");
    if given.len() < 3 || !(is_helper || is_source(&given[1])) {
        return Some(given);
    }
    let flags = flags_of_mount(kestrel);
    let mut given = given.into_iter();
    let mut out: Vec<OsString> = given.next().into_iter().collect();
    out.push("mount".into());
    while let Some(arg) = given.next() {
        match arg.as_bytes() {
            b"-o" => {
                if let Some(options) = given.next() {
                    out.extend(as_flags(&options, &flags, is_helper));
                }
            }
            b"-N" | b"-t" if is_helper => drop(given.next()),
            letters if is_helper && letters.starts_with(b"-") && letters.len() > 1 => {
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

/// Runs this program with a command line that [`arguments`] has made of the one that it was
/// `given`: what it starts again in the background then has the command line of a person.
pub fn run(given: &[OsString], arguments: &[OsString]) -> ExitCode {
    let mut kestrel = process::Command::new("/proc/self/exe");
    kestrel.arg0("kestrel").args(&arguments[1..]);
    let words = || arguments.iter().flat_map(|word| word.as_bytes().split(|byte| *byte == b','));
    let is_new = words().all(|word| word != b"remount");
    let is_mount = given.first().is_some_and(|name| helper_of(name) == Helper::Mount) && is_new;
    let Some(dir) = given.get(2).filter(|_| is_mount) else {
        eprintln!("kestrel: cannot run itself: {}", kestrel.exec());
        return ExitCode::FAILURE;
    };
    match kestrel.status() {
        Ok(status) if status.success() => {
            if let Err(why) = tell_umount(Path::new(dir)) {
                eprintln!(
                    "kestrel mount: {}: it is mounted, but umount(8) will not wait until \
                     everything is stored: {why}; use kestrel umount",
                    dir.display()
                );
            }
            ExitCode::SUCCESS
        }
        Ok(status) => {
            ExitCode::from(status.code().and_then(|code| code.try_into().ok()).unwrap_or(1))
        }
        Err(why) => {
            eprintln!("kestrel: cannot run itself: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Has mount(8) keep in its table that umount(8) of this mount runs a helper: a mount that it only
/// pretends to make (`-f`), without a helper (`-i`), as libfuse does for its own table.
fn tell_umount(dir: &Path) -> Result<(), String> {
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        // The table is the superuser's. Others unmount with kestrel umount.
        return Ok(());
    }
    let entry = find(dir).map_err(|why| why.to_string())?.ok_or("nothing is mounted there")?;
    let told = process::Command::new("mount")
        .args(["-i", "-f", "--no-canonicalize", "-t", "fuse.kestrel", "-o", "uhelper=fuse.kestrel"])
        .args([entry.source.as_os_str(), entry.mount_point.as_os_str()])
        .stdin(Stdio::null())
        .output();
    match told {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(why) => Err(format!("mount(8): {why}")),
    }
}

fn helper_of(name: &OsString) -> Helper {
    let name = Path::new(name).file_name().unwrap_or_default().as_bytes();
    if name.starts_with(b"mount.") {
        Helper::Mount
    } else if name.starts_with(b"umount.") {
        Helper::Umount
    } else {
        Helper::Neither
    }
}

/// What umount(8) wants. The letters that change nothing here say how it keeps its own table of
/// mounts, or that it is to be talkative.
fn umount(given: Vec<OsString>) -> Vec<OsString> {
    let mut given = given.into_iter();
    let mut out: Vec<OsString> = given.next().into_iter().collect();
    out.push("umount".into());
    while let Some(arg) = given.next() {
        match arg.as_bytes() {
            b"-N" | b"-t" => drop(given.next()),
            letters if letters.starts_with(b"-") && letters.len() > 1 => {
                if letters.contains(&b'l') {
                    out.push("--lazy".into());
                } else if letters.contains(&b'f') {
                    out.push("--force".into());
                }
            }
            _ => out.push(arg),
        }
    }
    out
}

/// The flags of `kestrel mount` that may stand among mount(8)'s options, in the order of its help.
pub fn flags_of_mount(kestrel: &Command) -> Vec<&Arg> {
    let mount = kestrel.get_subcommands().find(|verb| verb.get_name() == "mount");
    let own = mount.into_iter().flat_map(Command::get_arguments);
    let all = own.chain(kestrel.get_arguments()).filter(|arg| !arg.is_hide_set());
    all.filter(|arg| arg.get_long().is_some_and(|long| !NO_OPTIONS.contains(&long))).collect()
}

/// Options of mount(8), with those that are flags of this program as flags, and those that mount(8)
/// means by itself if it gives them to its helper.
fn as_flags(options: &OsStr, flags: &[&Arg], is_helper: bool) -> Vec<OsString> {
    let is_new = || options.as_bytes().split(|byte| *byte == b',').all(|word| word != b"remount");
    let (mut out, mut rest) = (Vec::new(), Vec::new());
    // What stands behind them counts.
    rest.extend((is_helper && is_new()).then_some(DEFAULTS));
    for option in options.as_bytes().split(|byte| *byte == b',') {
        let name = option.split(|byte| *byte == b'=').next().unwrap_or_default();
        if name == b"uhelper" {
            // On a remount mount(8) tells what `tell_umount` has put into its table.
            continue;
        }
        match flags.iter().any(|flag| flag.get_long().is_some_and(|long| long.as_bytes() == name)) {
            true => out.push(OsString::from_vec([b"--", option].concat())),
            false => rest.push(option),
        }
    }
    if !rest.is_empty() {
        out.extend(["-o".into(), OsString::from_vec(rest.join(&b','))]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<String> {
        let given = line.split(' ').map(OsString::from).collect();
        let args = arguments(given, &crate::front::command())?;
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
                "/sbin/mount.fuse.kestrel mount /data/vol /mnt -o suid,dev,rw",
            ),
            ("mount.kestrel vol /mnt -r -N 7 -t kestrel", "mount.kestrel mount vol /mnt -o ro"),
            (
                "mount.kestrel kestrel://a/v /mnt -o rw,_netdev,wait=5m,token-file=/t,atime=strict",
                "mount.kestrel mount kestrel://a/v /mnt --wait=5m --token-file=/t -o \
                 suid,dev,rw,_netdev,atime=strict",
            ),
            (
                "mount.kestrel v /mnt -o nosuid,no-shortcut,foreground",
                "mount.kestrel mount v /mnt --no-shortcut -o suid,dev,nosuid,foreground",
            ),
            (
                "mount.fuse.kestrel v /mnt -o ro,remount,uhelper=fuse.kestrel",
                "mount.fuse.kestrel mount v /mnt -o ro,remount",
            ),
            ("kestrel mount /data/vol /mnt -o ro", "kestrel mount /data/vol /mnt -o ro"),
            ("kestrel mount /v /mnt -o wait=5m", "kestrel mount /v /mnt -o wait=5m"),
            ("kestrel status /mnt", "kestrel status /mnt"),
            ("kestrel --token-file /t status /mnt", "kestrel --token-file /t status /mnt"),
            ("kestrel /data/vol", "kestrel /data/vol"),
            ("kestrel", "kestrel"),
        ] {
            assert_eq!(of(line).as_deref(), Some(becomes));
        }
        assert_eq!(of("mount.kestrel /data/vol /mnt -f"), None);
    }

    /// Each way in which umount(8) runs this program.
    #[test]
    fn command_lines_of_umount() {
        for (line, becomes) in [
            ("/sbin/umount.fuse.kestrel /mnt", "/sbin/umount.fuse.kestrel umount /mnt"),
            ("umount.fuse.kestrel /mnt -fv", "umount.fuse.kestrel umount /mnt --force"),
            ("umount.fuse.kestrel /mnt -l -f", "umount.fuse.kestrel umount /mnt --lazy --force"),
            (
                "umount.fuse.kestrel /mnt -nr -t fuse.kestrel -N 7",
                "umount.fuse.kestrel umount /mnt",
            ),
        ] {
            assert_eq!(of(line).as_deref(), Some(becomes));
        }
    }
}
