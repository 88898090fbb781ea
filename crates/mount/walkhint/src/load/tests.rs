use super::*;

/// The verifier accepts every variant, also those that this kernel does not let run where they
/// belong: its rules are the same for all kinds of tracing programs.
#[test]
fn the_verifier_accepts_every_variant() {
    let kernel = match fs::read(KERNEL_BTF) {
        Ok(kernel) => kernel,
        Err(e) => return println!("skipped: {KERNEL_BTF}: {e}"),
    };
    let module = fs::read(MODULE_BTF).ok();
    let btf = Btf::parse(&kernel, module.as_deref()).unwrap();
    let layout = match KernelLayout::find(&btf) {
        Ok(layout) => layout,
        Err(e) => return println!("skipped: {e}"),
    };
    let maps = sys::create_array(RECORD_BYTES, SLOTS)
        .and_then(|slots| Ok((slots, sys::create_array(16, 1)?)));
    let (slots, control) = match maps {
        Ok(maps) => maps,
        Err(e) => return println!("skipped: BPF is not permitted: {e}"),
    };
    for entry in [
        EntryPoint::Tracepoint { numbered: true },
        EntryPoint::Tracepoint { numbered: false },
        EntryPoint::Function { mount: 0 },
        EntryPoint::Function { mount: 1 },
    ] {
        match verified(&layout, entry, &slots, &control, &AttachTarget::RawTracepoint) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => return println!("skipped: {e}"),
            Err(e) => panic!("{entry:?}: {e}\n{}", e.verifier_log().unwrap_or_default()),
        }
    }
}

/// A program that the verifier must refuse: its log arrives.
#[test]
fn the_verifiers_words_are_kept() {
    // mov r0, r9 (never set); exit
    match sys::load_program(&[0x90bf, 0x95], &AttachTarget::RawTracepoint) {
        Ok(_) => panic!("the verifier accepts anything"),
        Err(refused) if refused.cause.raw_os_error() == Some(libc::EPERM) => {
            println!("skipped: {}", refused.cause);
        }
        Err(refused) => assert!(refused.log.contains("R9 !read_ok"), "{}", refused.log),
    }
}
