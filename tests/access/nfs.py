#!/usr/bin/env python3
"""A client of NFS (libnfs) against what nfs-ganesha exports: nfs.py PORT DIR PART.

DIR is the exported directory, for a look at what the client did.
"""
import ctypes
import errno
import hashlib
import os
import random
import sys

PORT, DIR, PART = sys.argv[1:]
LIB = ctypes.CDLL("libnfs.so.13")
LIB.nfs_init_context.restype = ctypes.c_void_p
LIB.nfs_parse_url_dir.restype = ctypes.c_void_p
LIB.nfs_get_error.restype = ctypes.c_char_p
# libnfs 4.0 has no room for larger writes of version 4 of the protocol.
WRITE = 3 << 10
READ = 64 << 10
PASSED = FAILED = 0


def check(text, good):
    global PASSED, FAILED
    PASSED, FAILED = PASSED + bool(good), FAILED + (not good)
    print(("ok   " if good else "FAIL ") + text, flush=True)


class Client:
    def __init__(self):
        self.context = ctypes.c_void_p(LIB.nfs_init_context())
        url = f"nfs://127.0.0.1/vol/?version=4&nfsport={PORT}&uid=0&gid=0"
        if not (parsed := LIB.nfs_parse_url_dir(self.context, url.encode())):
            raise OSError(errno.EINVAL, self.why())
        server, path = (ctypes.cast(ctypes.c_void_p(parsed), ctypes.POINTER(ctypes.c_char_p))[n]
                        for n in (0, 1))
        self.call("mount", server, path)

    def why(self):
        return (LIB.nfs_get_error(self.context) or b"").decode()

    def call(self, name, *args):
        done = getattr(LIB, f"nfs_{name}")(self.context, *args)
        if done < 0:
            raise OSError(-done, self.why())
        return done

    def open(self, path, flags=os.O_RDONLY):
        handle = ctypes.c_void_p()
        if flags & os.O_CREAT:
            # The handle of a new file is not open to be written.
            self.call("creat", path.encode(), 0o644, ctypes.byref(handle))
            self.close(handle)
        self.call("open", path.encode(), flags & ~os.O_CREAT, ctypes.byref(handle))
        return handle

    def close(self, handle):
        self.call("close", handle)

    def write(self, handle, at, data):
        for begin in range(0, len(data), WRITE):
            piece = data[begin:begin + WRITE]
            wrote = self.call("pwrite", handle, ctypes.c_uint64(at + begin),
                              ctypes.c_uint64(len(piece)), piece)
            assert wrote == len(piece), wrote

    def read(self, handle, at, size):
        parts = []
        while size > 0:
            buffer = ctypes.create_string_buffer(min(size, READ))
            count = ctypes.c_uint64(len(buffer))
            got = self.call("pread", handle, ctypes.c_uint64(at), count, buffer)
            if got == 0:
                break
            parts.append(buffer.raw[:got])
            at, size = at + got, size - got
        return b"".join(parts)

    def put(self, path, data):
        handle = self.open(path, os.O_WRONLY | os.O_CREAT)
        self.write(handle, 0, data)
        self.call("fsync", handle)
        self.close(handle)

    def get(self, path):
        handle = self.open(path)
        data = self.read(handle, 0, 1 << 30)
        self.close(handle)
        return data

    def names(self, path):
        class Entry(ctypes.Structure):
            pass

        Entry._fields_ = [("next", ctypes.POINTER(Entry)), ("name", ctypes.c_char_p)]
        LIB.nfs_readdir.restype = ctypes.POINTER(Entry)
        listing = ctypes.c_void_p()
        self.call("opendir", path.encode(), ctypes.byref(listing))
        names = set()
        while entry := LIB.nfs_readdir(self.context, listing):
            names.add(entry.contents.name.decode())
        LIB.nfs_closedir(self.context, listing)
        return names - {".", ".."}


