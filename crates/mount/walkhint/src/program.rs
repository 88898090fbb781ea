//! The program that runs in the kernel, instruction by instruction.
//!
//! | file | |
//! | --- | --- |
//! | `layout` | offsets of the kernel's structures that the program reads |
//!
//! It runs whenever a FUSE request is sent, by any mount of the machine, in the thread that waits
//! for the answer, and before the server can see the request. What it does, as C would put it:
//!
//! ```c
//! if (req->in.h.opcode != FUSE_LOOKUP)             return;   // most requests end here
//! if (req->fm->fc->dev != control.dev)             return;   // another mount
//! slot = &slots[(req->in.h.unique / 2) % SLOTS];
//! if (slot->sequence is odd, or is taken)          return;   // no hint; counted in control.busy
//! slot->sequence++;                                          // odd: being written
//! slot->{unique, nodeid, tid, opcode} = req->in.h.{unique, nodeid, pid, opcode};
//! slot->state = OTHER;
//! if (!current->worker_private)                              // not for an io_uring worker
//!     slot->{call, args} = number and arguments of the system call this thread is in;
//! nd = current->nameidata;                                   // this thread's path walk, if any
//! if (nd && nd->path.dentry->d_sb == req->fm->sb             // on this mount, no overlay above
//!        && nodeid of nd->path.dentry->d_inode == req->in.h.nodeid) {  // in this directory
//!     slot->{flags, depth, component_bytes} = nd->{flags, depth, last.len};
//!     slot->text = copy of the string nd->last.name;         // this component and the rest
//!     slot->state = WALK;
//! }
//! slot->sequence++;                                          // even: at rest
//! ```
//!
//! The walk's *name* is compared by the reader, which has the request's name.
//!
//! `current->nameidata` is the innermost walk of the thread: a walk that begins within another one
//! (an overlay that looks into its layers) takes its place and puts it back at the end, and when
//! the last one has ended it is null. So it never points to a walk that is over; whether the one it
//! points to is at the name of this request is what the comparisons say.
//!
//! # Why it can do no harm
//!
//! It only reads the kernel's memory, through a helper that survives bad addresses, and writes only
//! its two maps. The verifier proves that and that it ends; it has no loop. It runs half a
//! microsecond in a LOOKUP of our mount and less than 0.1 µs in other FUSE requests. It goes away
//! when the process that loaded it does, however that ends.
//!
//! # Two places to run at
//!
//! The tracepoint `fuse_request_send` (Linux 6.12) hands over the `struct fuse_req`. Before Linux
//! 6.18 it fires before the request has its number (`unique` is 0): then the slot is chosen by the
//! thread id that the header carries.
//!
//! Kernels without the tracepoint call `fuse_simple_request(fuse_mount, fuse_args)` for every
//! LOOKUP, and a program can be attached to the entry of a function (fentry). There is no header
//! yet; the thread id that it will carry, which is that of the connection's pid namespace, is
//! worked out as the kernel does it.

use crate::asm::{Assembler, Error, Helper, If, Label, Reg, Width};
use crate::slots::{OPCODE_LOOKUP, Record, SLOTS, STATE_OTHER, STATE_WALK, TEXT_BYTES};

mod layout;

use layout::SPAN_BYTES_MAX;
pub use layout::{KernelLayout, Span};

/// Where the program runs, which decides what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// Raw tracepoint `fuse_request_send(fuse_req)`.
    Tracepoint {
        /// Use the request's number where there is one. Without, it is as on kernels that have none
        /// here: for tests.
        numbered: bool,
    },
    /// Entry of a function: its argument number `mount` is the `fuse_mount`, and the next one the
    /// `fuse_args`.
    Function {
        /// Counted from 0.
        mount: u8,
    },
}

/// The other map: one entry, through which the server sets what the program records.
#[repr(C)]
pub struct Control {
    /// Device number of our mount as the kernel writes it (major << 20 | minor). 0: record nothing.
    pub dev: u64,
    /// Lookups that were not recorded because their slot was being written.
    pub busy: u64,
}

