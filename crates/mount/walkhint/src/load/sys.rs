//! bpf(2): the calls that this crate makes of it.
//!
//! The system call takes a command and a block of memory; the command decides its layout. The
//! kernel accepts blocks that are longer or shorter than its own layout, as long as what is beyond
//! that is zero.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: i32 = 0;
const PROG_LOAD: i32 = 5;
const OBJ_GET_INFO_BY_FD: i32 = 15;
const RAW_TRACEPOINT_OPEN: i32 = 17;
const BTF_GET_FD_BY_ID: i32 = 19;
const BTF_GET_NEXT_ID: i32 = 23;

const MAP_TYPE_ARRAY: u32 = 2;
/// The process may map the array into its memory.
const F_MMAPABLE: u32 = 1 << 10;

const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const PROG_TYPE_TRACING: u32 = 26;
const ATTACH_FENTRY: u32 = 24;

/// What shows in listings of maps and programs.
const NAME: [u8; 16] = *b"kestrel_walk\0\0\0\0";

/// Bytes of the verifier's log. It has a line for each instruction it looks at.
const LOG_BYTES: usize = 1 << 18;

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
    btf_fd: u32,
    func_info_bytes: u32,
    func_info: u64,
    func_infos: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_infos: u32,
    attach_btf_id: u32,
    attach_btf_fd: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Default)]
struct TracepointOpen {
    name: u64,
    prog_fd: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Default)]
