#!/usr/bin/env python3
"""One metadata server and its clients on this machine, measured.

    bench/cluster.py [--out target/bench] [--scratch DIR] [--seconds 3] [--rounds 3]
                     [--depths 1,16,256,1024] [--quick]
                     [--only echo,native,tls,threads,merging,shared,bursts,mount,nodes,times]
                     [--nodes 1,2,4]

- echo: the physical limit: the same frames between the same sockets, answered by a server that does
  nothing (crates/network/rpc/examples/echo); `raw` is written by hand, `link` has everything but a
  node.
- native: one connection with whole paths, 1 to 1,024 calls in flight
  (crates/network/rpc/examples/netload); requests are counted.
- tls: the same with 16 and 256 in flight, in clear and encrypted.
- threads: 64 threads that wait for each answer, as the prototype of issue 4 had.
- merging: 256 calls in flight with a server that executes what has come together, and with one that
  executes one at a time.
- shared: 256 in flight with all files in one directory, and in 64.
- bursts: 1,000 directories; 1 to 1,000 calls, one after the other, are for the same one.
- mount: `kestrel bench` on a mount of the server, beside a mount of an embedded volume.
- nodes: the same load, 256 in flight, on volumes that several metadata nodes share (on this
  machine, so they share its processors and its disk), natively and by a mount; of one node for
  comparison. Then, 16 and 256 in flight, what concerns several of them, with the messages between
  them and the writes these leave with counted, and listings of a directory of 10,000 files by the
  mount.
- times: three nodes with a mount; from kill -9 of one, which is started again at once, to the first
  answer about a name of its own; what it takes a fourth to be announced, to join and serve, and to
  get its part.

The server commits as a cluster does (`--durability commit`: every acknowledged change is on disk)
and, for comparison, as an embedded volume does. Rounds are run in turn and the median is taken.
Prints figures and the bars of issue 4, writes cluster.json and cluster.svg. Client, server and disk
share the machine, so absolute figures mean something only on a quiet one; requests per operation
and ratios within a run repeat. `--quick` is one round of half a second each: a few minutes.
"""

import argparse
import contextlib
import glob
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import common
from common import EXAMPLES, KESTREL, ROOT, run, take_away

BURSTS = (1, 10, 100, 1000)
# Names of which some are each node's.
NAMES = 60
# Files of a directory that is listed, and how often.
LISTED, LISTINGS = 10_000, 20

