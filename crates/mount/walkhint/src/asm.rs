//! An assembler for BPF: just the instructions that the program of this crate uses.
//!
//! BPF is the instruction set of a small virtual machine inside the kernel. It has eleven 64-bit
//! registers: R0 holds results, R1 to R5 the arguments of calls (which destroy them), R6 to R9
//! survive calls, R10 points to the top of a stack of 512 bytes and cannot be changed. Every
//! instruction is one 64-bit word: an operation, two registers, a 16-bit offset (of a jump, in
//! instructions, or of a memory access, in bytes) and a 32-bit constant. Before a program may run,
//! the kernel's verifier follows every path through it and refuses it unless it provably ends and
//! touches no memory but its own. Encoding: Documentation/bpf/standardization/instruction-set.rst
//! of the kernel.
//!
//! Jumps go to [`Label`]s, forward or backward; [`Assembler::finish`] fills in the distances and
//! fails if one is not placed or too far away. Backward jumps would be loops, which this crate does
//! not need.

use std::fmt;

/// A register; R4 and R5 are not needed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reg {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    /// The top of the stack; read-only.
    Stack = 10,
}

/// A place in the program that jumps go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// When to jump. Comparisons are of 64 bits, unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum If {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Less.
    Less,
    /// They have a bit in common.
    AnyBit,
}

/// How much a memory access moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 4 bytes; loads fill the rest of the register with zeros.
    Word,
    /// 8 bytes.
    Double,
}

/// Functions of the kernel that programs may call, by their numbers in `enum bpf_func_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// `map_lookup_elem(map, &key)`: address of the value, or 0.
    MapLookup = 1,
    /// `get_current_pid_tgid()`: process id in the upper, thread id in the lower half; initial pid
    /// namespace.
    CurrentPidTgid = 14,
    /// `probe_read_user(dst, size, src)`: copies from the calling process.
    ReadUser = 112,
    /// `probe_read_kernel(dst, size, src)`: copies from kernel memory; fails (and zeroes `dst`) on
    /// a bad address.
    ReadKernel = 113,
    /// `probe_read_kernel_str(dst, size, src)`: copies to the first NUL; bytes copied with it, or
    /// negative.
    ReadKernelStr = 115,
    /// `get_current_task_btf()`: the calling thread's `struct task_struct`.
    CurrentTask = 158,
    /// `task_pt_regs(task)`: its registers when it entered the kernel.
    TaskRegisters = 175,
}

/// The program does not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A jump to a label that was never placed.
    Unplaced,
    /// A jump of more than 32,767 instructions.
    TooFar,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Unplaced => "a jump leads nowhere",
            Error::TooFar => "a jump is too far",
        })
    }
}

impl std::error::Error for Error {}

/// A program being written.
#[derive(Default)]
pub struct Assembler {
    words: Vec<u64>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Jumps that still need their distance.
    jumps: Vec<(usize, Label)>,
}

// Operation codes: class in the lower three bits, the rest depends on it.
const LOAD_IMM64: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const STORE_IMM: u8 = 0x62;
const ATOMIC: u8 = 0xdb;
const WIDTH_DOUBLE: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_IMM: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_IMM: u8 = 0x07;
const AND_IMM: u8 = 0x57;
const SHIFT_LEFT_IMM: u8 = 0x67;
const SHIFT_RIGHT_IMM: u8 = 0x77;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Set in an operation with a register instead of a constant.
const WITH_REG: u8 = 0x08;

impl If {
    fn code(self) -> u8 {
        match self {
            If::Equal => 0x15,
            If::NotEqual => 0x55,
            If::Less => 0xa5,
            If::AnyBit => 0x45,
        }
    }
}

impl Width {
    fn code(self, base: u8) -> u8 {
        match self {
            Width::Word => base,
            Width::Double => base | WIDTH_DOUBLE,
        }
    }
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    fn emit(&mut self, code: u8, dst: Reg, src: u8, offset: i16, constant: i32) {
        self.words.push(
            u64::from(code)
                | u64::from(dst as u8 | src << 4) << 8
                | u64::from(offset as u16) << 16
                | u64::from(constant as u32) << 32,
        );
    }

