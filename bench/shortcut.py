#!/usr/bin/env python3
"""The VFS shortcut, measured: requests, memory, latency, and the two transports of FUSE.

    bench/shortcut.py [--out target/bench] [--scratch DIR] [--seconds 5] [--rounds 3] [--fanout 3]
                      [--files 10] [--size 0] [--quick]
                      [--only requests,traverse,latency,alone,limit]

- requests: requests to the metadata server of a cold open, stat, create, unlink, mkdir and rename
  at depths of 1, 4 and 8 names, on a plain mount, on one in shortcut mode, and of the native client
  (crates/network/rpc/examples/netload; paths of six names).
- traverse: FalconFS §6.4. A tree of 8 levels, --fanout subdirectories each, --files files in the
  leaves; 64 threads open files at random. The memory of their control group is their own, 4 MiB,
  and 10, 50, 100 % of what the kernel takes to keep all names and inodes of the tree (measured
  first, without a limit). Plain, plain with names kept for ten minutes (what a client with a cache
  does, at the price of seeing old names), shortcut, shortcut with names of directories kept, and
  shortcut over io_uring: requests and files a second, memory of the client before and after.
- latency: server and client with 0, 100 and 500 µs between them in each direction (kestrel-relay):
  the time of a cold open of a file 8 names deep.
- alone: a volume without a server, which the kernel may believe things of. 16 threads read files of
  4 KiB that lie 8 names deep at random, then 64 threads 5,000 files of 100 KiB in one directory,
  once each: asked about all of it each time, with attributes of files kept, with names of
  directories too (the default), plain, plain with everything kept, and a local directory as the
  limit.
- limit: stat, open+close, create, reads of 128 KiB and 1 MiB on a mount, beside the null file
  system, which answers at once: over /dev/fuse and, where the kernel has it, io_uring (root sets
  /sys/module/fuse/parameters/enable_uring; it is set back).

Figures of one machine that everything shares, medians of the rounds, which are run in turn;
requests are exact. Prints them with the bars of issue 6; writes shortcut.json and shortcut.svg.
Needs root and examples of kestrel-rpc for the native client.
"""

import argparse
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import common
from common import EXAMPLES, JUDGES, KESTREL, ROOT, io_uring, run, take_away

DEPTHS = (1, 4, 8)
# Requests of a cold call in shortcut mode, at any depth (docs/design/mount.md, section 2).
REQUESTS = {"open": 1, "stat": 1, "create": 1, "unlink": 2, "mkdir": 2, "rename": 3}
LIMITS = (10, 50, 100)
MODES = {
    "plain": ["--no-shortcut", "--transport", "device"],
    "plain, names kept": [
        "--no-shortcut",
        "--transport",
        "device",
        "--entry-timeout",
        "600s",
        "--attr-timeout",
        "600s",
    ],
    "shortcut": ["--transport", "device"],
    "shortcut, names kept": ["--transport", "device", "--shortcut-names", "1s"],
    "shortcut, io_uring": ["--transport", "uring"],
}
ALONE = {
    "asked each time": ["--attr-timeout", "0", "--shortcut-names", "0"],
    "attributes kept": ["--shortcut-names", "0"],
    "default": [],
    "plain, asked each time": ["--no-shortcut", "--attr-timeout", "0"],
    "plain, all kept": ["--no-shortcut", "--attr-timeout", "600s", "--entry-timeout", "600s"],
}
LATER = {"release"}
# What the walking program gets besides its own memory: names in use cannot be given up, and the
# kernel charges in batches.
SLACK = 8 << 20


class Server(common.Server):
    """The same, with mounts of it."""

    def __init__(self, scratch):
        super().__init__(scratch)
        self.mounts = []

    def mount(self, *options, address=None):
        point = tempfile.mkdtemp(dir=self.dir)
        run(
            KESTREL,
            "mount",
            f"kestrel://{address or self.address}/{self.name}",
            point,
            "--log",
            f"{point}.log",
            *options,
        )
        self.mounts.append(point)
        return point

    def umount(self, point):
        run(KESTREL, "umount", point)
        self.mounts.remove(point)

    def stop(self):
        for point in list(self.mounts):
            self.umount(point)
        super().stop()


