"""The load of demo-cluster: ingest through one mount, while a server is killed and started again
and then another one joins, everything verified through the other mount, then a table. Called by
demo-cluster.sh."""

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time

from demo import stats, verify
from demo_s3 import walk

DOWN_SECONDS = 1.0
# When what happens meanwhile happens: after so much of the files.
DIES_AFTER, JOINS_AFTER = 0.25, 0.5


def make_dir(path):
    os.mkdir(path)


def ingest(arguments):
    """Copies the files of one process; returns (files, bytes, digests, longest time for one
    file)."""
    source, target, names, number = arguments
    total, digests, longest = 0, {}, 0.0
    for name in names:
        with open(os.path.join(source, name), "rb") as file:
            content = file.read()
        begin = time.monotonic()
        with open(os.path.join(target, name), "wb") as file:
            file.write(content)
        longest = max(longest, time.monotonic() - begin)
        total += len(content)
        digests[name] = hashlib.blake2b(content).hexdigest()
        COUNTERS[number].value += 1
    return len(names), total, digests, longest


COUNTERS = []


def written():
    return sum(counter.value for counter in COUNTERS)


class Events:
    """What happens to the servers while the load goes on. A failure of theirs is the demo's."""

    def __init__(self, options):
        self.options, self.begun, self.told, self.failure = options, time.monotonic(), [], None

    def run(self, *words, stdin=None):
        return subprocess.run(
            [self.options.kestrel, *words], check=True, capture_output=True, text=True, input=stdin
        ).stdout

    def tell(self, text):
        text = f"{time.monotonic() - self.begun:5.1f} s, {written():6,} files: {text}"
        self.told.append(text)
        print(text, flush=True)

    def crash_and_come_back(self):
        volume, address = self.options.dies
        pid = json.loads(self.run("status", volume, "--json"))["pid"]
        os.kill(pid, signal.SIGKILL)
        self.tell(f"kill -9 of the server at {address}")
        time.sleep(DOWN_SECONDS)
        start = time.monotonic()
        self.run("serve", volume, "--listen", address)
        self.tell(f"it is back, {time.monotonic() - start:.2f} s after its start")

    def join(self):
        volume, address = self.options.joins
        start = time.monotonic()
        token = self.run("cluster", "add-node", self.options.coordinator, "--node", address)
        self.run("cluster", "join", "-", volume, stdin=token)
        self.run("serve", volume)
        self.tell(
            f"another node serves at {address}, {time.monotonic() - start:.2f} s after it was "
            "announced; it has no part yet"
        )
        start = time.monotonic()
        self.run("cluster", "balance", self.options.url)
        self.tell(
            f"`kestrel cluster balance` has given it one, in {time.monotonic() - start:.2f} s"
        )

    def happen(self, files):
        """Runs beside the load of so many files."""
        events = [(DIES_AFTER, self.crash_and_come_back)]
        if self.options.joins:
            events.append((JOINS_AFTER, self.join))
        try:
            for after, event in events:
                while written() < files * after:
                    time.sleep(0.01)
                event()
        except subprocess.CalledProcessError as failed:
            self.failure = (
                f"{' '.join(failed.cmd)}: exit {failed.returncode}\n{failed.stdout}{failed.stderr}"
            )
        except BaseException as why:
            self.failure = repr(why)


