//! Offsets of the kernel's structures that the program reads.

use crate::btf::{Btf, Error, Result};

/// The largest part of a structure that is copied in one piece.
pub const SPAN_BYTES_MAX: i32 = 160;

/// A part of a structure that holds all members that are needed: one copy instead of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it starts in the structure.
    pub start: i32,
    /// Bytes.
    pub bytes: i32,
}

impl Span {
    /// The part with members at these offsets, of 8 bytes at most.
    fn over(members: &[i32]) -> Result<Span> {
        let (start, end) = members
            .iter()
            .fold((i32::MAX, 0), |(start, end), &at| (start.min(at), end.max(at + 8)));
        let start = start & !7;
        let bytes = end - start;
        if bytes > SPAN_BYTES_MAX {
            return Err(Error::Shape(format!("structure with members {bytes} bytes apart")));
        }
        Ok(Span { start, bytes })
    }
}

/// Where the program looks. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// `fuse_req.in.h`: the header as the server will read it.
    pub req_header: i32,
    /// `fuse_req.fm`.
    pub req_mount: i32,
    /// `fuse_args.opcode` and `.nodeid`.
    pub args_opcode: i32,
    #[allow(missing_docs)]
    pub args_nodeid: i32,
    /// `fuse_mount.fc` and `.sb`, and what holds both.
    pub mount: Span,
    #[allow(missing_docs)]
    pub mount_conn: i32,
    #[allow(missing_docs)]
    pub mount_sb: i32,
    /// `fuse_conn.dev` and `.pid_ns`.
    pub conn_dev: i32,
    #[allow(missing_docs)]
    pub conn_pid_ns: i32,
    /// From `fuse_inode.inode` to `fuse_inode.nodeid`.
    pub inode_nodeid: i32,
    /// `task_struct.nameidata`.
    pub task_nameidata: i16,
    /// `task_struct.thread_pid`.
    pub task_pid: i16,
    /// `task_struct.worker_private`: set for kernel threads and io_uring workers. Their entry
    /// registers mean nothing.
    pub task_worker: i16,
    /// `nameidata.path.dentry`, `.flags`, `.depth`, `.last.name`, `.last.len`, and what holds them
    /// all.
    pub walk: Span,
    #[allow(missing_docs)]
    pub walk_dentry: i32,
    #[allow(missing_docs)]
    pub walk_flags: i32,
    #[allow(missing_docs)]
    pub walk_depth: i32,
    #[allow(missing_docs)]
    pub walk_name: i32,
    #[allow(missing_docs)]
    pub walk_name_bytes: i32,
    /// `dentry.d_sb` and `.d_inode`, and what holds both.
    pub dentry: Span,
    #[allow(missing_docs)]
    pub dentry_sb: i32,
    #[allow(missing_docs)]
    pub dentry_inode: i32,
    /// `pid.level` and `.numbers`.
    pub pid_level: i32,
    #[allow(missing_docs)]
    pub pid_numbers: i32,
    /// Bytes of `struct upid`, an element of `pid.numbers`: a power of two.
    pub upid_bytes: i32,
    /// `upid.nr` and `.ns`.
    pub upid_nr: i32,
    #[allow(missing_docs)]
    pub upid_ns: i32,
    /// `pid_namespace.level`.
    pub pid_ns_level: i32,
    /// In `pt_regs`: the system call's number, its second and its third argument.
    pub regs_call: i16,
    #[allow(missing_docs)]
    pub regs_args: [i16; 2],
    /// Bytes of the system call's number: 8 on x86-64, 4 on arm64.
    pub regs_call_bytes: u32,
}

impl KernelLayout {
    /// Finds them in the running kernel's BTF, `fuse` included. What only one way of attaching
    /// needs is looked up all the same: every kernel that this works with has it.
    pub fn find(btf: &Btf<'_>) -> Result<KernelLayout> {
        // `btf` bounds offsets to 1 MiB.
        let at = |st: &str, path: &str, size| btf.offset(st, path, size).map(|at| at as i32);
        let upid_bytes = btf.struct_size("upid")?;
        if !upid_bytes.is_power_of_two() || upid_bytes > 64 {
            return Err(Error::Shape(format!("struct upid of {upid_bytes} bytes")));
        }
        let regs = Registers::find(btf)?;
        // Members that are loaded directly must be within reach of an instruction.
        let task = |member: &str| {
            i16::try_from(at("task_struct", member, 8)?)
                .map_err(|_| Error::Malformed("a huge task"))
        };
        let (mount_conn, mount_sb) = (at("fuse_mount", "fc", 8)?, at("fuse_mount", "sb", 8)?);
        let walk_dentry = at("nameidata", "path.dentry", 8)?;
        let (walk_flags, walk_depth) = (at("nameidata", "flags", 4)?, at("nameidata", "depth", 4)?);
        let (walk_name, walk_name_bytes) =
            (at("nameidata", "last.name", 8)?, at("nameidata", "last.len", 4)?);
        let (dentry_sb, dentry_inode) = (at("dentry", "d_sb", 8)?, at("dentry", "d_inode", 8)?);
        Ok(KernelLayout {
            req_header: btf.field("fuse_req", "in.h")?.offset as i32,
            req_mount: at("fuse_req", "fm", 8)?,
            args_opcode: at("fuse_args", "opcode", 4)?,
            args_nodeid: at("fuse_args", "nodeid", 8)?,
            mount: Span::over(&[mount_conn, mount_sb])?,
            mount_conn,
            mount_sb,
            conn_dev: at("fuse_conn", "dev", 4)?,
            conn_pid_ns: at("fuse_conn", "pid_ns", 8)?,
            inode_nodeid: at("fuse_inode", "nodeid", 8)?
                - btf.field("fuse_inode", "inode")?.offset as i32,
            task_nameidata: task("nameidata")?,
            task_pid: task("thread_pid")?,
            task_worker: task("worker_private").or_else(|_| task("pf_io_worker"))?,
            walk: Span::over(&[walk_dentry, walk_flags, walk_depth, walk_name, walk_name_bytes])?,
            walk_dentry,
            walk_flags,
            walk_depth,
            walk_name,
            walk_name_bytes,
            dentry: Span::over(&[dentry_sb, dentry_inode])?,
            dentry_sb,
            dentry_inode,
            pid_level: at("pid", "level", 4)?,
            pid_numbers: btf.field("pid", "numbers")?.offset as i32,
            upid_bytes: upid_bytes as i32,
            upid_nr: at("upid", "nr", 4)?,
            upid_ns: at("upid", "ns", 8)?,
            pid_ns_level: at("pid_namespace", "level", 4)?,
            regs_call: regs.call,
            regs_args: regs.args,
            regs_call_bytes: regs.call_bytes,
        })
    }
}

/// Which registers a system call leaves its number and arguments in.
struct Registers {
    call: i16,
    args: [i16; 2],
    call_bytes: u32,
}

impl Registers {
    fn find(btf: &Btf<'_>) -> Result<Registers> {
        let wild = |_| Error::Malformed("a distant register");
        let at = |name: &str, size| i16::try_from(btf.offset("pt_regs", name, size)?).map_err(wild);
        if cfg!(target_arch = "aarch64") {
            // x0 is the first argument.
            let x0 = i16::try_from(btf.field("pt_regs", "regs")?.offset).map_err(wild)?;
            Ok(Registers { call: at("syscallno", 4)?, args: [x0 + 8, x0 + 16], call_bytes: 4 })
        } else {
            Ok(Registers {
                call: at("orig_ax", 8)?,
                args: [at("si", 8)?, at("dx", 8)?],
                call_bytes: 8,
            })
        }
    }
}