# (way, operation, calls in flight, operations a second at least)
BARS = [
    ("native, commit", "stat", 256, 800_000),
    ("native, commit", "create", 256, 150_000),
]
# Requests an operation on a deep path may take.
REQUESTS = {"stat": 1, "create": 1, "open": 1, "unlink": 1, "mkdir": 1}
# One shared directory against private ones, and bursts against none, at least.
SHARED_BAR = 0.95
# By 64 blocking threads: 80 % of what the prototype did.
THREADS_BARS = {"stat": 48_000, "create": 33_600}


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def cpu_seconds(pids):
    """User and system time of these processes so far."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            words = stat.read().rsplit(")", 1)[1].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def envelopes(cluster):
    """What nodes have said to each other so far."""
    status = [json.loads(run(KESTREL, "status", volume, "--json")) for volume in cluster.volumes]
    return sum(peer["envelopes"] for node in status for peer in node.get("peers") or [])


def is_alive(pid):
    """Whether a thread of the process has not ended. (Nobody may have asked yet how the process
    did.)"""
    states = []
    for path in glob.glob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as stat:
            states.append(stat.read().rsplit(")", 1)[1].split()[0])
    return any(state != "Z" for state in states) or len(states) > 1


class Look(threading.Thread):
    """A stat, and when it was answered."""

    def __init__(self, path):
        super().__init__()
        self.path, self.answered = path, None
        self.start()

    def run(self):
        os.stat(self.path)
        self.answered = time.monotonic()


class Bench:
    def __init__(self, options):
        self.options = options
        self.rows = []

    def add(self, way, operation, depth, **figures):
        self.rows.append({"way": way, "operation": operation, "in_flight": depth, **figures})

    def echo(self):
        for row in lines(run(f"{EXAMPLES}/echo", self.options.seconds)):
            if row["way"] != "threads" or row["in_flight"] == 64:
                self.add(
                    f"echo, {row['way']}", "echo", row["in_flight"], per_s=row["requests_per_s"]
                )

    def netload(self, way, durability, directories, depths, *what, serve_options=()):
        server = common.Server(
            self.options.scratch, "--durability", durability, serve_options=serve_options
        )
        self.load(way, server, [server.volume], directories, depths, *what)
        server.stop()

    def load(self, way, server, volumes, directories, depths, *what):
        pids = [json.loads(run(KESTREL, "status", volume, "--json"))["pid"] for volume in volumes]
        before = cpu_seconds(pids)
        words = (server.address, server.name, self.options.seconds, directories, depths, *what)
        command = [f"{EXAMPLES}/netload", *map(str, words)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            # A line for each operation, when it has been measured.
            for line in process.stdout:
                row, now = json.loads(line), cpu_seconds(pids)
                self.add(
                    way,
                    row["operation"],
                    row["in_flight"],
                    per_s=row["per_s"],
                    requests=row["requests_per_operation"],
                    messages=row["messages_per_operation"],
                    writes=row["writes_per_operation"],
                    server_cpu_us=(now - before) * 1e6 / max(1, row["operations"]),
                    client_cpu_us=row["client_cpu_us"],
                    failed=row["failed"],
                    p50_us=row["p50_us"],
                    p99_us=row["p99_us"],
                )
                before = now
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")

    def native(self):
        for durability in ("commit", "fsync"):
            self.netload(f"native, {durability}", durability, 64, self.options.depths)

    def shared(self):
        self.netload("64 directories", "commit", 64, "256")
        self.netload("one directory", "commit", 1, "256")

    def threads(self):
        self.netload("64 threads", "commit", 64, "64", "threads")

    def merging(self):
        self.netload("merging on", "commit", 64, "256")
        self.netload("merging off", "commit", 64, "256", serve_options=("--batch-max", 1))

    def tls(self):
        """Both ends on this machine: what encrypting costs each."""
        self.netload("in clear", "commit", 64, "16,256")
        self.netload(
            "encrypted", "commit", 64, "16,256", serve_options=("--tls", "on", "--access", "open")
        )

    def bursts(self):
        for burst in BURSTS:
            self.netload(f"bursts of {burst}", "commit", 1_000, "256", "files", burst)

    def mount(self):
        for durability in ("commit", "fsync"):
            server = common.Server(self.options.scratch, "--durability", durability)
            embedded = f"{server.dir}/embedded"
            run(KESTREL, "format", embedded, "--durability", durability)
            points = {}
            for way, volume in (
                (f"mount of a server, {durability}", server.url),
                (f"embedded mount, {durability}", embedded),
            ):
                points[way] = tempfile.mkdtemp(dir=server.dir)
                run(
                    KESTREL,
                    "mount",
                    volume,
                    points[way],
                    "--log",
                    f"{server.dir}/{len(points)}.log",
                )
            for way, point in points.items():
                self.load_mount(way, point)
            for point in points.values():
                run(KESTREL, "umount", point)
            server.stop()

    def load_mount(self, way, point):
        files = "200" if self.options.quick else "1000"
        words = (
            "--json",
            "--relative",
            "--warm",
            "--phase",
            "metadata",
            "--threads",
            "16",
            "--files",
            files,
        )
        for row in json.loads(run(KESTREL, "bench", point, *words))["results"]:
            self.add(
                way, row["op"], 16, per_s=row["per_second"], cpu_us=row["cpu_us_per_op_machine"]
            )

    def nodes(self):
        for count in (int(text) for text in self.options.nodes.split(",")):
            cluster = common.cluster(self.options.scratch, count)
            self.load(f"native, {count} nodes", cluster, cluster.volumes, 64, "256")
            self.load(f"changes, {count} nodes", cluster, cluster.volumes, 64, "16,256", "changes")
            point = tempfile.mkdtemp(dir=cluster.dir)
            run(KESTREL, "mount", cluster.url, point, "--log", f"{cluster.dir}/mount.log")
            self.load_mount(f"mount of {count} nodes", point)
            self.listing(f"mount of {count} nodes", cluster, point)
            run(KESTREL, "umount", point)
            cluster.stop()

    def listing(self, way, cluster, point):
        """What a listing of a directory costs, by `ls`, one after the other."""
        os.mkdir(f"{point}/listed")
        for number in range(LISTED):
            os.close(os.open(f"{point}/listed/{number:06}.jpg", os.O_CREAT | os.O_WRONLY))
        figures = json.loads(run(KESTREL, "stats", point, "--once", "--json"))
        asked, said, begun = (
            figures["metadata_requests_total"],
            envelopes(cluster),
            time.monotonic(),
        )
        for _ in range(LISTINGS):
            if len(os.listdir(f"{point}/listed")) != LISTED:
                raise SystemExit(f"{way}: a listing lacks names")
        took = time.monotonic() - begun
        said = envelopes(cluster) - said
        asked = (
            json.loads(run(KESTREL, "stats", point, "--once", "--json"))["metadata_requests_total"]
            - asked
        )
        figures = {
            "per_s": LISTINGS / took,
            "requests": asked / LISTINGS,
            "messages": said / LISTINGS,
        }
        self.add(way, f"ls of {LISTED:,}", 1, **figures)

    def times(self):
        cluster = common.cluster(self.options.scratch, 3)
        point = tempfile.mkdtemp(dir=cluster.dir)
        run(KESTREL, "mount", cluster.url, point, "--log", f"{cluster.dir}/mount.log")
        os.mkdir(f"{point}/dir")
        for number in range(NAMES):
            os.close(os.open(f"{point}/dir/{number}", os.O_CREAT | os.O_WRONLY))
        self.restart(cluster, point)
        began = time.monotonic()
        address = f"127.0.0.1:{common.free_ports(1)[0]}"
        token = run(KESTREL, "cluster", "add-node", cluster.volumes[0], "--node", address)
        os.mkdir(f"{cluster.dir}/4")
        cluster.volumes.append(f"{cluster.dir}/4/volume")
        run(KESTREL, "cluster", "join", "-", cluster.volumes[3], input=token)
        run(KESTREL, "serve", cluster.volumes[3])
        served = time.monotonic()
        run(KESTREL, "cluster", "balance", cluster.url)
        self.add("a fourth node", "serves", 1, seconds=served - began)
        self.add("a fourth node", "has its part", 1, seconds=time.monotonic() - served)
        run(KESTREL, "umount", point)
        cluster.stop()

    def restart(self, cluster, point):
        """Kills the second node. Which names are its own is seen while it is stopped."""
        volume = cluster.volumes[1]
        pid = json.loads(run(KESTREL, "status", volume, "--json"))["pid"]
        os.kill(pid, signal.SIGSTOP)
        looks = [Look(f"{point}/dir/{number}") for number in range(NAMES)]
        time.sleep(1)
        own = [look.path for look in looks if look.answered is None]
        os.kill(pid, signal.SIGCONT)
        for look in looks:
            look.join()
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        # As a supervisor would.
        while is_alive(pid):
            time.sleep(0.001)
        looks = [Look(path) for path in own]
        run(KESTREL, "serve", volume)
        for look in looks:
            look.join()
        self.add(
            "kill -9, start",
            "first answer",
            1,
            seconds=min(look.answered for look in looks) - begun,
        )

    def figure(self, way, operation, depth, what="per_s"):
        found = [
            row[what]
            for row in self.rows
            if (row["way"], row["operation"], row["in_flight"]) == (way, operation, depth)
            and what in row
        ]
        return statistics.median(found) if found else None

    def paired(self, way, operation):
        """Operations a second in each round, 256 in flight. Ratios are taken within a round: the
        machine's speed changes in between."""
        wanted = (way, operation, 256)
        return [
            row["per_s"]
            for row in self.rows
            if (row["way"], row["operation"], row["in_flight"]) == wanted
        ]


