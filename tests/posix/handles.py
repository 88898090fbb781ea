#!/usr/bin/env python3
"""File handles: name_to_handle_at(2) and open_by_handle_at(2) on a mount, before and after
restarts.

    handles.py make DIR STATE    makes files and directories in DIR and keeps their handles in the
                                 file STATE
    handles.py open DIR STATE    opens each of them by its handle, and checks that handles of
                                 removed ones are ESTALE
    handles.py pass DIR STATE    walks through the directories of DIR, as the first that a new mount
                                 does, and opens each by its handle: at once, and when the kernel
                                 has dropped it from its cache, where it may be ESTALE

As root. Each check prints a line; the last line is "N passed, N failed".
"""

import ctypes
import errno
import json
import os
import stat
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
HANDLE_BYTES_MAX = 128
# Directories that are made while another thread walks through them.
WALKED = [f"walked-{number}" for number in range(10)]
passed, failed = 0, 0


class Handle(ctypes.Structure):
    """struct file_handle"""

    _fields_ = [
        ("bytes", ctypes.c_uint),
        ("kind", ctypes.c_int),
        ("data", ctypes.c_ubyte * HANDLE_BYTES_MAX),
    ]


def handle_of(path):
    handle, mount = Handle(bytes=HANDLE_BYTES_MAX), ctypes.c_int()
    done = libc.name_to_handle_at(
        -100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), f"name_to_handle_at {path}")
    return {"kind": handle.kind, "data": bytes(handle.data[: handle.bytes]).hex()}


def open_handle(directory, kept, flags=os.O_RDONLY):
    data = bytes.fromhex(kept["data"])
    handle = Handle(bytes=len(data), kind=kept["kind"])
    ctypes.memmove(handle.data, data, len(data))
    mount = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = libc.open_by_handle_at(mount, ctypes.byref(handle), flags)
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"open_by_handle_at: {os.strerror(code)}")
        return fd
    finally:
        os.close(mount)


def check(text, function):
    global passed, failed
    try:
        function()
        passed += 1
        print(f"ok   {text}")
    except (AssertionError, OSError) as why:
        failed += 1
        print(f"FAIL {text}: {type(why).__name__} {why}")


def gone(directory, handle):
    try:
        os.close(open_handle(directory, handle))
    except OSError as why:
        assert why.errno == errno.ESTALE, why
        return
    raise AssertionError("opened")


def make_while_walked(directory, names):
    """Makes directories while another thread walks through them to what is not there."""
    path, stop = [f"{directory}/{names[0]}"], threading.Event()

    def walk():
        while not stop.is_set():
            os.path.exists(f"{path[0]}/below")

    walker = threading.Thread(target=walk)
    walker.start()
    try:
        for name in names:
            path[0] = f"{directory}/{name}"
            for _ in range(20):
                os.path.exists(f"{path[0]}/below")
            os.mkdir(path[0])
    finally:
        stop.set()
        walker.join()


def make(directory, state):
    os.makedirs(f"{directory}/a/b/c")
    make_while_walked(directory, WALKED)
    kept = {}
    for name in (
        "plain",
        "a/inner",
        "a/b/deep",
        "renamed",
        "moved",
        "linked",
        "removed",
        "replaced",
        "open",
    ):
        with open(f"{directory}/{name}", "w", encoding="ascii") as file:
            file.write(name)
    os.mkdir(f"{directory}/rmdir")
    names = (
        "plain",
        "a/inner",
        "a/b/deep",
        "renamed",
        "moved",
        "linked",
        "removed",
        "replaced",
        "rmdir",
    )
    names += ("a", "a/b", "a/b/c", *WALKED)
    for name in names:
        kept[name] = {
            "handle": handle_of(f"{directory}/{name}"),
            "ino": os.stat(f"{directory}/{name}").st_ino,
        }
    for name, entry in kept.items():
        check(
            f"{name} opens at once",
            lambda entry=entry: os.close(open_handle(directory, entry["handle"])),
        )
    os.rename(f"{directory}/renamed", f"{directory}/other name")
    os.rename(f"{directory}/moved", f"{directory}/a/b/c/moved")
    os.link(f"{directory}/linked", f"{directory}/a/link")
    os.unlink(f"{directory}/removed")
    os.rmdir(f"{directory}/rmdir")
    with open(f"{directory}/new", "w", encoding="ascii") as file:
        file.write("another file")
    os.rename(f"{directory}/new", f"{directory}/replaced")
    with open(state, "w", encoding="ascii") as file:
        json.dump(kept, file)


def reopen(directory, state):
    with open(state, encoding="ascii") as file:
        kept = json.load(file)

    def opens(name, entry):
        fd = open_handle(directory, entry["handle"])
        try:
            found = os.fstat(fd)
            assert found.st_ino == entry["ino"], f"inode {found.st_ino}, wanted {entry['ino']}"
            if stat.S_ISREG(found.st_mode):
                assert os.read(fd, 100) == name.encode("ascii")
        finally:
            os.close(fd)

    for name in (
        "a/b/c",
        "plain",
        "a/inner",
        "a/b/deep",
        "renamed",
        "moved",
        "linked",
        "a",
        "a/b",
        *WALKED,
    ):
        check(f"{name} opens by its handle", lambda name=name: opens(name, kept[name]))
    for name in ("removed", "replaced", "rmdir"):
        check(f"{name} is gone", lambda name=name: gone(directory, kept[name]["handle"]))

    def writes():
        fd = open_handle(directory, kept["plain"]["handle"], os.O_RDWR)
        os.pwrite(fd, b"PLAIN", 0)
        os.close(fd)
        with open(f"{directory}/plain", "rb") as file:
            assert file.read() == b"PLAIN"
        fd = open_handle(directory, kept["plain"]["handle"], os.O_RDWR)
        os.pwrite(fd, b"plain", 0)
        os.close(fd)

    def lists():
        fd = open_handle(directory, kept["a/b"]["handle"])
        assert sorted(os.listdir(fd)) == ["c", "deep"], os.listdir(fd)
        assert os.stat("..", dir_fd=fd).st_ino == kept["a"]["ino"]
        assert os.readlink(f"/proc/self/fd/{fd}").endswith("/a/b")
        os.close(fd)

    check("a file is written by its handle", writes)
    check("a directory is listed by its handle", lists)


def pass_through(directory, _state):
    with open(f"{directory}/a/b/deep", encoding="ascii") as file:
        file.read()
    names = ("a", "a/b")
    handles = {name: handle_of(f"{directory}/{name}") for name in names}
    inodes = {name: os.stat(f"{directory}/{name}").st_ino for name in names}

    def opens(name):
        fd = open_handle(directory, handles[name])
        found = os.fstat(fd).st_ino
        os.close(fd)
        assert found == inodes[name], f"inode {found}, wanted {inodes[name]}"

    def opens_or_is_gone(name):
        try:
            opens(name)
        except OSError as why:
            assert why.errno == errno.ESTALE, why

    for name in names:
        check(f"{name}, which was passed, opens by its handle", lambda name=name: opens(name))
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("2")
    for _ in range(2):
        for name in names:
            check(
                f"{name} opens, or is gone, and is no other",
                lambda name=name: opens_or_is_gone(name),
            )
            os.path.exists(f"{directory}/{name}/below")


if __name__ == "__main__":
    what, directory, state = sys.argv[1:]
    {"make": make, "open": reopen, "pass": pass_through}[what](directory, state)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)