def error(call, *args):
    try:
        call(*args)
    except OSError as failure:
        return failure.errno
    return 0


def here(path):
    return os.path.join(DIR, path.lstrip("/"))


def digest(path):
    with open(here(path), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def calls(nfs):
    nfs.call("mkdir", b"/dir")
    check("a directory", os.path.isdir(here("dir")))
    check("a directory that is there", error(nfs.call, "mkdir", b"/dir") == errno.EEXIST)
    nfs.put("/dir/file", b"hello")
    check("a file", open(here("dir/file"), "rb").read() == b"hello")
    data = random.Random(7).randbytes(3_000_001)
    nfs.put("/dir/large", data)
    check("3 MB written", digest("dir/large") == hashlib.sha256(data).hexdigest())
    check("3 MB read", nfs.get("/dir/large") == data)
    with open(here("dir/ours"), "wb") as file:
        file.write(b"of the mount")
    check("a file of the mount", nfs.get("/dir/ours") == b"of the mount")
    nfs.call("rename", b"/dir/file", b"/dir/renamed")
    check("renamed", sorted(os.listdir(here("dir"))) == ["large", "ours", "renamed"])
    nfs.call("link", b"/dir/renamed", b"/dir/linked")
    check("a hard link", os.stat(here("dir/linked")).st_nlink == 2)
    nfs.call("symlink", b"renamed", b"/dir/symbolic")
    check("a symbolic link", os.readlink(here("dir/symbolic")) == "renamed")
    nfs.call("chmod", b"/dir/renamed", 0o751)
    check("a mode", os.stat(here("dir/renamed")).st_mode & 0o777 == 0o751)
    nfs.call("truncate", b"/dir/large", ctypes.c_uint64(5))
    check("truncated", os.stat(here("dir/large")).st_size == 5)
    nfs.call("unlink", b"/dir/large")
    check("removed", not os.path.exists(here("dir/large")))
    check("what is not there", error(nfs.get, "/none") == errno.ENOENT)
    check("a directory that is not empty",
          error(nfs.call, "rmdir", b"/dir") in (errno.ENOTEMPTY, errno.EEXIST))
    names = {f"name-{n:04}" for n in range(1500)}
    os.mkdir(here("many"))
    for name in names:
        open(os.path.join(here("many"), name), "w").close()
    check("1,500 names", nfs.names("/many") == names)
    handle = nfs.open("/dir/renamed")
    os.rename(here("dir/renamed"), here("elsewhere"))
    check("a handle follows a file that the mount renames", nfs.read(handle, 0, 100) == b"hello")
    nfs.close(handle)


def before(nfs):
    nfs.call("mkdir", b"/kept")
    nfs.call("mkdir", b"/kept/below")
    nfs.put("/kept/below/file", b"from before")
    check("files for later", nfs.get("/kept/below/file") == b"from before")


def after(nfs):
    check("files of before", nfs.get("/kept/below/file") == b"from before")
    nfs.put("/kept/below/more", b"and more")
    check("and new ones", open(here("kept/below/more"), "rb").read() == b"and more")


def restart(nfs):
    """Works on with open files while the server, and the mount below it, begin anew."""
    handle = nfs.open("/kept/restarted", os.O_WRONLY | os.O_CREAT)
    nfs.write(handle, 0, b"one ")
    nfs.call("fsync", handle)
    print("restart now", flush=True)
    sys.stdin.readline()
    again = Client()
    check("the file after the restart", again.get("/kept/restarted") == b"one ")
    second = again.open("/kept/restarted", os.O_WRONLY)
    again.write(second, 4, b"two")
    again.call("fsync", second)
    again.close(second)
    check("and its next bytes", again.get("/kept/restarted") == b"one two")


{"calls": calls, "before": before, "after": after, "restart": restart}[PART](Client())
print(f"{PASSED} passed, {FAILED} failed")
sys.exit(FAILED > 0)
