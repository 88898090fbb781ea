#!/usr/bin/env python3
"""Client logging: creates by ranks of a job, which log for themselves, against creates through a
served mount and by a native client with 256 calls in flight (DeltaFS, Figure 10); and writing,
compacting and reading the files of many ranks, against a server alone (Figure 11).

Beside them the limits: a loopback echo of the native client's frames, and the null FUSE file
system.

    bench/ranks.py            writes target/bench/ranks.json, ranks.svg
    bench/ranks.py --full     4 million names a rank, 1 million in the logs of 64 ranks
"""

import json
import os
import random
import statistics
import subprocess
import time

from bucket import in_threads, mount, umount
from common import (
    EXAMPLES, KESTREL, Null, Server, bars, children_cpu, conclude, options_of, run, scratch_for,
)

# Bars of the issue: creates by logging against those of a mount and a native client, and CPU.
MOUNT_MIN, NATIVE_MIN, CPU_US_MAX = 20.0, 2.0, 1.5
# Ranks with logs that lie in each other, and directories that all of them write to.
RANKS, DIRS = 64, 16
# Threads that create and read through a mount.
THREADS = 8


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def begin(volume, name):
    run(KESTREL, "job", "start", volume, "--publish", name, "--log")


def logged(volume, name, ranks, names, at_a_time, *more):
    """Ranks that log, so many at a time; what each of them says."""
    left, running, told = list(range(ranks)), [], []
    while left or running:
        while left and len(running) < at_a_time:
            words = [f"{EXAMPLES}/log_bench", volume, name, left.pop(0), "--names", names, *more]
            running.append(subprocess.Popen([str(word) for word in words], text=True,
                                            stdout=subprocess.PIPE))
        process = running.pop(0)
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit("log_bench failed")
        told.append(json.loads(out))
    return told


def mount_creates(url, scratch, files):
    """Creates a second through a mount, by `kestrel bench`."""
    at = f"{scratch}/mnt"
    mount(url, at)
    out = run(KESTREL, "bench", at, "--threads", 16, "--phase", "shared", "--files", files // 16,
              "--json")
    umount(at)
    [found] = [row for row in json.loads(out)["results"] if row["op"] == "create"]
    return found["per_second"]


def creates(volume, scratch, names, rounds, rows, judged):
    """Figure 10 in kind, on this machine."""
    rates, cpu, finish = {1: [], 2: []}, [], []
    mounts, natives, echoes = [], [], []
    for turn in range(rounds):
        for ranks in (1, 2):
            begin(volume, f"bulk-{ranks}@{turn}")
            told = logged(volume, f"bulk-{ranks}@{turn}", ranks, names, ranks)
            run(KESTREL, "job", "abort", volume, f"bulk-{ranks}@{turn}")
            rates[ranks].append(ranks * names / max(one["log_seconds"] for one in told))
            cpu += [one["log_cpu_us"] for one in told]
            finish += [one["finish_cpu_us"] for one in told]
        server = Server(scratch)
        mounts.append(mount_creates(server.url, scratch, 16_000))
        server.stop()
        server = Server(scratch)
        out = lines(run(f"{EXAMPLES}/netload", server.address, server.name, 2, 64, "256"))
        natives.append(next(row["per_s"] for row in out if row["operation"] == "create"))
        server.stop()
        out = lines(run(f"{EXAMPLES}/echo", 1))
        echoes.append(max(row["requests_per_s"] for row in out if row["in_flight"] == 256))
    null = Null(scratch)
    limit = mount_creates_null(null.dir)
    null.close()
    rate = {ranks: statistics.median(found) for ranks, found in rates.items()}
    mounted, native = statistics.median(mounts), statistics.median(natives)
    cpu, finish = statistics.median(cpu), statistics.median(finish)
    for what, per_second, is_ours in (
        ("log, 1 rank", rate[1], True),
        ("log, 2 ranks", rate[2], True),
        ("native client, 256 in flight", native, True),
        ("mount of a server", mounted, True),
        ("limit: echo, 256 in flight", statistics.median(echoes), False),
        ("limit: null FUSE", limit, False),
    ):
        rows.append({"what": what, "per_second": per_second, "is_ours": is_ours})
        print(f"{what}: {per_second:,.0f} creates/s")
    rows.append({"what": "log", "cpu_us": cpu, "finish_cpu_us": finish, "is_ours": True})
    print(f"CPU of a create: {cpu:.2f} us to log it, {finish:.2f} us when the rank finishes")
    judged += [
        (f"2 ranks: {rate[2] / mounted:.1f} of the mount (at least {MOUNT_MIN})",
         rate[2] / mounted >= MOUNT_MIN),
        (f"2 ranks: {rate[2] / native:.1f} of the native client (at least {NATIVE_MIN})",
         rate[2] / native >= NATIVE_MIN),
        (f"CPU of a create: {cpu:.2f} us (at most {CPU_US_MAX})", cpu <= CPU_US_MAX),
    ]


