#!/usr/bin/env python3
"""How evenly real trees lie on the metadata nodes of a cluster, before and after balancing
(FalconFS, Table 3).

    bench/balance.py [--nodes 16] [--epsilon 0.01] [--out target/bench] [--no-debian]

Runs `kestrel cluster plan` on three lists of paths: the Linux kernel's sources (Debian's
linux-source-6.1, which scripts/install-deps.sh unpacks), the files of all Debian packages (the
Contents index of the main component, which apt-get fetches into the output directory; --no-debian
leaves it out), and a data set of 1,000 directories with the same 1,000 numbered files in each.
Prints a table, writes balance.json and balance.svg.
"""

import argparse
import json
import os
import resource
import subprocess
import time

from common import KESTREL, ROOT, TOOLS

# What apt-file tells apt-get to fetch besides the lists of packages.
CONTENTS = {
    "MetaKey": "$(COMPONENT)/Contents-$(ARCHITECTURE)",
    "ShortDescription": "Contents-$(ARCHITECTURE)",
    "Description": "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Contents (deb)",
    "KeepCompressed": "true",
    "DefaultEnabled": "true",
}


def linux():
    top = f"{TOOLS}/tree/linux-source-6.1"
    if not os.path.isdir(top):
        raise SystemExit(f"{top}: missing; scripts/install-deps.sh --demo unpacks it")
    for at, dirs, files in os.walk(top):
        for name in dirs + files:
            yield os.path.relpath(os.path.join(at, name), top)


def debian(out):
    lists = f"{out}/apt-lists"
    os.makedirs(f"{lists}/partial", exist_ok=True)
    options = [f"-oDir::State::lists={lists}"]
    options += [
        f"-oAcquire::IndexTargets::deb::Contents-deb::{key}={value}"
        for key, value in CONTENTS.items()
    ]
    subprocess.run(["apt-get", "update", "-qq", *options], check=True)
    # Of the distribution itself, not of its updates: those hold newer versions of some of the same
    # files.
    names = [
        n
        for n in os.listdir(lists)
        if "_main_Contents-" in n and "updates" not in n and "security" not in n
    ]
    if not names:
        raise SystemExit("apt-get fetched no Contents index")
    for name in sorted(names):
        reader = subprocess.Popen(
            ["/usr/lib/apt/apt-helper", "cat-file", f"{lists}/{name}"], stdout=subprocess.PIPE
        )
        for line in reader.stdout:
            # PATH, blanks, the packages that have it.
            yield os.fsdecode(line).rstrip("\n").rsplit(None, 1)[0].rstrip()
        if reader.wait() != 0:
            raise SystemExit(f"reading {name} failed")


def dataset():
    for directory in range(1000):
        for number in range(1000):
            yield f"train/{directory:04}/{number:06}.jpg"


def plan(name, paths, options):
    path = f"{options.out}/paths-{name}.txt"
    with open(path, "w", errors="surrogateescape") as out:
        for one in paths:
            out.write(f"{one}\n")
    command = [KESTREL, "cluster", "plan", "--nodes", str(options.nodes), "--paths", path, "--json"]
    if options.epsilon is not None:
        command += ["--epsilon", str(options.epsilon)]
    begun, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    os.unlink(path)
    found = json.loads(done.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["seconds"], found["cpu_seconds"] = time.monotonic() - begun, used.ru_utime - cpu
    return found


def row(name, found):
    part = lambda when, which: f"{100 * found[when][which + '_part']:.2f} %"
    return (
        f"| {name} | {found['entries']:,} | {part('before', 'fullest')} / "
        f"{part('before', 'emptiest')} "
        f"| {part('after', 'fullest')} / {part('after', 'emptiest')} | {found['path_walks']} | "
        f"{found['overrides']} "
        f"| {'yes' if found['reaches_goal'] else '**no**'} |"
    )


def plot(found, path):
    """Entries of each node as a part of all, sorted, before (grey) and after (blue), and the
    limit."""
    width, height, left = 320, 240, 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width * len(found)}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, (name, one) in enumerate(found.items()):
        x0, bottom, span = left + index * width, height - 30, width - 50
        top = max(one["before"]["fullest_part"], one["limit_part"]) * 1.15
        scale = (height - 70) / top
        out.append(
            f'<text x="{x0}" y="16">{name}: {one["entries"]:,} entries, {one["nodes"]} nodes</text>'
        )
        out.append(
            f'<text x="{x0}" y="30">{one["path_walks"]} spread, {one["overrides"]} moved (grey: '
            'before)</text>'
        )
        step = span / one["nodes"]
        for when, colour, shift in (("before", "#bbb", 0), ("after", "#06c", 0.4)):
            for at, entries in enumerate(sorted(one[when]["nodes"], reverse=True)):
                tall = entries / one["entries"] * scale
                out.append(
                    f'<rect x="{x0 + (at + shift) * step:.1f}" y="{bottom - tall:.1f}" '
                    f'width="{step * 0.4:.1f}" height="{tall:.1f}" fill="{colour}"/>'
                )
        for value, text in ((one["limit_part"], "limit"), (0, "0")):
            y = bottom - value * scale
            out.append(
                f'<path d="M{x0} {y:.1f}h{span}" stroke="#c00" fill="none"/><text '
                f'x="{x0 + span + 2}" y="{y + 4:.1f}">{text}</text>'
            )
        out.append(
            f'<text x="{x0}" y="{height - 12}">limit {100 * one["limit_part"]:.2f} % of all '
            'entries</text>'
        )
    out.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(out))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--epsilon", type=float, help="default: as the verb's")
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument(
        "--no-debian", action="store_true", help="do not fetch the list of Debian's files"
    )
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    trees = {"linux-6.1": linux, "debian": lambda: debian(options.out), "dataset": dataset}
    if options.no_debian:
        del trees["debian"]
    found = {}
    print(
        "| tree | entries | by name: fullest / emptiest | balanced: fullest / emptiest | spread | "
        "moved | goal reached |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, paths in trees.items():
        found[name] = plan(name, paths(), options)
        print(row(name, found[name]), flush=True)
    with open(f"{options.out}/balance.json", "w") as out:
        json.dump(found, out, indent=1)
    plot(found, f"{options.out}/balance.svg")
    for name, one in found.items():
        hottest = ", ".join(f"{n['name']} {n['entries']:,}" for n in one["most_frequent"][:3])
        print(
            f"{name}: {one['names']:,} names, hottest {hottest}; {one['seconds']:.1f} s, "
            f"{one['cpu_seconds']:.1f} s of CPU"
        )
    print(f"{options.out}/balance.json, {options.out}/balance.svg")


if __name__ == "__main__":
    main()
