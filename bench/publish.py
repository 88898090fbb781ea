#!/usr/bin/env python3
"""Published versions: how fast a tree is published, what the first look costs from a bucket, and
stats and opens of names by a mount of a version, of a version through a curator, and of the live
volume through its server.

A volume on the local disk, and one in a bucket: versitygw behind kestrel-s3proxy, which adds 20 ms
and counts requests. Limits beside: a walk of the same tree with a stat of each name through the
mount that publishes it, and the null FUSE file system.

    bench/publish.py            writes target/bench/publish.json, publish.svg
    bench/publish.py --full     a million files
"""

import json
import os
import random
import statistics
import time

from bucket import in_threads, mount, umount
from common import KESTREL, Null, bars, conclude, free_ports, options_of, run, scratch_for
from store import Store

NAMES = 1000
LATENCY_MS = 20
STATS = 20_000
# Bars of the issue.
ENTRIES_MIN, ENTRY_BYTES_MAX, OBJECT_ENTRIES_MIN = 300_000, 60, 50_000
FIRST_REQUESTS_MAX, FIRST_MS_MAX, NULL_MIN = 5, 200, 0.6
# A curator is a server like that of the volume, and its clients look up each name of a path.
CURATOR_MIN = 0.5


def make_tree(top, files):
    """So many empty files with numbered names, a thousand in each directory."""
    for number in range(files // NAMES):
        os.makedirs(f"{top}/d{number:05d}")
    in_threads(files, 8, lambda _, number: os.mknod(path_of(top, number), 0o100644))


def path_of(top, number):
    return f"{top}/d{number // NAMES:05d}/file-{number:08d}"


def publish(top, name):
    return json.loads(run(KESTREL, "publish", top, name, "--json"))


def walk(top):
    """Seconds of a walk with a stat of every name."""
    begun = time.perf_counter()
    for path, _, names in os.walk(top):
        for name in names:
            os.stat(f"{path}/{name}")
    return time.perf_counter() - begun


def published(volume, files, rounds, rows, judged):
    """Rates of publications."""
    top, entries = f"{volume}.mnt/tree", files + files // NAMES + 1
    make_tree(top, files)
    publish(top, "warm")
    rates = []
    for turn in range(rounds):
        begun = time.perf_counter()
        made = publish(top, f"tree@{turn}")
        rates.append(entries / (time.perf_counter() - begun))
    rate, size = statistics.median(rates), made["table_bytes"] / entries
    rows.append({"what": "publish", "per_second": rate, "entries": entries, "bytes": size,
                 "objects": made["tables"] + 2, "is_ours": True})
    rows.append({"what": "walk with stat, live mount", "per_second": entries / walk(top),
                 "is_ours": False})
    judged.append((f"publish: {rate:.0f} entries/s (at least {ENTRIES_MIN})", rate >= ENTRIES_MIN))
    judged.append((f"{size:.1f} bytes an entry (at most {ENTRY_BYTES_MAX})",
                   size <= ENTRY_BYTES_MAX))
    most = max(entries / OBJECT_ENTRIES_MIN, 3)
    judged.append((f"{made['tables'] + 2} objects written (at most {most:.0f})",
                   made["tables"] + 2 <= most))


def stats_per_second(paths):
    order = paths[:]
    random.Random(1).shuffle(order)
    return len(order) / in_threads(len(order), 2, lambda _, number: os.stat(order[number]))


def stats(volume, scratch, files, rounds, rows, judged):
    """The first stat of each of many names, by mounts that were just made."""
    numbers = random.Random(2).sample(range(files), min(STATS, files))
    found = {"version": [], "live": [], "null": []}
    for _ in range(rounds):
        umount(f"{volume}.mnt")
        mount(volume, f"{volume}.mnt")
        found["live"].append(
            stats_per_second([path_of(f"{volume}.mnt/tree", number) for number in numbers])
        )
        mount(f"{volume}//tree@0", f"{scratch}/version")
        found["version"].append(
            stats_per_second([path_of(f"{scratch}/version", number) for number in numbers])
        )
        umount(f"{scratch}/version")
        null = Null(scratch)
        names = [f"{null.dir}/file-{number}" for number in numbers]
        in_threads(len(names), 2, lambda _, number: os.mknod(names[number], 0o100644))
        found["null"].append(stats_per_second(names))
        null.close()
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rate in medians.items():
        rows.append({"what": f"stat, {name}", "per_second": rate, "is_ours": name == "version"})
    ratio = medians["version"] / medians["null"]
    judged.append((f"stats by a mount of a version {ratio:.2f} of null FUSE (at least {NULL_MIN})",
                   ratio >= NULL_MIN))


def opens_per_second(paths):
    """Opens that read nothing: each asks whichever process has the metadata."""
    order = paths[:]
    random.Random(1).shuffle(order)
    return len(order) / in_threads(
        len(order), 2, lambda _, number: os.close(os.open(order[number], os.O_RDONLY)))


def curated(volume, scratch, files, rounds, rows, judged):
    """The first stat and the first open of each of many names, by mounts that were just made: of
    the version from the store, through a curator, and of the live volume through its server."""
    numbers = random.Random(2).sample(range(files), min(STATS, files))
    (server_port, curator_port), top = free_ports(2), f"{scratch}/reader"
    name = os.path.basename(volume)
    served, version = f"127.0.0.1:{server_port}", f"127.0.0.1:{curator_port}"
    run(KESTREL, "serve", volume, "--listen", served)
    run(KESTREL, "serve", f"{volume}//tree@0", "--read-only", "--listen", version)
    sources = {
        "version": f"{volume}//tree@0",
        "curator": f"kestrel://{version}/{name}//tree@0",
        "live server": f"kestrel://{served}/{name}",
    }
    found = {(call, source): [] for call in ("stat", "open") for source in sources}
    for _ in range(rounds):
        for source, url in sources.items():
            mount(url, top)
            below = f"{top}/tree" if source == "live server" else top
            paths = [path_of(below, number) for number in numbers]
            found["stat", source].append(stats_per_second(paths))
            found["open", source].append(opens_per_second(paths))
            umount(top)
    run(KESTREL, "serve", f"{volume}//tree@0", "--stop", "--listen", version)
    run(KESTREL, "serve", volume, "--stop")
    medians = {key: statistics.median(rates) for key, rates in found.items()}
    for (call, source), rate in medians.items():
        rows.append({"what": f"{call}, {source}, one of three", "per_second": rate,
                     "is_ours": source == "curator"})
    for call in ("stat", "open"):
        for source in ("version", "live server"):
            ratio = medians[call, "curator"] / medians[call, source]
            rows.append({"what": f"{call}, curator to {source}", "ratio": ratio})
            print(f"{call}s through a curator: {ratio:.2f} of those by {source}")
    ratio = medians["stat", "curator"] / medians["stat", "live server"]
    judged.append((f"stats through a curator {ratio:.2f} of the live server's (at least "
                   f"{CURATOR_MIN})", ratio >= CURATOR_MIN))


def first_look(store, scratch, files, rows, judged):
    """What the first stat costs from a bucket, by a machine that has nothing of the volume."""
    os.environ["KESTREL_STATE_DIR"] = f"{scratch}/a"
    url = store.url("publish")
    run(KESTREL, "format", url)
    mount(url, f"{scratch}/bucket")
    make_tree(f"{scratch}/bucket/tree", files)
    publish(f"{scratch}/bucket/tree", "tree@0")
    umount(f"{scratch}/bucket")
    base, query = url.split("?")
    os.environ["KESTREL_STATE_DIR"] = f"{scratch}/b"
    store.latency(LATENCY_MS)
    store.counts()
    begun = time.perf_counter()
    mount(f"{base}//tree@0?{query}", f"{scratch}/first")
    opened, at_mount = time.perf_counter() - begun, store.counts()["requests"]
    begun = time.perf_counter()
    os.stat(path_of(f"{scratch}/first", files // 2))
    first, requests = time.perf_counter() - begun, store.counts()["requests"]
    umount(f"{scratch}/first")
    store.latency(0)
    at_mount, requests = sum(at_mount.values()), sum(requests.values())
    rows.append({"what": "first stat", "ms": first * 1000, "requests": requests,
                 "mount_ms": opened * 1000, "mount_requests": at_mount, "is_ours": True})
    print(f"mount at {LATENCY_MS} ms: {opened * 1000:.0f} ms, {at_mount} requests")
    judged.append((f"first stat at {LATENCY_MS} ms: {requests} requests, {first * 1000:.0f} ms "
                   f"(at most {FIRST_REQUESTS_MAX}, {FIRST_MS_MAX} ms)",
                   requests <= FIRST_REQUESTS_MAX and first * 1000 <= FIRST_MS_MAX))


def plot(path, rows):
    lines = [(row["what"], row["per_second"], row["is_ours"]) for row in rows
             if "per_second" in row]
    bars(path, lines, "/s", digits=0, left=220)


def main():
    options = options_of(__doc__, "publish", 3).parse_args()
    files = 1_000_000 if options.full else 100_000
    with scratch_for(f"{options.out}.json") as scratch:
        rows, judged, volume = [], [], f"{scratch}/volume"
        run(KESTREL, "format", volume)
        mount(volume, f"{volume}.mnt")
        published(volume, files, options.rounds, rows, judged)
        stats(volume, scratch, files, options.rounds, rows, judged)
        umount(f"{volume}.mnt")
        curated(volume, scratch, files, options.rounds, rows, judged)
        store = Store(scratch)
        try:
            first_look(store, scratch, files, rows, judged)
        finally:
            store.close()
        conclude(options.out, rows, judged, plot)


if __name__ == "__main__":
    main()
