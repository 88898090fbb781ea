"""The load of demo-cluster: ingest through one mount, a server killed and started again meanwhile, everything verified
through the other mount, then a table. Called by demo-cluster.sh."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from demo import stats, verify
from demo_s3 import walk

DOWN_SECONDS = 1.0


def ingest(arguments):
    """Copies the files of one process; returns (files, bytes, digests, longest time for one file)."""
    source, target, names, done = arguments
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
        done.value += 1
    return len(names), total, digests, longest


def ingest_share(arguments):
    return ingest((*arguments[:3], COUNTERS[arguments[3]]))


class Server:
    """A process that serves the volume: one of its nodes, or the only one."""

    def __init__(self, kestrel, volume, address):
        self.kestrel, self.volume, self.address = kestrel, volume, address

    def status(self):
        return json.loads(subprocess.run([self.kestrel, "status", self.volume, "--json"], check=True, capture_output=True).stdout)

    def crash_and_come_back(self):
        """Returns (seconds without a process, seconds from its start until it serves)."""
        pid = self.status()["pid"]
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(DOWN_SECONDS)
        start = time.monotonic()
        subprocess.run([self.kestrel, "serve", self.volume, "--listen", self.address], check=True, stdout=subprocess.DEVNULL)
        return start - killed, time.monotonic() - start


COUNTERS = []


def main():
    source, one, two, processes, kestrel, volume, address = sys.argv[1:4] + [int(sys.argv[4])] + sys.argv[5:8]
    server = Server(kestrel, volume, address)
    files, dirs, links = walk(source)
    for path in files:  # the source into the page cache: what is measured is the volume
        with open(os.path.join(source, path), "rb") as file:
            while file.read(1 << 20):
                pass
    print(f"== ingest {len(files):,} files, {len(dirs):,} directories with {processes} processes through the first mount")
    COUNTERS.extend(multiprocessing.Value("Q", 0, lock=False) for _ in range(processes))
    before, start = stats(kestrel, one), time.monotonic()
    for path in sorted(dirs):
        os.mkdir(os.path.join(one, path))
    for path in links:
        os.symlink(os.readlink(os.path.join(source, path)), os.path.join(one, path))
    crash = {}

    def crash_half_way():
        while sum(counter.value for counter in COUNTERS) < len(files) // 2:
            time.sleep(0.01)
        print(f"== kill -9 of a server after {sum(c.value for c in COUNTERS):,} files, restart after {DOWN_SECONDS:.0f} s", flush=True)
        crash["down"], crash["start"] = server.crash_and_come_back()

    killer = threading.Thread(target=crash_half_way)
    with multiprocessing.Pool(processes) as pool:
        killer.start()
        shares = [(source, one, files[i::processes], i) for i in range(processes)]
        written = pool.map(ingest_share, shares)
        killer.join()
        wrote_seconds, middle = time.monotonic() - start, stats(kestrel, one)
        print("== read every file back in random order through the second mount and verify it")
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3\n")
        read_before, start = stats(kestrel, two), time.monotonic()
        read = pool.map(verify, [(two, digests, seed) for seed, (_, _, digests, _) in enumerate(written)])
        read_seconds = time.monotonic() - start
    after = stats(kestrel, two)
    wrong = [name for _, _, names in read for name in names]
    wrong += [path for path in links if os.readlink(os.path.join(source, path)) != os.readlink(os.path.join(two, path))]
    count, total = sum(done[0] for done in written), sum(done[1] for done in written)

    def row(name, seconds, begin, end):
        asked = end["metadata_requests_total"] - begin["metadata_requests_total"]
        print(f"{name:34} {count / seconds:8,.0f} {total / seconds / 1e6:7.1f} {seconds:8.1f} {asked:18,} {asked / count:8.2f}")

    print(f"\n{'':34} {'files/s':>8} {'MB/s':>7} {'seconds':>8} {'metadata requests':>18} {'per file':>8}")
    row("ingest, with the crash", wrote_seconds, before, middle)
    row("random read at the other mount", read_seconds, read_before, after)
    print(f"\nit was gone for {crash['down']:.2f} s and served {crash['start']:.2f} s after its start;")
    print(f"the longest time any file took meanwhile was {max(done[3] for done in written):.2f} s; no call failed;")
    retries, reconnects = (middle[f"metadata_{name}_total"] - before[f"metadata_{name}_total"] for name in ("retries", "reconnects"))
    print(f"{retries} calls were sent again after {reconnects} reconnect, each executed once\n")
    if wrong:
        sys.exit(f"{len(wrong)} files differ from their source: {wrong[:5]}")
    print(f"all {count:,} files and {len(links)} symbolic links are as their source, byte by byte")


if __name__ == "__main__":
    main()
