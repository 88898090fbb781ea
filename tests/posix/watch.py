#!/usr/bin/env python3
"""Changes of names at random, and a reader's view of them, for tests/posix/watch.sh.

    watch.py load DIR SEED SECONDS    changes names below DIR/SEED and DIR/shared
    watch.py mirror DIR FILE…         applies the events of `kestrel watch DIR --json` in files, in
                                      the order of their cursors and each once: is DIR as they tell?
    watch.py part FILE ALL            the events in FILE are those of ALL from its first to its last
"""

import ctypes
import errno
import json
import os
import random
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def exchange(one, two):
    paths = (os.fsencode(one), os.fsencode(two))
    if LIBC.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def write(path):
    with open(path, "ab") as file:
        file.write(b"x" * random.randrange(1, 10000))


def change(paths):
    one, two = random.choice(paths), random.choice(paths)
    calls = [
        lambda: write(one),
        lambda: write(one),
        lambda: os.mkdir(one),
        lambda: os.mkdir(one),
        lambda: os.unlink(one),
        lambda: os.rmdir(one),
        lambda: os.rename(one, two),
        lambda: os.rename(one, two),
        lambda: exchange(one, two),
        lambda: os.link(one, two),
        lambda: os.symlink("target", one),
        lambda: os.chmod(one, random.choice((0o600, 0o755))),
        lambda: os.truncate(one, random.randrange(5)),
    ]
    random.choice(calls)()


def load(top, seed, seconds):
    random.seed(seed)
    own = f"{top}/{seed}"
    os.makedirs(own, exist_ok=True)
    dirs = [own, f"{own}/a", f"{own}/b", f"{own}/a/x", f"{top}/shared"]
    paths = [f"{where}/{name}" for where in dirs for name in "abxyz"]
    until, changes = time.monotonic() + float(seconds), 0
    # Those that a change may fail with in a tree in which others change names.
    expected = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR)
    expected += (errno.EINVAL, errno.EPERM, errno.EBUSY, errno.ELOOP, errno.ESTALE)
    while time.monotonic() < until:
        try:
            change(paths)
            changes += 1
        except OSError as error:
            if error.errno not in expected:
                print(f"{changes} changes, then {error}")
                return
    print(f"{changes} changes")


def position(event):
    """Where an event is in its feed, as a number of each part."""
    return tuple(int(part, 16) for part in event["cursor"].split("-")[2:])


def events_of(files):
    events = {}
    for name in files:
        with open(name, encoding="utf-8") as file:
            for line in file:
                # A reader that was killed may have been in the middle of a line.
                if not line.endswith("\n"):
                    continue
                event = json.loads(line)
                if "event" in event:
                    known = events.setdefault(position(event), event)
                    assert known == event, (known, event)
    return [events[at] for at in sorted(events)]


def take(names, path):
    below = [name for name in names if name == path or name.startswith(path + "/")]
    return {name[len(path):]: names.pop(name) for name in below}


def put(names, path, tree):
    names.update({path + rest: inode for rest, inode in tree.items()})


def apply(names, event):
    kind, path, to = event["event"], event["path"], event.get("to")
    if kind in ("create", "moved-in"):
        assert kind == "moved-in" or path not in names, event
        take(names, path)
        names[path] = event["inode"]
    elif kind in ("remove", "moved-out"):
        assert names.get(path) == event["inode"], (event, names.get(path))
        take(names, path)
    elif kind == "rename":
        assert names.get(path) == event["inode"], (event, names.get(path))
        assert names.get(to) == event.get("replaced", {}).get("inode"), (event, names.get(to))
        take(names, to)
        put(names, to, take(names, path))
    elif kind == "exchange":
        one, two = take(names, path), take(names, to)
        assert (one[""], two[""]) == (event["inode"], event["replaced"]["inode"]), event
        put(names, path, two)
        put(names, to, one)
    else:
        assert kind in ("modify", "attributes"), event
        assert names.get(path) == event["inode"], (event, names.get(path))


def tree(top):
    found = {}
    for where, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(where, name)
            found[os.path.relpath(path, top)] = os.lstat(path).st_ino
    return found


def mirror(top, *files):
    names, events = {}, events_of(files)
    for event in events:
        apply(names, event)
    there = tree(top)
    assert names == there, (
        {name: names[name] for name in names.keys() - there.keys()},
        {name: there[name] for name in there.keys() - names.keys()},
        [name for name in names.keys() & there.keys() if names[name] != there[name]],
    )
    print(f"{len(events)} events, {len(names)} names")
    assert events, "no events"


def part(some, everything):
    some, everything = events_of([some]), events_of([everything])
    first, last = position(some[0]), position(some[-1])
    assert some == [one for one in everything if first <= position(one) <= last]
    print(f"{len(some)} of {len(everything)} events")


if __name__ == "__main__":
    {"load": load, "mirror": mirror, "part": part}[sys.argv[1]](*sys.argv[2:])
