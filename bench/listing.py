#!/usr/bin/env python3
"""Listing with attributes and removing, on a served volume: `ls -l`, `find -newer`, `du -s`, `rm
-rf` of many files in one directory.

Each round makes the files and runs the commands on a local directory and on a mount, one after the
other, the caches of names dropped by mounting anew. Requests are those of the mount. With
KESTREL_BEFORE=FILE that program serves and mounts the same.

    bench/listing.py            writes target/bench/listing.json, listing.svg
"""

import argparse
import contextlib
import html
import json
import os
import subprocess
import time

from common import KESTREL, TARGET, Server, conclude, run, scratch_for

COMMANDS = ("ls -l", "find -newer", "du -s", "rm -rf")


def command(what, directory, reference):
    return {
        "ls -l": ["ls", "-l", directory],
        "find -newer": ["find", directory, "-newer", reference],
        "du -s": ["du", "-s", directory],
        "rm -rf": ["rm", "-rf", directory],
    }[what]


def fill(directory, count):
    os.mkdir(directory)
    for number in range(count):
        os.close(os.open(f"{directory}/f{number:06}", os.O_CREAT | os.O_WRONLY))


def requests(mount, program):
    stats = json.loads(run(program, "stats", "--once", "--json", mount))
    return stats["metadata_requests_total"], stats.get("metadata_messages_sent_total")


def timed(words):
    begin = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def local(scratch, reference, count):
    directory = f"{scratch}/local"
    fill(directory, count)
    return [
        {
            "side": "local",
            "what": what,
            "entries": count,
            "seconds": timed(command(what, directory, reference)),
        }
        for what in COMMANDS
    ]


@contextlib.contextmanager
def mounted(program, url, where):
    run(program, "mount", url, where)
    try:
        yield
    finally:
        run(program, "umount", where)


def served(side, program, server, scratch, reference, count):
    where = f"{scratch}/mount"
    os.makedirs(where, exist_ok=True)
    with mounted(program, server.url, where):
        fill(f"{where}/many", count)
    rows = []
    for what in COMMANDS:
        with mounted(program, server.url, where):
            before = requests(where, program)[0]
            seconds = timed(command(what, f"{where}/many", reference))
            asked = requests(where, program)[0] - before
            rows.append(
                {
                    "side": side,
                    "what": what,
                    "entries": count,
                    "seconds": seconds,
                    "requests": asked,
                }
            )
    return rows


def closing(program, server, scratch, count):
    """Messages for each created file, and for each file read cold."""
    where = f"{scratch}/mount"

    def messages(act):
        before = requests(where, program)[1]
        for number in range(count):
            act(f"{where}/some/f{number:06}")
        time.sleep(0.2)  # what nobody waits for has gone by then
        return (requests(where, program)[1] - before) / count

    def create(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))

    with mounted(program, server.url, where):
        os.mkdir(f"{where}/some")
        created = messages(create)
        for number in range(count):
            with open(f"{where}/some/f{number:06}", "w", encoding="ascii") as file:
                file.write("some words\n")
    with mounted(program, server.url, where):
        read = messages(
            lambda path: subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
        )
    return created, read


def plot(path, rows):
    """Times by command, one bar for each side."""
    shown = [row for row in rows if "seconds" in row]
    width, step = 760, 22
    longest = max(row["seconds"] for row in shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{step * len(shown) + 20}" font-family="sans-serif" font-size="12">'
    ]
    for number, row in enumerate(shown):
        y, long = number * step + 4, 380 * row["seconds"] / longest
        text = f'{row["what"]}, {row["entries"]} entries, {row["side"]}'
        said = f'{row["seconds"]:.3f} s' + (
            f', {row["requests"]} requests' if "requests" in row else ""
        )
        parts.append(f'<text x="4" y="{y + 13}">{html.escape(text)}</text>')
        parts.append(
            f'<rect x="220" y="{y}" width="{long:.1f}" height="16" '
            f'fill="{"#999" if row["side"] == "local" else "#48c"}"/>'
        )
        parts.append(f'<text x="{226 + long:.1f}" y="{y + 13}">{html.escape(said)}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n</svg>\n")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--entries", type=int, nargs="+", default=[20_000, 200_000])
    options.add_argument("--cats", type=int, default=1000)
    options.add_argument("--out", default=f"{TARGET}/bench/listing")
    wanted = options.parse_args()
    before = os.environ.get("KESTREL_BEFORE")
    rows, judged = [], []
    with scratch_for(wanted.out) as scratch:
        reference = f"{scratch}/reference"
        with open(reference, "w", encoding="ascii"):
            pass
        sides = [("now", KESTREL)] + ([("before", before)] if before else [])
        for count in wanted.entries:
            of = {}
            rows += local(scratch, reference, count)
            for side, program in sides:
                server = Server(scratch, program=program)
                for row in served(side, program, server, scratch, reference, count):
                    rows.append(row)
                    of[side, row["what"]] = row
                    print(
                        f'{side:6} {row["what"]:12} {count:7} {row["seconds"]:8.3f} s '
                        f'{row["requests"]:8} requests',
                        flush=True,
                    )
                server.stop()
            for what in COMMANDS[:3]:
                asked = of["now", what]["requests"]
                judged.append(
                    (
                        f"{what} of {count} entries: at most entries / 500 requests ({asked})",
                        asked <= count / 500,
                    )
                )
            asked = of["now", "rm -rf"]["requests"]
            judged.append(
                (
                    f"rm -rf of {count} entries: one request a file ({asked})",
                    asked <= count * 1.01 + 20,
                )
            )
            if before:
                ratio = of["now", "rm -rf"]["seconds"] / of["before", "rm -rf"]["seconds"]
                judged.append(
                    (
                        f"rm -rf of {count} entries: at most 0.6 of the time before ({ratio:.2f})",
                        ratio <= 0.6,
                    )
                )
        server = Server(scratch)
        created, read = closing(KESTREL, server, scratch, wanted.cats)
        server.stop()
        rows.append({"what": "messages for each create and close", "messages": created})
        rows.append({"what": "messages for each cold cat", "messages": read})
        judged.append(
            (f"messages for each create and close: at most 1.05 ({created:.3f})", created <= 1.05)
        )
        judged.append((f"messages for each cold cat: at most 1.1 ({read:.3f})", read <= 1.1))
    conclude(wanted.out, rows, judged, plot)


if __name__ == "__main__":
    main()