def medians(rows):
    """One row for each way, operation and depth."""
    groups = {}
    for row in rows:
        groups.setdefault((row["way"], row["operation"], row["in_flight"]), []).append(row)
    result = []
    for (way, operation, depth), group in groups.items():
        merged = {"way": way, "operation": operation, "in_flight": depth}
        for name in group[0]:
            if name not in merged:
                merged[name] = statistics.median(row[name] for row in group)
        result.append(merged)
    return result


def bars(bench):
    """(text, met) for every bar that was measured."""
    found = []
    for way, operation, depth, least in BARS:
        figure = bench.figure(way, operation, depth)
        if figure is not None:
            found.append(
                (
                    f"{way}: {operation} at {depth} in flight: {figure:,.0f}/s (goal {least:,})",
                    figure >= least,
                )
            )
    for operation, most in REQUESTS.items():
        native = [
            row
            for row in bench.rows
            if row["way"].startswith("native") and row["operation"] == operation
        ]
        counted = [row["requests"] for row in native if "requests" in row]
        if counted:
            worst = max(counted)
            found.append(
                (
                    f"requests for a {operation} of a deep path: {worst:.3f} (goal {most})",
                    worst <= most + 0.001,
                )
            )
    for operation, least in THREADS_BARS.items():
        figure = bench.figure("64 threads", operation, 64)
        if figure is not None:
            found.append(
                (
                    f"64 blocking threads: {operation}: {figure:,.0f}/s (goal {least:,})",
                    figure >= least,
                )
            )
    for operation in ("create", "stat"):
        on, off = (bench.paired(f"merging {way}", operation) for way in ("on", "off"))
        if on and off:
            ratio = statistics.median(one / other for one, other in zip(on, off))
            found.append((f"merging on / off: {operation}: {ratio:.2f} (goal above 1)", ratio > 1))
        private, shared = (
            bench.paired(way, operation) for way in ("64 directories", "one directory")
        )
        if private and shared:
            ratio = statistics.median(one / other for one, other in zip(shared, private))
            text = (
                f"{operation} in one shared directory against 64: {ratio:.2f} (goal {SHARED_BAR})"
            )
            found.append((text, ratio >= SHARED_BAR))
        bursts = [bench.paired(f"bursts of {burst}", operation) for burst in BURSTS]
        if all(bursts):
            ratios = [
                statistics.median(one / other for one, other in zip(rates, bursts[0]))
                for rates in bursts
            ]
            told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            text = (
                f"{operation} in bursts of 1, 10, 100, 1,000 against 1: {told} (goal {SHARED_BAR})"
            )
            found.append((text, min(ratios) >= SHARED_BAR))
    return found


