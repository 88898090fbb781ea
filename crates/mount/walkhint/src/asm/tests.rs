use super::*;

/// As the kernel's documentation has them: operation, registers, offset, constant.
fn word(code: u64, dst: u64, src: u64, offset: i16, constant: i32) -> u64 {
    code | dst << 8 | src << 12 | u64::from(offset as u16) << 16 | u64::from(constant as u32) << 32
}

fn assembled(write: impl FnOnce(&mut Assembler)) -> Vec<u64> {
    let mut asm = Assembler::new();
    write(&mut asm);
    asm.finish().unwrap()
}

#[test]
fn encodings() {
    use Reg::*;
    type Case = (fn(&mut Assembler), u64);
    let cases: &[Case] = &[
        (|a| a.mov(R6, R1), word(0xbf, 6, 1, 0, 0)),
        (|a| a.mov(R1, Stack), word(0xbf, 1, 10, 0, 0)),
        (|a| a.set(R0, -1), word(0xb7, 0, 0, 0, -1)),
        (|a| a.add(R3, 0x1234), word(0x07, 3, 0, 0, 0x1234)),
        (|a| a.add_reg(R9, R8), word(0x0f, 9, 8, 0, 0)),
        (|a| a.and(R1, 1023), word(0x57, 1, 0, 0, 1023)),
        (|a| a.shift_left(R8, 4), word(0x67, 8, 0, 0, 4)),
        (|a| a.shift_right(R1, 1), word(0x77, 1, 0, 0, 1)),
        (|a| a.load(Width::Word, R1, Stack, -36), word(0x61, 1, 10, -36, 0)),
        (|a| a.load(Width::Double, R7, R9, 8), word(0x79, 7, 9, 8, 0)),
        (|a| a.store(Width::Word, Stack, -8, R0), word(0x63, 10, 0, -8, 0)),
        (|a| a.store(Width::Double, R8, 16, R1), word(0x7b, 8, 1, 16, 0)),
        (|a| a.store_const(Width::Word, R8, 24, 3), word(0x62, 8, 0, 24, 3)),
        (|a| a.store_const(Width::Double, R8, 24, -1), word(0x7a, 8, 0, 24, -1)),
        (|a| a.compare_exchange(R8, 0, R1), word(0xdb, 8, 1, 0, 0xf1)),
        (|a| a.exchange(R8, 0, R1), word(0xdb, 8, 1, 0, 0xe1)),
        (|a| a.atomic_add(R1, 8, R2), word(0xdb, 1, 2, 8, 0)),
        (|a| a.call(Helper::ReadKernel), word(0x85, 0, 0, 0, 113)),
        (|a| a.exit(), word(0x95, 0, 0, 0, 0)),
    ];
    for (number, (write, expected)) in cases.iter().enumerate() {
        assert_eq!(assembled(write), [*expected], "case {number}");
    }
    assert_eq!(assembled(|a| a.map(R1, 7)), [word(0x18, 1, 1, 0, 7), 0]);
    assert_eq!(assembled(|a| a.map_value(R2, 9)), [word(0x18, 2, 2, 0, 9), 0]);
}

#[test]
fn jumps_are_counted_from_the_next_instruction() {
    use Reg::*;
    let code = assembled(|a| {
        let (start, end) = (a.label(), a.label());
        a.bind(start);
        a.jump_if(R1, If::Equal, 5, end);
        a.jump_if_reg(R1, If::NotEqual, R2, end);
        a.map(R1, 3); // Two words.
        a.jump_if(R1, If::AnyBit, 1, start);
        a.jump_if_reg(R1, If::Less, R8, end);
        a.jump(end);
        a.bind(end);
        a.exit();
    });
    let expected = [
        word(0x15, 1, 0, 6, 5),
        word(0x5d, 1, 2, 5, 0),
        word(0x18, 1, 1, 0, 3),
        0,
        word(0x45, 1, 0, -5, 1),
        word(0xad, 1, 8, 1, 0),
        word(0x05, 0, 0, 0, 0),
        word(0x95, 0, 0, 0, 0),
    ];
    assert_eq!(code, expected);
}

#[test]
fn jumps_that_lead_nowhere() {
    let mut asm = Assembler::new();
    let label = asm.label();
    asm.jump(label);
    assert_eq!(asm.finish(), Err(Error::Unplaced));

    for (between, expected) in [(i16::MAX as usize, true), (i16::MAX as usize + 1, false)] {
        let mut asm = Assembler::new();
        let label = asm.label();
        asm.jump(label);
        for _ in 0..between {
            asm.exit();
        }
        asm.bind(label);
        assert_eq!(asm.finish().is_ok(), expected);
    }
}