struct Ids {
    id: u32,
    next_id: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ObjectInfo {
    fd: u32,
    bytes: u32,
    info: u64,
}

/// `struct bpf_btf_info`.
#[repr(C)]
#[derive(Default)]
struct BtfInfo {
    btf: u64,
    btf_bytes: u32,
    id: u32,
    name: u64,
    name_bytes: u32,
    kernel: u32,
}

/// The system call.
///
/// # Safety
///
/// `attr` must be what the command takes, and addresses in it must be valid for what the command
/// does with them.
unsafe fn bpf<T>(command: i32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: as the caller promises; the size is that of the block.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// As [`bpf`], for commands that return a descriptor.
///
/// # Safety
///
/// As for [`bpf`], and the command must be one of those.
unsafe fn bpf_fd<T>(command: i32, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the descriptor is new and nothing else has it.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// The number that the kernel's structures have for a descriptor. Descriptors are not negative.
fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// An array that can be mapped into memory.
pub fn create_array(value_bytes: usize, entries: u32) -> io::Result<OwnedFd> {
    let value_bytes = u32::try_from(value_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attr = MapCreate {
        map_type: MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes,
        entries_max: entries,
        flags: F_MMAPABLE,
        name: NAME,
        ..MapCreate::default()
    };
    // SAFETY: MAP_CREATE takes a MapCreate, which holds no addresses, and returns a descriptor.
    unsafe { bpf_fd(MAP_CREATE, &mut attr) }
}

/// What a program is to be attached to.
pub enum AttachTarget<'a> {
    RawTracepoint,
    /// The entry of a function: its BTF type number, and its module's BTF.
    Fentry {
        function: u32,
        module: Option<&'a OwnedFd>,
    },
}

/// A program that was refused: why, and the verifier's log.
pub struct Refused {
    pub cause: io::Error,
    pub log: String,
}

/// Has a program verified and loaded. On refusal it is tried again with the log on, which costs
/// time.
pub fn load_program(code: &[u64], target: &AttachTarget<'_>) -> Result<OwnedFd, Refused> {
    match try_load(code, target, &mut []) {
        Ok(program) => Ok(program),
        // Not permitted to load anything: there is no log to read.
        Err(cause) if cause.raw_os_error() == Some(libc::EPERM) => {
            Err(Refused { cause, log: String::new() })
        }
        Err(cause) => {
            let mut log = vec![0; LOG_BYTES];
            match try_load(code, target, &mut log) {
                Ok(program) => Ok(program),
                Err(_) => {
                    log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(log.len()));
                    Err(Refused { cause, log: String::from_utf8_lossy(&log).into_owned() })
                }
            }
        }
    }
}

fn try_load(code: &[u64], target: &AttachTarget<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    // The kernel lets only programs under the GPL call the helpers that read kernel memory; this is
    // the licence that it wants to see. It concerns the few instructions assembled here, which are
    // offered under either licence.
    const LICENSE: &CStr = c"Dual BSD/GPL";
    let mut attr = ProgLoad {
        prog_type: PROG_TYPE_RAW_TRACEPOINT,
        instructions: u32::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        code: code.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        name: NAME,
        ..ProgLoad::default()
    };
    if let AttachTarget::Fentry { function, module } = target {
        attr.prog_type = PROG_TYPE_TRACING;
        attr.expected_attach_type = ATTACH_FENTRY;
        attr.attach_btf_id = *function;
        attr.attach_btf_fd = module.map_or(0, number);
    }
    if !log.is_empty() {
        attr.log_level = 1;
        attr.log = log.as_mut_ptr() as u64;
        attr.log_bytes = log.len() as u32; // LOG_BYTES
    }
    // SAFETY: PROG_LOAD takes a ProgLoad; code and licence outlive the call, and the log is
    // writable for its length. It returns a descriptor.
    unsafe { bpf_fd(PROG_LOAD, &mut attr) }
}

/// Attaches a program, which stays so as long as the descriptor is open. `name` is that of a raw
/// tracepoint; programs for functions know theirs.
pub fn attach(program: &OwnedFd, name: Option<&CStr>) -> io::Result<OwnedFd> {
    let name = name.map_or(0, |name| name.as_ptr() as u64);
    let mut attr = TracepointOpen { name, prog_fd: number(program), unused: 0 };
    // SAFETY: RAW_TRACEPOINT_OPEN takes a TracepointOpen; its name is none or NUL-terminated; it
    // returns a descriptor.
    unsafe { bpf_fd(RAW_TRACEPOINT_OPEN, &mut attr) }
}

/// The BTF object of a kernel module. The kernel lists them by number only.
pub fn module_btf(module: &CStr) -> io::Result<OwnedFd> {
    let mut id = 0;
    loop {
        let mut attr = Ids { id, ..Ids::default() };
        // SAFETY: BTF_GET_NEXT_ID takes an Ids. It ends with ENOENT, and numbers go up.
        unsafe { bpf(BTF_GET_NEXT_ID, &mut attr) }?;
        id = attr.next_id;
        let mut attr = Ids { id, ..Ids::default() };
        // SAFETY: BTF_GET_FD_BY_ID takes an Ids and returns a descriptor.
        let Ok(btf) = (unsafe { bpf_fd(BTF_GET_FD_BY_ID, &mut attr) }) else {
            continue; // Its module was unloaded meanwhile.
        };
        let mut name = [0u8; 64];
        let mut info = BtfInfo {
            name: name.as_mut_ptr() as u64,
            name_bytes: name.len() as u32,
            ..BtfInfo::default()
        };
        let mut attr = ObjectInfo {
            fd: number(&btf),
            bytes: size_of::<BtfInfo>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        // SAFETY: OBJ_GET_INFO_BY_FD takes an ObjectInfo; `info` is writable for the size given,
        // and so is the name.
        unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
        if info.kernel != 0 && CStr::from_bytes_until_nul(&name).is_ok_and(|name| name == module) {
            return Ok(btf);
        }
    }
}

/// Memory of a map, shared with the kernel.
pub struct Mapping {
    base: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: the mapping is only an address; what lies there is accessed under rules of its own.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole array.
    pub fn new(map: RawFd, bytes: usize, writable: bool) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map, 0)
        };
        if base == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapping { base, bytes })
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.base.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with that size; nothing that holds addresses into it lives
        // longer.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}
