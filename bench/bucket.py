#!/usr/bin/env python3
"""A volume with its metadata in a bucket: creates and stats at a distance, requests for them, and
how long it takes to open after kill -9; creates and small files with a log directory, and without;
a first find after a start, with tables in a disk cache and without.

versitygw behind kestrel-s3proxy, which adds latency and counts requests. Data lies on the local
disk, so that all requests are metadata's. Limits beside: one PUT at a time of the same store
(`kestrel objbench`), and a volume with its metadata on the local disk and durability commit.

    bench/bucket.py             writes target/bench/bucket.json, bucket.svg
    bench/bucket.py --full      a million files for the recovery
    bench/bucket.py --behind    only what a log directory changes
    bench/bucket.py --finds     only the first find after a start
"""

import json
import os
import signal
import stat
import statistics
import threading
import time

from common import KESTREL, bars, conclude, options_of, run, scratch_for
from store import Store

LATENCIES = (0, 5, 20, 50)
IN_FLIGHT = (1, 16, 256)
# Bars of the issue.
PUTS_MAX = 60
RECOVERY_MAX = 5


def in_threads(count, threads, call):
    """Calls with a thread's number and one below count, from threads; seconds."""
    numbers, lock, failures = iter(range(count)), threading.Lock(), []

    def work(thread):
        while True:
            with lock:
                number = next(numbers, None)
            if number is None or failures:
                return
            try:
                call(thread, number)
            except OSError as why:
                failures.append(why)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - begun


def make_directories(mnt):
    for thread in range(max(IN_FLIGHT)):
        os.mkdir(f"{mnt}/{thread}")


def make(mnt, name, count, threads):
    """Makes empty files, each thread in a directory of its own, as the kernel makes one name of a
    directory at a time; seconds."""
    mode = stat.S_IFREG | 0o644
    return in_threads(
        count, threads, lambda thread, number: os.mknod(f"{mnt}/{thread}/{name}-{number}", mode)
    )


