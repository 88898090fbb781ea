"""Which blocks of a file are data, by the rules of ext4 with blocks of 4 KiB: a model for SEEK_DATA
and SEEK_HOLE.

ext4 itself also calls what was allocated and never written data while the kernel keeps pages of it;
the model does not.
"""

import ctypes
import errno
import os
import random

BLOCK = 4096
KEEP_SIZE, PUNCH, ZERO = 1, 3, 0x10
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def seek(fd, offset, whence):
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        return errno.errorcode[error.errno]


class Model:
    """The content of a file, and the blocks that ext4 says have data. A block of zeros may be a
    hole as well (POSIX)."""

    def __init__(self):
        self.content = bytearray()
        self.blocks = set()

    def write(self, offset, data):
        self.grow(offset + len(data))
        self.content[offset : offset + len(data)] = data
        self.blocks.update(range(offset // BLOCK, -(-(offset + len(data)) // BLOCK)))

    def grow(self, size):
        self.content.extend(bytes(max(0, size - len(self.content))))

    def truncate(self, size):
        del self.content[size:]
        self.grow(size)
        self.blocks = {block for block in self.blocks if block * BLOCK < size}

    def punch(self, offset, length):
        upto = min(offset + length, len(self.content))
        if offset < upto:
            self.content[offset:upto] = bytes(upto - offset)
        self.blocks -= set(range(-(-offset // BLOCK), (offset + length) // BLOCK))


def step(fd, model, dice):
    """Makes one random change to a file and to its model; returns what it was."""
    edge = dice.choice(
        [0, 5, 100, 4000, BLOCK, 3 * BLOCK, 5000, 64 << 10, 300 << 10, dice.randrange(400 << 10)]
    )
    offset = max(0, edge + dice.choice([0, 0, 0, -1, 1, 100]))
    length = dice.choice([1, 5, 100, BLOCK, 5000, 3 * BLOCK, 40 << 10, 200 << 10])
    what = dice.choice(
        ["write", "write", "write", "truncate", "punch", "punch", "zero", "grow", "keep"]
    )
    if what == "write":
        data = bytes([dice.randrange(1, 256)]) * length
        os.pwrite(fd, data, offset)
        model.write(offset, data)
    elif what == "truncate":
        os.ftruncate(fd, offset)
        model.truncate(offset)
    elif what == "punch":
        fallocate(fd, PUNCH, offset, length)
        model.punch(offset, length)
    elif what == "zero":
        fallocate(fd, ZERO, offset, length)
        model.grow(offset + length)
        model.punch(offset, length)
    elif what == "grow":
        fallocate(fd, 0, offset, length)
        model.grow(offset + length)
    else:
        fallocate(fd, KEEP_SIZE, offset, length)
    if dice.random() < 0.3:
        os.fsync(fd)
    return what, offset, length


def compare(fd, model):
    """Compares what a file answers with its model, at and around every block and its end."""
    size = len(model.content)
    assert os.fstat(fd).st_size == size
    assert os.pread(fd, size + 1, 0) == model.content
    count = -(-size // BLOCK)
    data = {b for b in range(count) if seek(fd, b * BLOCK, os.SEEK_DATA) == b * BLOCK}
    filled = {b for b in range(count) if any(model.content[b * BLOCK : (b + 1) * BLOCK])}
    assert filled <= data <= model.blocks, (filled - data, data - model.blocks)
    points = {b * BLOCK + near for b in range(count + 1) for near in (-1, 0, 1)} | {
        size - 1,
        size,
        size + 1,
        size + BLOCK,
    }
    for at in sorted(points):
        here = at // BLOCK
        if 0 <= at < size:
            # The last block is followed by a hole: the end.
            behind = next(b for b in range(here, count + 1) if b not in data)
            hole = min(size, max(at, behind * BLOCK))
            found = next((max(at, b * BLOCK) for b in range(here, count) if b in data), "ENXIO")
        else:
            hole = found = "ENXIO"
        got = seek(fd, at, os.SEEK_DATA), seek(fd, at, os.SEEK_HOLE)
        assert got == (found, hole), (at, size, got, (found, hole))


def check(directory, seed, files=30, steps=12):
    """Random changes to a few files, each judged by its model."""
    dice = random.Random(seed)
    for number in range(files):
        path, done = f"{directory}/seek-{number}", []
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            model = Model()
            for _ in range(steps):
                done.append(step(fd, model, dice))
                compare(fd, model)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, file {number}, after {done}: {error}") from error
        finally:
            os.close(fd)
            os.unlink(path)