    /// `dst = src`.
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        self.emit(MOVE, dst, src as u8, 0, 0);
    }

    /// `dst = constant`, sign-extended.
    pub fn set(&mut self, dst: Reg, constant: i32) {
        self.emit(MOVE_IMM, dst, 0, 0, constant);
    }

    /// `dst += constant`.
    pub fn add(&mut self, dst: Reg, constant: i32) {
        self.emit(ADD_IMM, dst, 0, 0, constant);
    }

    /// `dst += src`.
    pub fn add_reg(&mut self, dst: Reg, src: Reg) {
        self.emit(ADD, dst, src as u8, 0, 0);
    }

    /// `dst &= constant`, sign-extended.
    pub fn and(&mut self, dst: Reg, constant: i32) {
        self.emit(AND_IMM, dst, 0, 0, constant);
    }

    /// `dst <<= bits`.
    pub fn shift_left(&mut self, dst: Reg, bits: i32) {
        self.emit(SHIFT_LEFT_IMM, dst, 0, 0, bits);
    }

    /// `dst >>= bits`, filling with zeros.
    pub fn shift_right(&mut self, dst: Reg, bits: i32) {
        self.emit(SHIFT_RIGHT_IMM, dst, 0, 0, bits);
    }

    /// `dst = *(base + offset)`.
    pub fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) {
        self.emit(width.code(LOAD), dst, base as u8, offset, 0);
    }

    /// `*(base + offset) = src`.
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, src: Reg) {
        self.emit(width.code(STORE), base, src as u8, offset, 0);
    }

    /// `*(base + offset) = constant`, sign-extended.
    pub fn store_const(&mut self, width: Width, base: Reg, offset: i16, constant: i32) {
        self.emit(width.code(STORE_IMM), base, 0, offset, constant);
    }

    /// At once: if `*(base + offset)` (8 bytes) equals R0, it becomes `src`. R0 becomes what it was
    /// before. A full memory barrier.
    pub fn compare_exchange(&mut self, base: Reg, offset: i16, src: Reg) {
        self.emit(ATOMIC, base, src as u8, offset, 0xf1);
    }

    /// At once: exchanges `src` and `*(base + offset)` (8 bytes). A full memory barrier.
    pub fn exchange(&mut self, base: Reg, offset: i16, src: Reg) {
        self.emit(ATOMIC, base, src as u8, offset, 0xe1);
    }

    /// At once: `*(base + offset) += src` (8 bytes). Orders nothing.
    pub fn atomic_add(&mut self, base: Reg, offset: i16, src: Reg) {
        self.emit(ATOMIC, base, src as u8, offset, 0);
    }

    /// `dst = map`, for a helper; the map by its descriptor.
    pub fn map(&mut self, dst: Reg, fd: i32) {
        self.emit(LOAD_IMM64, dst, 1, 0, fd);
        self.words.push(0);
    }

    /// `dst` = address of the value of an array map with a single entry.
    pub fn map_value(&mut self, dst: Reg, fd: i32) {
        self.emit(LOAD_IMM64, dst, 2, 0, fd);
        self.words.push(0);
    }

    /// `R0 = helper(R1, ..)`. R1 to R5 are lost.
    pub fn call(&mut self, helper: Helper) {
        self.emit(CALL, Reg::R0, 0, 0, helper as i32);
    }

    /// The end: the program's result is in R0.
    pub fn exit(&mut self) {
        self.emit(EXIT, Reg::R0, 0, 0, 0);
    }

    /// A label, to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here. The last placing counts.
    pub fn bind(&mut self, label: Label) {
        if let Some(position) = self.labels.get_mut(label.0) {
            *position = Some(self.words.len());
        }
    }

    /// Goes on at `to`.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.words.len(), to));
        self.emit(JUMP, Reg::R0, 0, 0, 0);
    }

    /// Goes on at `to` if `reg` and `constant` (sign-extended) are so.
    pub fn jump_if(&mut self, reg: Reg, condition: If, constant: i32, to: Label) {
        self.jumps.push((self.words.len(), to));
        self.emit(condition.code(), reg, 0, 0, constant);
    }

    /// Goes on at `to` if `reg` and `other` are so.
    pub fn jump_if_reg(&mut self, reg: Reg, condition: If, other: Reg, to: Label) {
        self.jumps.push((self.words.len(), to));
        self.emit(condition.code() | WITH_REG, reg, other as u8, 0, 0);
    }

    /// The program, with all jumps filled in.
    pub fn finish(mut self) -> Result<Vec<u64>, Error> {
        for &(at, label) in &self.jumps {
            let target = self.labels.get(label.0).copied().flatten().ok_or(Error::Unplaced)?;
            // Counted from the instruction after the jump.
            let distance =
                i16::try_from(target as i64 - at as i64 - 1).map_err(|_| Error::TooFar)?;
            self.words[at] |= u64::from(distance as u16) << 16;
        }
        Ok(self.words)
    }
}

#[cfg(test)]
mod tests;
