#!/usr/bin/env python3
"""What tiers cost and save, on a store of its own (versitygw behind kestrel-s3proxy, which keeps
the storage classes): files of 64 KiB written below a policy and below none (CPU of the mount's
process); `kestrel tier migrate` of a tree by copies in the store, of a tree that shares all it has
with another, and the same tree written again by cp; reading what lies in an archive. In a directory
with a second one: `migrate` beside cp on the same disk.

    bench/tiers.py             100 MB a round: writes target/bench/tiers.json, tiers.svg
    bench/tiers.py --full      1 GB
"""

import errno
import os
import statistics
import time

from common import KESTREL, bars, conclude, cpu_of, mounted, options_of, run, scratch_for, timed
from store import Store, Volume

SMALL = 64 << 10
# As many bytes in files of which copies share what is stored.
LARGE = 8 << 20
# Bars of this benchmark: a policy that is set costs a write nothing, copies in the store send no
# byte of the files, a read of what is archived fails at once.
RATIO_MAX = 1.05
REFUSED_MAX = 0.05


def write(directory, count, size=SMALL):
    os.makedirs(directory, exist_ok=True)
    for number in range(count):
        with open(f"{directory}/{number}", "wb") as file:
            file.write(os.urandom(size))
    run("sync", "-f", directory)


def clone(source, target):
    os.mkdir(target)
    for name in os.listdir(source):
        left = os.stat(f"{source}/{name}").st_size
        with open(f"{source}/{name}", "rb") as old, open(f"{target}/{name}", "wb") as new:
            while left > 0:
                left -= os.copy_file_range(old.fileno(), new.fileno(), left)


def refused(path):
    """Seconds until a read of what lies in an archive has failed."""
    begun = time.perf_counter()
    file = os.open(path, os.O_RDONLY)
    try:
        os.read(file, 1)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return time.perf_counter() - begun
    finally:
        os.close(file)
    raise SystemExit(f"{path} can be read")


def in_store(scratch, count, rounds):
    store = Store(scratch, "--classes", "STANDARD_IA,GLACIER")
    volume = Volume(store, scratch, "volume")
    taken = {}

    def note(what, seconds):
        taken.setdefault(what, []).append(seconds)

    def requests(what, command):
        store.counts()
        note(what, timed(run, *command))
        counts = store.counts()
        taken[f"{what}: requests"] = [sum(counts["requests"].values())]
        taken[f"{what}: MB"] = [(counts["bytes_up"] + counts["bytes_down"]) / 1e6]

    try:
        volume.mount()
        pid = mounted(volume.path)
        for number in range(rounds):
            base = f"{volume.mnt}/{number}"
            for what, tier in (("write, no policy", None), ("write, a tier", "standard-ia")):
                directory = f"{base}/{tier}"
                os.makedirs(directory)
                if tier:
                    run(KESTREL, "policy", "set", directory, f"tier={tier}")
                used = cpu_of(pid)
                write(directory, count)
                note(what, (cpu_of(pid) - used) / count)
            tree = f"{base}/None"
            run(KESTREL, "policy", "set", tree, "tier=standard-ia")
            requests("migrate", (KESTREL, "tier", "migrate", tree))
            requests("cp", ("cp", "-a", "--reflink=never", tree, f"{base}/copy"))
            shared = f"{base}/shared"
            write(shared, max(count * SMALL // LARGE, 2), LARGE)
            clone(shared, f"{base}/clone")
            run(KESTREL, "policy", "set", shared, "tier=standard-ia")
            requests("migrate, all shared", (KESTREL, "tier", "migrate", shared))
            run(KESTREL, "policy", "set", tree, "tier=archive")
            run(KESTREL, "tier", "migrate", tree)
            volume.mount()
            pid = mounted(volume.path)
            for name in range(20):
                note("read from an archive", refused(f"{tree}/{name}"))
        volume.umount()
    finally:
        store.close()
    return taken


def in_directories(scratch, count, rounds):
    volume, mount = f"{scratch}/local", f"{scratch}/local.mnt"
    os.mkdir(mount)
    run(KESTREL, "format", volume)
    os.mkdir(f"{scratch}/second")
    os.symlink(f"{scratch}/second", f"{volume}/objects/archive")
    run(KESTREL, "mount", volume, mount)
    taken = {"directory: migrate": [], "directory: cp of the objects": []}
    try:
        tree = f"{mount}/tree"
        write(tree, count)
        for number in range(rounds):
            copied = timed(run, "cp", "-a", f"{volume}/objects", f"{scratch}/plain{number}")
            taken["directory: cp of the objects"].append(copied + timed(run, "sync", "-f", scratch))
            run("rm", "-rf", f"{scratch}/plain{number}")
            run(KESTREL, "policy", "set", tree, "tier=archive")
            taken["directory: migrate"].append(timed(run, KESTREL, "tier", "migrate", tree))
            run(KESTREL, "policy", "set", tree, "tier=standard")
            run(KESTREL, "tier", "migrate", tree)
    finally:
        run(KESTREL, "umount", mount)
    return taken


def rows_of(scratch, count, rounds):
    taken = {**in_store(scratch, count, rounds), **in_directories(scratch, count, rounds)}
    return [
        {"what": what, "value": statistics.median(values), "files": count, "rounds": rounds}
        for what, values in taken.items()
    ]


def judge(rows):
    found = {row["what"]: row["value"] for row in rows}
    ratio = found["write, a tier"] / found["write, no policy"]
    sent, late = found["migrate: MB"], found["read from an archive"]
    return [
        (f"CPU of a write: at most {RATIO_MAX} times ({ratio:.3f})", ratio <= RATIO_MAX),
        (f"bytes over the network of a move in the store: none ({sent:.3f} MB)", sent < 0.1),
        (f"a read from an archive fails within {REFUSED_MAX} s ({late:.4f})", late < REFUSED_MAX),
    ]


def plot(path, rows):
    times = ("migrate", "migrate, all shared", "cp", "directory: migrate",
             "directory: cp of the objects")
    found = {row["what"]: row["value"] for row in rows}
    bars(path, [(what, found[what] * 1e3, "cp" not in what) for what in times], "ms")


def main():
    wanted = options_of(__doc__, "tiers", 3, "1 GB a round").parse_args()
    with scratch_for(wanted.out) as scratch:
        rows = rows_of(scratch, 16_000 if wanted.full else 1_600, wanted.rounds)
        for row in rows:
            print(f'{row["what"]:32} {row["value"]:.6g}')
    conclude(wanted.out, rows, judge(rows), plot)


if __name__ == "__main__":
    main()
