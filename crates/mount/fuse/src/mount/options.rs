//! Options of a mount.

use std::os::fd::RawFd;

/// Which reads change access times. The kernel only shows it: of FUSE the file system keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// None.
    None,
    /// The first after a change, and one a day.
    Relatime,
    /// All.
    Strict,
}

impl std::str::FromStr for Atime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "relatime" => Ok(Self::Relatime),
            "strict" => Ok(Self::Strict),
            _ => Err("none, relatime or strict".into()),
        }
    }
}

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What `df` and `/proc/mounts` show as the device.
    pub source: String,
    /// The type is shown as `fuse.` and this.
    pub subtype: String,
    /// Others than the mounting user may use it. For users other than root it needs
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// The kernel checks permissions by mode bits, from attributes that it fetches; without, the
    /// file system does.
    pub default_permissions: bool,
    /// No changes.
    pub read_only: bool,
    /// Set-user-ID bits do nothing. On by default, as for every FUSE mount; users other than root
    /// cannot turn it off.
    pub nosuid: bool,
    /// Device nodes cannot be opened. Likewise.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Directory changes are synchronous.
    pub dirsync: bool,
    /// How access times are kept, if an option says so.
    pub atime: Option<Atime>,
    /// Access times of directories are not kept. (The kernel leaves that to the file system.)
    pub nodiratime: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
    /// Largest READ in bytes; `None` is as large as INIT allows.
    pub max_read: Option<u32>,
    /// `fusermount3` stays around and unmounts when this process ends, however it ends.
    pub auto_unmount: bool,
    /// Mount through `fusermount3` even as root.
    pub use_helper: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "kestrel".into(),
            subtype: "kestrel".into(),
            allow_other: false,
            default_permissions: false,
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            sync: false,
            dirsync: false,
            atime: None,
            nodiratime: false,
            nosymfollow: false,
            max_read: None,
            auto_unmount: false,
            use_helper: false,
        }
    }
}

impl MountOptions {
    /// Applies one option in the form of `mount -o`; `false` when it is unknown or its value is
    /// wrong. What only concerns `/etc/fstab`, or wants what is so in any case, is accepted and
    /// ignored.
    pub fn set(&mut self, option: &str) -> bool {
        let (key, value) =
            option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
        match (key, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("suid", None) => self.nosuid = false,
            ("nosuid", None) => self.nosuid = true,
            ("dev", None) => self.nodev = false,
            ("nodev", None) => self.nodev = true,
            ("exec", None) => self.noexec = false,
            ("noexec", None) => self.noexec = true,
            ("sync", None) => self.sync = true,
            ("async", None) => self.sync = false,
            ("dirsync", None) => self.dirsync = true,
            ("noatime", None) => self.atime = Some(Atime::None),
            // The kernel's default.
            ("atime" | "relatime", None) => self.atime = Some(Atime::Relatime),
            ("strictatime", None) => self.atime = Some(Atime::Strict),
            ("norelatime", None) => self.give_up(Atime::Relatime, Atime::Strict),
            ("nostrictatime", None) => self.give_up(Atime::Strict, Atime::Relatime),
            ("atime", Some(mode)) => match mode.parse() {
                Ok(mode) => self.atime = Some(mode),
                Err(_) => return false,
            },
            ("diratime", None) => self.nodiratime = false,
            ("nodiratime", None) => self.nodiratime = true,
            ("symfollow", None) => self.nosymfollow = false,
            ("nosymfollow", None) => self.nosymfollow = true,
            ("allow_other", None) => self.allow_other = true,
            ("default_permissions", None) => self.default_permissions = true,
            ("auto_unmount", None) => self.auto_unmount = true,
            ("fsname", Some(name)) => self.source = name.into(),
            ("subtype", Some(name)) if !name.is_empty() => self.subtype = name.into(),
            ("max_read", Some(bytes)) => match bytes.parse() {
                Ok(bytes) if bytes >= 4096 => self.max_read = Some(bytes),
                _ => return false,
            },
            (
                "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "noowner",
                None,
            ) => {}
            ("group" | "nogroup" | "nofail" | "_netdev" | "silent" | "loud", None) => {}
            ("lazytime" | "nolazytime" | "iversion" | "noiversion" | "nomand", None) => {}
            ("acl" | "user_xattr" | "noquota", None) => {}
            _ if key.starts_with("x-") || key.starts_with("X-") || key.starts_with("comment") => {}
            _ => return false,
        }
        true
    }

    fn give_up(&mut self, mode: Atime, instead: Atime) {
        if self.atime == Some(mode) {
            self.atime = Some(instead);
        }
    }

