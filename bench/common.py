"""What the benchmarks have in common: where the programs are, how they are run, served volumes, the
end of a run."""

import argparse
import contextlib
import glob
import html
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target")
JUDGES = os.environ.get("KESTREL_JUDGES", f"{TARGET}/release")
KESTREL = os.environ.get("KESTREL", f"{JUDGES}/kestrel")
EXAMPLES = os.environ.get("KESTREL_EXAMPLES", f"{TARGET}/release/examples")
TOOLS = os.environ.get("KESTREL_TOOLS", os.path.expanduser("~/.cache/kestrel-tools"))
SWITCH = "/sys/module/fuse/parameters/enable_uring"


def run(*command, **options):
    """Runs a program to its end; what it said. If it fails, so does the benchmark."""
    done = subprocess.run(
        [str(word) for word in command], text=True, capture_output=True, **options
    )
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


@contextlib.contextmanager
def io_uring():
    """Switches FUSE over io_uring on for as long; gives whether the kernel has it and this user
    may."""
    if not os.access(SWITCH, os.W_OK):
        yield False
        return
    with open(SWITCH, encoding="ascii") as file:
        saved = file.read()
    try:
        with open(SWITCH, "w", encoding="ascii") as file:
            file.write("Y")
        yield True
    finally:
        with open(SWITCH, "w", encoding="ascii") as file:
            file.write(saved)


class Server:
    """A volume of its own, served."""

    def __init__(self, scratch, *format_options, serve_options=(), program=KESTREL):
        self.dir, self.program = tempfile.mkdtemp(dir=scratch), program
        self.volume = f"{self.dir}/volume"
        run(program, "format", self.volume, *format_options)
        said = run(program, "serve", self.volume, "--listen", "127.0.0.1:0", *serve_options)
        self.volumes = [self.volume]
        self.url = re.search(r"kestrel://\S+", said).group()
        self.address, self.name = self.url.removeprefix("kestrel://").split("/")

    def stop(self):
        run(self.program, "serve", self.volume, "--stop")
        shutil.rmtree(self.dir)


class Null:
    """The null FUSE file system: it answers at once, and is the limit of any mount."""

    def __init__(self, scratch, *options):
        self.dir = tempfile.mkdtemp(dir=scratch)
        # In a session of its own, as a mount is: the kernel shares processors out among sessions
        # (sched_autogroup).
        command = [KESTREL, "null-fs", self.dir, *options]
        self.process = subprocess.Popen(command, start_new_session=True)
        self.pid = self.process.pid
        for _ in range(100):
            if os.path.ismount(self.dir):
                return
            time.sleep(0.05)
        raise SystemExit("the null file system did not come up")

    def close(self):
        subprocess.run(["umount", self.dir], check=False)
        self.process.wait(30)


class Local:
    """A directory on the disk that the volumes are on."""

    pid = None

    def __init__(self, scratch):
        self.dir = tempfile.mkdtemp(dir=scratch)

    def close(self):
        pass


def free_ports(count):
    """Ports of loopback that nobody listens at now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]


class Cluster:
    """A volume of its own that several metadata nodes share, all of them on this machine."""

    def __init__(self, scratch, count, *options):
        self.dir = tempfile.mkdtemp(dir=scratch)
        addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        # The first has a server's place, so that what is left over is found there.
        self.volumes = [
            f"{self.dir}/volume",
            *(f"{self.dir}/{node}/volume" for node in range(2, count + 1)),
        ]
        nodes = [word for address in addresses for word in ("--node", address)]
        made = json.loads(
            run(KESTREL, "cluster", "init", self.volumes[0], "--json", *nodes, *options)
        )
        for node, volume in enumerate(self.volumes[1:], start=2):
            os.mkdir(os.path.dirname(volume))
            run(KESTREL, "cluster", "join", "-", volume, "--node", node, input=made["token"])
        for volume in self.volumes:
            run(KESTREL, "serve", volume)
        self.address, self.name = addresses[0], made["name"]
        self.url = f"kestrel://{self.address}/{self.name}"

    def stop(self):
        for volume in self.volumes:
            run(KESTREL, "serve", volume, "--stop")
        shutil.rmtree(self.dir)


def cluster(scratch, count):
    """A volume of so many nodes, which may be one: with the durability of a cluster in any case."""
    return Cluster(scratch, count) if count > 1 else Server(scratch, "--durability", "commit")


def cpu_of(pid):
    """Seconds of CPU that a process has used."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
        except FileNotFoundError:
            pass
    return total / 1e9


def children_cpu():
    """Seconds of CPU of processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mounted(volume):
    """The process that mounts a volume."""
    return int(re.search(r'"pid": *(\d+)', run(KESTREL, "status", volume, "--json")).group(1))


def take_away(scratch):
    """Unmounts and ends what an unfinished run has left below `scratch`, and removes that."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        points = [line.split()[4] for line in mounts]
    for point in points:
        if point.startswith(scratch):
            subprocess.run([KESTREL, "umount", "--force", point], capture_output=True)
    for volume in glob.glob(f"{scratch}/*/volume") + glob.glob(f"{scratch}/*/*/volume"):
        subprocess.run([KESTREL, "serve", volume, "--stop"], capture_output=True)
    shutil.rmtree(scratch, ignore_errors=True)


def timed(call, *arguments):
    """Seconds that a call takes."""
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


@contextlib.contextmanager
def scratch_for(out):
    """A directory for a benchmark that will report to `out`; nothing of it stays."""
    os.makedirs(os.path.dirname(out), exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="kestrel-bench-", dir="/var/tmp")
    try:
        yield scratch
    finally:
        take_away(scratch)


def options_of(doc, name, rounds, full="the sizes of the issue"):
    """The options that benchmarks of data sets have."""
    options = argparse.ArgumentParser(description=doc.splitlines()[0])
    options.add_argument("--full", action="store_true", help=full)
    options.add_argument("--rounds", type=int, default=rounds)
    options.add_argument("--out", default=f"{TARGET}/bench/{name}")
    return options


def bars(path, lines, unit, digits=1, left=180):
    """A plot of one bar a line: lines are names, values and whether they are ours."""
    step, longest = 26, max(value for _, value, _ in lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 540}" '
        f'height="{step * len(lines) + 8}" font-family="sans-serif" font-size="12">'
    ]
    for number, (name, value, is_ours) in enumerate(lines):
        y, long = number * step + 4, 380 * value / longest
        colour = "#48c" if is_ours else "#999"
        parts.append(f'<text x="4" y="{y + 14}">{html.escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="18" fill="{colour}"/>')
        text = f"{value:.{digits}f} {unit}"
        parts.append(f'<text x="{left + 6 + long:.1f}" y="{y + 14}">{text}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n</svg>\n")


def conclude(path, rows, judged, plot, **more):
    """Says which bars were met, and writes `path`.json and, by `plot`, `path`.svg."""
    for text, met in judged:
        print(f"{'ok  ' if met else 'MISS'} {text}")
    report = {
        "cores": os.cpu_count(),
        **more,
        "rows": rows,
        "bars": [{"what": text, "met": met} for text, met in judged],
    }
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    plot(f"{path}.svg", rows)
    print(f"\n{path}.json, {path}.svg")
