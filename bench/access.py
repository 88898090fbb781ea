#!/usr/bin/env python3
"""Many small files read by one process: `read_many` of the Python package and of the C library in
batches, beside open and read through a mount, the same on the local disk, and fsspec's `cat`; a
served volume and the volume itself.

The limit is a copy of the bytes within one process. Order is random and the same for all; caches
are warm, as a data set that is read for the second epoch.

    make bench-access        writes target/bench/access.json, access.svg
"""

import os
import random
import resource
import statistics
import subprocess
import time

import fsspec
import kestrelfs
from bucket import mount, umount
from common import KESTREL, ROOT, Server, bars, conclude, options_of, run, scratch_for

FILES, BATCH = 10_000, 256
SIZES = [(4096, "4 KiB"), (102_400, "100 KiB")]
# What the issue demands: of the mount's rate, and of the local disk's where files are small.
MOUNT_MIN, LOCAL_MIN = 5.0, 1.0


def batches(names):
    """The names in batches."""
    return [names[start:start + BATCH] for start in range(0, len(names), BATCH)]


def by_open(top, names):
    """Reads one file after the other."""
    for name in names:
        with open(f"{top}/{name}", "rb") as file:
            file.read()


def by_burst(volume, top, names):
    """Reads a batch after the other."""
    for batch in batches(names):
        volume.read_many([f"{top}/{name}" for name in batch])


def by_cat(fs, top, names):
    """Reads a batch after the other through fsspec."""
    for batch in batches(names):
        fs.cat([f"{top}/{name}" for name in batch])


def by_c(program, url, top, names, rounds):
    """Microseconds a file, and of the processor, that a C program takes."""
    done = subprocess.run(
        [program, url, top, str(rounds), str(BATCH)],
        input="\n".join(names), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program}: {done.stderr}")
    return tuple(map(float, done.stdout.split()))


def c_program(scratch):
    """The program of the C library, built with what `make c-library` has made."""
    built = os.path.join(ROOT, "target", "c-library")
    program = f"{scratch}/read_many"
    run("gcc", "-O2", f"{ROOT}/bench/read_many.c", f"-I{built}/include", f"-L{built}/lib",
        "-lkestrel", f"-Wl,-rpath,{built}/lib", "-o", program)
    return program


def by_copy(data, names):
    """Makes as many objects of the same size."""
    for batch in batches(names):
        [bytes(memoryview(data)) for _ in batch]


def measure(ways, rounds):
    """Microseconds a file of each way, and of this process's CPU; the ways take turns."""
    wall, cpu = {name: [] for name in ways}, {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            before = resource.getrusage(resource.RUSAGE_SELF)
            begun = time.perf_counter()
            way()
            wall[name].append(1e6 * (time.perf_counter() - begun) / FILES)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            cpu[name].append(1e6 * used / FILES)
    # The first round only warms.
    middle = statistics.median
    return {name: (middle(wall[name][1:]), middle(cpu[name][1:])) for name in ways}


def make(write, data):
    """Writes the files."""
    for number in range(FILES):
        write(f"{number:05d}", data)


def of_size(scratch, size, shown, rounds, rows, judged):
    """All ways with files of one size."""
    program = c_program(scratch)
    data = os.urandom(size)
    names = [f"{number:05d}" for number in range(FILES)]
    random.Random(size).shuffle(names)
    local, mnt = f"{scratch}/local{size}", f"{scratch}/mnt{size}"
    os.mkdir(local)

    def write_local(name, content):
        with open(f"{local}/{name}", "wb") as file:
            file.write(content)

    make(write_local, data)
    server = Server(scratch)
    with kestrelfs.open_volume(server.url) as volume:
        volume.mkdir("/files")
        make(lambda name, content: volume.write_bytes(f"/files/{name}", content), data)
        mount(server.url, mnt)
        fs = fsspec.filesystem("kestrel", volume=server.url, skip_instance_cache=True)
        found = measure({
            "read_many, served": lambda: by_burst(volume, "/files", names),
            "fsspec cat, served": lambda: by_cat(fs, "/files", names),
            "open and read, mount": lambda: by_open(f"{mnt}/files", names),
            "open and read, local": lambda: by_open(local, names),
            "copy in memory": lambda: by_copy(data, names),
        }, rounds)
        fs.volume.close()
        umount(mnt)
    found["read_many of C, served"] = by_c(program, server.url, "/files", names, rounds)
    found["open and read of C, local"] = by_c(program, "local", local, names, rounds)
    volume_dir = server.volume
    run(KESTREL, "serve", volume_dir, "--stop")
    with kestrelfs.open_volume(volume_dir) as volume:
        found |= measure({"read_many, embedded": lambda: by_burst(volume, "/files", names)}, rounds)
    found["read_many of C, embedded"] = by_c(program, volume_dir, "/files", names, rounds)
    for name, (wall, cpu) in found.items():
        rows.append({"what": f"{name}, {shown}", "us_per_file": wall, "cpu_us_per_file": cpu,
                     "is_ours": "read_many" in name or "fsspec" in name})
        print(f"{shown}: {name}: {wall:.1f} us a file, {cpu:.1f} us of this process's CPU")
    ours = found["read_many, served"][0]
    of_mount = found["open and read, mount"][0] / ours
    of_local = found["open and read, local"][0] / ours
    text = f"{shown}: read_many {of_mount:.1f} times the mount (at least {MOUNT_MIN})"
    judged.append((text, of_mount >= MOUNT_MIN))
    if size == SIZES[0][0]:
        text = f"{shown}: read_many {of_local:.2f} times the local disk (at least {LOCAL_MIN})"
        judged.append((text, of_local >= LOCAL_MIN))
    else:
        print(f"{shown}: read_many {of_local:.2f} times the local disk")


def plot(path, rows):
    lines = [(row["what"], row["us_per_file"], row["is_ours"]) for row in rows]
    bars(path, lines, "us a file", left=250)


def main():
    options = options_of(__doc__, "access", 5).parse_args()
    with scratch_for(f"{options.out}.json") as scratch:
        os.environ["KESTREL_STATE_DIR"] = f"{scratch}/state"
        rows, judged = [], []
        for size, shown in SIZES:
            of_size(scratch, size, shown, options.rounds, rows, judged)
        conclude(options.out, rows, judged, plot, files=FILES, batch=BATCH)


if __name__ == "__main__":
    main()
