//! Requests of the kernel, parsed in place.
//!
//! | file | |
//! | --- | --- |
//! | `arguments` | from bytes to operations |
//! | `operation` | [`Operation`]: what a request can ask for |
//!
//! Parsing copies the fixed-size arguments and borrows names and payloads from the receive buffer.
//! It trusts nothing: lengths are checked against the buffer, names must end in NUL, and anything
//! that does not fit is a [`Malformed`] request, never a panic.

use crate::abi::{self, Opcode, Wire};

mod arguments;
mod operation;

pub use operation::{Forgets, Ioctl, Lock, Operation, SetTime, Setattr, Write};

/// One request of the kernel, borrowed from the receive buffer.
#[derive(Debug)]
pub struct Request<'a> {
    /// Identifies the request on its connection; [`Operation::Interrupt`] refers to it.
    pub unique: u64,
    /// The node the operation is about: a directory for operations that name an entry. Zero where
    /// there is none.
    pub nodeid: u64,
    /// File-system user id of the caller.
    pub uid: u32,
    /// File-system group id of the caller.
    pub gid: u32,
    /// Thread id of the caller; zero for the kernel's own requests (write-back, the last release).
    /// Supplementary groups are not part of a request: see [`caller_groups`](crate::caller_groups).
    pub pid: u32,
    /// Operation code as it came.
    pub opcode: Opcode,
    /// For calls that create, the one supplementary group of the caller that matters: the parent's
    /// group, when the caller is in it. Only with
    /// [`Features::create_supp_group`](crate::Features::create_supp_group).
    pub supp_group: Option<u32>,
    /// What to do.
    pub op: Operation<'a>,
}

/// What parsing depends on besides the bytes: settled by INIT.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialect {
    /// SETXATTR has its long form.
    pub setxattr_ext: bool,
}

/// A request that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    /// There is not even a whole header, or its length is not that of the message: no answer
    /// possible.
    Header,
    /// An operation that this crate does not know: to be answered ENOSYS.
    UnknownOpcode {
        /// To answer.
        unique: u64,
        /// As it came.
        opcode: u32,
    },
    /// The arguments contradict the message's length or their own: to be answered EIO.
    Arguments {
        /// To answer.
        unique: u64,
        /// Which operation.
        opcode: Opcode,
    },
}

impl<'a> Request<'a> {
    /// Parses one message as `/dev/fuse` delivers it: header and arguments in one piece.
    #[inline]
    pub fn parse(message: &'a [u8], dialect: &Dialect) -> Result<Request<'a>, Malformed> {
        let header = abi::InHeader::read(message).ok_or(Malformed::Header)?;
        if header.len as usize != message.len() {
            return Err(Malformed::Header);
        }
        Self::parse_split(&header, &message[size_of::<abi::InHeader>()..], None, dialect)
    }

    /// Parses a message in parts that lie apart (io_uring): the header, the operation's own
    /// structure, and names and payload. With `payload` `None`, `args` holds both.
    #[inline]
    pub fn parse_split(
        header: &abi::InHeader,
        args: &'a [u8],
        payload: Option<&'a [u8]>,
        dialect: &Dialect,
    ) -> Result<Request<'a>, Malformed> {
        let Some(opcode) = Opcode::from_u32(header.opcode) else {
            return Err(Malformed::UnknownOpcode { unique: header.unique, opcode: header.opcode });
        };
        let bad = || Malformed::Arguments { unique: header.unique, opcode };
        let mut args = arguments::Args { fixed: args, rest: payload };
        let supp_group = if header.total_extlen == 0 {
            None
        } else {
            // Extensions are the last thing in the message.
            let whole = args.rest.as_mut().unwrap_or(&mut args.fixed);
            let len = usize::from(header.total_extlen) * 8;
            let (before, extensions) =
                whole.len().checked_sub(len).map(|at| whole.split_at(at)).ok_or_else(bad)?;
            *whole = before;
            arguments::supplementary_group(extensions).ok_or_else(bad)?
        };
        let op = arguments::operation(opcode, header, &mut args, dialect).ok_or_else(bad)?;
        let abi::InHeader { unique, nodeid, uid, gid, pid, .. } = *header;
        Ok(Request { unique, nodeid, uid, gid, pid, opcode, supp_group, op })
    }
}

#[cfg(test)]
mod tests;