def status(point):
    return json.loads(run(KESTREL, "status", point, "--json"))


def requests(point):
    """Requests so far; those that come after the call that caused them are left out."""
    rows = json.loads(run(KESTREL, "stats", "--once", "--json", point))["metadata_requests"]
    return sum(row["requests"] for row in rows if row["kind"] not in LATER)


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) << 10


class Group:
    """A control group with a limit on memory; None: no limit."""

    def __init__(self, limit):
        self.old = os.path.isdir("/sys/fs/cgroup/memory")
        base = "/sys/fs/cgroup/memory" if self.old else "/sys/fs/cgroup"
        self.dir = tempfile.mkdtemp(prefix="kestrel-bench-", dir=base)
        if limit is not None:
            self.write("memory.limit_in_bytes" if self.old else "memory.max", int(limit))

    def write(self, name, value):
        with open(f"{self.dir}/{name}", "w", encoding="ascii") as file:
            file.write(str(value))

    def used(self):
        with open(
            f"{self.dir}/{'memory.usage_in_bytes' if self.old else 'memory.current'}",
            encoding="ascii",
        ) as file:
            return int(file.read())

    def enter(self):
        """In the child, before the program is executed."""
        self.write("cgroup.procs", os.getpid())

    def close(self):
        for _ in range(50):
            try:
                os.rmdir(self.dir)
                return
            except OSError:
                time.sleep(0.1)