def plot(path, rows):
    """Bars for what was measured at 256 in flight, or on the mount, on a logarithmic scale."""
    shown = [
        row for row in rows if "per_s" in row and (row["in_flight"] == 256 or "mount" in row["way"])
    ]
    height = 40 + 18 * len(shown)
    most = max((row["per_s"] for row in shown), default=1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    out.append(
        '<text x="10" y="20" font-size="14">operations a second (256 in flight; mounts: 16 '
        'threads)</text>'
    )
    for number, row in enumerate(shown):
        y = 36 + number * 18
        width = 480 * row["per_s"] / most
        out.append(
            f'<text x="250" y="{y + 11}" text-anchor="end">{row["way"]}: {row["operation"]}</text>'
        )
        out.append(
            f'<rect x="256" y="{y}" width="{max(width, 1):.0f}" height="14" fill="#4878a8"/>'
        )
        out.append(f'<text x="{262 + width:.0f}" y="{y + 11}">{row["per_s"]:,.0f}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*out, "</svg>"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR", "/var/tmp"))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depths", default="1,16,256,1024")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", default="echo,native,tls,threads,merging,shared,bursts,mount,nodes,times"
    )
    parser.add_argument("--nodes", default="1,2,4")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = min(options.seconds, 0.5), 1
    options.scratch = tempfile.mkdtemp(prefix="kestrel-bench.", dir=options.scratch)
    os.makedirs(options.out, exist_ok=True)
    bench = Bench(options)
    try:
        for number in range(options.rounds):
            for part in options.only.split(","):
                print(f"round {number + 1} of {options.rounds}: {part}", flush=True)
                getattr(bench, part)()
    finally:
        take_away(options.scratch)
    rows = medians(bench.rows)
    for row in rows:
        rest = ", ".join(
            f"{name} {value:,.10g}"
            for name, value in row.items()
            if name not in ("way", "operation", "in_flight")
        )
        print(f"{row['way']:<30} {row['operation']:<12} {row['in_flight']:>5}  {rest}")
    common.conclude(f"{options.out}/cluster", rows, bars(bench), plot)


if __name__ == "__main__":
    main()
