#!/usr/bin/env python3
"""What a supervised mount costs beside an ordinary one, and how long programs wait at an upgrade.

    bench/supervised.py [--files 2000] [--rounds 5] [--upgrades 5] [--out target/bench]
        [--scratch DIR]

Three mounts of three new volumes on one disk: *default*, *plain* (`--no-shortcut --transport device
--passthrough off`, what a supervised mount does without) and *supervised*. A round makes, looks at,
reads and writes the same files on each, one mount after the other, in an order that turns with the
rounds; the median of the rounds counts. So a ratio to plain is the cost of being supervised, one to
default that of what is missing. The physical limit beside is the same on the local file system.

Then programs make, write, read and remove files on the supervised mount without a pause while
`kestrel upgrade` replaces its process: the longest call of each upgrade is how long a program
waits. Writes supervised.json.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time

from common import KESTREL, ROOT, run

PLAIN = ("--no-shortcut", "--transport", "device", "--passthrough", "off")
MOUNTS = {"default": (), "plain": PLAIN, "supervised": ("--supervised=upgrade",)}
DATA = b"x" * 1024


def processor_seconds(pid):
    """Processor time that a process has used; none of the local file system."""
    if pid is None:
        return 0.0
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def once(where, files, pid):
    """Seconds a call by the clock, and of the mount's processor time, by what is done."""
    took = {}

    def timed(what, act):
        used, begun = processor_seconds(pid), time.perf_counter()
        for number in range(files):
            act(f"{where}/f{number}")
        seconds = (time.perf_counter() - begun, processor_seconds(pid) - used)
        took[what] = [one / files for one in seconds]

    def create(path):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(fd, DATA)
        os.close(fd)

    def read(path):
        fd = os.open(path, os.O_RDONLY)
        assert len(os.read(fd, 4096)) == len(DATA)
        os.close(fd)

    os.mkdir(where)
    timed("create 1 KiB", create)
    timed("stat", os.stat)
    timed("open, read, close", read)
    fd = os.open(f"{where}/f0", os.O_WRONLY)
    timed("write 1 KiB", lambda _: os.pwrite(fd, DATA, 0))
    os.close(fd)
    timed("unlink", os.unlink)
    os.rmdir(where)
    return took


def costs(places, pids, files, rounds):
    """Microseconds a call: the median by the clock, the mean of processor time, which is counted
    in ticks."""
    found = {name: {} for name in places}
    for number in range(rounds):
        names = list(places)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            for what, seconds in once(f"{places[name]}/r{number}", files, pids[name]).items():
                found[name].setdefault(what, []).append([one * 1e6 for one in seconds])

    def table(of, at):
        return {
            name: {what: round(of(one[at] for one in all), 2) for what, all in by.items()}
            for name, by in found.items()
        }

    return table(statistics.median, 0), table(statistics.mean, 1)


def pauses(mount, copies):
    """The longest call while each upgrade is under way, milliseconds."""
    longest, ended = [0.0], threading.Event()

    def work(number):
        calls = 0
        path = f"{mount}/w{number}"
        while not ended.is_set():
            begun = time.perf_counter()
            fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            os.pwrite(fd, DATA, 0)
            os.close(fd)
            os.unlink(path)
            longest[0] = max(longest[0], time.perf_counter() - begun)
            calls += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    [thread.start() for thread in threads]
    found = []
    for copy in copies:
        time.sleep(0.5)
        longest[0] = 0.0
        run(KESTREL, "upgrade", "--program", copy, mount)
        time.sleep(0.2)
        found.append(round(longest[0] * 1e3, 1))
    ended.set()
    [thread.join() for thread in threads]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--upgrades", type=int, default=5)
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument("--scratch", default=None)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="kestrel-supervised-", dir=arguments.scratch or "/var/tmp")
    mounted = []
    try:
        places = {"local": f"{scratch}/local"}
        os.mkdir(places["local"])
        for name, options in MOUNTS.items():
            volume, mount = f"{scratch}/v-{name}", f"{scratch}/{name}"
            os.mkdir(mount)
            run(KESTREL, "format", volume)
            run(KESTREL, "mount", volume, mount, *options)
            mounted.append(mount)
            places[name] = mount
        pids = {name: None for name in places}
        for name in MOUNTS:
            pids[name] = json.loads(run(KESTREL, "status", places[name], "--json"))["pid"]
        found, used = costs(places, pids, arguments.files, arguments.rounds)
        copies = []
        for number in range(arguments.upgrades):
            copies.append(f"{scratch}/kestrel-{number}")
            shutil.copy(KESTREL, copies[-1])
        waits = pauses(places["supervised"], copies)
        result = {
            "files": arguments.files,
            "rounds": arguments.rounds,
            "microseconds_a_call": found,
            "processor_microseconds_a_call": used,
            "supervised_to_plain": {
                what: round(found["supervised"][what] / found["plain"][what], 3)
                for what in found["plain"]
            },
            "longest_call_at_upgrade_ms": waits,
        }
        with open(f"{arguments.out}/supervised.json", "w") as out:
            json.dump(result, out, indent=1)
        for what in found["plain"]:
            print(f"{what:18}", *(f"{name} {found[name][what]:8.1f} us" for name in found))
        for what in found["plain"]:
            mine = (f"{name} {used[name][what]:8.1f} us" for name in MOUNTS)
            print(f"{what:18}", *mine, "of processor time")
        print("longest call at an upgrade:", ", ".join(f"{wait} ms" for wait in waits))
    finally:
        for mount in mounted:
            run(KESTREL, "umount", mount)
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
