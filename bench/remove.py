#!/usr/bin/env python3
"""How long removing a tree takes: `kestrel rm -r` until the prompt, and until the last row is gone,
beside rm(1) on the mount and on the local file system; how much a process that creates files is
slowed down meanwhile; and the same removals into the trash, and out of it again.

    bench/remove.py             10,000 files: writes target/bench/remove.json, remove.svg
    bench/remove.py --full      100,000
"""

import os
import statistics
import time

from common import KESTREL, Local, bars, conclude, options_of, run, scratch_for, timed

# Seconds until the prompt, files a second until the rows are gone, and how much slower other
# processes may be: the bars of the issue.
PROMPT_MAX = 0.05
FILES_PER_SECOND_MIN = 200_000
SLOWED_MAX = 1.1
# How long the other process creates files for one figure, seconds.
WINDOW = 1.0


def fill(top, count):
    """So many empty files, 100 in each directory."""
    for number in range(count):
        if number % 100 == 0:
            directory = f"{top}/{number // 100}"
            os.makedirs(directory)
        os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def wait_gone(path):
    while os.path.lexists(path):
        time.sleep(0.002)


def creates(directory):
    """Files that this process creates a second."""
    os.mkdir(directory)
    begun = time.perf_counter()
    made = 0
    while time.perf_counter() - begun < WINDOW:
        path = f"{directory}/{made}"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        made += 1
    return made / (time.perf_counter() - begun)


def measured(mount, count, rounds):
    """Seconds of each removal, and creates a second alone and beside one."""
    found = {name: [] for name in ("prompt", "rows gone", "rm, mount")}
    rates = {"alone": [], "beside": []}
    for number in range(rounds):
        fill(f"{mount}/tree", count)
        begun = time.perf_counter()
        found["prompt"].append(timed(run, KESTREL, "rm", "-r", f"{mount}/tree"))
        wait_gone(f"{mount}/.trash/removing")
        found["rows gone"].append(time.perf_counter() - begun)
        fill(f"{mount}/tree", count)
        found["rm, mount"].append(timed(run, "rm", "-r", f"{mount}/tree"))
        rates["alone"].append(creates(f"{mount}/alone{number}"))
        fill(f"{mount}/tree", count)
        run(KESTREL, "rm", "-r", f"{mount}/tree")
        rates["beside"].append(creates(f"{mount}/beside{number}"))
        wait_gone(f"{mount}/.trash/removing")
        for name in ("alone", "beside"):
            run("rm", "-r", f"{mount}/{name}{number}")
    return found, rates


def kept(mount, count, rounds):
    """Seconds of removals into the trash, and of restoring what they removed."""
    found = {f"{what}, {how}": [] for how in ("prompt", "rm") for what in ("kept", "restored")}
    top = f"{mount}/kept"
    os.mkdir(top)
    run(KESTREL, "policy", "set", top, "trash=1h")
    for _ in range(rounds):
        fill(f"{top}/tree", count)
        for how, removal in (("prompt", (KESTREL, "rm", "-r")), ("rm", ("rm", "-r"))):
            found[f"kept, {how}"].append(timed(run, *removal, f"{top}/tree"))
            found[f"restored, {how}"].append(timed(run, KESTREL, "trash", "restore", f"{top}/tree"))
        run("mv", f"{top}/tree", f"{mount}/tree")
        run(KESTREL, "rm", "-r", "--eager", f"{mount}/tree")
    return found


def rows_of(scratch, count, rounds):
    volume, mount = f"{scratch}/volume", f"{scratch}/mount"
    os.mkdir(mount)
    run(KESTREL, "format", volume)
    run(KESTREL, "mount", volume, mount)
    try:
        found, rates = measured(mount, count, rounds)
        found |= kept(mount, count, rounds)
    finally:
        run(KESTREL, "umount", mount)
    local = Local(scratch).dir
    found["rm, local"] = []
    for _ in range(rounds):
        fill(f"{local}/tree", count)
        found["rm, local"].append(timed(run, "rm", "-r", f"{local}/tree"))
    rows = [
        {"what": what, "files": count, "rounds": rounds, "seconds": statistics.median(taken)}
        for what, taken in found.items()
    ]
    slowed = statistics.median(a / b for a, b in zip(rates["alone"], rates["beside"]))
    rates = {name: statistics.median(taken) for name, taken in rates.items()}
    return rows, {"creates_per_second": rates, "creates_slowed": slowed}


def judge(rows, beside):
    by_name = {row["what"]: row for row in rows}
    prompt, gone = by_name["prompt"]["seconds"], by_name["rows gone"]
    rate = gone["files"] / gone["seconds"]
    slowed = beside["creates_slowed"]
    return [
        (f"kestrel rm -r of {gone['files']} files to the prompt: at most {PROMPT_MAX} s "
         f"({prompt:.3f} s)", prompt <= PROMPT_MAX),
        (f"until the rows are gone: at least {FILES_PER_SECOND_MIN} files/s ({rate:.0f})",
         rate >= FILES_PER_SECOND_MIN),
        (f"creates of another process beside it: slowed at most {SLOWED_MAX} times "
         f"({slowed:.2f})", slowed <= SLOWED_MAX),
    ]


def plot(path, rows):
    """Seconds of each row."""
    lines = [(row["what"], row["seconds"], row["what"] in ("prompt", "rows gone")) for row in rows]
    bars(path, lines, "s", digits=3)


def main():
    wanted = options_of(__doc__, "remove", 5).parse_args()
    with scratch_for(wanted.out) as scratch:
        rows, beside = rows_of(scratch, 100_000 if wanted.full else 10_000, wanted.rounds)
        for row in rows:
            print(f'{row["what"]:16} {row["files"]:8} files {row["seconds"]:9.3f} s')
        print(beside)
    conclude(wanted.out, rows, judge(rows, beside), plot, **beside)


if __name__ == "__main__":
    main()