/// Field of a slot.
macro_rules! slot {
    ($field:ident) => {
        std::mem::offset_of!(Record, $field) as i16
    };
}

// The stack, downwards from its top. `struct fuse_in_header` is part of the FUSE protocol and so
// the same everywhere.
const HEADER: i16 = -40;
const HEADER_OPCODE: i16 = HEADER + 4;
const HEADER_UNIQUE: i16 = HEADER + 8;
const HEADER_NODEID: i16 = HEADER + 16;
const HEADER_TID: i16 = HEADER + 32;
const HEADER_BYTES: i32 = 40;
/// What was read last.
const SCRATCH: i16 = -48;
/// Key of the slot, 4 bytes.
const KEY: i16 = -56;
/// The slot's sequence number before the program took it.
const SEQUENCE: i16 = -64;
/// Copy of a part of a structure.
const COPY: i16 = SEQUENCE - SPAN_BYTES_MAX as i16;

/// Registers that survive calls, by what they hold: first the mount, later its super block; the
/// walk, later its text.
const WALK: Reg = Reg::R6;
const TEXT: Reg = Reg::R6;
const MOUNT: Reg = Reg::R7;
const SUPER_BLOCK: Reg = Reg::R7;
const SLOT: Reg = Reg::R8;
const OBJECT: Reg = Reg::R9;

/// The program, ready to load. The maps by their descriptors.
pub fn assemble(
    layout: &KernelLayout,
    entry: EntryPoint,
    slots_fd: i32,
    control_fd: i32,
) -> Result<Vec<u64>, Error> {
    let mut asm = Assembler::new();
    let end = asm.label();
    let mut writer = Writer { asm, layout, slots_fd, control_fd, end };
    match entry {
        EntryPoint::Tracepoint { numbered } => {
            writer.header_of_request();
            if !numbered {
                writer.asm.store_const(Width::Double, Reg::Stack, HEADER_UNIQUE, 0);
            }
        }
        EntryPoint::Function { mount } => writer.header_of_arguments(mount),
    }
    writer.only_our_mount();
    if !matches!(entry, EntryPoint::Tracepoint { numbered: true }) {
        writer.thread_id();
    }
    let busy = writer.take_slot();
    let done = writer.asm.label();
    writer.record_header();
    writer.record_call();
    writer.record_walk(done);
    writer.asm.store_const(Width::Word, SLOT, slot!(state), STATE_WALK as i32);
    writer.asm.bind(done);
    writer.release_slot();
    writer.count_busy(busy);
    writer.asm.bind(end);
    writer.asm.set(Reg::R0, 0);
    writer.asm.exit();
    writer.asm.finish()
}

struct Writer<'a> {
    asm: Assembler,
    layout: &'a KernelLayout,
    slots_fd: i32,
    control_fd: i32,
    /// Nothing more to do.
    end: Label,
}

