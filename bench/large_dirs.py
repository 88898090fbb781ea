#!/usr/bin/env python3
"""One directory with very many entries: rates of creates from the first tenth to the last, pages of
1,000 names from anywhere, memory of the processes.

The entries are made through a mount by several processes: on a volume of the mount's own, on a
served one, on one of three nodes, and on the local file system (the limit). Pages are those of
`kestrel ls --after NAME --limit 1000` (a process each), and of getdents(2) behind a cookie of
telldir: at the beginning, in the middle and at the end, the median of some.

    bench/large_dirs.py           200,000: writes target/bench/large_dirs.json, large_dirs.svg
    bench/large_dirs.py --full    10,000,000, on the first kind of volume and the local file system
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import statistics
import struct
import subprocess
import time

from common import KESTREL, Cluster, Local, Server, bars, conclude, options_of, run, scratch_for

PAGE = 1000
MAKERS = 4
# A page of 1,000 names from anywhere, seconds.
PAGE_SECONDS_MAX = 0.010
# Creates in the last tenth, by those in the first.
RATIO_MIN = 0.8
SYS_GETDENTS64 = 217
libc = ctypes.CDLL(None, use_errno=True)


def name_of(number):
    return f"sample-{number:09}"


def make_some(directory, numbers):
    for number in numbers:
        os.close(os.open(f"{directory}/{name_of(number)}", os.O_CREAT | os.O_WRONLY, 0o644))


def fill(directory, count):
    """Creates for each second of each tenth."""
    os.mkdir(directory)
    rates = []
    for tenth in range(10):
        numbers = range(count * tenth // 10, count * (tenth + 1) // 10)
        makers = [
            multiprocessing.Process(target=make_some, args=(directory, numbers[start::MAKERS]))
            for start in range(MAKERS)
        ]
        begun = time.perf_counter()
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
            if maker.exitcode != 0:
                raise SystemExit(f"a process that makes files ended with {maker.exitcode}")
        rates.append(len(numbers) / (time.perf_counter() - begun))
    return rates


def read_some(directory, buffer):
    """The entries of one getdents64(2), and the cookie behind the last."""
    size = libc.syscall(SYS_GETDENTS64, directory, buffer, len(buffer))
    if size < 0:
        raise OSError(ctypes.get_errno(), "getdents64")
    entries, cookie, at = 0, None, 0
    while at < size:
        _, cookie, length = struct.unpack_from("<QqH", buffer, at)
        entries, at = entries + 1, at + length
    return entries, cookie


def by_cookies(directory, rounds):
    """Seconds of a whole listing, and of pages behind cookies at the beginning, in the middle and
    at the end."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    buffer = ctypes.create_string_buffer(64 << 10)
    cookies, listed = [0], 0
    begun = time.perf_counter()
    while True:
        entries, cookie = read_some(descriptor, buffer)
        if entries == 0:
            break
        listed += entries
        cookies.append(cookie)
    whole = time.perf_counter() - begun
    seconds = {}
    # The last ones have less than a page behind them.
    places = {"start": 0, "middle": len(cookies) // 2, "end": max(0, len(cookies) - 4)}
    for place, index in places.items():
        taken = []
        for number in range(rounds):
            begun = time.perf_counter()
            os.lseek(descriptor, cookies[max(0, index - number)], os.SEEK_SET)
            found = 0
            while found < PAGE:
                entries, _ = read_some(descriptor, buffer)
                if entries == 0:
                    break
                found += entries
            taken.append(time.perf_counter() - begun)
        seconds[place] = statistics.median(taken)
    os.close(descriptor)
    return listed, whole, seconds


def by_verb(directory, count, rounds):
    """Seconds of `kestrel ls` for a page, and for one name, which is what a process costs."""
    seconds = {}
    starts = {"start": 0, "middle": count // 2, "end": count - PAGE - 2 * rounds}
    for what, limit in (("page", PAGE), ("one name", 1)):
        for place, start in starts.items():
            taken = []
            for number in range(rounds):
                command = [KESTREL, "ls", directory, "--json", "--limit", str(limit)]
                command += ["--after", name_of(start + number)]
                begun = time.perf_counter()
                done = subprocess.run(command, check=True, capture_output=True)
                taken.append(time.perf_counter() - begun)
                told = len(json.loads(done.stdout)["entries"])
                if told != limit:
                    raise SystemExit(f"{' '.join(command)} told {told} names")
            seconds[what, place] = statistics.median(taken)
    return seconds


def memory(pids):
    """Bytes of memory that these processes have now, and the most they had."""
    now = most = 0
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        now += int(fields["VmRSS"].split()[0]) << 10
        most += int(fields["VmHWM"].split()[0]) << 10
    return now, most


def pid_of(what):
    return json.loads(run(KESTREL, "status", what, "--json"))["pid"]


def measure(side, directory, count, rounds, pids):
    """Rows of one kind."""
    rates = fill(directory, count)
    filled = memory(pids)[0]
    listed, whole, cookies = by_cookies(directory, rounds)
    if listed != count + 2:
        raise SystemExit(f"{directory} has {count + 2} entries, and {listed} were listed")
    ratio = rates[-1] / rates[0]
    rows = [
        {"side": side, "what": "creates, last tenth by first", "value": ratio, "unit": ""},
        {"side": side, "what": "creates, first tenth", "value": rates[0], "unit": "1/s"},
        {"side": side, "what": "whole listing", "value": listed / whole, "unit": "names/s"},
    ]
    for place, seconds in cookies.items():
        what = f"page by cookie, {place}"
        rows.append({"side": side, "what": what, "value": seconds * 1000, "unit": "ms"})
    if side != "local":
        for (what, place), seconds in by_verb(directory, count, rounds).items():
            what = f"kestrel ls, {what}, {place}"
            rows.append({"side": side, "what": what, "value": seconds * 1000, "unit": "ms"})
        now, most = memory(pids)
        for what, value in (("filled", filled), ("listed", now), ("most", most)):
            rows.append(
                {"side": side, "what": f"memory, {what}", "value": value / 2**20, "unit": "MiB"}
            )
    for row in rows:
        row["entries"] = count
        print(f'{side:9} {row["what"]:32} {row["value"]:12.2f} {row["unit"]}', flush=True)
    return rows


@contextlib.contextmanager
def mounted(url, where):
    os.makedirs(where, exist_ok=True)
    run(KESTREL, "mount", url, where)
    try:
        yield
    finally:
        run(KESTREL, "umount", where)


def on_volumes(scratch, kinds, count, rounds):
    rows, where = [], f"{scratch}/mount"
    if "own" in kinds:
        run(KESTREL, "format", f"{scratch}/own")
        with mounted(f"{scratch}/own", where):
            rows += measure("own", f"{where}/d", count, rounds, [pid_of(where)])
    for kind, make in (("served", Server), ("nodes", lambda scratch: Cluster(scratch, 3))):
        if kind in kinds:
            server = make(scratch)
            with mounted(server.url, where):
                pids = [pid_of(where), *map(pid_of, server.volumes)]
                rows += measure(kind, f"{where}/d", count, rounds, pids)
            server.stop()
    return rows


def judge(rows):
    judged = []
    for row in rows:
        what, value, side = row["what"], row["value"], row["side"]
        if side == "local":
            continue
        if what == "creates, last tenth by first":
            said = f"{side}: creates in the last tenth by the first: at least {RATIO_MIN}"
            judged.append((f"{said} ({value:.2f})", value >= RATIO_MIN))
        if what.startswith(("kestrel ls, page", "page by cookie")):
            said = f"{side}: {what}: at most {PAGE_SECONDS_MAX * 1000:.0f} ms"
            judged.append((f"{said} ({value:.1f})", value <= PAGE_SECONDS_MAX * 1000))
    return judged


def plot(path, rows):
    """Milliseconds of pages, one bar for each side."""
    shown = [row for row in rows if row["unit"] == "ms"]
    names = [f"{row['side']}: {row['what']}" for row in shown]
    lines = [(name, row["value"], row["side"] != "local") for name, row in zip(names, shown)]
    bars(path, lines, "ms", digits=2, left=250)


def main():
    options = options_of(__doc__, "large_dirs", 7, "ten million entries")
    options.add_argument("--entries", type=int)
    options.add_argument("--kinds", nargs="+", choices=("own", "served", "nodes", "local"))
    wanted = options.parse_args()
    count = wanted.entries or (10_000_000 if wanted.full else 200_000)
    everywhere = ("own", "local") if wanted.full else ("own", "served", "nodes", "local")
    kinds = wanted.kinds or everywhere
    with scratch_for(wanted.out) as scratch:
        rows = on_volumes(scratch, kinds, count, wanted.rounds)
        if "local" in kinds:
            rows += measure("local", f"{Local(scratch).dir}/d", count, wanted.rounds, [])
    conclude(wanted.out, rows, judge(rows), plot, entries=count)


if __name__ == "__main__":
    main()