def write(mnt, name, count, threads):
    """Makes files of 200 bytes, which rows have, each with an fsync; seconds."""
    def one(thread, number):
        file = os.open(f"{mnt}/{thread}/{name}-{number}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(file, b"x" * 200)
        os.fsync(file)
        os.close(file)

    return in_threads(count, threads, one)


def disk_syncs(scratch):
    """Writes of 512 bytes with fdatasync in a file made ahead, a second: what the disk of a log
    directory can do for one caller."""
    path, count = f"{scratch}/syncs", 300
    with open(path, "wb") as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    file = os.open(path, os.O_WRONLY)
    begun = time.perf_counter()
    for number in range(count):
        os.pwrite(file, b"x" * 512, number * 512)
        os.fdatasync(file)
    seconds = time.perf_counter() - begun
    os.close(file)
    os.remove(path)
    return count / seconds


def backlog(volume):
    found = json.loads(run(KESTREL, "status", volume, "--json")).get("upload_backlog")
    return found["bytes"] if found else 0


def names_below(directory):
    """All files below a directory."""
    return [f"{path}/{name}" for path, _, names in os.walk(directory) for name in names]


def pid_of(volume):
    return json.loads(run(KESTREL, "status", volume, "--json"))["pid"]


def mount(volume, mnt, *options):
    os.makedirs(mnt, exist_ok=True)
    run(KESTREL, "mount", volume, mnt, *options)


def umount(mnt):
    run(KESTREL, "umount", mnt)


def put_ms(store):
    """One PUT at a time of the store itself, milliseconds."""
    found = json.loads(run(KESTREL, "objbench", store.url("objbench"), "--only", "measure",
                           "--threads", 1, "--sizes", "4K", "--seconds", 2, "--json"))
    rates = {line["operation"]: line["requests_per_second"] for line in found["measurements"]}
    return 1000 / rates["put"]


def creates(store, options, scratch):
    """Rates and requests of creates, by latency and number in flight."""
    rows, judged = [], []
    local = f"{scratch}/local"
    run(KESTREL, "format", local, "--durability", "commit")
    mount(local, f"{local}.mnt")
    make_directories(f"{local}.mnt")
    for threads in IN_FLIGHT:
        count = 200 * threads if threads < 256 else 10_000
        rates = [
            count / make(f"{local}.mnt", f"{threads}-{turn}", count, threads)
            for turn in range(options.rounds)
        ]
        rows.append({"what": "create", "at": "local disk", "in_flight": threads,
                     "per_second": statistics.median(rates), "is_ours": False})
    umount(f"{local}.mnt")
    for ms in LATENCIES:
        store.latency(ms)
        one = put_ms(store)
        rows.append({"what": "put", "at": f"{ms} ms", "in_flight": 1, "ms": one,
                     "per_second": 1000 / one, "is_ours": False})
        volume = f"{scratch}/at-{ms}"
        run(KESTREL, "format", volume, "--metadata", store.url(f"meta-{ms}"))
        store.latency(0)
        mount(volume, f"{volume}.mnt")
        make_directories(f"{volume}.mnt")
        store.latency(ms)
        for threads in IN_FLIGHT:
            count = {1: 100, 16: 2000, 256: 10_000}[threads]
            rates, puts = [], []
            for turn in range(options.rounds):
                store.counts()
                rates.append(count / make(f"{volume}.mnt", f"{threads}-{turn}", count, threads))
                puts.append(store.counts()["requests"]["put"] * 10_000 / count)
            rows.append({"what": "create", "at": f"{ms} ms", "in_flight": threads,
                         "per_second": statistics.median(rates),
                         "puts_per_10000": statistics.median(puts), "is_ours": True})
            print(f"create at {ms} ms, {threads} in flight: {rows[-1]['per_second']:.0f}/s, "
                  f"{rows[-1]['puts_per_10000']:.0f} PUTs for 10,000; a PUT takes {one:.1f} ms")
            if (ms, threads) == (20, 256):
                put = rows[-1]["puts_per_10000"]
                judged.append((f"{put:.0f} PUTs for 10,000 creates at 256 in flight and 20 ms "
                               f"(at most {PUTS_MAX})", put <= PUTS_MAX))
        names = names_below(f"{volume}.mnt")[:10_000]
        store.counts()
        seconds = in_threads(len(names), 16, lambda _, number: os.stat(names[number]))
        gets = store.counts()["requests"].get("get", 0)
        rows.append({"what": "stat", "at": f"{ms} ms", "in_flight": 16,
                     "per_second": len(names) / seconds, "gets": gets, "is_ours": True})
        umount(f"{volume}.mnt")
    return rows, judged


def behind(store, options, scratch):
    """Creates and small files with fsync at 20 ms, with and without a log directory."""
    syncs = disk_syncs(scratch)
    rows = [{"what": "fdatasync", "at": "local disk", "in_flight": 1, "per_second": syncs,
             "is_ours": False}]
    print(f"the disk of the log directory: {syncs:.0f} fdatasync/s, one after the other")
    for place in ("bucket", "log directory"):
        volume = f"{scratch}/{place.split()[0]}"
        store.latency(0)
        run(KESTREL, "format", volume, "--metadata", store.url(f"behind-{place.split()[0]}"))
        log_dir = ("--log-dir", f"{scratch}/log-dir") if place != "bucket" else ()
        mount(volume, f"{volume}.mnt", *log_dir)
        make_directories(f"{volume}.mnt")
        store.latency(20)
        for what, call in (("create", make), ("write", write)):
            for threads in IN_FLIGHT:
                count = {1: 100, 16: 2000, 256: 10_000}[threads] * (10 if log_dir else 1)
                count = min(count, 10_000)
                rates, puts = [], []
                for turn in range(options.rounds):
                    store.counts()
                    name = f"{what}-{threads}-{turn}"
                    rates.append(count / call(f"{volume}.mnt", name, count, threads))
                    while backlog(volume):
                        time.sleep(0.2)
                    puts.append(store.counts()["requests"].get("put", 0) * 10_000 / count)
                rows.append({"what": what, "at": f"20 ms, {place}", "in_flight": threads,
                             "per_second": statistics.median(rates),
                             "puts_per_10000": statistics.median(puts), "is_ours": True})
                print(f"{what} at 20 ms, {place}, {threads} in flight: "
                      f"{rows[-1]['per_second']:.0f}/s, {rows[-1]['puts_per_10000']:.0f} PUTs "
                      "for 10,000")
        umount(f"{volume}.mnt")
    store.latency(0)
    return rows


def recovery(store, options, scratch):
    """Opening after kill -9, at 20 ms, and the requests of that."""
    files = 1_000_000 if options.full else 100_000
    volume = f"{scratch}/killed"
    store.latency(0)
    run(KESTREL, "format", volume, "--metadata", store.url("killed"))
    mount(volume, f"{volume}.mnt")
    make_directories(f"{volume}.mnt")
    make(f"{volume}.mnt", "file", files, 64)
    os.kill(pid_of(volume), signal.SIGKILL)
    run("umount", "-l", f"{volume}.mnt")
    store.latency(20)
    store.counts()
    begun = time.perf_counter()
    mount(volume, f"{volume}.mnt")
    seconds = time.perf_counter() - begun
    gets = store.counts()["requests"]["get"]
    cold = time.perf_counter()
    os.listdir(f"{volume}.mnt/0")
    cold = time.perf_counter() - cold
    umount(f"{volume}.mnt")
    store.latency(0)
    row = {"what": "recovery", "at": "20 ms", "files": files, "seconds": seconds, "gets": gets,
           "cold_listing_ms": cold * 1000, "is_ours": True}
    print(f"recovery of {files} files at 20 ms: {seconds:.2f} s, {gets} GETs; a first listing "
          f"takes {cold * 1000:.0f} ms")
    return row, (f"recovery of {files} files at 20 ms: {seconds:.2f} s (at most {RECOVERY_MAX})",
                 seconds <= RECOVERY_MAX)


def finds(store, options, scratch):
    """The first find after a start, at 20 ms: its time, and its requests."""
    files = 1_000_000 if options.full else 100_000
    volume, mnt = f"{scratch}/found", f"{scratch}/found.mnt"
    store.latency(0)
    run(KESTREL, "format", volume, "--metadata", store.url("found"))
    mount(volume, mnt)
    make_directories(mnt)
    make(mnt, "file", files, 64)
    umount(mnt)
    rows = []
    for cache in ((), ("--cache-dir", f"{scratch}/found.cache")):
        # The first turn fills the cache.
        turns = []
        for _ in range(options.rounds + 1):
            store.latency(20)
            mount(volume, mnt, *cache)
            store.counts()
            begun = time.perf_counter()
            run("find", mnt, "-size", "+1")
            seconds = time.perf_counter() - begun
            turns.append((seconds, store.counts()["requests"].get("get", 0)))
            store.latency(0)
            umount(mnt)
        for what, some in (("first start", turns[:1]), ("later starts", turns[1:])):
            seconds, gets = (statistics.median(turn[i] for turn in some) for i in (0, 1))
            at = f"20 ms, {'with' if cache else 'without'} --cache-dir, {what}"
            rows.append({"what": "find", "at": at, "in_flight": 1, "files": files,
                         "seconds": seconds, "per_second": files / seconds, "gets": gets,
                         "is_ours": True})
            print(f"find of {files} files at {at}: {seconds:.2f} s, {gets:.0f} GETs")
    return rows


def plot(path, rows):
    lines = [
        (f"{row['what']}, {row['at']}, {row['in_flight']} in flight", row["per_second"],
         row["is_ours"])
        for row in rows
        if "per_second" in row
    ]
    bars(path, lines, "/s", digits=0, left=220)


def main():
    options = options_of(__doc__, "bucket", 3)
    options.add_argument("--behind", action="store_true", help="only with a log directory, and not")
    options.add_argument("--finds", action="store_true", help="only the first find after a start")
    options = options.parse_args()
    with scratch_for(f"{options.out}.json") as scratch:
        store = Store(scratch)
        try:
            if options.behind:
                rows = behind(store, options, scratch)
                return conclude(options.out, rows, [], plot)
            if options.finds:
                return conclude(options.out, finds(store, options, scratch), [], plot)
            rows, judged = creates(store, options, scratch)
            rows += behind(store, options, scratch)
            rows += finds(store, options, scratch)
            row, bar = recovery(store, options, scratch)
            conclude(options.out, [*rows, row], [*judged, bar], plot)
        finally:
            store.close()


if __name__ == "__main__":
    main()
