#!/usr/bin/env python3
"""Snapshots: the time that one takes, what live ones cost other operations, diff, a second walk,
removal. Clones: the time until the prompt, the first touch, and all of one at once.

- Time of a snapshot of a directory with few and with many files.
- Time of `kestrel snapshot diff` of two snapshots of the same files with 100 changes between them,
  from the start of the command to its end.
- Create, stat, overwrite, rename and unlink of files with 0, 1 and 100 live snapshots: time, and
  processor time of the process that has the volume, for each operation, beside the null FUSE file
  system and the local one. Each file is changed for the first time since the newest snapshot, which
  is when it costs most.
- Requests of a mount of a served volume for a second walk of a snapshot.
- Removal of one of many snapshots: rows of history a second, until it is no longer listed.
- `kestrel clone` until the prompt, and with `--eager`, from the start of the command to its end;
  the first listing of one of its directories with attributes, beside that of the source; and
  `cp -a --reflink` of the same, here and on the local file system.

Snapshots, diff and clones also on a volume that three nodes share, all on this machine.

    bench/versions.py           small: writes target/bench/versions.json, versions.svg
    bench/versions.py --full    1 k and 1 M files, a walk of 100,000
"""

import contextlib
import glob
import html
import json
import os
import statistics
import tempfile
import time

from common import (
    KESTREL,
    Cluster,
    Local,
    Null,
    Server,
    conclude,
    options_of,
    run,
    scratch_for,
    timed,
)

OPERATIONS = ("create", "stat", "overwrite", "rename", "unlink")
DIRECTORY_FILES = 1000
# How much more processor time an operation may take with live snapshots.
RATIO_MAX = 1.3
# A snapshot of many files may take so much longer than one of few: all is noise.
SNAPSHOT_RATIO_MAX = 3
ENDED = 600
# What differs between two snapshots that are compared, and how long that may take, in microseconds.
CHANGES = 100
DIFF_MAX_US = 100_000
DIFF_ROUNDS = 5
# How long clones may take until the prompt and with --eager, in microseconds; and how much longer
# than a listing of the source the first one of a directory of a clone may take.
CLONE_MAX_US = 50_000
EAGER_MAX_US = 1_000_000
FIRST_TOUCH_MAX = 3


def fill(top, count):
    """Files below top, in directories of DIRECTORY_FILES."""
    for first in range(0, count, DIRECTORY_FILES):
        directory = f"{top}/d{first // DIRECTORY_FILES}"
        os.makedirs(directory)
        for number in range(first, min(count, first + DIRECTORY_FILES)):
            os.close(os.open(f"{directory}/f{number}", os.O_CREAT | os.O_WRONLY))


def walk(top):
    """Looks at every name and its attributes; how many."""
    seen = 0
    for directory, _, names in os.walk(top):
        for name in names:
            os.lstat(f"{directory}/{name}")
        seen += len(names)
    return seen


class Volume:
    """An embedded volume of its own, mounted."""

    def __init__(self, scratch):
        self.home = tempfile.mkdtemp(dir=scratch)
        self.volume, self.dir = f"{self.home}/volume", f"{self.home}/mount"
        os.mkdir(self.dir)
        run(KESTREL, "format", self.volume)
        run(KESTREL, "mount", self.volume, self.dir)
        self.pid = json.loads(run(KESTREL, "status", self.dir, "--json"))["pid"]

    def close(self):
        run(KESTREL, "umount", self.dir)
        run(KESTREL, "fsck", self.volume)


class Shared:
    """A volume that three nodes share, mounted."""

    def __init__(self, scratch):
        self.nodes = Cluster(scratch, 3)
        self.dir = f"{self.nodes.dir}/mount"
        os.mkdir(self.dir)
        run(KESTREL, "mount", self.nodes.url, self.dir)

    def close(self):
        run(KESTREL, "umount", self.dir)
        self.nodes.stop()


# What is measured on each kind of volume.
KINDS = {"kestrel": Volume, "three nodes": Shared}


@contextlib.contextmanager
def on(kind, scratch):
    system = kind(scratch)
    try:
        yield system
    finally:
        system.close()


def processor_seconds(pid):
    """What the threads of a process have used, by the scheduler's own clock: it counts nanoseconds
    where /proc/PID/stat counts hundredths of a second."""
    if pid is None:
        return 0.0
    nanoseconds = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            nanoseconds += int(file.read().split()[0])
    return nanoseconds / 1e9