def mount_creates_null(at):
    """Creates a second that the null file system answers."""
    out = run(KESTREL, "bench", at, "--threads", 16, "--phase", "shared", "--files", 500,
              "--no-verify", "--json")
    return next(row["per_second"] for row in json.loads(out)["results"] if row["op"] == "create")


def names_of(names):
    """The paths that log_bench has made, in random order."""
    paths = []
    for rank in range(RANKS):
        for number in range(names):
            name = number * 0x9E37_79B9_7F4A_7C15 % 2**64
            paths.append(f"bench/{number % DIRS}/{name:016x}.{rank}")
    random.Random(1).shuffle(paths)
    return paths


def stats(at, paths):
    """Seconds of a stat of each path."""
    begun = time.perf_counter()
    in_threads(len(paths), THREADS, lambda _, number: os.stat(f"{at}/{paths[number]}"))
    return time.perf_counter() - begun


def phases(volume, scratch, names, rows):
    """Figure 11 in kind: the files of 64 ranks are written, compacted and read in random order."""
    paths, seconds = names_of(names), {}
    begin(volume, "many@1")
    begun, used = time.perf_counter(), children_cpu()
    logged(volume, "many@1", RANKS, names, os.cpu_count(), "--dirs", DIRS)
    run(KESTREL, "job", "publish", volume, "many@1")
    write, write_cpu = time.perf_counter() - begun, children_cpu() - used
    begun, used = time.perf_counter(), children_cpu()
    run(KESTREL, "version", "compact", f"{volume}//many@1", "--into", "compacted@1")
    compact, compact_cpu = time.perf_counter() - begun, children_cpu() - used
    for what, version, compacting in (
        ("logging alone", "many@1", 0.0), ("logging and compaction", "compacted@1", compact)
    ):
        at = f"{scratch}/version"
        mount(f"{volume}//{version}", at)
        seconds[what] = (write, compacting, stats(at, paths))
        umount(at)
    server, at = Server(scratch), f"{scratch}/served"
    mount(server.url, at)
    for dir in range(DIRS):
        os.makedirs(f"{at}/bench/{dir}")
    begun = time.perf_counter()
    in_threads(len(paths), THREADS,
               lambda _, number: os.mknod(f"{at}/{paths[number]}", 0o100644))
    write = time.perf_counter() - begun
    umount(at)
    mount(server.url, at)
    seconds["a server"] = (write, 0.0, stats(at, paths))
    umount(at)
    server.stop()
    for what, (writing, compacting, reading) in seconds.items():
        rows.append({"what": f"{what}: {len(paths):,} files", "write_s": writing,
                     "compact_s": compacting, "read_s": reading, "is_ours": True})
        print(f"{what}: write {writing:.2f} s, compact {compacting:.2f} s, read {reading:.2f} s")
    rate = len(paths) / compact_cpu
    print(f"CPU: write {write_cpu * 1e6 / len(paths):.2f} us a file, "
          f"compaction of {RANKS} overlapping layers {rate:,.0f} files/s and core")
    rows.append({"what": "compaction of layers", "per_cpu_second": rate, "is_ours": True})


def plot(path, rows):
    bars(path, [(row["what"], row["per_second"], row["is_ours"])
                for row in rows if "per_second" in row], "creates/s", digits=0, left=220)


def main():
    options = options_of(__doc__, "ranks", 3, full="more names").parse_args()
    names, each = (4_000_000, 16_000) if options.full else (1_000_000, 1_000)
    with scratch_for(f"{options.out}.json") as scratch:
        os.environ["KESTREL_STATE_DIR"] = f"{scratch}/state"
        rows, judged, volume = [], [], f"{scratch}/volume"
        run(KESTREL, "format", volume)
        creates(volume, scratch, names, options.rounds, rows, judged)
        phases(volume, scratch, each, rows)
        conclude(options.out, rows, judged, plot, names=names)


if __name__ == "__main__":
    main()
