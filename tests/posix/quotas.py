#!/usr/bin/env python3
"""Calls at the limits of a quota, for quotas.sh.

  quotas.py limits DIR OUTSIDE      every call that grows, in a directory with 8 files and 1 MiB
  quotas.py edge DIR OUTSIDE        renames and links over the quota's edge
  quotas.py fill DIR SECONDS        creates and writes until the time is over, printing nothing
  quotas.py calls DIR               one line a call: its name and how it ended, to be compared

Prints a line "FAIL …" for each call that did not do what it has to, and exits with 1 then.
"""
import errno
import os
import subprocess
import sys
import time

MIB = 1 << 20
LIMIT_FILES = 8
failed = False


def outcome(call):
    try:
        call()
        return "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def expect(name, expected, call):
    global failed
    found = outcome(call)
    if found != expected:
        failed = True
        print(f"FAIL {name}: {found}, not {expected}")


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def write(path, size, at=0, sync=True):
    """Fails like the first of write, fsync and close that does."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    error = None
    for call in (
        lambda: written(file, size, at),
        (lambda: os.fsync(file)) if sync else (lambda: None),
        lambda: os.close(file),
    ):
        try:
            call()
        except OSError as why:
            error = error or why
    if error:
        raise error


def written(file, size, at):
    data = b"q" * min(size, 64 << 10)
    for offset in range(at, at + size, len(data)):
        os.pwrite(file, data[: at + size - offset], offset)


def fill_files(directory):
    for number in range(LIMIT_FILES):
        create(f"{directory}/f{number}")


def growing_files(directory):
    return [
        ("create", lambda: create(f"{directory}/more")),
        ("mkdir", lambda: os.mkdir(f"{directory}/more")),
        ("symlink", lambda: os.symlink("x", f"{directory}/more")),
        ("mkfifo", lambda: os.mkfifo(f"{directory}/more")),
        ("link", lambda: os.link(f"{directory}/f0", f"{directory}/more")),
    ]


def clear(directory):
    subprocess.run(["find", directory, "-mindepth", "1", "-delete"], check=True)


def limits(directory, outside):
    fill_files(directory)
    for name, call in growing_files(directory):
        expect(f"{name} above the limit of files", "EDQUOT", call)
    create(f"{outside}/from")
    expect("rename into it", "EDQUOT",
           lambda: os.rename(f"{outside}/from", f"{directory}/more"))
    expect("rename onto a file", "ok",
           lambda: os.rename(f"{outside}/from", f"{directory}/f7"))
    expect("removal", "ok", lambda: os.unlink(f"{directory}/f7"))
    expect("mkdir then", "ok", lambda: os.mkdir(f"{directory}/sub"))
    expect("a create further down", "EDQUOT", lambda: create(f"{directory}/sub/more"))
    # Bytes: the writer hears it at write, fsync or close, with and without fsync.
    expect("1 MiB", "ok", lambda: write(f"{directory}/f0", MIB))
    for sync in (True, False):
        expect("one byte more, another file", "EDQUOT",
               lambda sync=sync: write(f"{directory}/f1", 1, sync=sync))
        expect("at the end of the file", "EDQUOT",
               lambda sync=sync: write(f"{directory}/f0", 1, at=MIB, sync=sync))
    expect("a long writer, before it syncs or closes", "EDQUOT",
           lambda: keep_writing(f"{directory}/f3"))
    os.truncate(f"{directory}/f3", 0)
    expect("over what is there", "ok", lambda: write(f"{directory}/f0", MIB))
    expect("truncate to more", "EDQUOT", lambda: os.truncate(f"{directory}/f2", 1))
    expect("truncate to less", "ok", lambda: os.truncate(f"{directory}/f0", MIB - 4096))
    expect("what is free then", "ok", lambda: write(f"{directory}/f1", 4096))
    expect("fallocate", "EDQUOT", lambda: allocate(f"{directory}/f2", 4096))
    for name, size in (("f0", MIB - 4096), ("f1", 4096)):
        with open(f"{directory}/{name}", "rb") as file:
            if file.read() != b"q" * size:
                expect(f"bytes of {name}", "what was acknowledged", lambda: None)
    found = os.statvfs(directory)
    shown = (found.f_blocks * found.f_frsize, found.f_bavail, found.f_files, found.f_favail)
    if shown != (MIB, 0, LIMIT_FILES, 0):
        expect(f"statvfs {shown}", "that of the quota", lambda: None)
    clear(directory)
    expect("after all of it", "ok", lambda: write(f"{directory}/f0", MIB))
    clear(directory)


def keep_writing(path):
    """Writes a little at a time until it is refused, then closes, whatever that says."""
    file = os.open(path, os.O_WRONLY)
    try:
        for number in range(200):
            written(file, 1000, number * 1000)
            time.sleep(0.05)
    finally:
        try:
            os.close(file)
        except OSError:
            pass


def allocate(path, size):
    file = os.open(path, os.O_WRONLY)
    try:
        os.posix_fallocate(file, 0, size)
    finally:
        os.close(file)


def edge(directory, outside):
    os.mkdir(f"{outside}/dir")
    create(f"{outside}/file")
    create(f"{directory}/inner")
    os.mkdir(f"{directory}/below")
    expect("a directory into it", "EXDEV",
           lambda: os.rename(f"{outside}/dir", f"{directory}/dir"))
    expect("a directory out of it", "EXDEV",
           lambda: os.rename(f"{directory}/below", f"{outside}/below"))
    expect("a link into it", "EXDEV", lambda: os.link(f"{outside}/file", f"{directory}/link"))
    expect("a link out of it", "EXDEV", lambda: os.link(f"{directory}/inner", f"{outside}/link"))
    expect("a file into it", "ok", lambda: os.rename(f"{outside}/file", f"{directory}/file"))
    expect("a file out of it", "ok", lambda: os.rename(f"{directory}/file", f"{outside}/file"))
    expect("a link within it", "ok",
           lambda: os.link(f"{directory}/inner", f"{directory}/below/link"))
    expect("a file with two names out of it", "EXDEV",
           lambda: os.rename(f"{directory}/inner", f"{outside}/inner"))
    moved = subprocess.run(["mv", f"{outside}/dir", directory], check=False)
    if moved.returncode or not os.path.isdir(f"{directory}/dir"):
        expect("mv of a directory", "copied and moved", lambda: None)
    clear(directory)
    clear(outside)


def fill(directory, seconds):
    """For a test that kills the mount meanwhile: every errno but EDQUOT ends it."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        path = f"{directory}/{os.getpid()}-{number % 40}"
        try:
            match number % 7:
                case 5:
                    os.unlink(path)
                case 6:
                    os.rename(path, f"{directory}/{os.getpid()}-{number % 11}")
                case _:
                    write(path, number * 997 % 30_000, sync=False)
        except OSError as error:
            if error.errno not in (errno.EDQUOT, errno.ENOENT):
                return


