//! Getting the program into the kernel: maps, verification, attachment.
//!
//! | file | |
//! | --- | --- |
//! | `sys` | `bpf(2)`: the calls that this crate makes of it |

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::btf::{Btf, Function};
use crate::program::{self, Control, EntryPoint, KernelLayout};
use crate::slots::{RECORD_BYTES, SLOTS, Slots};
use crate::unavailable::Unavailable;

mod sys;

use sys::{AttachTarget, Mapping};

/// Where the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The raw tracepoint `fuse_request_send`: Linux 6.12 and later.
    Tracepoint,
    /// The entry of the function `fuse_simple_request`: Linux 5.15 and later.
    Fentry,
}

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attach::Tracepoint => "raw tracepoint fuse_request_send",
            Attach::Fentry => "fentry of fuse_simple_request",
        })
    }
}

const TRACEPOINT: &CStr = c"fuse_request_send";

/// Functions that every LOOKUP goes through, and which of their arguments is the mount.
const FUNCTIONS: [(&str, u8); 2] = [("__fuse_simple_request", 1), ("fuse_simple_request", 0)];

const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
const MODULE_BTF: &str = "/sys/kernel/btf/fuse";

/// The program in the kernel. It is attached as long as this lives.
pub struct Program {
    attach: Attach,
    slots: Slots,
    control: Mapping,
    /// Keeps the memory of `slots`.
    _slots: Mapping,
    /// The attachment would do, since it holds the program, and the program its maps. But what the
    /// kernel counts of a program's runs can be read only where there is a descriptor of it
    /// (`/proc/self/fdinfo`).
    _program: OwnedFd,
    _link: OwnedFd,
}

impl Program {
    /// Loads and attaches it. `numbered` as for [`EntryPoint::Tracepoint`].
    pub fn load(attach: Attach, numbered: bool) -> Result<Program, Unavailable> {
        // Where FUSE is a module, this loads it: before, there is neither its BTF nor its
        // tracepoint.
        drop(fs::File::open("/dev/fuse"));
        let kernel = fs::read(KERNEL_BTF).map_err(|e| {
            Unavailable::call(format!("cannot read {KERNEL_BTF}"), e)
                .helped_by("a kernel with CONFIG_DEBUG_INFO_BTF, and /sys mounted")
        })?;
        let module = match fs::read(MODULE_BTF) {
            Ok(module) => Some(module),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None, // Built in.
            Err(e) => return Err(Unavailable::call(format!("cannot read {MODULE_BTF}"), e)),
        };
        let unknown =
            |e| Unavailable::new(format!("this kernel is not one that walk hints know: {e}"));
        let btf = Btf::parse(&kernel, module.as_deref()).map_err(unknown)?;
        let layout = KernelLayout::find(&btf).map_err(unknown)?;

        let refused = |e| Unavailable::call("cannot create a BPF map", e);
        let slots_map = sys::create_array(RECORD_BYTES, SLOTS).map_err(refused)?;
        let control_map = sys::create_array(size_of::<Control>(), 1).map_err(refused)?;
        let (program, name) = match attach {
            Attach::Tracepoint => {
                let entry = EntryPoint::Tracepoint { numbered };
                (
                    verified(
                        &layout,
                        entry,
                        &slots_map,
                        &control_map,
                        &AttachTarget::RawTracepoint,
                    )?,
                    Some(TRACEPOINT),
                )
            }
            Attach::Fentry => {
                let (function, mount) = FUNCTIONS
                    .iter()
                    .find_map(|&(name, mount)| {
                        btf.function(name).ok().map(|function| (function, mount))
                    })
                    .ok_or_else(|| {
                        Unavailable::new(format!("this kernel has no function {}", FUNCTIONS[1].0))
                    })?;
                let Function { id, in_module } = function;
                let module = if in_module { Some(fuse_btf()?) } else { None };
                let target = AttachTarget::Fentry { function: id, module: module.as_ref() };
                (
                    verified(
                        &layout,
                        EntryPoint::Function { mount },
                        &slots_map,
                        &control_map,
                        &target,
                    )?,
                    None,
                )
            }
        };
        let link = sys::attach(&program, name)
            .map_err(|e| Unavailable::call(format!("cannot attach to {attach}"), e))?;

        let cannot_map = |e| Unavailable::call("cannot map a BPF map into memory", e);
        let memory = Mapping::new(slots_map.as_raw_fd(), SLOTS as usize * RECORD_BYTES, false)
            .map_err(cannot_map)?;
        let control = Mapping::new(control_map.as_raw_fd(), size_of::<Control>(), true)
            .map_err(cannot_map)?;
        // SAFETY: a mapping starts at a page and is as long as requested; `Program` keeps it as
        // long as the slots.
        let slots = unsafe { Slots::new(memory.base()) };
        Ok(Program { attach, slots, control, _slots: memory, _program: program, _link: link })
    }

    /// Where it is attached.
    pub fn attach(&self) -> Attach {
        self.attach
    }

    /// What it records.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Records the requests of that mount from now on, by its device number; of none with `(0, 0)`.
    pub fn bind(&self, (major, minor): (u32, u32)) {
        // The kernel's own form.
        let device = u64::from(major) << 20 | u64::from(minor);
        self.control_word(std::mem::offset_of!(Control, dev)).store(device, Ordering::Release);
    }

    /// Lookups that got no hint because their slot was being written for another.
    pub fn busy(&self) -> u64 {
        self.control_word(std::mem::offset_of!(Control, busy)).load(Ordering::Relaxed)
    }

    fn control_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `offset` is that of a u64 in `Control`, which lies at the start of the page that
        // `control` maps; the kernel accesses it atomically too.
        unsafe { &*self.control.base().add(offset).cast::<AtomicU64>() }
    }
}

fn verified(
    layout: &KernelLayout,
    entry: EntryPoint,
    slots: &OwnedFd,
    control: &OwnedFd,
    target: &AttachTarget<'_>,
) -> Result<OwnedFd, Unavailable> {
    let code = program::assemble(layout, entry, slots.as_raw_fd(), control.as_raw_fd())
        .map_err(|e| Unavailable::new(format!("cannot assemble the BPF program: {e}")))?;
    sys::load_program(&code, target)
        .map_err(|e| Unavailable::call("cannot load the BPF program", e.cause).with_log(e.log))
}

fn fuse_btf() -> Result<OwnedFd, Unavailable> {
    sys::module_btf(c"fuse").map_err(|e| Unavailable::call("cannot find the BTF of module fuse", e))
}

#[cfg(test)]
mod tests;