class Bench:
    def __init__(self, options):
        self.options = options
        self.rows = []

    def add(self, part, way, operation, **figures):
        row = {"part": part, "way": way, "operation": operation, **figures}
        self.rows.append(row)
        rest = ", ".join(
            f"{name} {value:,.6g}" if isinstance(value, (int, float)) else f"{name} {value}"
            for name, value in figures.items()
        )
        print(f"{part:<9} {way:<22} {operation:<28} {rest}", flush=True)

    # ---- requests ----

    def requests(self):
        server = Server(self.options.scratch)
        maker = server.mount("--no-shortcut")
        for way in ("plain", "shortcut"):
            for depth in DEPTHS:
                for what in REQUESTS:
                    directory = os.path.dirname(self.place(maker, way, what, depth, "x"))
                    os.makedirs(directory, exist_ok=True)
                    for name in ("old", "older"):
                        with open(self.place(maker, way, what, depth, name), "w", encoding="ascii"):
                            pass
        for way in ("plain", "shortcut"):
            point = server.mount(*MODES[way])
            for depth in DEPTHS:
                for what in REQUESTS:
                    old, new = (
                        self.place(point, way, what, depth, name) for name in ("old", "new")
                    )
                    before = requests(point)
                    {
                        "open": lambda: os.close(os.open(old, os.O_RDONLY)),
                        "stat": lambda: os.stat(old),
                        "create": lambda: os.close(os.open(new, os.O_CREAT | os.O_WRONLY)),
                        "unlink": lambda: os.unlink(old),
                        "mkdir": lambda: os.mkdir(new),
                        "rename": lambda: os.rename(old, new),
                    }[what]()
                    self.add("requests", way, what, depth=depth, requests=requests(point) - before)
            server.umount(point)
        netload = f"{EXAMPLES}/netload"
        if os.path.exists(netload):
            for line in run(netload, server.address, server.name, "0.2", "8", "1").splitlines():
                row = json.loads(line)
                if row["operation"] in REQUESTS:
                    self.add(
                        "requests",
                        "native",
                        row["operation"],
                        depth=6,
                        requests=round(row["requests_per_operation"], 3),
                    )
        server.stop()

    @staticmethod
    def place(point, way, what, depth, name):
        """A path of `depth` names; names of one directory are used once only."""
        names = (
            [f"{way}-{what}-{depth}"] + [f"d{level}" for level in range(2, depth)]
            if depth > 1
            else []
        )
        return "/".join([point, *names, f"{way}-{what}-{name}"])

    # ---- traverse ----

    def traverse(self):
        for fanout in sorted({2, self.options.fanout}):
            self.traverse_tree(fanout)

    def traverse_tree(self, fanout):
        shape = [
            "--levels",
            "8",
            "--fanout",
            fanout,
            "--files",
            self.options.files,
            "--size",
            self.options.size,
        ]
        server = Server(self.options.scratch)
        maker = server.mount("--no-shortcut")
        os.mkdir(f"{maker}/tree")
        made = json.loads(
            run(f"{JUDGES}/kestrel-traverse", "make", "--dir", f"{maker}/tree", *shape)
        )
        server.umount(maker)
        print(f"tree: {made['files']:,} files, {made['directories']:,} directories", flush=True)
        need, own = self.memory_of_all(server, made["files"])
        with io_uring() as on:
            modes = {way: words for way, words in MODES.items() if on or "uring" not in words}
            for _ in range(self.options.rounds):
                for percent in LIMITS:
                    for way, words in modes.items():
                        self.traverse_once(
                            server,
                            shape,
                            made,
                            way,
                            words,
                            percent,
                            own + SLACK + need * percent // 100,
                        )
        server.stop()

    def memory_of_all(self, server, files):
        """Bytes the kernel takes for all names and inodes when nothing limits it, and bytes of the
        program itself."""
        # The program itself: what it takes in a tree of one file.
        alone = tempfile.mkdtemp(dir=self.options.scratch)
        os.mkdir(f"{alone}/tree")
        one = ["--levels", "8", "--fanout", "1", "--files", "1"]
        run(f"{JUDGES}/kestrel-traverse", "make", "--dir", f"{alone}/tree", *one)
        group = Group(None)
        program = self.walk(alone, one, group, 1)
        own = 0
        while program.poll() is None:
            own = max(own, group.used())
            time.sleep(0.05)
        program.communicate()
        group.close()
        shutil.rmtree(alone)
        point = server.mount(*MODES["plain, names kept"])
        group = Group(None)
        subprocess.run(
            ["find", f"{point}/tree", "-size", "+1000000G"],
            preexec_fn=group.enter,
            check=True,
            capture_output=True,
        )
        need = group.used()
        server.umount(point)
        group.close()
        print(
            f"caching {files:,} files takes {need / 2**20:.1f} MiB of the kernel; the program "
            f"itself {own / 2**20:.1f} MiB",
            flush=True,
        )
        return need, own

    def walk(self, point, shape, group, seconds):
        words = [
            f"{JUDGES}/kestrel-traverse",
            "walk",
            "--dir",
            f"{point}/tree",
            *map(str, shape),
            "--threads",
            "64",
            "--seconds",
            str(seconds),
        ]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=group.enter)

    def traverse_once(self, server, shape, made, way, words, percent, limit):
        point = server.mount(*words)
        pid = status(point)["pid"]
        group = Group(limit)
        at_first = resident(pid)
        operation = f"{made['files']} files, {percent} %"
        # The caches get what they may have before it counts.
        self.walk(point, shape, group, self.options.seconds).communicate()
        before = requests(point)
        program = self.walk(point, shape, group, self.options.seconds)
        peak = 0
        while program.poll() is None:
            peak = max(peak, resident(pid))
            time.sleep(0.1)
        done = json.loads(program.stdout.read() or "{}")
        # Out of memory: the kernel could not give up names fast enough.
        killed = program.returncode == -signal.SIGKILL
        if not killed and (program.returncode != 0 or done["failed"]):
            raise SystemExit(
                f"{way} within {limit / 2**20:.1f} MiB: exit {program.returncode}, {done}"
            )
        self.add(
            "traverse",
            way,
            operation,
            limit_mib=round(limit / 2**20, 1),
            requests=0 if killed else round((requests(point) - before) / done["files"], 3),
            per_s=0 if killed else round(done["files"] / done["seconds"]),
            client_mib=round(peak / 2**20, 1),
            client_growth_mib=round((peak - at_first) / 2**20, 1),
            killed=int(killed),
        )
        server.umount(point)
        group.close()

    # ---- latency ----

    def latency(self):
        server = Server(self.options.scratch)
        maker = server.mount("--no-shortcut")
        count = 20 if self.options.quick else 60
        for number in range(count * 2 * 3):
            os.makedirs(f"{maker}/l{number}/b/c/d/e/f/g")
            with open(f"{maker}/l{number}/b/c/d/e/f/g/file", "w", encoding="ascii"):
                pass
        # Another client's open asks this one to send what it has not sent yet: it shall have
        # nothing of that kind.
        server.umount(maker)
        next_tree = 0
        for delay in (0, 100, 500):
            relay = subprocess.Popen(
                [f"{JUDGES}/kestrel-relay", "--to", server.address, "--delay-us", str(delay)],
                stdout=subprocess.PIPE,
                text=True,
            )
            address = relay.stdout.readline().strip()
            try:
                for way in ("plain", "shortcut"):
                    point = server.mount(*MODES[way], address=address)
                    times = []
                    for _ in range(count):
                        path = f"{point}/l{next_tree}/b/c/d/e/f/g/file"
                        next_tree += 1
                        begun = time.perf_counter()
                        fd = os.open(path, os.O_RDONLY)
                        times.append(time.perf_counter() - begun)
                        os.close(fd)
                    self.add(
                        "latency",
                        way,
                        f"cold open, {delay} µs each way",
                        delay_us=delay,
                        us=round(statistics.median(times) * 1e6),
                    )
                    server.umount(point)
            finally:
                relay.kill()
                relay.wait()
        server.stop()

    # ---- alone ----

    def alone(self):
        scratch = tempfile.mkdtemp(dir=self.options.scratch)
        volume, point, local = f"{scratch}/volume", f"{scratch}/mnt", f"{scratch}/local"
        shape = ["--levels", 7, "--fanout", 3, "--files", 10, "--size", 4096]
        small = ["--files", 500 if self.options.quick else 5000, "--size", 102400]
        for directory in (point, local):
            os.mkdir(directory)
        run(KESTREL, "format", volume)
        run(KESTREL, "mount", volume, point)
        for directory in (point, local):
            os.mkdir(f"{directory}/tree")
            run(f"{JUDGES}/kestrel-traverse", "make", "--dir", f"{directory}/tree", *shape)
            run(
                f"{JUDGES}/kestrel-smallfiles",
                "write",
                "--dir",
                f"{directory}/small",
                *small,
                "--threads",
                16,
            )
        run(KESTREL, "umount", point)

        def measure(way, where):
            walk = [
                f"{JUDGES}/kestrel-traverse",
                "walk",
                "--dir",
                f"{where}/tree",
                *shape,
                "--threads",
                16,
                "--call",
                "read",
            ]
            for seconds in (1, self.options.seconds):
                walked = json.loads(run(*walk, "--seconds", seconds))
            if walked["failed"]:
                raise SystemExit(f"{walked['failed']} files could not be read")
            self.add(
                "alone", way, "read 8 names deep", per_s=round(walked["files"] / walked["seconds"])
            )
            read = json.loads(
                run(
                    f"{JUDGES}/kestrel-smallfiles",
                    "read",
                    "--dir",
                    f"{where}/small",
                    *small,
                    "--threads",
                    64,
                )
            )
            self.add("alone", way, "read 100 KiB once", per_s=round(read["files_per_second"]))

        for _ in range(self.options.rounds):
            for way, words in ALONE.items():
                run(KESTREL, "mount", volume, point, "--transport", "device", *words)
                measure(way, point)
                run(KESTREL, "umount", point)
            measure("local directory", local)
        shutil.rmtree(scratch)

    # ---- limit ----

    def limit(self):
        with io_uring() as on:
            for _ in range(self.options.rounds):
                for transport in ["device", "uring"] if on else ["device"]:
                    self.limit_of(transport)

    def limit_of(self, transport):
        files = "300" if self.options.quick else "20000"
        large = "64M" if self.options.quick else "192M"
        scratch = tempfile.mkdtemp(dir=self.options.scratch)
        null, volume, point = f"{scratch}/null", f"{scratch}/volume", f"{scratch}/mnt"
        os.mkdir(null)
        os.mkdir(point)
        # In a session of its own, as a mount is: the kernel shares processors out among sessions
        # (sched_autogroup).
        command = [
            KESTREL,
            "null-fs",
            null,
            "--file-size",
            "192M",
            "--flush",
            "--transport",
            transport,
        ]
        process = subprocess.Popen(command, start_new_session=True)
        while not os.path.ismount(null):
            time.sleep(0.02)
            if process.poll() is not None:
                raise SystemExit(f"null-fs over {transport} does not start")
        run(KESTREL, "format", volume)
        run(KESTREL, "mount", volume, point, "--transport", transport)
        for name, where in (("null", null), ("kestrel", point)):
            way = f"{name}, {transport}"
            words = [
                "bench",
                where,
                "--json",
                "--relative",
                "--warm",
                "--no-verify",
                "--threads",
                "4",
            ]
            for row in json.loads(run(KESTREL, *words, "--phase", "metadata", "--files", files))[
                "results"
            ]:
                if row["op"] in ("stat", "open+close", "create"):
                    self.add(
                        "limit",
                        way,
                        row["op"],
                        per_s=row["per_second"],
                        cpu_us=row["cpu_us_per_op_machine"],
                    )
            self.reads(way, where, large)
        run(KESTREL, "umount", point)
        run(KESTREL, "umount", null)
        process.wait(20)
        shutil.rmtree(scratch)

    def reads(self, way, where, large):
        """Reads through FUSE: direct, so that each is a request, of bytes that the mount has in its
        memory."""
        path = f"{where}/large"
        size = int(large[:-1]) << 20
        with open(path, "wb") as file:
            for _ in range(size >> 20):
                file.write(b"k" * (1 << 20))
            os.fsync(file.fileno())
        for block in (128 << 10, 1 << 20):
            buffer = mmap.mmap(-1, block)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            # The first 32 MiB again and again: they stay in the memory of the mount.
            span = min(size, 32 << 20)
            for at in range(0, span, block):
                os.preadv(fd, [buffer], at)
            begun, done = time.perf_counter(), 0
            while time.perf_counter() - begun < self.options.seconds / 4:
                for at in range(0, span, block):
                    os.preadv(fd, [buffer], at)
                    done += 1
            seconds = time.perf_counter() - begun
            os.close(fd)
            self.add(
                "limit",
                way,
                f"read {block >> 10} KiB",
                per_s=round(done / seconds),
                mib_s=round(done * block / seconds / 2**20),
            )
        os.unlink(path)


