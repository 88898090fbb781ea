"""Files whose upload fails: uploads.py fail|retry|verify DIR. `fail` must be told; `retry` stores them; `verify` reads them."""

import errno
import os
import random
import sys

MODE, DIR = sys.argv[1:3]
SIZES = {"small": 20_000, "packed": 700_000, "blocks": 9_000_000}


def content(name):
    return random.Random(name).randbytes(SIZES[name])


def write(name):
    """The errors that write, fsync and close gave."""
    told = []
    handle = os.open(f"{DIR}/upload-{name}", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o644)
    view = memoryview(content(name))
    try:
        while view:
            view = view[os.write(handle, view[: 1 << 20]) :]
    except OSError as error:
        told.append(("write", error))
    for what, action in (("fsync", os.fsync), ("close", os.close)):
        try:
            action(handle)
        except OSError as error:
            told.append((what, error))
    return told


def main():
    for name, size in SIZES.items():
        path = f"{DIR}/upload-{name}"
        if MODE == "fail":
            told = write(name)
            print(f"{name}: {told}")
            if not any(what in ("fsync", "close") for what, _ in told):
                sys.exit(f"{path}: neither fsync nor close told that nothing was stored")
            if any(error.errno not in (errno.EIO, errno.EACCES, errno.ETIMEDOUT) for _, error in told):
                sys.exit(f"{path}: an odd error: {told}")
            # A close without fsync has to say it as well.
            try:
                with open(f"{DIR}/upload-close", "wb", buffering=0) as file:
                    file.write(content(name)[:20_000])
                sys.exit("close without fsync kept the failure of its upload for itself")
            except OSError:
                pass
        elif MODE == "retry":
            handle = os.open(path, os.O_RDWR)
            os.fsync(handle)
            found = b"".join(iter(lambda: os.read(handle, 1 << 20), b""))
            os.close(handle)
            if found and found != content(name):
                sys.exit(f"{path}: {len(found)} bytes, not those that were written")
            if len(found) != size:
                print(f"{path}: {len(found)} of {size} bytes kept after the failure; written again")
                if told := write(name):
                    sys.exit(f"{path}: {told} though the store is back")
        else:
            with open(path, "rb") as file:
                found = file.read()
            if found != content(name):
                sys.exit(f"{path}: {len(found)} bytes of {size}, zeros: {found.count(0)}")


main()
