#!/usr/bin/env python3
"""Files for tests/s3/tiers.sh: written, checked, and read where they cannot be.

    tiers.py write DIR COUNT          sizes from 5 KB to 9 MB, contents by name
    tiers.py clone FROM TO            the files of a directory, by copy_file_range: bytes are shared
    tiers.py check DIR                all files at and below it are as they were written
    tiers.py reads-or-fails DIR       each is, or fails with EIO
    tiers.py fails ERRNO FILE [nonblock]
    tiers.py attributes FILE          stat, chmod, rename and a second name
"""

import errno
import hashlib
import os
import sys

SIZES = [5_000, 60_000, 300_000, 2_000_000, 9_000_000]


def content(name, size):
    """Bytes that follow from the name alone."""
    seed = hashlib.sha256(name.encode()).digest()
    block = b"".join(hashlib.sha256(seed + bytes([at])).digest() for at in range(128))
    return (block * (size // len(block) + 1))[:size]


def write(directory, count):
    for number in range(count):
        name = f"f{number}"
        fd = os.open(f"{directory}/{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        data = memoryview(content(name, SIZES[number % len(SIZES)]))
        while data:
            data = data[os.write(fd, data):]
        os.fsync(fd)
        os.close(fd)


def clone(source, target):
    os.mkdir(target)
    for path in files(source):
        size = os.stat(path).st_size
        with open(path, "rb") as old, open(f"{target}/{os.path.basename(path)}", "wb") as new:
            while size > 0:
                size -= os.copy_file_range(old.fileno(), new.fileno(), size)


def is_right(path):
    name = os.path.basename(path)
    with open(path, "rb") as file:
        return file.read() == content(name, SIZES[int(name[1:]) % len(SIZES)])


def files(directory):
    for top, _, names in os.walk(directory):
        yield from (f"{top}/{name}" for name in sorted(names))


def check(directory):
    paths = list(files(directory))
    wrong = [path for path in paths if not is_right(path)]
    if wrong or not paths:
        sys.exit(f"{len(wrong)} of {len(paths)} files are wrong: {wrong[:3]}")


def reads_or_fails(directory):
    for path in files(directory):
        try:
            if not is_right(path):
                sys.exit(f"{path} has other bytes")
        except OSError as error:
            if error.errno != errno.EIO:
                raise


def fails(wanted, path, nonblock=False):
    fd = os.open(path, os.O_RDONLY | (os.O_NONBLOCK if nonblock else 0))
    try:
        os.read(fd, 1000)
    except OSError as error:
        if errno.errorcode[error.errno] != wanted:
            sys.exit(f"{errno.errorcode[error.errno]}, not {wanted}")
        return
    finally:
        os.close(fd)
    sys.exit("it can be read")


def attributes(path):
    before = os.stat(path)
    os.chmod(path, 0o600)
    os.rename(path, path + ".moved")
    os.link(path + ".moved", path)
    os.unlink(path + ".moved")
    os.chmod(path, before.st_mode)
    if os.stat(path).st_size != before.st_size:
        sys.exit("its size has changed")


def main():
    match sys.argv[1:]:
        case ["write", directory, count]:
            write(directory, int(count))
        case ["clone", source, target]:
            clone(source, target)
        case ["check", directory]:
            check(directory)
        case ["reads-or-fails", directory]:
            reads_or_fails(directory)
        case ["fails", wanted, path, *how]:
            fails(wanted, path, how == ["nonblock"])
        case ["attributes", path]:
            attributes(path)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