def medians(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["part"], row["way"], row["operation"], row.get("depth")), []).append(
            row
        )
    merged = []
    for group in groups.values():
        row = dict(group[0])
        for name, value in row.items():
            if isinstance(value, (int, float)):
                row[name] = statistics.median(other[name] for other in group)
        if "per_s" in row and len(group) > 1:
            row["lowest"], row["highest"] = min(other["per_s"] for other in group), max(
                other["per_s"] for other in group
            )
        merged.append(row)
    return merged


def bars(rows):
    """(text, met) for every bar that was measured."""
    found = []

    def figure(part, way, operation, what):
        return next(
            (
                row[what]
                for row in rows
                if (row["part"], row["way"], row["operation"]) == (part, way, operation)
            ),
            None,
        )

    for what, most in REQUESTS.items():
        counted = [
            row["requests"]
            for row in rows
            if (row["part"], row["way"], row["operation"]) == ("requests", "shortcut", what)
        ]
        if counted:
            found.append(
                (
                    f"requests of a cold {what}, depths {DEPTHS}: {counted} (goal {most})",
                    max(counted) <= most,
                )
            )
    walks = [row for row in rows if row["part"] == "traverse" and row["way"] == "shortcut"]
    for tree in sorted({row["operation"].split(",")[0] for row in walks}):
        here = [row for row in walks if row["operation"].startswith(tree + ",")]
        most = max(row["requests"] for row in here)
        found.append(
            (f"{tree}: requests an open, all limits: at most {most} (goal 1.0)", most <= 1.005)
        )
        rates = [row["per_s"] for row in here]
        found.append(
            (
                f"{tree}: opens a second over the limits: {min(rates) / max(rates):.3f} of the "
                "best (goal 0.97)",
                min(rates) / max(rates) >= 0.97,
            )
        )
        growth = max(row["client_growth_mib"] for row in here)
        found.append(
            (f"{tree}: memory of the client for it: {growth} MiB (goal below 64)", growth < 64)
        )
    for what in ("stat", "read 128 KiB", "read 1024 KiB"):
        kestrel, null = figure("limit", "kestrel, uring", what, "per_s"), figure(
            "limit", "null, uring", what, "per_s"
        )
        if kestrel and null:
            found.append(
                (
                    f"{what} over io_uring against null: {kestrel / null:.2f} (goal 0.80)",
                    kestrel / null >= 0.8,
                )
            )
    return found


