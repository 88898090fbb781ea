#!/usr/bin/env python3
"""`kestrel sql` over a published version: an aggregate over all entries, queries below one
directory with the rows that they read, and a look-up of one path.

Beside them the limits: a plain SQLite table of the same rows, which is a file on the local disk
with an index of paths, and a walk of a mount of the version with a stat of each name.

    bench/sql.py            writes target/bench/sql.json, sql.svg
    bench/sql.py --full     ten million files
"""

import json
import multiprocessing
import os
import re
import sqlite3
import statistics
import subprocess
import time

from bucket import mount, umount
from common import KESTREL, bars, conclude, options_of, run, scratch_for
from publish import NAMES, make_tree, publish, walk

# Bars of the issue.
AGGREGATE_MAX, READ_MAX = 2.0, 2.0
# Most memory of one query of a million entries, MiB.
MEMORY_MAX = 600


def queries(files):
    """Name, query for kestrel, and whether its rows are compared with those that were read."""
    middle = files // NAMES // 2
    within = f"tree/d{middle:05d}"
    return [
        ("count and sum of all", "select count(*), sum(size) from entries", False),
        ("sums by owner and kind", "select uid, kind, count(*) from entries group by 1, 2", False),
        ("all paths", "select count(*), max(path) from entries", False),
        ("glob prefix", f"select path from entries where path glob '{within}/*'", True),
        ("range of paths", f"select path from entries where path >= '{within}/file-'"
                           f" and path < '{within}/file0'", True),
        ("parent", f"select name, size from entries where parent = '{within}'", True),
        ("one path", f"select size from entries where path ="
                     f" '{within}/file-{middle * NAMES + 7:08d}'", False),
    ]


def ours(version, query):
    """Seconds, rows, rows read and MiB of memory of a query by the command."""
    begun = time.perf_counter()
    command = [KESTREL, "sql", version, query, "--csv", "--stats"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, told = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    found = re.search(r"(\d+) rows; (\d+) rows of tables read", told)
    if status or not found:
        raise SystemExit(f"{query}: {out}{told}")
    return seconds, int(found[1]), int(found[2]), usage.ru_maxrss / 1024, out


def plain_table(path, version):
    """The same rows in a table of SQLite."""
    rows = json.loads(run(KESTREL, "sql", version, "select path, parent, name, kind, size, mode,"
                                                   " uid, gid, mtime from entries", "--json"))
    base = sqlite3.connect(path)
    columns = list(rows[0])
    base.execute(f"create table entries ({', '.join(columns)})")
    base.executemany(f"insert into entries values ({', '.join('?' * len(columns))})",
                     ([row[column] for column in columns] for row in rows))
    base.execute("create index paths on entries (path)")
    base.execute("create index parents on entries (parent)")
    base.commit()
    base.close()


def plain(path, query):
    """Seconds and rows of a query by a new connection to that table."""
    begun = time.perf_counter()
    base = sqlite3.connect(path)
    rows = base.execute(query).fetchall()
    base.close()
    return time.perf_counter() - begun, rows


def measure(version, table, files, rounds, rows, judged):
    """All queries, by the command and by the plain table."""
    for what, query, is_narrow in queries(files):
        taken = [(ours(version, query), plain(table, query)) for _ in range(rounds)]
        (_, found, read, memory, out), (_, expected) = taken[-1]
        if found != len(expected) or found == 1 and out.split("\n")[1] != ",".join(
                map(str, expected[0])):
            raise SystemExit(f"{query}: {out[:200]} is not {expected[:3]}")
        seconds = statistics.median(one[0] for one, _ in taken)
        limit = statistics.median(other[0] for _, other in taken)
        rows.append({"what": what, "seconds": seconds, "rows": found, "read": read,
                     "memory_mib": memory, "is_ours": True})
        rows.append({"what": f"{what}, SQLite table", "seconds": limit, "is_ours": False})
        print(f"{what}: {seconds:.3f} s, {found} rows of {read} read, {memory:.0f} MiB;"
              f" SQLite table {limit:.3f} s")
        if is_narrow:
            ratio = read / found
            judged.append((f"{what}: {ratio:.2f} rows read for each one (at most {READ_MAX:.0f})",
                           ratio <= READ_MAX))
        if what == "count and sum of all":
            per = seconds * 1_000_000 / read
            judged.append((f"{what}: {per:.2f} s for a million entries (at most"
                           f" {AGGREGATE_MAX:.0f} s)", per <= AGGREGATE_MAX))
        judged.append((f"{what}: {memory:.0f} MiB of memory (at most {MEMORY_MAX})",
                       memory <= MEMORY_MAX))


def plot(path, rows):
    bars(path, [(row["what"], 1000 * row["seconds"], row["is_ours"]) for row in rows], "ms",
         digits=0, left=250)


def main():
    options = options_of(__doc__, "sql", 3, full="ten million files").parse_args()
    files = 10_000_000 if options.full else 1_000_000
    with scratch_for(f"{options.out}.json") as scratch:
        rows, judged, volume = [], [], f"{scratch}/volume"
        run(KESTREL, "format", volume)
        mount(volume, f"{volume}.mnt")
        top = f"{volume}.mnt/top"
        make_tree(f"{top}/tree", files)
        publish(top, "tree@1")
        umount(f"{volume}.mnt")
        version, table = f"{volume}//tree@1", f"{scratch}/table.db"
        # In a process of its own: the memory of a process that it starts counts with its own.
        made = multiprocessing.Process(target=plain_table, args=(table, version))
        made.start()
        made.join()
        measure(version, table, files, options.rounds, rows, judged)
        mount(version, f"{scratch}/version")
        seconds = walk(f"{scratch}/version")
        rows.append({"what": "walk of a mount with stat", "seconds": seconds, "is_ours": False})
        print(f"walk of a mount with stat: {seconds:.1f} s")
        umount(f"{scratch}/version")
        conclude(options.out, rows, judged, plot, files=files)


if __name__ == "__main__":
    main()
