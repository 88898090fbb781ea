#!/usr/bin/env python3
"""Volumes on an object store, measured: versitygw behind kestrel-s3proxy, which adds latency and
counts requests.

    bench/s3.py [--out target/bench] [--scratch DIR] [--latency 0,5,20,50] [--files 10000]
                [--rounds 3] [--large 4G]
                [--link 125] [--gc-files 1000000] [--quick] [--only small,large,first-byte,gc]

Limits measured in the same run: the local file system under the same load, the store itself with
one PUT per file (`kestrel objbench`), the store's own bandwidth. Prints figures and the bars of
issue 3, writes s3.json and s3.svg. Everything shares one machine, so absolute figures say little;
ratios within a run and counts of requests repeat.
"""

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
import time

from common import JUDGES, KESTREL, ROOT, io_uring, run
from store import Store, Volume

SMALL = 102_400
THREADS = 64
LOCAL_MEMORY = "local: files/s, 64 threads, from the page cache"
MIB = 1 << 20


def size_of(text):
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", text).groups()
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def drop_caches():
    run("sync")
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as caches:
        caches.write("3\n")


def smallfiles(verb, directory, files, *options):
    return json.loads(
        run(
            f"{JUDGES}/kestrel-smallfiles",
            verb,
            "--dir",
            directory,
            "--files",
            files,
            "--size",
            SMALL,
            "--threads",
            THREADS,
            *options,
        )
    )


def objbench(store, size, threads):
    """{operation: (requests per second, MB/s)} of the store itself."""
    command = [
        KESTREL,
        "objbench",
        store.url("objbench"),
        "--only",
        "measure",
        "--json",
        "--seconds",
        "10",
    ]
    found = json.loads(run(*command, "--sizes", size, "--threads", threads))
    return {
        line["operation"]: (line["requests_per_second"], line["bytes_per_second"] / 1e6)
        for line in found["measurements"]
    }


class Report:
    """Figures by name, and bars."""

    def __init__(self):
        self.figures, self.bars = {}, []

    def tell(self, name, value, unit=""):
        self.figures[name] = round(value, 3)
        print(f"  {name:72} {value:14,.2f} {unit}", flush=True)

    def bar(self, text, value, wanted, met):
        self.bars.append(
            {"bar": text, "value": round(value, 3), "wanted": wanted, "met": bool(met)}
        )


def cpu_per_gib(volume, begin, size):
    return (volume.cpu_seconds() - begin) / (size / (1 << 30))


def small(options, store, scratch, report):
    """Many small files at each latency: requests, rates, and the limits beside them."""
    local = f"{scratch}/local"
    smallfiles("write", local, options.files)
    drop_caches()
    smallfiles("read", local, options.files, "--seed", 2)
    report.tell(
        LOCAL_MEMORY, smallfiles("read", local, options.files, "--seed", 3)["files_per_second"]
    )
    for ms in options.latency:
        volume, at = Volume(store, scratch, f"small-{ms}"), f"{ms} ms"
        store.latency(ms)
        volume.mount()
        store.counts()
        wrote = smallfiles("write", f"{volume.mnt}/d", options.files)
        counts = store.counts()
        puts = (counts["requests"]["put"] + counts["requests"]["part"]) * 10_000 / options.files
        in_flight = max(1, counts["in_flight_max"]["put"])
        report.tell(f"{at}: PUTs per 10,000 files of 100 KiB by 64 threads", puts)
        report.bar(f"{at}: PUTs per 10,000 files of 100 KiB", puts, "<= 200", puts <= 200)
        report.tell(f"{at}: files/s written", wrote["files_per_second"])
        report.tell(f"{at}: PUTs in flight at most", in_flight)
        report.tell(f"{at}: memory at most after writing", volume.memory_mib_max(), "MiB")
        single = {}
        for threads in sorted({in_flight, THREADS}):
            single[threads] = objbench(store, SMALL, threads)["put"][0]
            report.tell(
                f"{at}: files/s with one PUT per file, {threads} in flight", single[threads]
            )
        for threads, rate in single.items():
            ratio = wrote["files_per_second"] / rate
            report.tell(f"{at}: files/s against one PUT per file, {threads} in flight", ratio, "x")
            # Equal concurrency: as many PUTs in flight as the mount had. (With 64 in flight no
            # scheme can be much faster: 64 threads that wait for their files to be stored close 64
            # files a round trip at most.)
            if ms == 20 and threads == in_flight:
                report.bar(
                    f"20 ms: files/s against one PUT per file, {threads} in flight both",
                    ratio,
                    ">= 20",
                    ratio >= 20,
                )
        read_small(options, store, scratch, report, volume, ms)
        volume.umount()
        store.latency(0)


