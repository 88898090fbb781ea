#!/usr/bin/env python3
"""Finds modules of a crate that refer to each other in circles.

    scripts/lint-modules.py            fails if circles have more modules than the baseline says
    scripts/lint-modules.py --list     every circle, with a place for each of its arrows
    scripts/lint-modules.py --arrows metadata/node/view
                                       the arrows between the modules of a directory
    scripts/lint-modules.py --update   lowers the baseline, `circles` in scripts/lint-baseline.json

It looks at the modules at the top of each crate, and at those of each directory of modules. An
arrow is a path in code that is no test (`crate::`, `super::`, an imported name), and leads from one
module to another, re-exports followed. The root file of a directory and the modules in it belong
together: arrows between them do not count. Calls of methods are not seen.
Standard library only.
"""

import argparse
import collections
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASELINE = "scripts/lint-baseline.json"

# Comments, strings and characters: blanks take their place.
OPAQUE = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | b?r(?P<hashes>\#*)".*?"(?P=hashes)
      | [bc]?"(?:[^"\\]|\\.)*"
      | b?'(?:\\[^\n']{1,8}|\\'|[^'\\\n])'""",
    re.DOTALL | re.VERBOSE,
)
TEST = re.compile(r"#\[cfg\((?:test\b|all\(test\b)[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*")
TEST_MODULE = re.compile(r"(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
VISIBLE = re.compile(r"\bpub\s*\([^)]*\)")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:$])\$?((?:r#)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)+)")
TOKEN = re.compile(r"\w+|::|[{},*]")

Place = collections.namedtuple("Place", "file line")


def blank(match):
    """As many lines and characters of nothing."""
    return re.sub(r"[^\n]", " ", match.group())


def end_of_item(text, at):
    """Where the item that begins there ends: at its `;`, or with its braces."""
    depth = 0
    for found in re.finditer(r"[{}();\[\]]", text[at:]):
        one = found.group()
        if one in "{([":
            depth += 1
        elif one in "})]":
            depth -= 1
            if depth < 0 or (depth == 0 and one == "}"):
                return at + found.end()
        elif depth == 0:
            return at + found.end()
    return len(text)


def without_tests(text):
    """The code of a file without comments, strings and tests, and the modules that are tests."""
    text = OPAQUE.sub(blank, text)
    tests = set()
    while found := TEST.search(text):
        if module := TEST_MODULE.match(text, found.end()):
            tests.add(module.group(1))
        end = end_of_item(text, found.end())
        item = re.sub(r"[^\n]", " ", text[found.start() : end])
        text = text[: found.start()] + item + text[end:]
    return VISIBLE.sub(blank, text), tests


def leaves(tree):
    """The paths of a `use`, each with the name that it gets: `a::{self, b as c}`."""
    tokens = TOKEN.findall(tree)
    out = []

    def walk(at, prefix):
        path, alias = list(prefix), None
        while at < len(tokens):
            token = tokens[at]
            if token == "{":
                at += 1
                while tokens[at] != "}":
                    at = walk(at, path)
                    if tokens[at] == ",":
                        at += 1
                return at + 1
            if token in (",", "}"):
                break
            if token == "as":
                alias = tokens[at + 1]
                at += 2
                continue
            if token != "::":
                path.append(token)
            at += 1
        if path and path[-1] == "self" and len(path) > 1:
            path.pop()
        out.append((path, alias or (path[-1] if path else "")))
        return at

    walk(0, [])
    return out


class Crate:
    """The modules of a crate, by their paths, and what they import."""

    def __init__(self, root, name):
        self.name = name
        self.files, self.code = {}, {}
        source = os.path.join(root, "crates", name, "src")
        tests = set()
        for directory, _, names in os.walk(source):
            for file in names:
                if not file.endswith(".rs"):
                    continue
                full = os.path.join(directory, file)
                parts = os.path.relpath(full, source)[:-3].split(os.sep)
                if parts[-1] == "mod" or parts in (["lib"], ["main"]):
                    parts.pop()
                with open(full, encoding="utf-8") as text:
                    code, hidden = without_tests(text.read())
                path = tuple(parts)
                tests |= {path + (one,) for one in hidden}
                self.files.setdefault(path, []).append(os.path.relpath(full, root))
                self.code.setdefault(path, []).append(code)
        for path in [one for one in self.code if any(one[: len(t)] == t for t in tests)]:
            del self.code[path], self.files[path]
        self.names = {path: self.imports(path) for path in self.code}

    def imports(self, path):
        """By its name in a module: the path that each `use` gives, from the crate's root."""
        names = {}
        for code in self.code[path]:
            for found in USE.finditer(code):
                for parts, name in leaves(found.group(1)):
                    full = self.absolute(path, parts)
                    if full is not None and name != "*":
                        names.setdefault(name, full)
        return names

    def absolute(self, path, parts):
        """A path as from the crate's root, if it leads into this crate."""
        if not parts:
            return None
        first, rest = parts[0], list(parts[1:])
        if first == "crate":
            return tuple(rest)
        if first == "self":
            return path + tuple(rest)
        if first == "super":
            base = path[:-1]
            while rest and rest[0] == "super":
                base, rest = base[:-1], rest[1:]
            return base + tuple(rest)
        if path + (first,) in self.code:
            return path + tuple(parts)
        return None

    def module_of(self, path):
        """The module that a path from the crate's root leads to, through re-exports."""
        at, seen = (), set()
        rest = list(path)
        while rest:
            if at + (rest[0],) in self.code:
                at += (rest.pop(0),)
                continue
            target = self.names.get(at, {}).get(rest[0])
            if target is None or (at, rest[0]) in seen:
                break
            seen.add((at, rest[0]))
            at, rest = (), list(target) + rest[1:]
        return at

    def references(self, path):
        """The modules that a module's code leads to, with the place of each."""
        names = self.names[path]
        for file, code in zip(self.files[path], self.code[path]):
            for found in USE.finditer(code):
                place = Place(file, code.count("\n", 0, found.start()) + 1)
                for parts, name in leaves(found.group(1)):
                    full = self.absolute(path, parts)
                    if full is None:
                        continue
                    if name != "*":
                        yield self.module_of(full), place
                        continue
                    within = self.module_of(full[:-1])
                    yield within, place
                    for one in self.names.get(within, ()):
                        if re.search(rf"\b{one}\b", code):
                            yield self.module_of(within + (one,)), place
            rest = USE.sub(blank, code)
            for found in PATH.finditer(rest):
                parts = re.split(r"\s*::\s*", found.group(1))
                full = self.absolute(path, parts)
                if full is None and parts[0] in names:
                    full = names[parts[0]] + tuple(parts[1:])
                if full is not None:
                    yield self.module_of(full), Place(file, rest.count("\n", 0, found.start()) + 1)

    def graphs(self):
        """By directory: by module the modules it leads to, with the first place of each arrow."""
        graphs = collections.defaultdict(lambda: collections.defaultdict(dict))
        for path in self.code:
            for target, place in self.references(path):
                common = 0
                while common < min(len(path), len(target)) and path[common] == target[common]:
                    common += 1
                if common < min(len(path), len(target)):
                    arrows = graphs[path[:common]][path[common]]
                    arrows.setdefault(target[common], place)
        return {"/".join((self.name, *at)): graph for at, graph in graphs.items()}


def circles(graph):
    """The strongly connected components of more than one module (Tarjan)."""
    index, low, stack, out = {}, {}, [], []

    def visit(one):
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in graph.get(one, ()):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            at = stack.index(one)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                out.append(sorted(component))

    for one in sorted(graph):
        if one not in index:
            visit(one)
    return sorted(out)


def crates_of(root):
    """Directories of crates, below crates/."""
    top = os.path.join(root, "crates")
    for directory, below, names in os.walk(top):
        if "Cargo.toml" in names and os.path.isdir(os.path.join(directory, "src")):
            yield os.path.relpath(directory, top)
        below[:] = sorted(one for one in below if one not in ("src", "tests", "target"))


def show(where, graph, found):
    """A circle, and where its arrows are."""
    print(f"{where}: {', '.join(found)}")
    for one in found:
        for other, place in sorted(graph[one].items()):
            if other in found:
                print(f"    {one} -> {other}  {place.file}:{place.line}")


def main():
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="every circle, with its arrows")
    parser.add_argument("--arrows", metavar="DIRECTORY", help="arrows between its modules")
    parser.add_argument("--update", action="store_true", help="lower the baseline")
    parser.add_argument("--root", default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    graphs = {}
    for name in crates_of(args.root):
        graphs.update(Crate(args.root, name).graphs())
    if args.arrows:
        for one, targets in sorted(graphs.get(args.arrows, {}).items()):
            print(f"{one}: {' '.join(sorted(targets))}")
        return 0
    found = {where: circles(graph) for where, graph in sorted(graphs.items())}
    counts = {where: sum(map(len, all_of)) for where, all_of in found.items() if all_of}
    path = os.path.join(args.root, BASELINE)
    with open(path, encoding="utf-8") as file:
        baseline = json.load(file)
    before = baseline.get("circles", {})
    risen = [where for where in counts if counts[where] > before.get(where, 0)]
    for where in counts if args.list else risen:
        for circle in found[where]:
            show(where, graphs[where], circle)
    if args.update and (not risen or "circles" not in baseline):
        baseline["circles"] = counts
        with open(path, "w", encoding="utf-8") as file:
            json.dump(baseline, file, indent=2)
            file.write("\n")
        print(f"modules: wrote {BASELINE}")
        return 0
    for where in risen:
        print(f"FAIL {where}: {counts[where]} modules in circles; {before.get(where, 0)} before")
    if risen:
        print("  To do: move what both need into a module below both, or make them one directory.")
    elif counts != before:
        print("  To do: scripts/lint-modules.py --update, and commit what it writes.")
    total = sum(map(len, found.values()))
    print(f"modules: {len(graphs)} directories, {total} circles, {sum(counts.values())} modules")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
