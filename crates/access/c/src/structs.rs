//! What a program sees in memory: the structs of `kestrel.h`, field by field.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

use kestrel_client::native::FsRoom;
use kestrel_types::inode::Inode;

/// How a volume is opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kestrel_options {
    pub size: u32,
    pub flags: u32,
    pub token: *const c_char,
    pub who: *const c_char,
    pub deadline_ms: u64,
}

impl Default for kestrel_options {
    fn default() -> Self {
        let none = std::ptr::null();
        Self { size: 0, flags: 0, token: none, who: none, deadline_ms: 0 }
    }
}

/// How the log of a rank is opened.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kestrel_log_options {
    pub size: u32,
    pub flags: u32,
    pub sync_every_ms: u64,
}

/// Attributes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kestrel_attributes {
    pub ino: u64,
    pub size: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub reserved0: u32,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
    pub data_version: u64,
    pub reserved: [u64; 6],
}

impl kestrel_attributes {
    /// Those of an inode.
    pub fn of(inode: &Inode) -> Self {
        Self {
            ino: inode.ino,
            size: inode.size,
            mode: inode.st_mode(),
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            reserved0: 0,
            atime_ns: inode.atime,
            mtime_ns: inode.mtime,
            ctime_ns: inode.ctime,
            btime_ns: inode.btime,
            data_version: inode.data_change,
            reserved: [0; 6],
        }
    }
}

/// Room of a volume.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kestrel_room {
    pub block_bytes: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub name_max: u64,
    pub reserved: [u64; 3],
}

impl kestrel_room {
    /// As a volume tells it.
    pub fn of(room: &FsRoom) -> Self {
        let FsRoom { block_bytes, blocks, blocks_free, files, name_max } = *room;
        Self { block_bytes, blocks, blocks_free, files, name_max, reserved: [0; 3] }
    }
}

/// A name in a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kestrel_dirent {
    pub ino: u64,
    pub r#type: u32,
    pub name_len: u32,
    pub error: i32,
    pub reserved0: u32,
    pub attributes: kestrel_attributes,
    pub name: [c_char; 256],
}

/// The content of a file of a batch.
#[repr(C)]
pub struct kestrel_content {
    pub data: *const c_void,
    pub len: u64,
    pub error: i32,
    pub reserved0: u32,
    pub owner: *mut c_void,
}

/// A name in a directory of a batch.
#[repr(C)]
pub struct kestrel_name {
    pub name: *const c_char,
    pub ino: u64,
    pub name_len: u32,
    pub r#type: u32,
}

/// The names in a directory of a batch.
#[repr(C)]
pub struct kestrel_listing {
    pub names: *const kestrel_name,
    pub count: u64,
    pub error: i32,
    pub reserved0: u32,
    pub owner: *mut c_void,
}

/// What a submitted operation came to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kestrel_completion {
    pub user: u64,
    pub result: i64,
    pub operation: u32,
    pub reserved0: u32,
    pub reserved: u64,
}
