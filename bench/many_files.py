#!/usr/bin/env python3
"""Many empty files in one volume: does the create rate hold, is memory bounded, how fast is the
volume back?

    bench/many_files.py [--files 10000000] [--out target/bench] [--scratch DIR]
                        [--metadata-memory 512M]

PROCESSES processes create the files through a mount, in directories of 100,000. After each
twentieth part the same processes create in the null FUSE file system for a while, so that a machine
with a speed that drifts shows in both: the rate is also given as a ratio to it. Then: `kestrel
info` of the top directory and of one with a tenth of the files below, clean unmount and remount,
kill -9 and remount, disk per file, fsck. Writes many-files.json and many-files.svg.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from common import KESTREL, ROOT, run

PROCESSES = 4
DIRECTORY_FILES = 100_000
PARTS = 20
NULL_FILES = 40_000
# Bars of issue 2.
BARS = {
    "create rate, last tenth / first tenth, each over the null file system's": (">=", 0.8),
    "remount after a clean stop, s": ("<=", 5),
    "remount after kill -9, s": ("<=", 30),
    "disk per file, bytes": ("<=", 200),
}


def create(top, first, count):
    """Files number first .. first + count, below top/GROUP/DIRECTORY."""
    handle, current = None, None
    for number in range(first, first + count):
        directory = number // DIRECTORY_FILES
        if directory != current:
            current = directory
            path = f"{top}/{directory % 10}/{directory}"
            os.makedirs(path, exist_ok=True)
            if handle is not None:
                os.close(handle)
            handle = os.open(path, os.O_DIRECTORY)
        os.close(
            os.open(f"f{number:08}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=handle)
        )


def in_processes(top, first, count):
    """Files a second of PROCESSES processes that share the work."""
    share = count // PROCESSES
    children, begun = [], time.monotonic()
    for process in range(PROCESSES):
        child = os.fork()
        if child == 0:
            try:
                create(top, first + process * share, share)
                os._exit(0)
            except BaseException as why:
                print(f"create: {why}", flush=True)
                os._exit(1)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        raise SystemExit("a creating process failed")
    return count / (time.monotonic() - begun)


def memory(pid):
    """Resident and anonymous resident bytes of a process."""
    lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return int(lines["VmRSS"].split()[0]) * 1024, int(lines["RssAnon"].split()[0]) * 1024


def mount(volume, directory, options):
    begun = time.monotonic()
    run(KESTREL, "mount", volume, directory, "--metadata-memory", options.metadata_memory)
    took = time.monotonic() - begun
    return took, json.loads(run(KESTREL, "status", volume, "--json"))["pid"]


def disk_bytes(path):
    return sum(
        os.stat(os.path.join(at, name)).st_blocks * 512
        for at, _, names in os.walk(path)
        for name in names
    )


def milliseconds(*command):
    begun = time.monotonic()
    run(*command)
    return (time.monotonic() - begun) * 1000


def measure(options, scratch, found):
    volume, mnt, null = (os.path.join(scratch, name) for name in ("volume", "mnt", "null"))
    os.makedirs(mnt)
    os.makedirs(null)
    run(KESTREL, "format", volume)
    _, pid = mount(volume, mnt, options)
    # In a session of its own, as a mount is: the kernel shares processors out among sessions
    # (sched_autogroup).
    nothing = subprocess.Popen([KESTREL, "null-fs", null], start_new_session=True)
    try:
        while not os.path.ismount(null):
            time.sleep(0.05)
        part = options.files // PARTS
        for index in range(PARTS):
            rate = in_processes(mnt, index * part, part)
            limit = in_processes(null, index * NULL_FILES, NULL_FILES)
            resident, anonymous = memory(pid)
            found["parts"].append(
                {"rate": rate, "null_rate": limit, "resident": resident, "anonymous": anonymous}
            )
            print(
                f"{(index + 1) * part:>12,} files: {rate:>8,.0f}/s, null {limit:>8,.0f}/s, memory "
                f"{resident / 1e6:,.0f} MB",
                flush=True,
            )
    finally:
        subprocess.run(["umount", null], check=False)
        nothing.wait(30)
    found["info of everything, ms"] = milliseconds(KESTREL, "info", mnt)
    found["info of a tenth, ms"] = milliseconds(KESTREL, "info", f"{mnt}/0")
    found["clean unmount, s"] = milliseconds(KESTREL, "umount", mnt) / 1000
    found["disk per file, bytes"] = disk_bytes(f"{volume}/meta") / options.files
    found["remount after a clean stop, s"], pid = mount(volume, mnt, options)
    # Work that recovery has to replay: as many changes as the log keeps.
    in_processes(f"{mnt}/again", 0, min(options.files, 1_000_000))
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    run("umount", "-l", mnt)
    found["remount after kill -9, s"], pid = mount(volume, mnt, options)
    found["memory after it, bytes"] = memory(pid)[0]
    run(KESTREL, "umount", mnt)
    begun = time.monotonic()
    found["fsck"] = run(KESTREL, "fsck", volume).strip().splitlines()[-1]
    found["fsck, s"] = time.monotonic() - begun


def judge(found):
    parts = found["parts"]
    tenth = max(1, len(parts) // 10)

    def ratio(some):
        return sum(part["rate"] / part["null_rate"] for part in some) / len(some)

    found["create rate, last tenth / first tenth"] = sum(p["rate"] for p in parts[-tenth:]) / sum(
        p["rate"] for p in parts[:tenth]
    )
    found["create rate, last tenth / first tenth, each over the null file system's"] = ratio(
        parts[-tenth:]
    ) / ratio(parts[:tenth])
    found["largest memory, bytes"] = max(part["resident"] for part in parts)
    for name, (sign, bar) in BARS.items():
        met = found[name] >= bar if sign == ">=" else found[name] <= bar
        print(f"  {'met   ' if met else 'MISSED'} {name}: {found[name]:.3g} (wanted {sign} {bar})")


def plot(found, path):
    """Rates over the number of files, as SVG."""
    parts, width, height = found["parts"], 720, 300
    top = max(max(part["rate"], part["null_rate"]) for part in parts) * 1.1
    lines = []
    for name, colour in (("null_rate", "#999"), ("rate", "#06c")):
        points = " ".join(
            f"{60 + index * (width - 80) / max(1, len(parts) - 1):.1f},"
            f"{height - 30 - part[name] / top * (height - 60):.1f}"
            for index, part in enumerate(parts)
        )
        lines.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'
        )
    text = (
        f"creates/s through a mount, 0 to {found['files']:,} files (grey: null FUSE), 0 to "
        f"{top:,.0f}/s"
    )
    with open(path, "w") as out:
        out.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/><text x="60" y="18">{text}</text>'
            f'<path d="M60 30V{height - 30}H{width - 20}" fill="none" '
            f'stroke="black"/>{"".join(lines)}</svg>\n'
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000_000)
    parser.add_argument("--out", default=f"{ROOT}/target/bench")
    parser.add_argument("--scratch", default="/var/tmp")
    parser.add_argument("--metadata-memory", default="512M")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="kestrel-many.", dir=options.scratch)
    found = {"files": options.files, "metadata_memory": options.metadata_memory, "parts": []}
    try:
        measure(options, scratch, found)
        judge(found)
    finally:
        for name in ("mnt", "null"):
            if os.path.ismount(os.path.join(scratch, name)):
                subprocess.run(["umount", "-l", os.path.join(scratch, name)], check=False)
        with open(f"{options.out}/many-files.json", "w") as out:
            json.dump(found, out, indent=1)
        if found["parts"]:
            plot(found, f"{options.out}/many-files.svg")
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({name: value for name, value in found.items() if name != "parts"}, indent=1))


if __name__ == "__main__":
    main()
