#!/usr/bin/env python3
"""Dependency audit that needs no network: licences, sources, duplicates, and size of the tree, from
`cargo metadata`.

Advisories need a database that cannot be fetched everywhere; run `cargo audit` where it can.
"""

import collections
import json
import os
import re
import subprocess
import sys

ALLOWED = {
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
    "0BSD",
    "Unlicense",
    "BSL-1.0",
    "Apache-2.0 WITH LLVM-exception",
    "CC0-1.0",
    "MIT-0",
}
# Crates that ship with the binary; the bound is there so that growth is a decision.
# TLS, HTTP and S3 take about half of them, PostgreSQL some twenty, certificates fifteen,
# the server side of S3 (decision 0040) thirty, that of WebDAV (0048) thirteen, manual pages and
# completions (0045) three, gRPC for containers (0046) nine.
CRATES_MAX = 252


def allowed(expression):
    """Whether one alternative of an SPDX expression is wholly allowed."""
    expression = expression.replace("/", " OR ").replace("(", " ").replace(")", " ")
    parts = [re.split(r"\s+AND\s+", part.strip()) for part in re.split(r"\s+OR\s+", expression)]
    return any(all(term.strip() in ALLOWED for term in part) for part in parts)


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [
        "cargo",
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]
    data = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    )
    # Not from the metadata's graph: that has what a feature would want of a dependency that nobody
    # has chosen, too.
    command = [
        "cargo",
        "tree",
        "--package",
        "kestrel",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--locked",
    ]
    command += ["--target", "x86_64-unknown-linux-gnu", "--format", "{p}"]
    tree = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    lines = (line.split() for line in tree.splitlines() if line.strip())
    shipped = {(words[0], words[1].removeprefix("v")) for words in lines}
    problems, versions = [], collections.defaultdict(set)
    for package in data["packages"]:
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']}"
        if package["source"] != "registry+https://github.com/rust-lang/crates.io-index":
            problems.append(f"{name}: from {package['source']}, not from crates.io")
        if not allowed(package["license"] or ""):
            problems.append(f"{name}: licence {package['license'] or 'missing'} is not on the list")
        if (package["name"], package["version"]) in shipped:
            versions[package["name"]].add(package["version"])
    foreign = sum(len(found) for found in versions.values())
    for name, found in sorted(versions.items()):
        if len(found) > 1:
            print(f"note: {name} is there in versions {', '.join(sorted(found))}")
    if foreign > CRATES_MAX:
        problems.append(
            f"{foreign} foreign crates ship with the binary, at most {CRATES_MAX} are planned"
        )
    for problem in problems:
        print(f"FAIL {problem}")
    print(
        f"audit: {foreign} foreign crates in the binary, {len(data['packages'])} packages in all, "
        f"{len(problems)} problems"
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
