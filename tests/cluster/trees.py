#!/usr/bin/env python3
"""Trees for dumps: made, compared, and changed while they are dumped.

trees.py make DIR            a tree with files of all kinds
trees.py compare A B         whether both are the same, inode numbers among it; prints the first
                             differences
trees.py change DIR SECONDS  creates, renames and links, one call after the other, until the time is
                             over; prints how far it came
trees.py judge DIR FROM TO   whether DIR is what `change` had made at one moment, after FROM and up
                             to TO steps
"""

import os
import random
import stat
import sys
import time


def make(top):
    chance = random.Random(7)
    os.chmod(top, 0o2751)
    for d in range(8):
        os.makedirs(f"{top}/d{d}/sub/deep")
        os.chmod(f"{top}/d{d}", 0o700 + d)
        os.chown(f"{top}/d{d}/sub", 1000 + d, 2000)
        for f, size in enumerate((0, 1, 3000, 20_000, 300_000)):
            path = f"{top}/d{d}/file-{f}.bin"
            with open(path, "wb") as file:
                file.write(chance.randbytes(size))
            os.setxattr(path, "user.kind", b"%d\0\xff" % f)
            os.chmod(path, 0o640 + f)
    for number in range(300):
        with open(f"{top}/d0/sub/deep/{number:04}", "wb") as file:
            file.write(b"%d" % number)
    # In many pieces, with holes, of more than one chunk.
    with open(f"{top}/large", "wb") as file:
        for _ in range(60):
            file.seek(chance.randrange(150_000_000))
            file.write(chance.randbytes(100_000))
            os.fsync(file.fileno())
    with open(f"{top}/whole", "wb") as file:
        file.write(chance.randbytes(20_000_000))
    os.setxattr(top, "user.top", b"x" * 1000)
    # Names on all nodes of files that are elsewhere.
    for number in range(40):
        os.link(f"{top}/d1/file-{number % 5}.bin", f"{top}/d2/link-{number}")
        os.rename(f"{top}/d0/sub/deep/{number:04}", f"{top}/d3/renamed-{number}")
        os.symlink(f"../d{number % 8}/file", f"{top}/d4/symlink-{number}")
    os.rename(f"{top}/d5/sub", f"{top}/d6/moved")
    os.rename(f"{top}/large", f"{top}/d7/large")
    os.mkfifo(f"{top}/fifo")
    os.mknod(f"{top}/device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkdir(bytes(top, "ascii") + b"/name \xff\n\\\"")
    for number in range(30):
        os.utime(f"{top}/d3/renamed-{number}", ns=(5, 1_234_567_890_123_456_789 + number))
    # What was there and is gone.
    for number in range(200, 260):
        os.unlink(f"{top}/d0/sub/deep/{number:04}")


def describe(path):
    at = os.lstat(path)
    told = {
        name: getattr(at, f"st_{name}")
        for name in ("ino", "mode", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns", "rdev")
    }
    if stat.S_ISLNK(at.st_mode):
        told["target"] = os.readlink(path)
    elif stat.S_ISDIR(at.st_mode):
        told["names"] = sorted(os.listdir(path))
    if not stat.S_ISLNK(at.st_mode):
        told["xattrs"] = {name: os.getxattr(path, name) for name in sorted(os.listxattr(path))}
    return told, stat.S_ISDIR(at.st_mode), stat.S_ISREG(at.st_mode)


def same_content(one, other):
    with open(one, "rb") as a, open(other, "rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def compare(one, other):
    todo, seen, wrong = [b""], 0, []
    one, other = os.fsencode(one), os.fsencode(other)
    while todo and len(wrong) < 20:
        path = todo.pop()
        here, there = one + path, other + path
        told, is_dir, is_file = describe(here)
        found, _, _ = describe(there)
        wrong += [
            f"{path}: {name}: {told[name]!r:.90}, {found.get(name)!r:.90}"
            for name in told
            if told[name] != found.get(name)
        ]
        seen += 1
        if is_dir:
            todo += [path + b"/" + name for name in told["names"]]
        elif is_file and not same_content(here, there):
            wrong.append(f"{path}: the content differs")
    print(f"{seen} entries", *wrong, sep="\n")
    sys.exit(1 if wrong else 0)


# A step makes its file, then its directory has it; a traveller is renamed at each step; every
# fourth file gets a second name.
DIRS = 5


def change(top, seconds):
    for d in range(DIRS):
        os.mkdir(f"{top}/{d}")
    for d in range(3):
        with open(f"{top}/traveller-{d}-0", "w") as file:
            file.write("here")
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with open(f"{top}/{step % DIRS}/{step}", "w") as file:
            file.write(str(step))
        if step % 4 == 0:
            os.link(f"{top}/{step % DIRS}/{step}", f"{top}/{(step + 1) % DIRS}/link-{step}")
        if step % 10 == 0:
            os.mkdir(f"{top}/dir-{step}")
            os.rename(f"{top}/dir-{step}", f"{top}/{step % DIRS}/dir-{step}")
        for d in range(3):
            os.rename(f"{top}/traveller-{d}-{step}", f"{top}/traveller-{d}-{step + 1}")
        step += 1
        print(step, flush=True)


def judge(top, first, last):
    names = os.listdir(top)
    travellers = sorted(name for name in names if name.startswith("traveller"))
    assert [name.split("-")[1] for name in travellers] == [
        "0",
        "1",
        "2",
    ], f"each once: {travellers}"
    places = [int(name.split("-")[2]) for name in travellers]
    assert (
        places == sorted(places, reverse=True) and places[0] - places[2] <= 1
    ), f"one after the other: {places}"
    files = {int(name) for d in range(DIRS) for name in os.listdir(f"{top}/{d}") if name.isdigit()}
    steps = len(files)
    assert files == set(
        range(steps)
    ), f"files are missing: {sorted(set(range(max(files) + 1)) - files)[:10]}"
    assert first <= steps <= last + 1, f"{steps} steps, not from {first} to {last}"
    assert steps - 1 <= places[0] <= steps, f"{places} after {steps} steps"
    for d in range(DIRS):
        inside = os.listdir(f"{top}/{d}")
        for name in inside:
            at = os.stat(f"{top}/{d}/{name}")
            if name.startswith("link-"):
                step = int(name[5:])
                assert (
                    at.st_nlink == 2 and at.st_ino == os.stat(f"{top}/{step % DIRS}/{step}").st_ino
                ), name
            elif name.isdigit() and int(name) % 4 == 0 and int(name) < steps - 1:
                assert at.st_nlink == 2, f"{name}: {at.st_nlink} names"
            # The last one may be made and not written.
            elif name.isdigit() and int(name) < steps - 1:
                assert open(f"{top}/{d}/{name}").read() == name, name
    print(f"{steps} steps")


if __name__ == "__main__":
    act, *arguments = sys.argv[1:]
    if act == "make":
        make(arguments[0])
    elif act == "compare":
        compare(*arguments)
    elif act == "change":
        change(arguments[0], float(arguments[1]))
    else:
        judge(arguments[0], int(arguments[1]), int(arguments[2]))