def read_small(options, store, scratch, report, volume, ms):
    """Cold from the store, then second epochs from the cache: its disk, and the memory of a mount
    that goes on."""
    at, size = f"{ms} ms", options.files * SMALL
    # A disk that others fill must not make this a benchmark of eviction.
    cache = ("--cache-dir", f"{scratch}/cache-{ms}", "--free-space-ratio", "0.01")
    volume.mount(*cache)
    store.counts()
    begin = volume.cpu_seconds()
    cold = smallfiles("read", f"{volume.mnt}/d", options.files, "--seed", 1)
    counts = store.counts()
    report.tell(f"{at}: cold random read: GETs per file", counts["requests"]["get"] / options.files)
    report.tell(f"{at}: cold random read: bytes fetched per byte read", counts["bytes_down"] / size)
    report.tell(f"{at}: cold random read", cold["megabytes_per_second"], "MB/s")
    report.tell(
        f"{at}: cold random read: CPU of the mount", cpu_per_gib(volume, begin, size), "s/GiB"
    )
    run(KESTREL, "warmup", f"{volume.mnt}/d")
    epochs_from_disk(options, store, f"{scratch}/local", report, volume, cache, ms)
    volume.mount(*cache, "--transport", "device")
    smallfiles("read", f"{volume.mnt}/d", options.files, "--seed", 1)
    what = f"{at}: second epoch from the cache, memory"
    begin = volume.cpu_seconds()
    warm = smallfiles("read", f"{volume.mnt}/d", options.files, "--seed", 2)
    report.tell(what, warm["megabytes_per_second"], "MB/s")
    report.tell(f"{what}: CPU of the mount", cpu_per_gib(volume, begin, size), "s/GiB")
    report.tell(
        f"{what}: files/s against the local file system",
        warm["files_per_second"] / report.figures[LOCAL_MEMORY],
        "x",
    )


def epochs_from_disk(options, store, local, report, volume, cache, ms):
    """Nothing in memory, all in the cache: the local file system, then a new mount on each
    transport, in turn."""
    size = options.files * SMALL
    with io_uring() as on:
        rounds = {transport: [] for transport in (["device", "uring"] if on else ["device"])}
        for number in range(options.rounds):
            order = ("--seed", 2 + number)
            drop_caches()
            limit = smallfiles("read", local, options.files, *order)["megabytes_per_second"]
            for transport, found in rounds.items():
                volume.mount(*cache, "--transport", transport)
                drop_caches()
                store.counts()
                begin = volume.cpu_seconds()
                rate = smallfiles("read", f"{volume.mnt}/d", options.files, *order)[
                    "megabytes_per_second"
                ]
                gets = store.counts()["requests"]["get"]
                found.append((rate, limit, rate / limit, gets, cpu_per_gib(volume, begin, size)))
    for transport, found in rounds.items():
        what = f"{ms} ms: second epoch from the cache, disk, {transport}"
        rate, limit, ratio, gets, cpu = (statistics.median(column) for column in zip(*found))
        report.tell(what, rate, "MB/s")
        report.tell(f"{what}: the local file system", limit, "MB/s")
        report.tell(f"{what}: GETs", gets)
        report.tell(f"{what}: CPU of the mount", cpu, "s/GiB")
        report.bar(
            f"{what}: against the local file system, median of {len(found)}",
            ratio,
            ">= 0.7",
            ratio >= 0.7,
        )