    /// Flags of `mount(2)`.
    pub(super) fn flags(&self) -> libc::c_ulong {
        [
            (self.read_only, libc::MS_RDONLY),
            (self.nosuid, libc::MS_NOSUID),
            (self.nodev, libc::MS_NODEV),
            (self.noexec, libc::MS_NOEXEC),
            (self.sync, libc::MS_SYNCHRONOUS),
            (self.dirsync, libc::MS_DIRSYNC),
            (self.atime == Some(Atime::None), libc::MS_NOATIME),
            (self.atime == Some(Atime::Relatime), libc::MS_RELATIME),
            (self.atime == Some(Atime::Strict), libc::MS_STRICTATIME),
            (self.nodiratime, libc::MS_NODIRATIME),
            (self.nosymfollow, 256), // MS_NOSYMFOLLOW, Linux 5.10
        ]
        .into_iter()
        .filter_map(|(on, flag)| on.then_some(flag))
        .fold(0, |flags, flag| flags | flag)
    }

    /// The kernel's own options.
    pub(super) fn kernel_data(&self, fd: RawFd, uid: u32, gid: u32) -> String {
        let mut data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}");
        if let Some(bytes) = self.max_read {
            data += &format!(",max_read={bytes}");
        }
        for (on, name) in
            [(self.allow_other, ",allow_other"), (self.default_permissions, ",default_permissions")]
        {
            if on {
                data += name;
            }
        }
        data
    }

    /// The argument of `fusermount3 -o`.
    pub(super) fn helper_options(&self) -> String {
        // The helper splits at commas unless they are escaped.
        let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
        let mut all = format!("fsname={},subtype={}", escape(&self.source), escape(&self.subtype));
        if let Some(bytes) = self.max_read {
            all += &format!(",max_read={bytes}");
        }
        for (on, name) in [
            (self.allow_other, "allow_other"),
            (self.default_permissions, "default_permissions"),
            (self.auto_unmount, "auto_unmount"),
            (self.read_only, "ro"),
            (!self.nosuid, "suid"),
            (!self.nodev, "dev"),
            (self.noexec, "noexec"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.atime == Some(Atime::None), "noatime"),
        ] {
            if on {
                all.push(',');
                all += name;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_name() {
        let mut options = MountOptions::default();
        for option in [
            "ro",
            "suid",
            "noexec",
            "allow_other",
            "max_read=131072",
            "nofail",
            "x-systemd.automount",
        ] {
            assert!(options.set(option), "{option}");
        }
        assert!(
            options.read_only
                && !options.nosuid
                && options.nodev
                && options.noexec
                && options.allow_other
        );
        assert_eq!(options.flags(), libc::MS_RDONLY | libc::MS_NODEV | libc::MS_NOEXEC);
        assert_eq!(
            options.kernel_data(7, 1, 2),
            "fd=7,rootmode=40000,user_id=1,group_id=2,max_read=131072,allow_other"
        );
        for wrong in [
            "",
            "max_read",
            "max_read=1",
            "max_read=-1",
            "max_read=99999999999",
            "ro=1",
            "fd=3",
            "rot",
            "noacl",
        ] {
            assert!(!options.set(wrong), "{wrong}");
        }
    }

    /// Options that mount(8) documents for all file systems are taken, or ignored where they change
    /// nothing.
    #[test]
    fn options_that_mount_knows() {
        let before = MountOptions::default();
        for ignored in "defaults auto noauto user users nouser owner group nofail _netdev silent \
                        loud norelatime \
                        nostrictatime nolazytime noiversion nomand acl user_xattr \
                        x-systemd.automount X-mount.mkdir"
            .split_whitespace()
        {
            let mut options = before.clone();
            assert!(options.set(ignored) && options == before, "{ignored}");
        }
        let mut options = before;
        assert!(options.set("nodiratime") && options.flags() & libc::MS_NODIRATIME != 0);
        assert!(options.set("diratime") && options.flags() & libc::MS_NODIRATIME == 0);
        for (option, mode) in [
            ("noatime", Atime::None),
            ("relatime", Atime::Relatime),
            ("norelatime", Atime::Strict),
            ("nostrictatime", Atime::Relatime),
            ("nostrictatime", Atime::Relatime),
            ("lazytime", Atime::Relatime),
            ("strictatime", Atime::Strict),
            ("atime=none", Atime::None),
            ("norelatime", Atime::None),
            ("atime", Atime::Relatime),
            ("atime=strict", Atime::Strict),
        ] {
            assert!(options.set(option) && options.atime == Some(mode), "{option}");
        }
        assert!(!options.set("atime=always") && !options.set("noatime=1"));
        assert_eq!(options.flags() & (libc::MS_NOATIME | libc::MS_RELATIME), 0);
        assert!(options.flags() & libc::MS_STRICTATIME != 0);
    }

    #[test]
    fn helper_escapes_commas() {
        let options =
            MountOptions { source: r"a,b\c".into(), read_only: true, ..MountOptions::default() };
        assert_eq!(options.helper_options(), r"fsname=a\,b\\c,subtype=kestrel,ro");
    }
}
