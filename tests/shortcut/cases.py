#!/usr/bin/env python3
"""Cases of the VFS shortcut, on several sides that must answer the same.

    cases.py prepare DIR [--only PATTERN]...
    cases.py run --side NAME=HERE[=THERE]... [--only PATTERN]...

NAME is shortcut, plain or local; HERE shows what was prepared, THERE the same through another
mount. In shortcut and plain mode requests are counted with `kestrel stats` ($KESTREL).
"""

import argparse
import os
import sys

import callers  # noqa: F401  declares its cases
import changes  # noqa: F401
import counts  # noqa: F401
import harness
import walks  # noqa: F401


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("verb", choices=("prepare", "run"))
    parser.add_argument("dir", nargs="?")
    parser.add_argument("--side", action="append", default=[])
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    os.umask(0o022)
    if options.verb == "prepare":
        harness.prepare(options.dir, options.only)
        return
    sides = [harness.Side(*(side.split("=") + [None])[:3]) for side in options.side]
    sys.exit(0 if harness.run_all(sides, options.only) else 1)


if __name__ == "__main__":
    main()
