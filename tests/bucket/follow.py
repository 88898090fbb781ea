#!/usr/bin/env python3
"""What followers show while others change the volume.

    follow.py storm DIR LOG SECONDS PROCESSES       changes DIR, and logs what was acknowledged
    follow.py watch DIR LOG SECONDS BOUND OUT       looks at DIR, as a follower shows it
    follow.py same A B SECONDS                      both trees become the same, in so many seconds

Each process of a storm counts up, in a directory of its own. For each number it replaces the file
`counter` by one that has the number again and again (by rename), makes `m/NUMBER` and removes an
older one, and renames `at-BEFORE` to `at-NUMBER`: in this order, one after the other. So where
`at-N` is seen, a later look must find at least N in `counter` and `m`, nothing may ever go back,
and `m` has no gaps. The log has a line for each number: directory, number, monotonic time of the
last acknowledgement. A watch compares with it how late the mount is, and fails if that is more than
BOUND seconds.
"""

import hashlib
import multiprocessing
import os
import stat
import sys
import time

KEPT = 12


def content(number):
    # Some inline, some in objects of the block store.
    return (b"%08d" % number) * (500 if number % 4 else 2500)


def storm_one(top, log, seconds):
    os.makedirs(f"{top}/m", exist_ok=True)
    names = [name for name in os.listdir(top) if name.startswith("at-")]
    number = int(names[0][3:]) if names else 0
    if not names:
        open(f"{top}/at-0", "x").close()
    at = number
    # One that was cut short may have done a part of the next number.
    with_m = [int(name) for name in os.listdir(f"{top}/m")]
    number = max([number, *with_m])
    for old in sorted(one for one in with_m if one <= number - KEPT):
        os.unlink(f"{top}/m/{old}")
    end = time.monotonic() + seconds
    out = open(log, "a", buffering=1)
    while time.monotonic() < end:
        number += 1
        try:
            with open(f"{top}/new", "wb") as file:
                file.write(content(number))
            os.rename(f"{top}/new", f"{top}/counter")
            open(f"{top}/m/{number}", "w").close()
            if os.path.exists(f"{top}/m/{number - KEPT}"):
                os.unlink(f"{top}/m/{number - KEPT}")
            os.rename(f"{top}/at-{at}", f"{top}/at-{number}")
        except OSError as error:
            print(f"{top}: ends at {number}: {error}")
            break
        at = number
        out.write(f"{os.path.basename(top)} {number} {time.monotonic():.6f}\n")


def storm(directory, log, seconds, processes):
    ones = [
        multiprocessing.Process(
            target=storm_one, args=(f"{directory}/p{n}", log, float(seconds))
        )
        for n in range(int(processes))
    ]
    for one in ones:
        one.start()
    for one in ones:
        one.join()
        assert one.exitcode == 0, one


class Watched:
    """What was seen of one directory."""

    def __init__(self, top):
        self.top, self.at, self.counter, self.newest = top, 0, 0, 0
        self.samples = []

    def look(self):
        begun = time.monotonic()
        try:
            names = [name for name in os.listdir(self.top) if name.startswith("at-")]
        except FileNotFoundError:
            assert self.at == 0, f"{self.top} is gone"
            return
        if not names and self.at == 0:
            return
        assert len(names) == 1, f"{self.top}: {names}"
        at = int(names[0][3:])
        assert at >= self.at, f"{self.top}: at-{at} after {self.at}"
        self.at = at
        self.samples.append((begun, at))
        if at == 0:
            return
        with open(f"{self.top}/counter", "rb") as file:
            found = file.read()
        counter = int(found[:8])
        assert found == content(counter), f"{self.top}/counter is torn at {counter}"
        assert counter >= max(at, self.counter), f"{self.top}: counter {counter} after {at}"
        self.counter = counter
        held = sorted(int(name) for name in os.listdir(f"{self.top}/m"))
        whole = list(range(held[0], held[-1] + 1))
        assert held == whole, f"{self.top}/m has gaps: {held}"
        assert held[-1] >= max(at, self.newest), f"{self.top}/m: {held[-1]} after {at}"
        assert os.stat(f"{self.top}/m").st_size > 0
        self.newest = held[-1]
        # Names that are not there yet are not believed to be missing for long.
        os.path.exists(f"{self.top}/m/{self.newest + 1}")


def watch(directory, log, seconds, bound, out):
    end = time.monotonic() + float(seconds)
    watched = {}
    looks = 0
    while time.monotonic() < end:
        for name in sorted(os.listdir(directory)):
            if name.startswith("p"):
                one = watched.setdefault(name, Watched(f"{directory}/{name}"))
                try:
                    one.look()
                except FileNotFoundError as error:
                    # A file that was replaced between the look-up and the open.
                    assert "counter" in str(error), error
                except OSError as error:
                    # The same after it was opened.
                    assert error.errno == 116, error
                looks += 1
        time.sleep(0.005)
    late = lateness(log, watched)
    late.sort()
    assert looks > 20 and late, f"{looks} looks"
    middle, high = late[len(late) // 2], late[int(len(late) * 0.99)]
    text = f"{looks} looks, late: median {middle:.3f} s, p99 {high:.3f} s, at most {late[-1]:.3f} s"
    with open(out, "w") as file:
        print(text, file=file)
    print(text)
    assert late[-1] <= float(bound), f"{late[-1]:.3f} s late, {bound} s at most"


def lateness(log, watched):
    """For each look how long ago the first change was acknowledged that it did not show."""
    acknowledged = {}
    for line in open(log):
        name, number, when = line.split()
        acknowledged.setdefault(name, []).append((float(when), int(number)))
    late = []
    for name, one in watched.items():
        changes, index = acknowledged.get(name, []), 0
        for begun, at in one.samples:
            while index < len(changes) and changes[index][1] <= at:
                index += 1
            is_late = index < len(changes) and changes[index][0] < begun
            late.append(begun - changes[index][0] if is_late else 0.0)
    return late


def describe(top):
    found = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files, "."]:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            entry = [st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink, st.st_ino]
            entry += [st.st_mtime_ns, st.st_ctime_ns, st.st_blocks]
            entry += [
                (attribute, os.getxattr(path, attribute, follow_symlinks=False))
                for attribute in sorted(os.listxattr(path, follow_symlinks=False))
            ]
            if stat.S_ISLNK(st.st_mode):
                entry.append(os.readlink(path))
            elif stat.S_ISREG(st.st_mode):
                with open(path, "rb") as file:
                    entry.append(hashlib.sha256(file.read()).hexdigest())
            found[os.path.relpath(path, top)] = entry
    usage = os.statvfs(top)
    found["usage"] = [usage.f_blocks - usage.f_bfree, usage.f_files - usage.f_ffree]
    return found


def same(one, other, seconds):
    end = time.monotonic() + float(seconds)
    expected = describe(one)
    while True:
        found = describe(other)
        if found == expected:
            return print(f"{len(found)} the same")
        if time.monotonic() > end:
            for path in sorted(expected.keys() | found.keys()):
                if expected.get(path) != found.get(path):
                    print(f"{path}: {expected.get(path)}, {found.get(path)}")
            sys.exit(f"{one} and {other} differ")
        time.sleep(0.1)


if __name__ == "__main__":
    {"storm": storm, "watch": watch, "same": same}[sys.argv[1]](*sys.argv[2:])