def overwrite(path):
    with open(path, "wb", buffering=0) as file:
        file.write(b"x" * 100)


def act(operation, top, number):
    old, new = f"{top}/f{number}", f"{top}/g{number}"
    if operation == "create":
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    elif operation == "stat":
        os.stat(old)
    elif operation == "overwrite":
        overwrite(old)
    elif operation == "rename":
        os.rename(old, f"{top}/r{number}")
    else:
        os.unlink(old)


def operations(side, system, count, snapshots):
    """One row for each operation. Each has files of its own, so each changes them first."""
    tops = {operation: f"{system.dir}/{operation}" for operation in OPERATIONS}
    for operation, top in tops.items():
        os.mkdir(top)
        for number in range(0 if operation == "create" else count):
            overwrite(f"{top}/f{number}")
    for number in range(snapshots):
        os.mkdir(f"{system.dir}/.snap/s{number}")
    rows = []
    for operation in OPERATIONS:
        used, begun = processor_seconds(system.pid), time.perf_counter()
        try:
            for number in range(count):
                act(operation, tops[operation], number)
        except OSError as why:
            print(f"{side} {operation}: {why}: left out")
            continue
        seconds = time.perf_counter() - begun
        used = processor_seconds(system.pid) - used
        rows.append(
            {
                "side": side,
                "what": operation,
                "files": count,
                "snapshots": snapshots,
                "us": seconds / count * 1e6,
                "processor_us": used / count * 1e6,
            }
        )
    return rows


def costs(scratch, count, rounds):
    """Rows of all sides, each the median of some rounds, which take turns."""
    sides = [("local", Local, 0), ("null", Null, 0)]
    sides += [(f"{live} snapshots", Volume, live) for live in (0, 1, 100)]
    found = {}
    for _ in range(rounds):
        for side, kind, live in sides:
            with on(kind, scratch) as system:
                for row in operations(side, system, count, live):
                    found.setdefault((side, row["what"]), []).append(row)
    rows = []
    for of in found.values():
        middle = {
            name: statistics.median(row[name] for row in of) for name in ("us", "processor_us")
        }
        rows.append({**of[0], **middle, "rounds": rounds})
    return rows


