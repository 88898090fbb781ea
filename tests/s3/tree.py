#!/usr/bin/env python3
"""Files with bytes that all follow from their name, written and checked by several threads.

    tree.py write DIR COUNT SIZES [--threads N]
    tree.py check DIR COUNT SIZES [--threads N] [--refused none|some|any] [--only GLOB]

SIZES: bytes, comma-separated; file number I has the I-th of them, in turn. check reads in random
order; --refused: how many files may answer with an I/O error in place of their bytes (none; some
but not all; any number). Wrong bytes and missing files always fail. The last line is "N good, M
refused".
"""

import argparse
import concurrent.futures
import errno
import fnmatch
import os
import random
import sys

REFUSALS = (errno.EIO, errno.ETIMEDOUT)


def content(directory, number, size):
    return random.Random(f"{os.path.basename(directory.rstrip('/'))}/{number}/{size}").randbytes(
        size
    )


def write(directory, number, size):
    with open(f"{directory}/file{number}", "wb") as file:
        file.write(content(directory, number, size))


def check(directory, number, size):
    """'' if it is right, a refusal, or what is wrong."""
    name = f"{directory}/file{number}"
    try:
        with open(name, "rb") as file:
            found = file.read()
    except OSError as error:
        return ("refused" if error.errno in REFUSALS else "wrong", f"{name}: {error}")
    wanted = content(directory, number, size)
    if found == wanted:
        return ("good", "")
    at = next(
        (i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted))
    )
    what = "zeros" if found[at : at + 64].count(0) == min(64, len(found) - at) else "other bytes"
    return ("wrong", f"{name}: {what} from byte {at} on, {len(found)} bytes of {size}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["write", "check"])
    parser.add_argument("directory")
    parser.add_argument("count", type=int)
    parser.add_argument("sizes")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--refused", choices=["none", "some", "any"], default="none")
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    files = [
        (n, sizes[n % len(sizes)])
        for n in range(options.count)
        if fnmatch.fnmatch(f"file{n}", options.only)
    ]
    with concurrent.futures.ThreadPoolExecutor(options.threads) as pool:
        if options.verb == "write":
            os.makedirs(options.directory, exist_ok=True)
            list(pool.map(lambda file: write(options.directory, *file), files))
            return
        random.Random(1).shuffle(files)
        found = list(pool.map(lambda file: check(options.directory, *file), files))
    wrong = [text for kind, text in found if kind == "wrong"]
    refused = [text for kind, text in found if kind == "refused"]
    good = len(found) - len(wrong) - len(refused)
    for text in wrong[:10] + refused[:3]:
        print(text)
    print(f"{good} good, {len(refused)} refused")
    bounds = {"none": not refused, "some": bool(refused) and good > 0, "any": True}
    if wrong or not bounds[options.refused]:
        sys.exit(f"{len(wrong)} wrong, {len(refused)} refused, wanted refused: {options.refused}")


if __name__ == "__main__":
    main()
