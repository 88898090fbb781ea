#!/usr/bin/env python3
"""Side-by-side benchmark: a KestrelFS mount, the same disk's local file system, and the null FUSE
file system.

    bench/compare.py [--out target/bench] [--scratch DIR] [--quick] [--rounds N]
                     [--only metadata|data|served]

Runs `kestrel bench` on the systems in turn, ROUNDS times (default 3), so that a machine with a
speed that drifts hits all alike, takes the median of each figure, prints figures and ratios against
the bars of issue 2, and writes results.json and plot.svg. The null file system is built from the
same FUSE layer and answers at once: it is the physical limit of a mount. Files are named relative
to their directory, as tar, rsync and find do, so that an operation is one operation; with full
paths, which the kernel walks component by component, the metadata steps run once more. With 64
threads they run on the embedded mount and on one of a volume that a server on this machine serves.
Uncapped absolute figures of a shared machine say little; ratios within one run and CPU per
operation repeat.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile

from common import KESTREL, ROOT, Local, Null, Server, run

# A bar on a ratio: (phase, operation, measured system, limit system, operation at the limit, at
# least)
RATIO_BARS = [
    ("metadata", "stat", "kestrel", "null", "stat", 0.60),
    ("metadata", "open+close", "kestrel", "null", "open+close", 0.60),
    ("metadata", "create", "kestrel", "null", "create", 0.50),
    ("metadata", "unlink", "kestrel", "null", "unlink", 0.50),
    ("small 4K", "write+close", "kestrel", "null", "create", 0.50),
    ("small 64K", "write+close", "kestrel-commit", "local-fsync", "write+fsync+close", 1.00),
    ("small 64K", "write+close", "kestrel", "local", "write+close", 0.40),
    # The null file system lets the kernel keep pages: lookup, open and close by FUSE, bytes from
    # memory, as with pass-through.
    ("small 64K", "read (again)", "kestrel", "null", "read (again)", 0.70),
    ("metadata with 64 threads", "stat", "served", "kestrel", "stat", 0.50),
]

# Threads that load a served mount.
MANY_THREADS = "64"

# A bar on CPU microseconds per operation of the whole machine: (phase, operation, at most)
CPU_BARS = [
    ("metadata", "create", 90),
    ("metadata", "stat", 30),
    ("metadata", "unlink", 80),
    ("metadata", "rename", 100),
    ("small 64K", "write+close", 300),
    ("small 64K", "read (cold)", 250),
]


class Kestrel:
    """A volume, mounted."""

    def __init__(self, scratch, durability):
        self.volume = os.path.join(scratch, f"volume-{durability}")
        self.dir = os.path.join(scratch, f"mnt-{durability}")
        os.makedirs(self.dir)
        run(KESTREL, "format", self.volume, "--durability", durability)
        run(KESTREL, "mount", self.volume, self.dir)

    def close(self):
        run(KESTREL, "umount", self.dir)


class Served:
    """A volume that a server serves, mounted by its URL."""

    def __init__(self, scratch):
        self.server = Server(scratch)
        self.dir = os.path.join(scratch, "mnt-served")
        os.makedirs(self.dir)
        run(KESTREL, "mount", self.server.url, self.dir)

    def close(self):
        run(KESTREL, "umount", self.dir)
        self.server.stop()


def bench(directory, *arguments):
    out = json.loads(run(KESTREL, "bench", directory, "--json", *arguments))
    by = "" if "--relative" in arguments else " by full path"
    by += f" with {MANY_THREADS} threads" if MANY_THREADS in arguments else ""
    return {(line["phase"] + by, line["op"]): line for line in out["results"]}


def passes(options):
    """(system, file system, arguments of kestrel bench): what one round runs."""
    files = "300" if options.quick else "2000"
    small = "100" if options.quick else "400"
    by_path = ["--threads", "16", "--files", files, "--phase", "metadata", "--warm"]
    metadata = [
        "--threads",
        "16",
        "--files",
        files,
        "--phase",
        "metadata,shared",
        "--warm",
        "--relative",
    ]
    many = [
        "--threads",
        MANY_THREADS,
        "--files",
        files[:-1],
        "--phase",
        "metadata",
        "--warm",
        "--relative",
    ]
    data = [
        "--threads",
        "16",
        "--files",
        small,
        "--phase",
        "small",
        "--sizes",
        "4K,64K",
        "--relative",
    ]
    large = [
        "--relative",
        "--threads",
        "2",
        "--phase",
        "large",
        "--large-size",
        "64M" if options.quick else "512M",
    ]
    plan = []
    if options.only in (None, "metadata"):
        plan += [
            (name, name, arguments)
            for arguments in (metadata, by_path)
            for name in ("kestrel", "null", "local")
        ]
    if options.only in (None, "served"):
        plan += [(name, name, many) for name in ("kestrel", "served")]
    if options.only in (None, "data"):
        plan += [
            ("kestrel", "kestrel", data),
            ("null", "null", data + ["--no-verify"]),
            ("local", "local", data),
            ("kestrel-commit", "kestrel-commit", data),
            ("local-fsync", "local", data + ["--fsync"]),
            ("kestrel", "kestrel", large),
            ("local", "local", large),
        ]
    return plan


def median_of(rounds):
    """Per figure the median over the rounds."""
    result = {}
    for key in rounds[0]:
        lines = [one[key] for one in rounds if key in one]
        figures = ("per_second", "megabytes_per_second", "cpu_us_per_op_machine")
        result[key] = {
            figure: statistics.median(line[figure] or 0 for line in lines) for figure in figures
        }
        for percentile in ("p50", "p99"):
            result[key][percentile] = statistics.median(
                line["latency_us"][percentile] for line in lines
            )
    return result


def judge(found):
    bars = []
    for phase, op, system, limit, limit_op, least in RATIO_BARS:
        mine = found.get(system, {}).get((phase, op))
        limit_phase = phase if (phase, limit_op) in found.get(limit, {}) else "metadata"
        other = found.get(limit, {}).get((limit_phase, limit_op))
        if mine and other and other["per_second"]:
            ratio = mine["per_second"] / other["per_second"]
            text = f"{phase} {op}: {system} / {limit} {limit_op}"
            bars.append(
                {
                    "bar": text,
                    "value": round(ratio, 3),
                    "wanted": f">= {least}",
                    "met": ratio >= least,
                }
            )
    for phase, op, most in CPU_BARS:
        mine = found.get("kestrel", {}).get((phase, op))
        if mine:
            cpu = mine["cpu_us_per_op_machine"]
            limit = found.get("null", {}).get((phase, op), {}).get("cpu_us_per_op_machine")
            text = f"{phase} {op}: CPU µs/op" + (f" (null: {limit:.1f})" if limit else "")
            bars.append(
                {"bar": text, "value": round(cpu, 1), "wanted": f"<= {most}", "met": cpu <= most}
            )
    shared, private = (
        found.get("kestrel", {}).get((phase, "create")) for phase in ("shared", "metadata")
    )
    null_shared, null_private = (
        found.get("null", {}).get((phase, "create")) for phase in ("shared", "metadata")
    )
    if shared and private and null_shared and null_private:
        mine = shared["per_second"] / private["per_second"]
        limit = null_shared["per_second"] / null_private["per_second"]
        text = "create in one shared directory / in private ones"
        bars.append(
            {
                "bar": text,
                "value": round(mine, 3),
                "wanted": f">= {limit:.3f} (null)",
                "met": mine >= 0.95 * limit,
            }
        )
    return bars


def plot(path, found):
    """Bars of operations a second by system, logarithmic, as SVG without any library."""
    keys = sorted({key for lines in found.values() for key in lines})
    systems = list(found)
    colors = ["#1b6ca8", "#999999", "#4c9f70", "#0b3c5d", "#a3c9a8", "#d98032"]
    width, row, left = 900, 16 * len(systems) + 12, 210
    height = row * len(keys) + 40
    scale = (width - left - 90) / 7
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for index, system in enumerate(systems):
        out.append(
            f'<rect x="{left + index * 120}" y="8" width="10" height="10" '
            f'fill="{colors[index % len(colors)]}"/>'
        )
        out.append(f'<text x="{left + 14 + index * 120}" y="17">{system}</text>')
    import math

    for number, key in enumerate(keys):
        y = 34 + number * row
        out.append(
            f'<text x="{left - 8}" y="{y + row / 2}" text-anchor="end">{key[0]}: {key[1]}</text>'
        )
        for index, system in enumerate(systems):
            line = found[system].get(key)
            if not line or line["per_second"] <= 0:
                continue
            length = max(1, math.log10(max(line["per_second"], 1)) * scale)
            top = y + index * 16
            out.append(
                f'<rect x="{left}" y="{top}" width="{length:.0f}" height="12" '
                f'fill="{colors[index % len(colors)]}"/>'
            )
            out.append(
                f'<text x="{left + length + 4:.0f}" '
                f'y="{top + 10}">{line["per_second"]:,.0f}/s</text>'
            )
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument(
        "--scratch", help="where volumes and files go (default: a temporary directory below target)"
    )
    parser.add_argument("--quick", action="store_true", help="few files: does it run at all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["metadata", "data", "served"])
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="kestrel-bench-", dir=options.scratch or f"{ROOT}/target")
    systems = {}
    try:
        systems["kestrel"] = Kestrel(scratch, "fsync")
        systems["kestrel-commit"] = Kestrel(scratch, "commit")
        systems["served"] = Served(scratch)
        systems["null"] = Null(scratch, "--keep-pages")
        systems["local"] = Local(scratch)
        rounds = {}
        for number in range(options.rounds):
            one = {}
            for name, system, arguments in passes(options):
                one.setdefault(name, {}).update(bench(systems[system].dir, *arguments))
            for name, lines in one.items():
                rounds.setdefault(name, []).append(lines)
            print(f"round {number + 1} of {options.rounds} done", flush=True)
    finally:
        for system in systems.values():
            system.close()
        shutil.rmtree(scratch, ignore_errors=True)
    found = {name: median_of(lines) for name, lines in rounds.items()}
    bars = judge(found)
    for name, lines in found.items():
        print(
            f"\n{name}\n  {'':34} {'per s':>10} {'MB/s':>8} {'p50 µs':>8} {'p99 µs':>9} "
            f"{'CPU µs':>8}"
        )
        for (phase, op), line in lines.items():
            print(
                f"  {phase + ': ' + op:34} {line['per_second']:10,.0f} "
                f"{line['megabytes_per_second']:8.1f} "
                f"{line['p50']:8.1f} {line['p99']:9.1f} {line['cpu_us_per_op_machine']:8.1f}"
            )
    print("\nbars")
    for bar in bars:
        print(
            f"  {'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['value']} (wanted "
            f"{bar['wanted']})"
        )
    document = {
        "command": "bench/compare.py",
        "rounds": options.rounds,
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "systems": {
            name: {f"{p}: {o}": line for (p, o), line in lines.items()}
            for name, lines in found.items()
        },
        "bars": bars,
    }
    with open(f"{options.out}/results.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    plot(f"{options.out}/plot.svg", found)
    print(f"\n{options.out}/results.json, {options.out}/plot.svg")


if __name__ == "__main__":
    main()
