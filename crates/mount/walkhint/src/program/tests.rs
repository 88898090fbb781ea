use super::*;
use crate::btf::Btf;

/// Offsets of a Linux 6.18 on x86-64, as its BTF has them.
const LINUX_6_18: KernelLayout = KernelLayout {
    req_header: 56,
    req_mount: 136,
    args_opcode: 8,
    args_nodeid: 0,
    mount: Span { start: 0, bytes: 16 },
    mount_conn: 0,
    mount_sb: 8,
    conn_dev: 344,
    conn_pid_ns: 40,
    inode_nodeid: 616,
    task_nameidata: 1768,
    task_pid: 1368,
    task_worker: 1480,
    walk: Span { start: 8, bytes: 84 },
    walk_dentry: 8,
    walk_flags: 56,
    walk_depth: 84,
    walk_name: 24,
    walk_name_bytes: 20,
    dentry: Span { start: 48, bytes: 64 },
    dentry_sb: 104,
    dentry_inode: 48,
    pid_level: 4,
    pid_numbers: 144,
    upid_bytes: 16,
    upid_nr: 0,
    upid_ns: 8,
    pid_ns_level: 64,
    regs_call: 120,
    regs_args: [104, 96],
    regs_call_bytes: 8,
};

const ENTRIES: [EntryPoint; 4] = [
    EntryPoint::Tracepoint { numbered: true },
    EntryPoint::Tracepoint { numbered: false },
    EntryPoint::Function { mount: 0 },
    EntryPoint::Function { mount: 1 },
];

#[test]
fn it_is_short_and_has_no_loops() {
    for entry in ENTRIES {
        let code = assemble(&LINUX_6_18, entry, 5, 6).unwrap();
        assert!(code.len() < 260, "{entry:?}: {} instructions", code.len());
        let mut at = 0;
        while at < code.len() {
            let operation = code[at] as u8;
            let jumps = matches!(operation & 7, 5 | 6) && operation != CALL && operation != EXIT;
            let distance = (code[at] >> 16) as u16 as i16;
            assert!(
                !jumps || (distance >= 0 && at + 1 + (distance as usize) < code.len()),
                "{entry:?} at {at}"
            );
            at += if operation == LOAD_WIDE { 2 } else { 1 };
        }
        assert_eq!(code.last().copied(), Some(u64::from(EXIT)));
    }
}

const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_WIDE: u8 = 0x18;

#[test]
fn its_stack_does_not_overlap() {
    let mut used: Vec<(i16, i16)> = vec![
        (HEADER, HEADER_BYTES as i16),
        (SCRATCH, 8),
        (KEY, 4),
        (SEQUENCE, 8),
        (COPY, SPAN_BYTES_MAX as i16),
    ];
    used.sort_unstable();
    assert!(used.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    assert!(used.iter().all(|&(at, bytes)| at >= -512 && at + bytes <= 0 && at % 4 == 0));
}

/// What is missing or has another shape is named.
#[test]
fn unknown_kernels_are_refused() {
    let error = KernelLayout::find(&Btf::parse(&empty(), None).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "kernel BTF has no struct upid");
}

/// BTF without types.
fn empty() -> Vec<u8> {
    let mut data = vec![0x9f, 0xeb, 1, 0];
    data.extend([24u32, 0, 0, 0, 1].iter().flat_map(|word| word.to_le_bytes()));
    data.push(0);
    data
}

/// All offsets can be had from the running kernel.
#[test]
fn layout_of_the_running_kernel() {
    let Ok(kernel) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        println!("skipped: this kernel has no BTF");
        return;
    };
    let module = std::fs::read("/sys/kernel/btf/fuse").ok();
    let btf = Btf::parse(&kernel, module.as_deref()).unwrap();
    match KernelLayout::find(&btf) {
        Ok(layout) => println!("{layout:?}"),
        Err(Error::Missing(what)) if what.contains("fuse") => {
            println!("skipped: module fuse is not loaded: {what}")
        }
        Err(e) => panic!("{e}"),
    }
    use crate::btf::Error;
}
