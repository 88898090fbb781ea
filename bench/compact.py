#!/usr/bin/env python3
"""Compaction of published versions: rows per second and core from tables in memory, and what the
command asks of a bucket.

In memory one worker (crates/metadata/bucket/examples/compact_bench) compacts runs that follow each
other, as a publication writes them, and runs that lie in each other. Limits beside: reading the
same tables with a checksum of their bytes, and looking at each row without writing it. In the
bucket (versitygw behind kestrel-s3proxy, which counts) the command compacts a publication.

    bench/compact.py            writes target/bench/compact.json, compact.svg
    bench/compact.py --full     three million files in the bucket: two runs
"""

import json
import time

from bucket import mount, umount
from common import EXAMPLES, KESTREL, bars, children_cpu, conclude, options_of, run, scratch_for
from publish import make_tree, publish
from store import Store

# Bars of the issue, and the most bytes that are read for one of the input: the rest is what is
# read of indexes and filters.
ENTRIES_MIN, READ_MAX, WRITTEN_MAX = 1_000_000, 1.3, 1.1
# Files of a tree of which clones make a large one.
FILES = 100_000


def in_memory(rounds, rows, judged):
    """Rows per second of CPU, from and to a store in memory."""
    for order in ("tree", "random"):
        words = [f"{EXAMPLES}/compact_bench", "--order", order, "--rounds", rounds]
        found = json.loads(run(*words))
        rate = found["entries_per_cpu_second"]
        for what, key in (("compaction", "entries_per_cpu_second"),
                          ("limit: rows seen", "visits_per_cpu_second"),
                          ("limit: checksums", "checksums_per_cpu_second")):
            rows.append({"what": f"{what}, {order}", "per_second": found[key], **found,
                         "is_ours": what == "compaction"})
        judged.append((f"{order}: {rate} entries/s and core (at least {ENTRIES_MIN})",
                       rate >= ENTRIES_MIN))


def in_bucket(scratch, clones, rounds, rows, judged):
    """Requests and bytes of the command."""
    store = Store(scratch)
    try:
        url = store.url("compact")
        run(KESTREL, "format", url)
        mnt = f"{scratch}/bucket"
        mount(url, mnt)
        make_tree(f"{mnt}/tree/0", FILES)
        for number in range(1, clones):
            run(KESTREL, "clone", "--eager", f"{mnt}/tree/0", f"{mnt}/tree/{number}")
        made = publish(f"{mnt}/tree", "in@1")
        base, query = url.split("?")
        for workers in (1, 2):
            for turn in range(rounds):
                store.counts()
                begun, used = time.perf_counter(), children_cpu()
                done = json.loads(run(KESTREL, "version", "compact", f"{base}//in@1?{query}",
                                      "--into", f"out@{workers}.{turn}", "--workers", workers,
                                      "--json"))
                seconds, used = time.perf_counter() - begun, children_cpu() - used
                counts = store.counts()
                row = {"what": f"command, {workers} workers", "is_ours": True,
                       "seconds": seconds, "cpu_seconds": used, "entries": made["rows"],
                       "per_second": made["rows"] / seconds, "runs": made["runs"],
                       "partitions": done["partitions"], "counts": counts,
                       "input_bytes": made["table_bytes"], "output_bytes": done["table_bytes"]}
                print(f"{row['what']}: {seconds:.2f} s, {used:.2f} s of CPU, {made['rows']} rows in"
                      f" {made['runs']} runs, {done['partitions']} partitions;"
                      f" {sum(counts['requests'].values())} requests, {counts['bytes_down']} bytes"
                      f" read, {counts['bytes_up']} written")
                rows.append(row)
        read, written = counts["bytes_down"], counts["bytes_up"]
        judged.append((f"{read / made['table_bytes']:.2f} bytes read for one of the input (at most"
                       f" {READ_MAX})", read <= READ_MAX * made["table_bytes"]))
        judged.append((f"{written / done['table_bytes']:.2f} bytes written for one of the output"
                       f" (at most {WRITTEN_MAX})", written <= WRITTEN_MAX * done["table_bytes"]))
        umount(mnt)
    finally:
        store.close()


def plot(path, rows):
    lines = [(row["what"], row["per_second"] / 1e6, row["is_ours"]) for row in rows
             if not row["what"].startswith("limit: checksums")]
    bars(path, lines, "M/s", digits=2, left=220)


def main():
    options = options_of(__doc__, "compact", 3).parse_args()
    with scratch_for(f"{options.out}.json") as scratch:
        rows, judged = [], []
        in_memory(options.rounds, rows, judged)
        in_bucket(scratch, 30 if options.full else 2, options.rounds, rows, judged)
        conclude(options.out, rows, judged, plot)


if __name__ == "__main__":
    main()
