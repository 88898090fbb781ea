#!/usr/bin/env python3
"""Compares what crates depend on with scripts/crates.txt, and its picture in ARCHITECTURE.md.

    scripts/lint-crates.py            fails if an arrow is new or points up, or the picture is old
    scripts/lint-crates.py --show     prints the picture of what Cargo says
    scripts/lint-crates.py --update   draws the picture in ARCHITECTURE.md
    scripts/lint-crates.py --accept   writes what Cargo says to scripts/crates.txt, and draws it

An arrow is a normal dependency between crates of the workspace: tests may depend on what they like.
Standard library only; Cargo is asked for its metadata alone and needs no network.
"""

import argparse
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = "scripts/crates.txt"
PAGE = "ARCHITECTURE.md"
BEGIN, END = "<!-- crates:begin -->", "<!-- crates:end -->"
COLUMNS = 100


def metadata(root):
    """What Cargo says of the workspace."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"crates: {' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def arrows_of(data, root):
    """By the directory of each crate below crates/: the directories of those that it depends on."""
    top = os.path.join(os.path.realpath(root), "crates")
    dirs = {}
    for package in data["packages"]:
        dirs[package["name"]] = os.path.relpath(os.path.dirname(package["manifest_path"]), top)
    arrows = {}
    for package in data["packages"]:
        normal = (one["name"] for one in package["dependencies"] if one["kind"] is None)
        arrows[dirs[package["name"]]] = {dirs[name] for name in normal if name in dirs}
    return arrows


def parse(text):
    """The list: layers with their crates from top to bottom, and the arrows."""
    layers, arrows = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            layers.append((line.strip("[]"), []))
            continue
        crate, colon, targets = line.partition(":")
        if not colon or not layers or crate in arrows:
            sys.exit(f"{LIST}:{number}: not `crate: crates`, below a [layer] and only once: {line}")
        layers[-1][1].append(crate)
        arrows[crate] = set(targets.split())
    return layers, arrows


def faults(layers, listed, found):
    """What is wrong, in words, with what to do."""
    names = [crate for _, crates in layers for crate in crates]
    order = {crate: at for at, crate in enumerate(names)}
    lines = []
    for crate in sorted(found.keys() - order.keys()):
        lines.append(f"{crate} is not in {LIST}. To do: give it a line, below all that use it.")
    for crate in sorted(order.keys() - found.keys()):
        lines.append(f"{crate} is in {LIST} and not in the workspace. To do: remove its line.")
    for crate in sorted(found.keys() & order.keys()):
        for target in sorted(found[crate]):
            if target in order and order[target] <= order[crate]:
                lines.append(
                    f"{crate} -> {target} points up: {target} stands above it in {LIST}. "
                    "To do: move what both need into a crate below."
                )
            elif target not in listed[crate]:
                lines.append(
                    f"{crate} -> {target} is new. To do: do without it; or accept it "
                    "(scripts/lint-crates.py --accept) and say why (docs/style.md)."
                )
        for target in sorted(listed[crate] - found[crate]):
            lines.append(f"{crate} -> {target} is gone. To do: scripts/lint-crates.py --accept.")
    return lines


def reduced(arrows):
    """The arrows without those that follow from others."""
    below = {}

    def reach(crate):
        if crate not in below:
            below[crate] = set()  # a circle, which Cargo does not have, would end here
            below[crate] = set().union(*({one} | reach(one) for one in arrows.get(crate, ())))
        return below[crate]

    return {
        crate: {one for one in targets if not any(one in reach(other) for other in targets)}
        for crate, targets in arrows.items()
    }


def picture(layers, found):
    """The picture, as lines: a crate a line, below its layer, with its arrows."""
    order = [crate for _, crates in layers for crate in crates]
    order += sorted(found.keys() - set(order))
    few = reduced(found)
    title = max(len(name) for name, _ in layers) + 2
    width = max(map(len, found)) + 2
    lines = []
    for name, crates in layers:
        for crate in crates:
            if crate not in found:
                continue
            targets = [one for one in order if one in few[crate]]
            head = f"{name:{title}}{crate:{width}}"
            line = head + "─▶ " if targets else head
            for one in targets:
                if len(line) + len(one) > COLUMNS:
                    lines.append(line.rstrip())
                    line = " " * (title + width + 3)
                line += one + "  "
            lines.append(line.rstrip())
            name = ""
    return lines


def drawn(text, lines):
    """The page with the picture between its markers; as it is if it has none."""
    block = "\n".join([BEGIN, "```", *lines, "```", END])
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: block, text, count=1)


def accepted(text, found):
    """The list with the arrows that were found; its comments, layers and order stay."""
    order = re.findall(r"^([^#\[\s][^:]*):", text, re.MULTILINE)

    def line(match):
        crate = match.group(1)
        targets = [one for one in order if one in found.get(crate, ())]
        return f"{crate}: {' '.join(targets)}".rstrip()

    return re.sub(r"^([^#\[\s][^:\n]*):.*$", line, text, flags=re.MULTILINE)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def write(root, path, text):
    with open(os.path.join(root, path), "w", encoding="utf-8") as file:
        file.write(text)


def main():
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--show", action="store_true", help="print the picture")
    modes.add_argument("--update", action="store_true", help=f"draw it in {PAGE}")
    modes.add_argument("--accept", action="store_true", help=f"write {LIST}, and draw")
    args = parser.parse_args()
    found = arrows_of(metadata(ROOT), ROOT)
    if not any("/" in crate for crate in found):
        print(f"crates: {len(found)} crates that are not grouped yet; nothing was compared")
        return 0
    layers, listed = parse(read(ROOT, LIST))
    lines = picture(layers, found)
    if args.show:
        print("\n".join(lines))
        return 0
    if args.accept:
        new = accepted(read(ROOT, LIST), found)
        wrong = faults(layers, parse(new)[1], found)
        for fault in wrong:
            print(f"FAIL {fault}")
        if wrong:
            return 1
        write(ROOT, LIST, new)
        listed = parse(new)[1]
    page = read(ROOT, PAGE)
    marked = BEGIN in page and END in page
    if (args.update or args.accept) and marked:
        write(ROOT, PAGE, drawn(page, lines))
        print(f"crates: drew {len(found)} crates in {PAGE}")
        return 0
    wrong = faults(layers, listed, found)
    if not marked:
        wrong.append(f"{PAGE} has no lines {BEGIN} and {END} for the picture. To do: add them.")
    elif drawn(page, lines) != page:
        wrong.append(f"the picture in {PAGE} is old. To do: scripts/lint-crates.py --update.")
    for fault in wrong:
        print(f"FAIL {fault}")
    count = sum(map(len, found.values()))
    print(f"crates: {len(found)} crates, {count} arrows, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
