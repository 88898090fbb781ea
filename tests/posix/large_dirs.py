#!/usr/bin/env python3
"""A large directory and the pages of `kestrel ls`, for tests/posix/large-dirs.sh.

    large_dirs.py KESTREL make DIR NAMES             makes so many names n000000… in DIR
    large_dirs.py KESTREL listings PLACE DIR NAMES   every way to list tells just these; PLACE is
                                                     what `kestrel ls` is asked for, DIR its path
    large_dirs.py KESTREL churn DIR NAMES            lists while processes create and remove others
    large_dirs.py KESTREL odd DIR                    names that are no text, attributes
    large_dirs.py KESTREL remove DIR                 `rm -rf` while others list

Each check prints a line; the last line is "N passed, N failed".
"""

import json
import multiprocessing
import os
import subprocess
import sys

KESTREL = sys.argv[1]
MAKERS = 4
passed, failed = 0, 0


def check(text, good, told=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"{'ok  ' if good else 'FAIL'} {text}{'' if good else f': {told}'}")


def name_of(number):
    # Every hundredth is as long as names get.
    name = f"n{number:06}"
    return name.ljust(255, "x") if number % 100 == 50 else name


def make_some(directory, numbers):
    for number in numbers:
        os.close(os.open(f"{directory}/{name_of(number)}", os.O_CREAT | os.O_WRONLY, 0o644))


def make(directory, names):
    numbers = range(int(names))
    run_all([(make_some, (directory, numbers[start::MAKERS])) for start in range(MAKERS)])
    check(f"{names} names made", True)


