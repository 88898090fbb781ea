"""The load of demo-s3: ingest, cold and warm reads with several processes, then a table. Called by
demo-s3.sh."""

import json
import multiprocessing
import os
import subprocess
import sys
import time

from demo import ingest, stats, verify


def walk(source):
    """(files, directories, links) below `source`, relative."""
    files, dirs, links = [], [], []
    for root, subdirs, names in os.walk(source):
        relative = os.path.relpath(root, source)
        is_link = {name: os.path.islink(os.path.join(root, name)) for name in names + subdirs}
        dirs += [
            os.path.normpath(os.path.join(relative, name)) for name in subdirs if not is_link[name]
        ]
        links += [
            os.path.normpath(os.path.join(relative, name))
            for name in names + subdirs
            if is_link[name]
        ]
        files += [
            os.path.normpath(os.path.join(relative, name)) for name in names if not is_link[name]
        ]
    return files, dirs, links


class Demo:
    """The mount, and what each step cost."""

    def __init__(self, kestrel, volume, target, work):
        self.kestrel, self.volume, self.target, self.work = kestrel, volume, target, work
        self.rows = []

    def run(self, *words):
        subprocess.run([self.kestrel, *words], check=True, stdout=subprocess.DEVNULL)

    def mount(self, cache):
        """Mounts anew: what was in memory is gone."""
        if os.path.ismount(self.target):
            self.run("umount", self.target)
        self.run(
            "mount",
            self.volume,
            self.target,
            "--cache-dir",
            os.path.join(self.work, cache),
            "--free-space-ratio",
            "0.01",
        )

    def step(self, name, action):
        before, begin = stats(self.kestrel, self.target), time.monotonic()
        done = action()
        seconds, after = time.monotonic() - begin, stats(self.kestrel, self.target)
        self.rows.append(
            (name, sum(n for n, _, _ in done), sum(b for _, b, _ in done), seconds, before, after)
        )
        return done

    def table(self):
        print(
            f"\n{'':24} {'files/s':>8} {'MB/s':>7} {'seconds':>8} {'PUTs':>7} {'GETs':>7} "
            f"{'files/request':>14} {'cache hits':>11}"
        )
        for name, files, size, seconds, before, after in self.rows:

            def grown(figure):
                return after[figure] - before[figure]

            puts, gets = grown("store_put_requests_total"), grown("store_get_requests_total")
            hits, misses = grown("cache_disk_hits_total"), grown("cache_disk_misses_total")
            rate = f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "-"
            per_request = f"{files / (puts + gets):.1f}" if puts + gets else "-"
            print(
                f"{name:24} {files / seconds:8,.0f} {size / seconds / 1e6:7.1f} {seconds:8.1f} "
                f"{puts:7,} {gets:7,} {per_request:>14} {rate:>11}"
            )


def main():
    source, target, processes, kestrel, volume, work = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        *sys.argv[4:7],
    )
    files, dirs, links = walk(source)
    for path in files:  # the source into the page cache: what is measured is the volume
        with open(os.path.join(source, path), "rb") as file:
            while file.read(1 << 20):
                pass
    demo = Demo(kestrel, volume, target, work)
    demo.mount("cache-of-the-writer")
    print(f"== ingest {len(files):,} files, {len(dirs):,} directories with {processes} processes")
    for path in sorted(dirs):
        os.mkdir(os.path.join(target, path))
    for path in links:
        os.symlink(os.readlink(os.path.join(source, path)), os.path.join(target, path))
    shares = [files[i::processes] for i in range(processes)]
    with multiprocessing.Pool(processes) as pool:
        written = demo.step(
            "ingest", lambda: pool.map(ingest, [(source, target, share) for share in shares])
        )
        wanted = [(target, digests, seed) for seed, (_, _, digests) in enumerate(written)]
        read = []
        for name, cache in (("cold, from the store", "cache"), ("warm, from the cache", "cache")):
            print(f"== read every file back in random order and verify it: {name}")
            demo.mount(cache)
            read += demo.step(f"read {name}", lambda: pool.map(verify, wanted))
    wrong = [name for _, _, names in read for name in names]
    wrong += [
        path
        for path in links
        if os.readlink(os.path.join(source, path)) != os.readlink(os.path.join(target, path))
    ]
    demo.table()
    status = json.loads(
        subprocess.run(
            [kestrel, "status", volume, "--json"], check=True, capture_output=True
        ).stdout
    )
    print(
        f"\nthe volume holds {status['files']:,} files, {status['directories']:,} directories, "
        f"{status['bytes'] / 1e6:,.0f} MB"
    )
    print(
        f"the store holds {status['objects']:,} objects, {status['object_bytes'] / 1e6:,.0f} MB; "
        f"metadata on disk {status['metadata_disk_bytes'] / 1e6:,.0f} MB\n"
    )
    if wrong:
        sys.exit(f"{len(wrong)} files differ from their source: {wrong[:5]}")
    print(
        f"all {len(files):,} files and {len(links)} symbolic links are as their source, byte by "
        "byte, cold and warm"
    )


if __name__ == "__main__":
    main()