impl Writer<'_> {
    /// Copies `bytes` of kernel memory at `base + offset` to `to + at`.
    fn read(&mut self, to: Reg, at: i16, bytes: i32, base: Reg, offset: i32) {
        self.asm.mov(Reg::R3, base);
        self.asm.add(Reg::R3, offset);
        self.asm.mov(Reg::R1, to);
        self.asm.add(Reg::R1, at.into());
        self.asm.set(Reg::R2, bytes);
        self.asm.call(Helper::ReadKernel);
    }

    /// `dst` = the 8 bytes at `base + offset`, 0 if that is no memory.
    fn follow(&mut self, dst: Reg, base: Reg, offset: i32) {
        self.read(Reg::Stack, SCRATCH, 8, base, offset);
        self.asm.load(Width::Double, dst, Reg::Stack, SCRATCH);
    }

    /// As [`follow`](Writer::follow), 4 bytes.
    fn follow_word(&mut self, dst: Reg, base: Reg, offset: i32) {
        self.read(Reg::Stack, SCRATCH, 4, base, offset);
        self.asm.load(Width::Word, dst, Reg::Stack, SCRATCH);
    }

    /// Copies a part of the structure at `base` to the stack, where [`Writer::copied`] finds its
    /// members.
    fn copy(&mut self, base: Reg, span: Span) {
        self.read(Reg::Stack, COPY, span.bytes, base, span.start);
    }

    /// `dst` = the member at `offset` of the structure that was copied last.
    fn copied(&mut self, width: Width, dst: Reg, span: Span, offset: i32) {
        // Within the stack: `KernelLayout::find` has seen to it.
        self.asm.load(width, dst, Reg::Stack, COPY + (offset - span.start) as i16);
    }

    /// Tracepoint: copies the header to the stack, goes on with LOOKUP only, and finds the mount.
    fn header_of_request(&mut self) {
        // R1 points to the arguments at the start.
        self.asm.load(Width::Double, OBJECT, Reg::R1, 0);
        self.read(Reg::Stack, HEADER, HEADER_BYTES, OBJECT, self.layout.req_header);
        self.only_lookups();
        self.follow(MOUNT, OBJECT, self.layout.req_mount);
    }

    /// Function: the same from `fuse_args`; the thread id comes later.
    fn header_of_arguments(&mut self, mount: u8) {
        let argument = |number: u8| i16::from(number) * 8;
        self.asm.load(Width::Double, MOUNT, Reg::R1, argument(mount));
        self.asm.load(Width::Double, OBJECT, Reg::R1, argument(mount + 1));
        self.read(Reg::Stack, HEADER_OPCODE, 4, OBJECT, self.layout.args_opcode);
        self.only_lookups();
        self.read(Reg::Stack, HEADER_NODEID, 8, OBJECT, self.layout.args_nodeid);
        self.asm.store_const(Width::Double, Reg::Stack, HEADER_UNIQUE, 0);
    }

    fn only_lookups(&mut self) {
        self.asm.load(Width::Word, Reg::R1, Reg::Stack, HEADER_OPCODE);
        self.asm.jump_if(Reg::R1, If::NotEqual, OPCODE_LOOKUP as i32, self.end);
    }

    /// Goes on for our connection only. Leaves the `fuse_conn` in OBJECT, and the super block where
    /// the mount was.
    fn only_our_mount(&mut self) {
        let mount = self.layout.mount;
        self.copy(MOUNT, mount);
        self.copied(Width::Double, SUPER_BLOCK, mount, self.layout.mount_sb);
        self.copied(Width::Double, OBJECT, mount, self.layout.mount_conn);
        self.follow_word(Reg::R1, OBJECT, self.layout.conn_dev);
        self.asm.map_value(Reg::R2, self.control_fd);
        self.asm.load(Width::Double, Reg::R2, Reg::R2, std::mem::offset_of!(Control, dev) as i16);
        self.asm.jump_if(Reg::R2, If::Equal, 0, self.end);
        self.asm.jump_if_reg(Reg::R1, If::NotEqual, Reg::R2, self.end);
    }

    /// The header's thread id as `pid_nr_ns(task_pid(current), fc->pid_ns)` works it out: a thread
    /// has a number in each pid namespace from the initial one (level 0) down to its own. None in
    /// ours: no way to find the slot again.
    fn thread_id(&mut self) {
        let KernelLayout { pid_numbers, upid_ns, upid_nr, upid_bytes, .. } = *self.layout;
        let (namespace, level) = (Reg::R6, Reg::R8);
        self.follow(namespace, OBJECT, self.layout.conn_pid_ns);
        self.follow_word(level, namespace, self.layout.pid_ns_level);
        self.asm.call(Helper::CurrentTask);
        self.asm.load(Width::Double, OBJECT, Reg::R0, self.layout.task_pid);
        self.follow_word(Reg::R1, OBJECT, self.layout.pid_level);
        self.asm.jump_if_reg(Reg::R1, If::Less, level, self.end);
        self.asm.shift_left(level, upid_bytes.ilog2() as i32);
        self.asm.add_reg(OBJECT, level);
        self.follow(Reg::R1, OBJECT, pid_numbers + upid_ns);
        self.asm.jump_if_reg(Reg::R1, If::NotEqual, namespace, self.end);
        self.read(Reg::Stack, HEADER_TID, 4, OBJECT, pid_numbers + upid_nr);
    }

    /// Finds the slot and makes its sequence number odd; the label that is returned is where to go
    /// when another processor has it.
    fn take_slot(&mut self) -> Label {
        let (by_thread, chosen, busy) = (self.asm.label(), self.asm.label(), self.asm.label());
        let asm = &mut self.asm;
        asm.load(Width::Double, Reg::R1, Reg::Stack, HEADER_UNIQUE);
        asm.jump_if(Reg::R1, If::Equal, 0, by_thread);
        asm.shift_right(Reg::R1, 1);
        asm.jump(chosen);
        asm.bind(by_thread);
        asm.load(Width::Word, Reg::R1, Reg::Stack, HEADER_TID);
        asm.jump_if(Reg::R1, If::Equal, 0, self.end);
        asm.bind(chosen);
        asm.and(Reg::R1, SLOTS as i32 - 1);
        asm.store(Width::Word, Reg::Stack, KEY, Reg::R1);
        asm.map(Reg::R1, self.slots_fd);
        asm.mov(Reg::R2, Reg::Stack);
        asm.add(Reg::R2, KEY.into());
        asm.call(Helper::MapLookup);
        // Cannot be: the key is less than SLOTS. The verifier insists.
        asm.jump_if(Reg::R0, If::Equal, 0, self.end);
        asm.mov(SLOT, Reg::R0);

        let before = Reg::R6;
        asm.load(Width::Double, before, SLOT, slot!(sequence));
        asm.jump_if(before, If::AnyBit, 1, busy);
        asm.store(Width::Double, Reg::Stack, SEQUENCE, before);
        asm.mov(Reg::R0, before);
        asm.mov(Reg::R1, before);
        asm.add(Reg::R1, 1);
        asm.compare_exchange(SLOT, slot!(sequence), Reg::R1);
        asm.jump_if_reg(Reg::R0, If::NotEqual, before, busy);
        busy
    }

    /// Makes the sequence number even again; everything written before is visible to a reader that
    /// sees it.
    fn release_slot(&mut self) {
        self.asm.load(Width::Double, Reg::R1, Reg::Stack, SEQUENCE);
        self.asm.add(Reg::R1, 2);
        self.asm.exchange(SLOT, slot!(sequence), Reg::R1);
        self.asm.jump(self.end);
    }

    fn count_busy(&mut self, busy: Label) {
        self.asm.bind(busy);
        self.asm.map_value(Reg::R1, self.control_fd);
        self.asm.set(Reg::R2, 1);
        self.asm.atomic_add(Reg::R1, std::mem::offset_of!(Control, busy) as i16, Reg::R2);
    }

    /// Which request this is about, and that nothing is recorded yet.
    fn record_header(&mut self) {
        let asm = &mut self.asm;
        for (width, from, to) in [
            (Width::Double, HEADER_UNIQUE, slot!(unique)),
            (Width::Double, HEADER_NODEID, slot!(nodeid)),
            (Width::Word, HEADER_TID, slot!(tid)),
            (Width::Word, HEADER_OPCODE, slot!(opcode)),
        ] {
            asm.load(width, Reg::R1, Reg::Stack, from);
            asm.store(width, SLOT, to, Reg::R1);
        }
        asm.store_const(Width::Word, SLOT, slot!(state), STATE_OTHER as i32);
        asm.call(Helper::CurrentPidTgid);
        asm.store(Width::Word, SLOT, slot!(caller), Reg::R0);
    }

    /// The system call that this thread is in: its registers still hold the arguments.
    fn record_call(&mut self) {
        let layout = self.layout;
        let done = self.asm.label();
        self.asm.store_const(
            Width::Double,
            SLOT,
            slot!(call),
            crate::hint::SystemCall::NONE as i32,
        );
        for number in 0..3 {
            self.asm.store_const(Width::Double, SLOT, slot!(args) + number * 8, 0);
        }
        self.asm.call(Helper::CurrentTask);
        self.asm.load(Width::Double, Reg::R1, Reg::R0, layout.task_worker);
        self.asm.jump_if(Reg::R1, If::NotEqual, 0, done);

        let registers = Reg::R6;
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.call(Helper::TaskRegisters);
        self.asm.mov(registers, Reg::R0);
        let width = if layout.regs_call_bytes == 8 { Width::Double } else { Width::Word };
        self.asm.load(width, OBJECT, registers, layout.regs_call);
        for (number, from) in (0..).zip(layout.regs_args) {
            self.asm.load(Width::Double, Reg::R1, registers, from);
            self.asm.store(Width::Double, SLOT, slot!(args) + number * 8, Reg::R1);
        }
        // openat2 has its flags in memory of the caller: the first word of what the third argument
        // points to.
        let number = self.asm.label();
        self.asm.jump_if(OBJECT, If::NotEqual, libc::SYS_openat2 as i32, number);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.mov(Reg::R1, SLOT);
        self.asm.add(Reg::R1, i32::from(slot!(args)) + 16);
        self.asm.set(Reg::R2, 8);
        self.asm.call(Helper::ReadUser);
        // Not readable (any more). The number stays NONE.
        self.asm.jump_if(Reg::R0, If::NotEqual, 0, done);
        self.asm.bind(number);
        self.asm.store(Width::Double, SLOT, slot!(call), OBJECT);
        self.asm.bind(done);
    }

    /// The walk that this thread is in, if it is on our mount and in the directory of the request;
    /// else goes to `other`.
    fn record_walk(&mut self, other: Label) {
        let layout = self.layout;
        self.asm.call(Helper::CurrentTask);
        // The one pointer of which the verifier has the type, so that members can be loaded
        // directly.
        self.asm.load(Width::Double, WALK, Reg::R0, layout.task_nameidata);
        self.asm.jump_if(WALK, If::Equal, 0, other);

        // The walk, with what of it goes into the slot if it is ours.
        let (walk, dentry) = (layout.walk, OBJECT);
        self.copy(WALK, walk);
        for (from, to) in [
            (layout.walk_flags, slot!(flags)),
            (layout.walk_depth, slot!(depth)),
            (layout.walk_name_bytes, slot!(component_bytes)),
        ] {
            self.copied(Width::Word, Reg::R1, walk, from);
            self.asm.store(Width::Word, SLOT, to, Reg::R1);
        }
        self.copied(Width::Double, TEXT, walk, layout.walk_name);
        self.copied(Width::Double, dentry, walk, layout.walk_dentry);

        self.copy(dentry, layout.dentry);
        self.copied(Width::Double, OBJECT, layout.dentry, layout.dentry_inode);
        self.copied(Width::Double, Reg::R1, layout.dentry, layout.dentry_sb);
        self.asm.jump_if_reg(Reg::R1, If::NotEqual, SUPER_BLOCK, other);

        // Only now is it certain to be a FUSE inode, with a node id behind it.
        self.follow(Reg::R1, OBJECT, layout.inode_nodeid);
        self.asm.load(Width::Double, Reg::R2, Reg::Stack, HEADER_NODEID);
        self.asm.jump_if_reg(Reg::R1, If::NotEqual, Reg::R2, other);

        self.asm.mov(Reg::R3, TEXT);
        self.asm.mov(Reg::R1, SLOT);
        self.asm.add(Reg::R1, slot!(text).into());
        self.asm.set(Reg::R2, TEXT_BYTES as i32);
        self.asm.call(Helper::ReadKernelStr);
        self.asm.store(Width::Word, SLOT, slot!(text_bytes), Reg::R0);
    }
}

#[cfg(test)]
mod tests;
