#!/usr/bin/env python3
"""The policy `compression`: bytes in the store, MB/s and processor time by its values.

Each side is an embedded volume of its own. A file of text (this repository's sources, repeated in
another order each time) and small files of 16 KiB of it are written, synced, and read after a new
mount, with cold caches. Side "elsewhere" has no policy for them, but one for another directory with
compressed files: what that costs plain ones.

    bench/compression.py           writes target/bench/compression.json, compression.svg
    bench/compression.py --mb 512  more text
"""

import argparse
import glob
import html
import json
import os
import random
import statistics
import tempfile
import time

from common import KESTREL, ROOT, TARGET, conclude, run, take_away

SIDES = ("no policy", "elsewhere", "none", "lz4", "zstd:1", "zstd:3", "zstd:9")
SMALL_BYTES = 16 << 10
# How much more processor time plain files may take where no policy or another one counts.
NULL_RATIO_MAX = 1.3


def sources():
    """The repository's sources, in pieces."""
    text = b""
    for path in sorted(glob.glob(f"{ROOT}/crates/**/*.rs", recursive=True)):
        with open(path, "rb") as file:
            text += file.read()
    return [text[at : at + SMALL_BYTES] for at in range(0, len(text) - SMALL_BYTES, SMALL_BYTES)]


def texts(pieces, megabytes, seed):
    """So much text, in pieces of SMALL_BYTES."""
    draw = random.Random(seed)
    return [draw.choice(pieces) for _ in range(megabytes * (1 << 20) // SMALL_BYTES)]


def stored(volume):
    """Bytes of all objects."""
    paths = glob.glob(f"{volume}/objects/??/*")
    return sum(os.path.getsize(path) for path in paths)


def processor_seconds(mount):
    """What the process that has the volume has used so far."""
    pid = json.loads(run(KESTREL, "status", mount, "--json"))["pid"]
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        user, system = file.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def write(top, text):
    """One large file and many small ones, each half of the text."""
    half = len(text) // 2
    with open(f"{top}/large", "wb", buffering=0) as file:
        for first in range(0, half, 64):
            file.write(b"".join(text[first : min(first + 64, half)]))
        os.fsync(file.fileno())
    for number, piece in enumerate(text[half:]):
        with open(f"{top}/small{number}", "wb", buffering=0) as file:
            file.write(piece)
    # Closed files are committed; this makes them durable.
    os.sync()


def read(top, text):
    half = len(text) // 2
    with open(f"{top}/large", "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    for number, piece in enumerate(text[half:]):
        with open(f"{top}/small{number}", "rb", buffering=0) as file:
            assert file.read() == piece, f"small{number} is not what was written"


def measure(mount, what, act, megabytes):
    used, begun = processor_seconds(mount), time.perf_counter()
    act()
    seconds = time.perf_counter() - begun
    used = processor_seconds(mount) - used
    return {
        "what": what,
        "mb_per_second": megabytes / seconds,
        "processor_ms_per_mb": used / megabytes * 1e3,
    }


def side(name, scratch, text, megabytes):
    home = tempfile.mkdtemp(dir=scratch)
    volume, mount = f"{home}/volume", f"{home}/mount"
    os.mkdir(mount)
    run(KESTREL, "format", volume)
    run(KESTREL, "mount", volume, mount)
    os.mkdir(f"{mount}/top")
    if name == "elsewhere":
        os.mkdir(f"{mount}/other")
        run(KESTREL, "policy", "set", f"{mount}/other", "compression=zstd")
        write(f"{mount}/other", text[:64])
    elif name != "no policy":
        run(KESTREL, "policy", "set", f"{mount}/top", f"compression={name}")
    before = stored(volume)
    rows = [measure(mount, "write", lambda: write(f"{mount}/top", text), megabytes)]
    bytes_stored = stored(volume) - before
    run(KESTREL, "umount", mount)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")
    run(KESTREL, "mount", volume, mount)
    if name == "elsewhere":
        # So the mount knows that there are compressed objects.
        read(f"{mount}/other", text[:64])
    rows.append(measure(mount, "read", lambda: read(f"{mount}/top", text), megabytes))
    run(KESTREL, "umount", mount)
    more = {"mb": megabytes, "stored_mb": bytes_stored / (1 << 20)}
    return [{"side": name, **row, **more} for row in rows]


def plot(path, rows):
    width, step = 760, 22
    longest = max(row["mb_per_second"] for row in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{step * len(rows) + 20}" font-family="sans-serif" font-size="12">'
    ]
    for number, row in enumerate(rows):
        y = number * step + 4
        said = (
            f'{row["mb_per_second"]:.0f} MB/s, {row["processor_ms_per_mb"]:.1f} ms of processor a '
            f'MB, {row["stored_mb"]:.0f} of {row["mb"]} MB stored'
        )
        long = 240 * row["mb_per_second"] / longest
        text = html.escape(f'{row["what"]}, {row["side"]}')
        parts.append(f'<text x="4" y="{y + 13}">{text}</text>')
        parts.append(f'<rect x="130" y="{y}" width="{long:.1f}" height="16" fill="#acf"/>')
        parts.append(f'<text x="{136 + long:.1f}" y="{y + 13}">{html.escape(said)}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n</svg>\n")


def judge(rows):
    of = {(row["side"], row["what"]): row for row in rows}
    plain = of["no policy", "write"]
    judged = []
    for name in ("lz4", "zstd:1", "zstd:3", "zstd:9"):
        part = of[name, "write"]["stored_mb"] / plain["stored_mb"]
        judged.append((f"{name}: at most half of the bytes in the store ({part:.2f})", part <= 0.5))
    for name in ("elsewhere", "none"):
        part = of[name, "write"]["stored_mb"] / plain["stored_mb"]
        judged.append((f"{name}: as many bytes as without ({part:.3f})", 0.99 <= part <= 1.01))
        for what in ("write", "read"):
            base = of["no policy", what]["processor_ms_per_mb"]
            ratio = of[name, what]["processor_ms_per_mb"] / base
            said = f"{what} with {name}: at most {NULL_RATIO_MAX} of the processor time without"
            judged.append((f"{said} ({ratio:.2f})", ratio <= NULL_RATIO_MAX))
    return judged


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mb", type=int, default=128, help="text on each side, MiB")
    options.add_argument("--rounds", type=int, default=3, help="the median of so many counts")
    options.add_argument("--out", default=f"{TARGET}/bench/compression")
    wanted = options.parse_args()
    os.makedirs(os.path.dirname(wanted.out), exist_ok=True)
    pieces, found = sources(), {}
    for number in range(wanted.rounds):
        text = texts(pieces, wanted.mb, number)
        for name in SIDES:
            scratch = tempfile.mkdtemp(prefix="kestrel-bench-", dir="/var/tmp")
            try:
                for row in side(name, scratch, text, wanted.mb):
                    found.setdefault((name, row["what"]), []).append(row)
            finally:
                take_away(scratch)
    rows = []
    for of in found.values():
        numbers = ("mb_per_second", "processor_ms_per_mb", "stored_mb")
        middle = {name: statistics.median(row[name] for row in of) for name in numbers}
        rows.append({**of[0], **middle, "rounds": wanted.rounds})
        print(
            f'{rows[-1]["what"]:6} {rows[-1]["side"]:10} {middle["mb_per_second"]:7.1f} MB/s '
            f'{middle["processor_ms_per_mb"]:6.2f} ms a MB {middle["stored_mb"]:7.1f} MB stored',
            flush=True,
        )
    conclude(wanted.out, rows, judge(rows), plot)


if __name__ == "__main__":
    main()
