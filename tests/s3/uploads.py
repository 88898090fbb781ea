"""Files with uploads that fail: uploads.py fail DIR, uploads.py hold DIR FLAGS, uploads.py verify
DIR.

`fail`: fsync says it, and so does a close without one. `hold`: after fsync has said it the files
stay open; FLAGS/told appears; when FLAGS/go does, the store is back: fsync stores what it could not
before. `verify` reads what `hold` wrote.
"""

import errno
import os
import random
import sys
import time

MODE, DIR = sys.argv[1:3]
SIZES = {"small": 20_000, "packed": 700_000, "blocks": 9_000_000}


def content(name):
    return random.Random(name).randbytes(SIZES[name])


def failing(what, action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EACCES, errno.ETIMEDOUT):
            sys.exit(f"{what}: an odd error: {error}")
        return
    sys.exit(f"{what} kept the failure of its upload for itself")


def create(name, suffix):
    handle = os.open(f"{DIR}/{suffix}-{name}", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o644)
    view = memoryview(content(name))
    while view:
        view = view[os.write(handle, view[: 1 << 20]) :]
    return handle


def fail():
    for name in SIZES:
        handle = create(name, "synced")
        failing(f"fsync of {name}", os.fsync, handle)
        failing(f"close of {name} after fsync", os.close, handle)
        failing(f"close of {name}", os.close, create(name, "closed"))


def hold(flags):
    handles = {name: create(name, "held") for name in SIZES}
    for name, handle in handles.items():
        failing(f"fsync of {name}", os.fsync, handle)
    open(f"{flags}/told", "w", encoding="ascii").close()
    while not os.path.exists(f"{flags}/go"):
        time.sleep(0.05)
    for name, handle in handles.items():
        found = os.pread(handle, SIZES[name], 0)
        if found != content(name):
            sys.exit(
                f"{name}: {len(found)} bytes of {SIZES[name]} while it is dirty, {found.count(0)} "
                "of them zero"
            )
        os.fsync(handle)
        os.close(handle)


def verify():
    for name, size in SIZES.items():
        with open(f"{DIR}/held-{name}", "rb") as file:
            found = file.read()
        if found != content(name):
            sys.exit(f"{name}: {len(found)} bytes of {size}, {found.count(0)} of them zero")


{"fail": fail, "hold": hold, "verify": verify}[MODE](*sys.argv[3:])
