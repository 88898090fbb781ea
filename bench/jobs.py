#!/usr/bin/env python3
"""Jobs on published versions: what beginning and publishing one costs by the size of its inputs,
creates in a job, walks by how many versions are below, inputs that know nothing of each other, and
creates in one directory of a job with several servers.

Beside them: creates through a mount of the volume, and a walk of the input itself.

    bench/jobs.py            writes target/bench/jobs.json, jobs.svg
    bench/jobs.py --full     a million files
    bench/jobs.py --servers  only jobs with several servers
"""

import json
import os
import re
import statistics
import sys
import time

from bucket import in_threads, mount, umount
from common import KESTREL, bars, conclude, cpu_of, options_of, run, scratch_for
from publish import make_tree, publish, walk

# Names that a job makes, and threads that make them.
CREATES, THREADS = 20_000, 8
# Versions below one that is walked.
DEPTHS = [1, 8, 32]
# Servers of one job, and how much more CPU time they may take for a create than one takes.
SERVERS = 4
CPU_MAX = 1.2
# A job on a hundred times as many files may take so much longer.
GROWTH_MAX = 2.0


def job(volume, name, inputs, *command):
    """Seconds of a whole job."""
    given = [word for one in inputs for word in ("--input", one)]
    begun = time.perf_counter()
    run(KESTREL, "job", "run", volume, *given, "--publish", name, "--", *command)
    return time.perf_counter() - begun


def create(top):
    """Creates a second of empty files, in a directory of their own."""
    os.mkdir(top)
    begun = time.perf_counter()
    in_threads(CREATES, THREADS, lambda _, number: os.mknod(f"{top}/{number:08d}", 0o100644))
    return CREATES / (time.perf_counter() - begun)


def whole_jobs(volume, sizes, rounds, rows, judged):
    """A job that changes one name, on trees of several sizes."""
    taken = {}
    for files in sizes:
        make_tree(f"{volume}.mnt/tree{files}", files)
        publish(f"{volume}.mnt/tree{files}", f"tree@{files}")
    for turn in range(rounds):
        for files in sizes:
            seconds = job(volume, f"one-{files}@{turn}", [f"tree@{files}"], "touch", "one")
            taken.setdefault(files, []).append(seconds)
    for files in sizes:
        seconds = statistics.median(taken[files])
        rows.append({"what": f"job on {files:,} files", "ms": 1000 * seconds, "is_ours": True})
        print(f"a job that makes one name on {files:,} files: {1000 * seconds:.0f} ms")
    growth = statistics.median(taken[sizes[-1]]) / statistics.median(taken[sizes[0]])
    judged.append((f"a job on {sizes[-1]:,} files: {growth:.2f} of one on {sizes[0]:,}"
                   f" (at most {GROWTH_MAX})", growth <= GROWTH_MAX))


def creates(volume, files, rounds, rows):
    """Creates in a job, beside those through a mount of the volume."""
    ours, plain, published = [], [], []
    for turn in range(rounds):
        here = os.path.abspath(__file__)
        out = f"{volume}.rate"
        begun = time.perf_counter()
        job(volume, f"made@{turn}", [f"tree@{files}"], sys.executable, here, "--create", out)
        whole = time.perf_counter() - begun
        with open(out, encoding="ascii") as file:
            ours.append(float(file.read()))
        published.append(whole - CREATES / ours[-1])
        plain.append(create(f"{volume}.mnt/made{turn}"))
    rate, beside = statistics.median(ours), statistics.median(plain)
    rest = statistics.median(published)
    rows.append({"what": "creates in a job", "per_second": rate, "beside": beside, "is_ours": True})
    rows.append({"what": f"publishing {CREATES:,}", "ms": 1000 * rest, "is_ours": True})
    print(f"creates: {rate:,.0f}/s in a job, {beside:,.0f}/s in the volume ({rate / beside:.2f});"
          f" begin, mount and publish {1000 * rest:.0f} ms")


def walks(volume, scratch, files, rows):
    """Walks of versions with more and more versions below."""
    top, seconds = f"{scratch}/version", {}
    mount(f"{volume}//tree@{files}", top)
    limit = walk(top)
    umount(top)
    below = f"tree@{files}"
    for depth in range(1, DEPTHS[-1] + 1):
        name = f"depth@{depth}"
        job(volume, name, [below], "touch", f"d{depth}")
        below = name
        if depth in DEPTHS:
            mount(f"{volume}//{name}", top)
            seconds[depth] = walk(top)
            umount(top)
    for depth, one in seconds.items():
        rows.append({"what": f"walk, {depth} below", "ms": 1000 * one, "is_ours": True})
        print(f"walk of {files:,} files with {depth} versions below: {one:.2f} s,"
              f" {one / limit:.2f} of the input's own")
    rows.append({"what": "walk of the input", "ms": 1000 * limit, "is_ours": False})