def stream(path, size, write):
    """MB/s of one sequential reader or writer, until it is closed."""
    block = memoryview(os.urandom(4 * MIB))
    handle = os.open(path, (os.O_CREAT | os.O_WRONLY) if write else os.O_RDONLY, 0o644)
    begin, done = time.monotonic(), 0
    target = bytearray(4 * MIB)
    while done < size:
        count = os.write(handle, block[: size - done]) if write else os.readv(handle, [target])
        if count == 0:
            raise SystemExit(f"{path}: ends at {done} of {size}")
        done += count
    if write:
        os.fsync(handle)
    os.close(handle)
    return size / (time.monotonic() - begin) / 1e6


def large(options, store, scratch, report):
    """One large file against the store's own bandwidth: of a store that is limited by the
    processors it shares with everybody else here, and of one behind a link that is slower than they
    are."""
    size = size_of(options.large)
    stores = [(ms, 0) for ms in options.latency] + ([(20, options.link)] if options.link else [])
    for ms, link in stores:
        at, name = f"{ms} ms" + (f", a link of {link} MB/s" if link else ""), f"large-{ms}-{link}"
        volume = Volume(store, scratch, name)
        store.latency(ms, link)
        own = objbench(store, 4 * MIB, 32)
        volume.mount()
        begin = volume.cpu_seconds()
        wrote = stream(f"{volume.mnt}/file", size, True)
        write_cpu = cpu_per_gib(volume, begin, size)
        report.tell(
            f"{at}: memory at most after writing {options.large}", volume.memory_mib_max(), "MiB"
        )
        volume.mount()
        store.counts()
        begin = volume.cpu_seconds()
        read = stream(f"{volume.mnt}/file", size, False)
        for what, mine, op, cpu in (
            ("write", wrote, "put", write_cpu),
            ("read", read, "get", cpu_per_gib(volume, begin, size)),
        ):
            report.tell(f"{at}: the store's own bandwidth, {op}", own[op][1], "MB/s")
            report.tell(f"{at}: sequential {what} of {options.large}", mine, "MB/s")
            report.tell(f"{at}: sequential {what}: CPU of the mount", cpu, "s/GiB")
            ratio = mine / own[op][1]
            report.bar(
                f"{at}: sequential {what} against the store's own bandwidth",
                ratio,
                ">= 0.9",
                ratio >= 0.9,
            )
        report.tell(
            f"{at}: memory at most after reading {options.large}", volume.memory_mib_max(), "MiB"
        )
        volume.umount()
        store.latency(0)
        shutil.rmtree(f"{store.dir}/bench/{name}", ignore_errors=True)


def first_byte(options, store, scratch, report):
    """How many requests the first byte of a 10 GiB file waits for (64 MiB of it are data, the rest
    is a hole)."""
    volume = Volume(store, scratch, "first-byte")
    volume.mount()
    stream(f"{volume.mnt}/file", 64 * MIB, True)
    os.truncate(f"{volume.mnt}/file", 10 << 30)
    volume.mount()
    store.latency(50)
    store.counts()
    begin = time.monotonic()
    handle = os.open(f"{volume.mnt}/file", os.O_RDONLY)
    assert len(os.pread(handle, 1, 0)) == 1
    seconds = time.monotonic() - begin
    requests = sum(store.counts()["requests"].values())
    os.close(handle)
    report.tell("50 ms: first byte of a 10 GiB file: requests", requests)
    report.tell("50 ms: first byte of a 10 GiB file", seconds * 1000, "ms")
    report.bar("first byte of a 10 GiB file: requests", requests, "= 1", requests == 1)
    store.latency(0)
    volume.umount()