def plot(path, rows):
    """Opens a second over the memory limit for each way and tree, and the time of a cold open over
    the latency."""
    out, top = [], 30
    colours = dict(zip(MODES, ("#888888", "#4878a8", "#c04040", "#40a060", "#a06020"), strict=True))
    walks = [row for row in rows if row["part"] == "traverse"]
    for tree in sorted(
        {row["operation"].split(",")[0] for row in walks}, key=lambda text: int(text.split()[0])
    ):
        here = [row for row in walks if row["operation"].startswith(tree + ",")]
        out += chart(
            top,
            f"opens a second, {tree}, over memory for names (% of what all take)",
            here,
            lambda row: int(row["operation"].split(", ")[1].split()[0]),
            "per_s",
            colours,
        )
        top += 230
    late = [row for row in rows if row["part"] == "latency"]
    if late:
        out += chart(
            top,
            "µs of a cold open 8 names deep, over latency each way (µs)",
            late,
            lambda row: row["delay_us"],
            "us",
            colours,
        )
        top += 230
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{top}" '
            'font-family="sans-serif" font-size="11">\n'
        )
        file.write("\n".join([*out, "</svg>"]))


def chart(top, title, rows, across, what, colours):
    most_x, most_y = max(across(row) for row in rows) or 1, max(row[what] for row in rows) or 1
    out = [
        f'<text x="10" y="{top}" font-size="13">{title}</text>',
        f'<path d="M60 {top + 10}v160h420" fill="none" stroke="#000"/>',
    ]
    out.append(f'<text x="55" y="{top + 20}" text-anchor="end">{most_y:,.0f}</text>')
    for number, way in enumerate(colours):
        points = sorted((across(row), row[what]) for row in rows if row["way"] == way)
        if points:
            line = " ".join(
                f"{60 + 400 * x / most_x:.0f},{top + 170 - 155 * y / most_y:.0f}" for x, y in points
            )
            out.append(
                f'<polyline points="{line}" fill="none" stroke="{colours[way]}" stroke-width="2"/>'
            )
            out.append(
                f'<text x="490" y="{top + 30 + 16 * number}" fill="{colours[way]}">{way}</text>'
            )
    out += [
        f'<text x="{60 + 400 * x / most_x:.0f}" y="{top + 184}" text-anchor="middle">{x}</text>'
        for x in sorted({across(row) for row in rows})
    ]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR", "/var/tmp"))
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fanout", type=int, default=3)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="requests,traverse,latency,alone,limit")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = min(options.seconds, 2), 1
    options.scratch = tempfile.mkdtemp(prefix="kestrel-bench.", dir=options.scratch)
    os.makedirs(options.out, exist_ok=True)
    # However it ends, what was started is taken away.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    bench = Bench(options)
    try:
        for part in options.only.split(","):
            getattr(bench, part)()
    finally:
        take_away(options.scratch)
    rows = medians(bench.rows)
    common.conclude(f"{options.out}/shortcut", rows, bars(rows), plot, load=os.getloadavg())


if __name__ == "__main__":
    main()
