#!/usr/bin/env python3
"""Compares two outputs of gateway_calls.py: answers that differ must be in the list of differences,
and what is in the list must differ.

    compare.py OURS THEIRS DIFFERENCES
"""

import sys


def answers(path):
    """The answers by section and call; a call that is made twice has a number."""
    found, section = {}, ""
    for line in open(path):
        line = line.rstrip("\n")
        if line.startswith("-- "):
            section = line[3:]
            continue
        name, _, answer = line.partition("\t")
        key, number = f"{section}: {name}", 2
        while key in found:
            key, number = f"{section}: {name} ({number})", number + 1
        found[key] = answer
    return found


def main():
    ours, theirs = answers(sys.argv[1]), answers(sys.argv[2])
    known = {}
    for line in open(sys.argv[3]):
        if line.strip() and not line.startswith("#"):
            section, name, reason = line.rstrip("\n").split(": ", 2)
            known[f"{section}: {name}"] = reason
    passed = failed = 0
    for key in dict.fromkeys([*ours, *theirs]):
        is_same = ours.get(key) == theirs.get(key)
        if is_same != (key in known):
            passed += 1
            continue
        failed += 1
        print(f"FAIL {key}: " + ("no difference any more" if is_same else "they differ"))
        if not is_same:
            print(f"  ours   {str(ours.get(key))[:400]}\n  theirs {str(theirs.get(key))[:400]}")
    for key in known.keys() - ours.keys():
        failed += 1
        print(f"FAIL {key}: there is no such call")
    if len(ours) < 150:
        failed += 1
        print(f"FAIL only {len(ours)} calls were made")
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main()