def gc(options, store, scratch, report):
    """gc and fsck of many files."""
    volume = Volume(store, scratch, "many")
    volume.mount()
    command = [
        f"{JUDGES}/kestrel-smallfiles",
        "write",
        "--dir",
        f"{volume.mnt}/d",
        "--files",
        options.gc_files,
        "--size",
        5000,
        "--threads",
        64,
    ]
    made = json.loads(run(*command))
    report.tell(f"{options.gc_files:,} files of 5 kB written", made["files_per_second"], "files/s")
    for where in ("mounted", "unmounted"):
        for verb in (["gc", volume.path], ["fsck", volume.path]):
            store.counts()
            begin = time.monotonic()
            run(KESTREL, *verb)
            name = f"{verb[0]} of {options.gc_files:,} files, {where}"
            report.tell(name, time.monotonic() - begin, "s")
            report.tell(f"{name}: requests", sum(store.counts()["requests"].values()))
        if where == "mounted":
            report.tell("memory of the mount at most after both", volume.memory_mib_max(), "MiB")
            volume.umount()
    report.tell(
        "memory of any verb at most",
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        "MiB",
    )


def plot(path, report):
    """The bars as SVG: how far each is from what is wanted, logarithmic, without any library."""
    import math

    height = 22 * len(report.bars) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    out.append('<text x="700" y="14" text-anchor="middle">wanted</text>')
    out.append(f'<line x1="700" y1="20" x2="700" y2="{height}" stroke="#999"/>')
    for number, bar in enumerate(report.bars):
        wanted = float(re.search(r"[\d.]+", bar["wanted"]).group())
        ratio = max(bar["value"], 1e-3) / wanted
        better = ratio if bar["wanted"].startswith(">") else 1 / ratio
        length = max(-200.0, min(200.0, 150 * math.log10(better)))
        y, color = 26 + 22 * number, "#4c9f70" if bar["met"] else "#d98032"
        out.append(f'<text x="490" y="{y + 11}" text-anchor="end">{bar["bar"]}</text>')
        out.append(
            f'<rect x="{700 + min(0, length):.0f}" y="{y}" width="{max(2, abs(length)):.0f}" '
            f'height="14" fill="{color}"/>'
        )
        out.append(
            f'<text x="910" y="{y + 11}">{bar["value"]:g} '
            f'({bar["wanted"].replace("<", "&lt;").replace(">", "&gt;")})</text>'
        )
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*out, "</svg>"]))


PARTS = {"small": small, "large": large, "first-byte": first_byte, "gc": gc}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument(
        "--scratch", help="where store, volumes and caches go (default: below target)"
    )
    parser.add_argument("--latency", default="0,5,20,50", help="of the store, milliseconds")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="second epochs from the cache's disk, the local file system in turn with them",
    )
    parser.add_argument("--large", default="4G")
    parser.add_argument(
        "--link",
        type=int,
        default=125,
        help="MB/s of the link to a store that is not limited by this machine; 0: none",
    )
    parser.add_argument("--gc-files", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    if options.quick:
        options.latency, options.files, options.large, options.gc_files = "0,20", 1000, "256M", 5000
    options.latency = [int(ms) for ms in options.latency.split(",")]
    os.makedirs(options.out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="kestrel-s3-", dir=options.scratch or f"{ROOT}/target")
    store, report = Store(scratch), Report()
    try:
        for part in options.only.split(","):
            print(part)
            PARTS[part](options, store, scratch, report)
    finally:
        store.latency(0)
        for name in os.listdir(scratch):
            if os.path.ismount(f"{scratch}/{name}"):
                subprocess.run([KESTREL, "umount", "--force", f"{scratch}/{name}"], check=False)
        store.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print("\nbars")
    for bar in report.bars:
        print(
            f"  {'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['value']} (wanted "
            f"{bar['wanted']})"
        )
    document = {
        "command": "bench/s3.py",
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "options": {
            name: getattr(options, name)
            for name in ("latency", "files", "rounds", "large", "link", "gc_files", "only")
        },
        "figures": report.figures,
        "bars": report.bars,
    }
    with open(f"{options.out}/s3.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    plot(f"{options.out}/s3.svg", report)
    print(f"\n{options.out}/s3.json, {options.out}/s3.svg")


if __name__ == "__main__":
    main()