def options():
    parser = argparse.ArgumentParser()
    for name in ("source", "one", "two"):
        parser.add_argument(name)
    for name in ("url", "kestrel", "files", "coordinator"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--processes", type=int)
    for name in ("dies", "joins"):
        parser.add_argument(f"--{name}", nargs=2)
    return parser.parse_args()


def chosen(given):
    """What is ingested: as many files as are wanted, spread evenly over the tree, and the
    directories they need."""
    files, dirs, links = walk(given.source)
    files.sort()
    if given.files != "all":
        wanted = min(int(given.files), len(files))
        files = [files[number * len(files) // wanted] for number in range(wanted)]
        dirs = set()
        for path in files + links:
            while path := os.path.dirname(path):
                dirs.add(path)
    return files, dirs, links


def show_balance(given):
    """What each node owns, before and after names that many directories have are spread."""
    for words in (
        ["status", given.url, "--count"],
        ["balance", given.url],
        ["status", given.url, "--count"],
    ):
        print("== kestrel cluster", *(word for word in words if word != given.url), flush=True)
        subprocess.run([given.kestrel, "cluster", *words], check=True)


def main():
    given = options()
    files, dirs, links = chosen(given)
    one, two, processes = given.one, given.two, given.processes
    for path in files:  # the source into the page cache: what is measured is the volume
        with open(os.path.join(given.source, path), "rb") as file:
            while file.read(1 << 20):
                pass
    print(
        f"== ingest {len(files):,} files, {len(dirs):,} directories with {processes} processes "
        "through the first mount",
        flush=True,
    )
    COUNTERS.extend(multiprocessing.Value("Q", 0, lock=False) for _ in range(processes))
    before, start = stats(given.kestrel, one), time.monotonic()
    with multiprocessing.Pool(processes) as pool:
        levels = {}
        for path in dirs:
            levels.setdefault(path.count("/"), []).append(os.path.join(one, path))
        for _, paths in sorted(levels.items()):
            pool.map(make_dir, paths)
        for path in links:
            os.symlink(os.readlink(os.path.join(given.source, path)), os.path.join(one, path))
        events = Events(given)
        beside = threading.Thread(target=events.happen, args=(len(files),), daemon=True)
        beside.start()
        shares = [(given.source, one, files[i::processes], i) for i in range(processes)]
        done = pool.map(ingest, shares)
        wrote_seconds, middle = time.monotonic() - start, stats(given.kestrel, one)
        events.tell("all are written")
        beside.join()
        if events.failure:
            raise SystemExit(events.failure)
        if given.joins:
            show_balance(given)
        print(
            "== read every file back in random order through the second mount and verify it",
            flush=True,
        )
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3\n")
        read_before, start = stats(given.kestrel, two), time.monotonic()
        read = pool.map(
            verify, [(two, digests, seed) for seed, (_, _, digests, _) in enumerate(done)]
        )
        read_seconds = time.monotonic() - start
    after = stats(given.kestrel, two)
    wrong = [name for _, _, names in read for name in names]
    wrong += [
        path
        for path in links
        if os.readlink(os.path.join(given.source, path)) != os.readlink(os.path.join(two, path))
    ]
    count, total = sum(each[0] for each in done), sum(each[1] for each in done)

    def row(name, seconds, begin, end):
        asked = end["metadata_requests_total"] - begin["metadata_requests_total"]
        print(
            f"{name:34} {count / seconds:8,.0f} {total / seconds / 1e6:7.1f} {seconds:8.1f} "
            f"{asked:18,} {asked / count:8.2f}"
        )

    print(
        f"\n{'':34} {'files/s':>8} {'MB/s':>7} {'seconds':>8} {'metadata requests':>18} "
        f"{'per file':>8}"
    )
    row("ingest, with all that", wrote_seconds, before, middle)
    row("random read at the other mount", read_seconds, read_before, after)
    print(
        f"\nthe longest time any file took meanwhile was {max(each[3] for each in done):.2f} s; no "
        "call failed;"
    )
    retries, reconnects = (
        middle[f"metadata_{name}_total"] - before[f"metadata_{name}_total"]
        for name in ("retries", "reconnects")
    )
    print(f"{retries} calls were sent again after {reconnects} reconnects, each executed once\n")
    if wrong:
        raise SystemExit(f"{len(wrong)} files differ from their source: {wrong[:5]}")
    print(f"all {count:,} files and {len(links)} symbolic links are as their source, byte by byte")


if __name__ == "__main__":
    main()
