#!/usr/bin/env python3
"""Reading a file of which the cache has a whole copy, against the local file system and against a
mount without pass-through.

    bench/passthrough.py [--size 1073741824] [--rounds 7] [--out target/bench] [--scratch DIR]

The local file lies on the file system of the cache directory, so both are read from the same disk.
A round reads the local file, the file through pass-through and the file through a mount with
`--passthrough off`, one after the other, in an order that turns with the rounds, so that a machine
with a speed that drifts shows in all: by read(2) of 1 MiB and through a map (each byte is added
up), from the page cache and from the disk (pages dropped before). A ratio is taken within its
round; the median of the rounds counts. Writes passthrough.json and passthrough.svg.
"""

import argparse
import glob
import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from common import KESTREL, ROOT, run

MIB = 1 << 20
BAR = 0.95
WHO = ("local", "pass-through", "off")


def by_read(path):
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def by_map(path):
    """Touches each page, as a program that computes on a model does."""
    with open(path, "rb", buffering=0) as file:
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            view.madvise(mmap.MADV_SEQUENTIAL)
            # A search for a byte that is not there reads every byte at memory speed.
            assert view.find(b"\xff") == -1


def drop(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def measure(size, rounds, scratch):
    volume, cache, local = f"{scratch}/volume", f"{scratch}/cache", f"{scratch}/local"
    mount = f"{scratch}/mount"
    os.mkdir(mount)
    run(KESTREL, "format", volume)
    run(KESTREL, "mount", volume, mount, "--cache-dir", cache)
    # No byte 0xff: see by_map.
    block = os.urandom(16 * MIB).replace(b"\xff", b"\xfe")
    for path in (local, f"{mount}/file"):
        with open(path, "wb") as out:
            for _ in range(0, size, len(block)):
                out.write(block)
    os.sync()
    run(KESTREL, "warmup", "--whole", f"{mount}/file")
    os.sync()
    copies = glob.glob(f"{cache}/*/whole/*")
    assert len(copies) == 1 and os.path.getsize(copies[0]) == size, copies
    figures = lambda: json.loads(run(KESTREL, "stats", "--once", "--json", mount))
    opens, made = figures()["passthrough_opens_total"], 0
    # Of the mount without pass-through only what the page cache gives can be compared: it would
    # fetch from its own pages.
    results = {}
    paths = {"local": local, "pass-through": f"{mount}/file"}
    for way, reader in (("read", by_read), ("mmap", by_map)):
        for state in ("warm", "cold"):
            seconds = {who: [] for who in paths}
            for number in range(rounds + 1):
                order = list(paths) if number % 2 else list(paths)[::-1]
                for who in order:
                    if state == "cold":
                        drop([local, *copies])
                    begun = time.perf_counter()
                    reader(paths[who])
                    seconds[who].append(time.perf_counter() - begun)
                    made += who == "pass-through"
            # The first round warms up.
            seconds = {who: taken[1:] for who, taken in seconds.items()}
            ratios = [a / b for a, b in zip(seconds["local"], seconds["pass-through"])]
            results[f"{way} {state}"] = {
                "gib_per_s": {
                    who: size / 2**30 / statistics.median(taken) for who, taken in seconds.items()
                },
                "seconds": seconds,
                "ratios": ratios,
                "ratio": statistics.median(ratios),
            }
    assert figures()["passthrough_opens_total"] == opens + made, "not all opens were passed through"
    # The same without pass-through, warm: the kernel's own page cache of the mount.
    run(KESTREL, "umount", mount)
    run(KESTREL, "mount", volume, mount, "--cache-dir", cache, "--passthrough", "off")
    for way, reader in (("read", by_read), ("mmap", by_map)):
        drop([f"{mount}/file", *copies])
        begun = time.perf_counter()
        reader(f"{mount}/file")
        results[f"{way} cold"]["gib_per_s"]["off"] = size / 2**30 / (time.perf_counter() - begun)
        taken = []
        for _ in range(rounds):
            begun = time.perf_counter()
            reader(f"{mount}/file")
            taken.append(time.perf_counter() - begun)
        results[f"{way} warm"]["gib_per_s"]["off"] = size / 2**30 / statistics.median(taken)
    run(KESTREL, "umount", mount)
    return results


def plot(found, path):
    """Bars of GiB/s, as SVG."""
    colours = {"local": "#999", "pass-through": "#06c", "off": "#c80"}
    out, top = [], 30
    for name, result in found["results"].items():
        most = max(result["gib_per_s"].values())
        out.append(f'<text x="10" y="{top}">{name}: {result["ratio"]:.3f} of local</text>')
        for who in WHO:
            rate = result["gib_per_s"][who]
            top += 16
            out.append(
                f'<rect x="110" y="{top - 10}" width="{rate / most * 400:.0f}" height="12" '
                f'fill="{colours[who]}"/>'
            )
            out.append(
                f'<text x="10" y="{top}">{who}</text><text x="{115 + rate / most * 400:.0f}" '
                f'y="{top}">{rate:.2f} GiB/s</text>'
            )
        top += 24
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{top}" '
            'font-family="sans-serif" font-size="11">\n'
        )
        file.write("\n".join([*out, "</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument("--scratch", default="/var/tmp")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="kestrel-bench-", dir=options.scratch)
    try:
        results = measure(options.size, options.rounds, scratch)
    finally:
        subprocess.run([KESTREL, "umount", "--force", f"{scratch}/mount"], capture_output=True)
        shutil.rmtree(scratch, ignore_errors=True)
    found = {
        "size": options.size,
        "rounds": options.rounds,
        "kernel": os.uname().release,
        "bar": BAR,
        "results": results,
    }
    with open(f"{options.out}/passthrough.json", "w") as out:
        json.dump(found, out, indent=1)
    plot(found, f"{options.out}/passthrough.svg")
    for name, result in results.items():
        rates = ", ".join(f"{who} {result['gib_per_s'][who]:.2f}" for who in WHO)
        verdict = "met" if result["ratio"] >= BAR else "MISSED"
        print(
            f"{name}: {result['ratio']:.3f} of the local file system (bar {BAR}: {verdict}); "
            f"GiB/s: {rates}"
        )
    print(f"\n{options.out}/passthrough.json, {options.out}/passthrough.svg")


if __name__ == "__main__":
    main()