def unrelated(volume, rounds, rows):
    """A job on two inputs with a directory in common."""
    names = CREATES // 2
    for side in ("left", "right"):
        job(volume, f"{side}@1", [], "sh", "-c",
            f"mkdir both; cd both; seq -f {side}-%g {names} | xargs touch")
    taken = [job(volume, f"both@{turn}", ["left@1", "right@1"], "true") for turn in range(rounds)]
    alone = [job(volume, f"alone@{turn}", ["left@1"], "true") for turn in range(rounds)]
    seconds, limit = statistics.median(taken), statistics.median(alone)
    rows.append({"what": f"inputs with {2 * names:,} names", "ms": 1000 * seconds, "is_ours": True})
    rows.append({"what": "one of them", "ms": 1000 * limit, "is_ours": False})
    print(f"a job on two inputs with a directory of {2 * names:,} names in common:"
          f" {1000 * seconds:.0f} ms, on one of them {1000 * limit:.0f} ms")


def served(volume, scratch, name, servers):
    """Creates a second in one directory of a job that is served, microseconds of its servers' CPU
    time for one, and seconds of publishing it."""
    told = run(KESTREL, "job", "start", volume, "--publish", name, "--servers", servers)
    os.environ.update(dict(re.findall(r"^(\w+)='(.*?)';", told, re.MULTILINE)))
    status = json.loads(run(KESTREL, "job", "status", volume, name, "--json"))
    words = " ".join(one["open_by"] for one in status["servers"]) or status["open_by"]
    pids = re.findall(r"process (\d+)", words)
    top = f"{scratch}/served"
    mount(os.environ["KESTREL_JOB"], top)
    before = sum(map(cpu_of, pids))
    rate = create(f"{top}/made")
    umount(top)
    used = 1e6 * (sum(map(cpu_of, pids)) - before) / CREATES
    begun = time.perf_counter()
    run(KESTREL, "job", "publish", volume, name)
    return rate, used, time.perf_counter() - begun


def several(volume, scratch, rounds, rows, judged):
    """One directory of a job with one server and with several."""
    taken = {1: [], SERVERS: []}
    for turn in range(rounds):
        for servers, found in taken.items():
            found.append(served(volume, scratch, f"served{servers}@{turn}", servers))
    medians = {
        servers: [statistics.median(each) for each in zip(*found)]
        for servers, found in taken.items()
    }
    for servers, (rate, used, publishing) in medians.items():
        rows.append({"what": f"publishing {CREATES:,}, {servers} servers", "per_second": rate,
                     "cpu_us": used, "ms": 1000 * publishing, "is_ours": True})
        print(f"{servers} servers, one directory: {rate:,.0f} creates/s, {used:.0f} us of CPU time"
              f" of the servers each; publish {1000 * publishing:.0f} ms")
    ratio = medians[SERVERS][1] / medians[1][1]
    judged.append((f"CPU time for a create with {SERVERS} servers: {ratio:.2f} of that with one"
                   f" (at most {CPU_MAX})", ratio <= CPU_MAX))


def plot(path, rows):
    bars(path, [(row["what"], row["ms"], row["is_ours"]) for row in rows if "ms" in row], "ms",
         digits=0, left=250)


def main():
    if sys.argv[1:2] == ["--create"]:
        rate = create("made")
        with open(sys.argv[2], "w", encoding="ascii") as file:
            file.write(str(rate))
        return
    parser = options_of(__doc__, "jobs", 3, full="a million files")
    parser.add_argument("--servers", action="store_true", help="only jobs with several servers")
    options = parser.parse_args()
    sizes = [1_000, 10_000, 1_000_000 if options.full else 100_000]
    with scratch_for(f"{options.out}.json") as scratch:
        os.environ["KESTREL_STATE_DIR"] = f"{scratch}/state"
        rows, judged, volume = [], [], f"{scratch}/volume"
        run(KESTREL, "format", volume)
        several(volume, scratch, options.rounds, rows, judged)
        if options.servers:
            return conclude(options.out, rows, judged, plot, sizes=sizes)
        mount(volume, f"{volume}.mnt")
        whole_jobs(volume, sizes, options.rounds, rows, judged)
        creates(volume, sizes[-1], options.rounds, rows)
        walks(volume, scratch, sizes[1], rows)
        unrelated(volume, options.rounds, rows)
        umount(f"{volume}.mnt")
        conclude(options.out, rows, judged, plot, sizes=sizes)


if __name__ == "__main__":
    main()
