"""Calls through io_uring, with nothing but system calls: a ring of a few entries, one call at a
time."""

import ctypes
import mmap
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
SETUP, ENTER = 425, 426
OPENAT, STATX, UNLINKAT, MKDIRAT = 18, 21, 36, 37
ASYNC = 1 << 4
AT_FDCWD = -100


class Ring:
    """A ring with 8 entries, mapped as io_uring_setup(2) says."""

    def __init__(self):
        params = bytearray(120)
        buffer = (ctypes.c_char * 120).from_buffer(params)
        self.fd = LIBC.syscall(SETUP, 8, buffer)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        entries, completions = struct.unpack_from("II", params, 0)
        # struct io_sqring_offsets and io_cqring_offsets: head, tail, mask, entries, …, array and
        # cqes.
        self.sq = struct.unpack_from("IIIIIII", params, 40)
        self.cq = struct.unpack_from("IIIIII", params, 80)
        self.sq_ring = mmap.mmap(self.fd, self.sq[6] + entries * 4, offset=0)
        self.cq_ring = mmap.mmap(self.fd, self.cq[5] + completions * 16, offset=0x8000000)
        self.sqes = mmap.mmap(self.fd, entries * 64, offset=0x10000000)
        self.mask, self.cq_mask = entries - 1, completions - 1

    def call(self, opcode, fd, address, length, offset, flags, sqe_flags=0):
        """Submits one entry and waits for its completion; the result as from a system call."""
        tail = struct.unpack_from("I", self.sq_ring, self.sq[1])[0]
        index = tail & self.mask
        self.sqes[index * 64 : index * 64 + 64] = struct.pack(
            "BBHiQQIIQ24x", opcode, sqe_flags, 0, fd, offset, address, length, flags, tail
        )
        struct.pack_into("I", self.sq_ring, self.sq[6] + index * 4, index)
        struct.pack_into("I", self.sq_ring, self.sq[1], tail + 1)
        if LIBC.syscall(ENTER, self.fd, 1, 1, 1, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        head = struct.unpack_from("I", self.cq_ring, self.cq[0])[0]
        _, result, _ = struct.unpack_from(
            "QiI", self.cq_ring, self.cq[5] + (head & self.cq_mask) * 16
        )
        struct.pack_into("I", self.cq_ring, self.cq[0], head + 1)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    def open(self, path, flags=os.O_RDONLY, mode=0o644, sqe_flags=0, dir_fd=AT_FDCWD):
        name = ctypes.create_string_buffer(path.encode())
        return self.call(OPENAT, dir_fd, ctypes.addressof(name), mode, 0, flags, sqe_flags)

    def read_file(self, path, sqe_flags=0):
        fd = self.open(path, sqe_flags=sqe_flags)
        try:
            return os.pread(fd, 1000, 0)
        finally:
            os.close(fd)

    def size(self, path, sqe_flags=0):
        """By statx."""
        name, answer = ctypes.create_string_buffer(path.encode()), ctypes.create_string_buffer(256)
        self.call(
            STATX, AT_FDCWD, ctypes.addressof(name), 0x7FF, ctypes.addressof(answer), 0, sqe_flags
        )
        return struct.unpack_from("Q", answer, 40)[0]

    def mkdir(self, path, sqe_flags=0):
        name = ctypes.create_string_buffer(path.encode())
        self.call(MKDIRAT, AT_FDCWD, ctypes.addressof(name), 0o755, 0, 0, sqe_flags)

    def unlink(self, path, sqe_flags=0):
        name = ctypes.create_string_buffer(path.encode())
        self.call(UNLINKAT, AT_FDCWD, ctypes.addressof(name), 0, 0, 0, sqe_flags)

    def close(self):
        for part in (self.sq_ring, self.cq_ring, self.sqes):
            part.close()
        os.close(self.fd)