def change_some(top, count):
    """CHANGES changes of four kinds, spread over all directories."""
    for number in range(CHANGES):
        file = number * count // CHANGES
        path = f"{top}/d{file // DIRECTORY_FILES}/f{file}"
        kind = number % 4
        if kind == 0:
            overwrite(path)
        elif kind == 1:
            os.rename(path, f"{path}-renamed")
        elif kind == 2:
            os.unlink(path)
        else:
            os.close(os.open(f"{path}-new", os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def diff(side, top, count):
    """How long a comparison of two snapshots of so many files takes."""
    os.mkdir(f"{top}/.snap/before")
    change_some(top, count)
    os.mkdir(f"{top}/.snap/after")
    taken = []
    for _ in range(DIFF_ROUNDS):
        begun = time.perf_counter()
        found = run(KESTREL, "snapshot", "diff", top, "before", "after").splitlines()
        taken.append(time.perf_counter() - begun)
        assert len(found) == CHANGES, f"{len(found)} differences are told, of {CHANGES}"
    return {
        "side": side,
        "what": "diff",
        "files": count,
        "changes": CHANGES,
        "us": statistics.median(taken) * 1e6,
        "worst_us": max(taken) * 1e6,
    }


def times(scratch, side, sizes):
    """How long it takes to make a snapshot of directories of these sizes, and to compare two."""
    rows = []
    for count in sizes:
        with on(KINDS[side], scratch) as volume:
            top = f"{volume.dir}/top"
            os.mkdir(top)
            fill(top, count)
            taken = []
            for number in range(20):
                overwrite(f"{top}/changed")
                begun = time.perf_counter()
                os.mkdir(f"{top}/.snap/s{number}")
                taken.append(time.perf_counter() - begun)
            compared = diff(side, top, count)
        rows.append(
            {
                "side": side,
                "what": "snapshot",
                "files": count,
                "us": statistics.median(taken) * 1e6,
                "worst_us": max(taken) * 1e6,
            }
        )
        rows.append(compared)
    return rows


def requests(mount):
    return json.loads(run(KESTREL, "stats", "--once", "--json", mount))["metadata_requests_total"]


def walks(scratch, count):
    """Requests and time of two walks of a snapshot of a served volume."""
    server = Server(scratch)
    where = f"{server.dir}/mount"
    os.mkdir(where)
    run(KESTREL, "mount", server.url, where)
    rows = []
    try:
        fill(f"{where}/top", count)
        os.mkdir(f"{where}/top/.snap/s")
        # By the working directory: the path to it is of the present tree.
        here = os.open(f"{where}/top/.snap/s", os.O_DIRECTORY)
        os.fchdir(here)
        try:
            for what in ("first walk", "second walk"):
                time.sleep(1)  # what nobody waits for has gone by then
                before, begun = requests(where), time.perf_counter()
                seen = walk(".")
                seconds = time.perf_counter() - begun
                assert seen == count, f"{seen} files were seen, of {count}"
                rows.append(
                    {
                        "side": "kestrel",
                        "what": what,
                        "files": count,
                        "us": seconds / count * 1e6,
                        "requests": requests(where) - before,
                    }
                )
        finally:
            os.chdir("/")
            os.close(here)
    finally:
        run(KESTREL, "umount", where)
        server.stop()
    return rows


def listed(top):
    return json.loads(run(KESTREL, "snapshot", "list", top, "--json"))["snapshots"]


def removal(scratch, count, snapshots):
    """Rows a second at which the history of one of many snapshots goes."""
    with on(Volume, scratch) as volume:
        top = f"{volume.dir}/top"
        os.mkdir(top)
        for number in range(count):
            overwrite(f"{top}/f{number}")
        for snapshot in range(snapshots):
            os.mkdir(f"{top}/.snap/s{snapshot}")
            for number in range(count):
                overwrite(f"{top}/f{number}")
        begun = time.perf_counter()
        run(KESTREL, "snapshot", "remove", top, f"s{snapshots // 2}")
        answered = time.perf_counter() - begun
        while len(listed(top)) == snapshots:
            assert time.perf_counter() - begun < ENDED, "the snapshot is not gone after 10 minutes"
            time.sleep(0.02)
        seconds = time.perf_counter() - begun
    return {
        "side": "kestrel",
        "what": f"removal of one of {snapshots} snapshots",
        "files": count,
        "us": seconds / count * 1e6,
        "answered_us": answered * 1e6,
        "rows_per_second": count / seconds,
    }


def clones(scratch, side, count, rounds):
    """Clones of a directory of so many files. Each round lists another directory, the last ones:
    nobody has listed it before, and the process that fills clones has not come to it yet. On one
    node copies by a program, too, and on the local file system."""
    found = {}
    systems = [(side, KINDS[side]), *([("local", Local)] if side == "kestrel" else [])]

    def note(side, what, files, *call):
        found.setdefault((side, what, files), []).append(timed(*call) * 1e6)

    with contextlib.ExitStack() as stack:
        open_ones = [(name, stack.enter_context(on(kind, scratch))) for name, kind in systems]
        for _, system in open_ones:
            os.mkdir(f"{system.dir}/top")
            fill(f"{system.dir}/top", count)
        volume = open_ones[0][1]
        top = f"{volume.dir}/top"
        last, one = (count - 1) // DIRECTORY_FILES, min(count, DIRECTORY_FILES)
        for number in range(rounds):
            clone, eager = f"{volume.dir}/clone{number}", f"{volume.dir}/eager{number}"
            directory = f"d{max(0, last - 1 - number)}"
            note(side, "listing of the source", one, walk, f"{top}/{directory}")
            note(side, "clone", count, run, KESTREL, "clone", top, clone)
            note(side, "first touch", one, walk, f"{clone}/{directory}")
            note(side, "clone --eager", count, run, KESTREL, "clone", "--eager", top, eager)
        for name, system in open_ones if side == "kestrel" else []:
            copy = ("cp", "-a", "--reflink=auto", f"{system.dir}/top", f"{system.dir}/copy")
            note(name, "cp -a --reflink", count, run, *copy)
    rows = []
    for (side, what, files), us in found.items():
        row = {"side": side, "what": what, "files": files, "us": statistics.median(us)}
        rows.append({**row, "worst_us": max(us), "rounds": len(us)})
    return rows


def plot(path, rows):
    """Microseconds of each row; processor time in a darker bar over it."""
    width, step = 860, 22
    longest = max(row["us"] for row in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{step * len(rows) + 20}" font-family="sans-serif" font-size="12">'
    ]
    for number, row in enumerate(rows):
        y = number * step + 4
        text = f'{row["what"]}, {row["files"]} files, {row["side"]}'
        said = f'{row["us"]:.1f} us'
        said += f', {row["processor_us"]:.1f} of processor' if "processor_us" in row else ""
        said += f', {row["requests"]} requests' if "requests" in row else ""
        parts.append(f'<text x="4" y="{y + 13}">{html.escape(text)}</text>')
        for name, colour in (("us", "#acf"), ("processor_us", "#48c")):
            long = 300 * row.get(name, 0) / longest
            fill_with = "#999" if row["side"] in ("local", "null") and name == "us" else colour
            parts.append(
                f'<rect x="330" y="{y}" width="{long:.1f}" height="16" fill="{fill_with}"/>'
            )
        at = 336 + 300 * row["us"] / longest
        parts.append(f'<text x="{at:.1f}" y="{y + 13}">{html.escape(said)}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n</svg>\n")


def judge_kind(side, rows):
    """The bars of snapshots and clones on a kind of volume."""
    snapshots = [row for row in rows if row["what"] == "snapshot"]
    ratio = snapshots[-1]["us"] / snapshots[0]["us"]
    judged = [
        (
            f"{side}: a snapshot of {snapshots[-1]['files']} files: at most {SNAPSHOT_RATIO_MAX} "
            f"times one of {snapshots[0]['files']} ({ratio:.2f})",
            ratio <= SNAPSHOT_RATIO_MAX,
        )
    ]
    of = {row["what"]: row for row in rows}
    for what, most in (
        ("diff", DIFF_MAX_US),
        ("clone", CLONE_MAX_US),
        ("clone --eager", EAGER_MAX_US),
    ):
        row = of[what]
        text = f"{side}: {what} of {row['files']} files: at most {most // 1000} ms"
        judged.append((f"{text} ({row['us'] / 1000:.0f})", row["us"] <= most))
    touched = of["first touch"]
    ratio = touched["us"] / of["listing of the source"]["us"]
    text = f"{side}: first touch of {touched['files']} names: at most {FIRST_TOUCH_MAX} times"
    judged.append((f"{text} a listing ({ratio:.2f})", ratio <= FIRST_TOUCH_MAX))
    return judged


def judge(rows):
    judged = []
    of = {(row["side"], row["what"]): row for row in rows if "processor_us" in row}
    for what in OPERATIONS:
        base = of["0 snapshots", what]["processor_us"]
        for live in (1, 100):
            ratio = of[f"{live} snapshots", what]["processor_us"] / base
            judged.append(
                (
                    f"{what} with {live} live snapshots: at most {RATIO_MAX} of the processor "
                    f"time without ({ratio:.2f})",
                    ratio <= RATIO_MAX,
                )
            )
    for side in KINDS:
        judged += judge_kind(side, [row for row in rows if row["side"] == side])
    again = next(row for row in rows if row["what"] == "second walk")
    judged.append(
        (
            f"second walk of {again['files']} files: no request ({again['requests']})",
            again["requests"] == 0,
        )
    )
    return judged


def main():
    options = options_of(__doc__, "versions", 3)
    options.add_argument("--sizes", type=int, nargs="+", help="files below a snapshot")
    options.add_argument("--files", type=int, help="files for each operation")
    options.add_argument("--walk", type=int, help="files of the walk")
    wanted = options.parse_args()
    sizes = wanted.sizes or ([1000, 1_000_000] if wanted.full else [1000, 10_000])
    files = wanted.files or (20_000 if wanted.full else 2000)
    walked = wanted.walk or (100_000 if wanted.full else 5000)
    with scratch_for(wanted.out) as scratch:
        rows = []
        for part in (
            lambda: times(scratch, "kestrel", sizes),
            lambda: times(scratch, "three nodes", sizes),
            lambda: costs(scratch, files, wanted.rounds),
            lambda: walks(scratch, walked),
            lambda: [removal(scratch, files, 10)],
            lambda: clones(scratch, "kestrel", walked, max(3, wanted.rounds)),
            lambda: clones(scratch, "three nodes", walked, max(3, wanted.rounds)),
        ):
            found = part()
            rows += found
            for row in found:
                shown = ("side", "what", "files", "us")
                more = {name: row[name] for name in row if name not in shown}
                print(
                    f'{row["side"]:14} {row["what"]:12} {row["files"]:8} files '
                    f'{row["us"]:9.1f} us {more}',
                    flush=True,
                )
    conclude(wanted.out, rows, judge(rows), plot)


if __name__ == "__main__":
    main()