def run_all(calls):
    processes = [multiprocessing.Process(target=call, args=args) for call, args in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode


def text_of(name):
    return bytes(name) if isinstance(name, list) else name.encode()


def page(place, after=None, limit=None, *more):
    command = [KESTREL.encode(), b"ls", os.fsencode(place), b"--json", *map(os.fsencode, more)]
    if after is not None:
        command += [b"--after=" + after]
    if limit is not None:
        command += [b"--limit", str(limit).encode()]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for entry in found["entries"]:
        entry["name"] = text_of(entry["name"])
    return found


def pages(place, limit):
    """All names by pages of a process each."""
    after, names = None, []
    while True:
        found = page(place, after, limit)
        assert len(found["entries"]) <= limit, len(found["entries"])
        names += [entry["name"] for entry in found["entries"]]
        if found["end"]:
            return names
        after = text_of(found["last"])


def by_ls(directory):
    out = subprocess.run(["ls", "-f", directory], check=True, capture_output=True).stdout
    return [name for name in out.split(b"\n")[:-1] if name not in (b".", b"..")]


def by_find(directory):
    command = ["find", directory, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\n"]
    return subprocess.run(command, check=True, capture_output=True).stdout.split(b"\n")[:-1]


def listings(place, directory, names):
    wanted = sorted(name_of(number).encode() for number in range(int(names)))
    check("ls -f", sorted(by_ls(directory)) == wanted)
    check("find", sorted(by_find(directory)) == wanted)
    whole = [entry["name"] for entry in page(place)["entries"]]
    check("kestrel ls, in order", whole == wanted)
    limit = max(1000, len(wanted) // 20)
    check(f"pages of {limit}, each of a process", pages(place, limit) == wanted)
    for at in (0, len(wanted) // 2, len(wanted) - 3):
        found = page(place, wanted[at], 5)
        told = [entry["name"] for entry in found["entries"]]
        check(f"5 names behind number {at}", told == wanted[at + 1 : at + 6], told)
        check("and whether more follow", found["end"] == (at + 6 >= len(wanted)), found["end"])
    found = page(place, b"n000100+gone", 2)
    told = [entry["name"] for entry in found["entries"]]
    check("behind a name that is not there", told == wanted[101:103], told)
    plain = subprocess.run([KESTREL, "ls", place], check=True, capture_output=True).stdout
    check("as lines", plain.split(b"\n")[:-1] == wanted)
    seek(directory, wanted)


def seek(directory, wanted):
    """telldir and seekdir: from a place back in the directory the same names follow."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    class Dirent(ctypes.Structure):
        _fields_ = [
            ("ino", ctypes.c_uint64),
            ("off", ctypes.c_int64),
            ("reclen", ctypes.c_ushort),
            ("type", ctypes.c_ubyte),
            ("name", ctypes.c_char * 256),
        ]

    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.POINTER(Dirent)
    libc.readdir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    stream = libc.opendir(os.fsencode(directory))
    marks, read = [], []
    while True:
        if len(read) % 4999 == 0:
            marks.append((libc.telldir(stream), len(read)))
        entry = libc.readdir(stream)
        if not entry:
            break
        read.append(bytes(entry.contents.name))
    good = sorted(set(read) - {b".", b".."}) == wanted
    for place, index in reversed(marks):
        libc.seekdir(stream, place)
        again = []
        while len(again) < 100 and (entry := libc.readdir(stream)):
            again.append(bytes(entry.contents.name))
        good = good and again == read[index : index + 100]
    libc.closedir(stream)
    check(f"seekdir to {len(marks)} places", good)


def come_and_go(directory, letter, stop):
    number = 0
    while not stop.is_set():
        # Between and behind the names that stay.
        name = f"{directory}/n{number * 7919 % 1000000:06}-{letter}"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644))
        if number >= 200:
            os.unlink(f"{directory}/n{(number - 200) * 7919 % 1000000:06}-{letter}")
        number += 1
    for number in range(max(0, number - 200), number):
        os.unlink(f"{directory}/n{number * 7919 % 1000000:06}-{letter}")


def churn(directory, names):
    stayed = {name_of(number).encode() for number in range(int(names))}
    stop = multiprocessing.Event()
    others = [
        multiprocessing.Process(target=come_and_go, args=(directory, letter, stop))
        for letter in "ab"
    ]
    for other in others:
        other.start()
    ways = {
        "ls -f": by_ls,
        "find": by_find,
        "pages of 2000": lambda directory: pages(directory, 2000),
        "kestrel ls": lambda directory: [one["name"] for one in page(directory)["entries"]],
    }
    for way, listing in ways.items():
        found = listing(directory)
        missing = stayed - set(found)
        check(f"{way}: names that stay are told", not missing, sorted(missing)[:5])
        # A name that goes and comes back may be told twice by readdir.
        kept = [name for name in found if name in stayed]
        check(f"{way}: once", len(kept) == len(stayed), len(kept))
        if "ls -f" != way != "find":
            check(f"{way}: in order, no name twice", found == sorted(set(found)))
    stop.set()
    for other in others:
        other.join()
        check("a process that changed names", other.exitcode == 0, other.exitcode)
    check("none of theirs is left", sorted(by_ls(directory)) == sorted(stayed))


def odd(directory):
    names = [b"\xff\xfe", b"new\nline", b"-n", b"tab\t", "é".encode(), b"x" * 255, b"sub"]
    for name in names:
        if name != b"sub":
            with open(os.fsencode(directory) + b"/" + name, "wb") as file:
                file.write(b"12345")
    os.mkfifo(f"{directory}/fifo")
    os.symlink("there", f"{directory}/symlink")
    os.link(f"{directory}/-n", f"{directory}/hard")
    names = sorted(names + [b"fifo", b"symlink", b"hard"])
    found = page(directory)["entries"]
    check("bytes of names", [entry["name"] for entry in found] == names)
    check("pages of one", pages(directory, 1) == names)
    types = {entry["name"]: entry["type"] for entry in found}
    wanted = {b"fifo": "fifo", b"symlink": "symlink", b"sub": "directory", b"-n": "file"}
    check("types", wanted.items() <= types.items(), types)
    told = {}
    for entry in page(directory, None, None, "-l")["entries"]:
        stat = os.lstat(os.fsencode(directory) + b"/" + entry["name"])
        ours = (stat.st_ino, stat.st_mode & 0o7777, stat.st_nlink, stat.st_uid, stat.st_mtime_ns)
        fields = ("inode", "mode", "links", "uid", "mtime_ns")
        theirs = tuple(entry[field] for field in fields)
        if ours != theirs:
            told[entry["name"]] = (ours, theirs)
    check("attributes are those of stat", not told, told)
    long = subprocess.run([KESTREL, "ls", "-l", directory], check=True, capture_output=True)
    check("as lines", b"-rw-r--r--   2" in long.stdout, long.stdout)
    check("of an empty directory", page(f"{directory}/sub") == {
        "entries": [], "last": None, "end": True,
    })


def remove(directory):
    stop = multiprocessing.Event()

    def lists():
        while not stop.is_set():
            subprocess.run(["ls", "-f", directory], capture_output=True, check=False)
            command = [KESTREL, "ls", directory, "--limit", "3000"]
            subprocess.run(command, capture_output=True, check=False)

    others = [multiprocessing.Process(target=lists) for _ in range(2)]
    for other in others:
        other.start()
    done = subprocess.run(["rm", "-rf", directory], capture_output=True, check=False)
    check("rm -rf", done.returncode == 0 and not done.stderr, done.stderr[-500:])
    check("leaves nothing", not os.path.lexists(directory))
    stop.set()
    for other in others:
        other.join()
        check("a process that listed ended well", other.exitcode == 0, other.exitcode)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    globals()[sys.argv[2]](*sys.argv[3:])
    print(f"{passed} passed, {failed} failed")
