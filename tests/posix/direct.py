#!/usr/bin/env python3
"""Asynchronous direct writes beside buffered reads of one file: a read that begins after a write
was acknowledged sees it.

    direct.py DIR [SECONDS]

One process writes blocks with O_DIRECT through io_submit (what libaio calls), up to 16 at a time,
and notes each one in shared memory when it is acknowledged; two processes read random blocks
through the page cache, one of them through a mapping, and compare. Prints "N passed, N failed".
"""

import ctypes
import mmap
import os
import platform
import random
import struct
import sys
import tempfile
import time

BLOCK = 4096
BLOCKS = 64
DEPTH = 16
# io_setup, io_destroy, io_getevents, io_submit.
NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}[platform.machine()]
IOCB_CMD_PWRITE = 1
libc = ctypes.CDLL(None, use_errno=True)


def syscall(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Queue:
    """A queue of asynchronous writes to one descriptor."""

    def __init__(self, fd):
        self.fd = fd
        self.context = ctypes.c_ulong(0)
        syscall(NUMBERS[0], DEPTH, ctypes.byref(self.context))
        self.pages = mmap.mmap(-1, BLOCK * DEPTH)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.free = list(range(DEPTH))
        self.blocks = {}
        self.commands = [ctypes.create_string_buffer(64) for _ in range(DEPTH)]

    def submit(self, block, content):
        slot = self.free.pop()
        self.blocks[slot] = block
        self.pages[slot * BLOCK : (slot + 1) * BLOCK] = content
        # struct iocb: data, key, rw_flags, opcode, priority, fd, buffer, bytes, offset, reserved,
        # flags, eventfd.
        self.commands[slot].raw = struct.pack(
            "<QIiHhIQQqQII",
            slot,
            0,
            0,
            IOCB_CMD_PWRITE,
            0,
            self.fd,
            self.base + slot * BLOCK,
            BLOCK,
            block * BLOCK,
            0,
            0,
            0,
        )
        one = (ctypes.c_void_p * 1)(ctypes.addressof(self.commands[slot]))
        assert syscall(NUMBERS[3], self.context, ctypes.c_long(1), one) == 1

    def completed(self):
        """Waits for at least one write; the blocks that were acknowledged."""
        events = ctypes.create_string_buffer(32 * DEPTH)
        count = syscall(
            NUMBERS[2], self.context, ctypes.c_long(1), ctypes.c_long(DEPTH), events, None
        )
        blocks = []
        for i in range(count):
            slot, _, result, _ = struct.unpack_from("<QQqq", events.raw, 32 * i)
            assert result == BLOCK, f"a write gave {result}"
            self.free.append(slot)
            blocks.append(self.blocks.pop(slot))
        return blocks

    def close(self):
        syscall(NUMBERS[1], self.context)


def content(generation):
    return struct.pack("<Q", generation) * (BLOCK // 8)


def reader(path, acknowledged, stop, mapped, wrong):
    fd = os.open(path, os.O_RDONLY)
    view = mmap.mmap(fd, BLOCK * BLOCKS, prot=mmap.PROT_READ) if mapped else None
    draw = random.Random(os.getpid())
    while not stop[0]:
        block = draw.randrange(BLOCKS)
        wanted = struct.unpack_from("<Q", acknowledged, 8 * block)[0]
        if view:
            found = struct.unpack_from("<Q", view, block * BLOCK)[0]
        else:
            found = struct.unpack_from("<Q", os.pread(fd, BLOCK, block * BLOCK))[0]
        if found < wanted:
            wrong[0] = min(255, wrong[0] + 1)


def run(directory, seconds):
    path = os.path.join(directory, "direct")
    with open(path, "wb") as file:
        file.write(content(0) * BLOCKS)
    acknowledged, stop, wrong = mmap.mmap(-1, 8 * BLOCKS), mmap.mmap(-1, 1), mmap.mmap(-1, 2)
    readers = []
    last = [0] * BLOCKS
    try:
        for mapped in (False, True):
            child = os.fork()
            if child == 0:
                found = memoryview(wrong)[int(mapped) :]
                try:
                    reader(path, acknowledged, stop, mapped, found)
                    os._exit(0)
                finally:
                    os._exit(1)
            readers.append(child)
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
        queue = Queue(fd)
        written, end = 0, time.monotonic() + seconds
        draw = random.Random(5)
        # Whether it goes on is decided once a turn: nothing completes where nothing was submitted.
        while (goes_on := time.monotonic() < end) or queue.blocks:
            idle = [block for block in range(BLOCKS) if block not in queue.blocks.values()]
            while goes_on and queue.free:
                block = idle.pop(draw.randrange(len(idle)))
                last[block] += 1
                queue.submit(block, content(last[block]))
            for block in queue.completed():
                written += 1
                struct.pack_into("<Q", acknowledged, 8 * block, last[block])
        queue.close()
    finally:
        stop[0] = 1
        ended = [os.waitpid(child, 0)[1] for child in readers]
    assert not any(ended), "a reader failed"
    with open(path, "rb") as file:
        kept = [block for block in range(BLOCKS) if file.read(BLOCK) != content(last[block])]
    print(
        f"{written} writes; old bytes by read: {wrong[0]}, by mmap: {wrong[1]}, left in the page "
        f"cache: {len(kept)}"
    )
    os.close(fd)
    os.unlink(path)
    return not wrong[0] and not kept and not wrong[1]


def main():
    directory = tempfile.mkdtemp(dir=sys.argv[1])
    good = run(directory, float(sys.argv[2]) if len(sys.argv) > 2 else 5)
    os.rmdir(directory)
    print(f"{int(good)} passed, {int(not good)} failed")
    return not good


if __name__ == "__main__":
    sys.exit(main())