def calls(directory):
    """The same on XFS, where the directory counts as a file: one less here."""
    found = []
    fill_files(directory)
    for name, call in growing_files(directory):
        if name != "link":
            found.append((name, outcome(call)))
    found.append(("unlink", outcome(lambda: os.unlink(f"{directory}/f7"))))
    found.append(("mkdir then", outcome(lambda: os.mkdir(f"{directory}/sub"))))
    found.append(("below", outcome(lambda: create(f"{directory}/sub/more"))))
    found.append(("write", outcome(lambda: write(f"{directory}/f0", MIB))))
    found.append(("write more", outcome(lambda: write(f"{directory}/f1", 64 << 10))))
    found.append(("overwrite", outcome(lambda: write(f"{directory}/f0", MIB))))
    found.append(("truncate", outcome(lambda: os.truncate(f"{directory}/f0", 0))))
    found.append(("write then", outcome(lambda: write(f"{directory}/f1", 64 << 10))))
    shown = os.statvfs(directory)
    found.append(("statvfs", shown.f_blocks * shown.f_frsize))
    os.mkdir(f"{directory}/../outside")
    create(f"{directory}/../outside/file")
    found.append(("link in", outcome(
        lambda: os.link(f"{directory}/../outside/file", f"{directory}/link"))))
    found.append(("rename dir in", outcome(
        lambda: os.rename(f"{directory}/../outside", f"{directory}/outside"))))
    for name, result in found:
        print(f"{name}: {result}")


def main():
    match sys.argv[1:]:
        case ["limits", directory, outside]:
            limits(directory, outside)
        case ["edge", directory, outside]:
            edge(directory, outside)
        case ["fill", directory, seconds]:
            fill(directory, float(seconds))
        case ["calls", directory]:
            calls(directory)
        case _:
            sys.exit(__doc__)
    sys.exit(failed)


main()
