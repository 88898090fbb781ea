"""The demo's load: ingest and verify with several processes, then a table. Called by demo.sh."""

import hashlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def ingest(arguments):
    """Copies the files of one process; returns (files, bytes, digests)."""
    source, target, names = arguments
    total, digests = 0, {}
    for name in names:
        with open(os.path.join(source, name), "rb") as file:
            content = file.read()
        with open(os.path.join(target, name), "wb") as file:
            file.write(content)
        total += len(content)
        digests[name] = hashlib.blake2b(content).hexdigest()
    return len(names), total, digests


def verify(arguments):
    """Reads the files of one process in random order; returns (files, bytes, differences)."""
    target, wanted, seed = arguments
    names = list(wanted)
    random.Random(seed).shuffle(names)
    total, wrong = 0, []
    for name in names:
        path = os.path.join(target, name)
        if digest(path) != wanted[name]:
            wrong.append(name)
        total += os.path.getsize(path)
    return len(names), total, wrong


def stats(kestrel, target):
    return json.loads(
        subprocess.run(
            [kestrel, "stats", target, "--once", "--json"], check=True, capture_output=True
        ).stdout
    )


def main():
    source, target, processes, kestrel, volume = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        sys.argv[4],
        sys.argv[5],
    )
    files, dirs, links = [], [], []
    for root, subdirs, names in os.walk(source):
        relative = os.path.relpath(root, source)
        dirs += [
            os.path.normpath(os.path.join(relative, d))
            for d in subdirs
            if not os.path.islink(os.path.join(root, d))
        ]
        for name in names + [d for d in subdirs if os.path.islink(os.path.join(root, d))]:
            path = os.path.normpath(os.path.join(relative, name))
            (links if os.path.islink(os.path.join(root, name)) else files).append(path)
    for path in files[:]:  # the source into the page cache: what is measured is the volume
        with open(os.path.join(source, path), "rb") as file:
            while file.read(1 << 20):
                pass
    print(f"== ingest {len(files):,} files, {len(dirs):,} directories with {processes} processes")
    before = stats(kestrel, target)["metadata_requests_total"]
    start = time.monotonic()
    for path in sorted(dirs):
        os.mkdir(os.path.join(target, path))
    for path in links:
        os.symlink(os.readlink(os.path.join(source, path)), os.path.join(target, path))
    shares = [files[i::processes] for i in range(processes)]
    with multiprocessing.Pool(processes) as pool:
        written = pool.map(ingest, [(source, target, share) for share in shares])
        wrote_seconds = time.monotonic() - start
        middle = stats(kestrel, target)["metadata_requests_total"]
        print("== read every file back in random order and verify it")
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3\n")
        start = time.monotonic()
        read = pool.map(
            verify, [(target, digests, seed) for seed, (_, _, digests) in enumerate(written)]
        )
        read_seconds = time.monotonic() - start
    after = stats(kestrel, target)["metadata_requests_total"]
    wrong = [name for _, _, names in read for name in names]
    wrong += [
        path
        for path in links
        if os.readlink(os.path.join(source, path)) != os.readlink(os.path.join(target, path))
    ]
    status = json.loads(
        subprocess.run(
            [kestrel, "status", volume, "--json"], check=True, capture_output=True
        ).stdout
    )
    count, total = sum(n for n, _, _ in written), sum(b for _, b, _ in written)
    print(f"\n{'':22} {'files/s':>10} {'MB/s':>8} {'seconds':>8} {'metadata operations':>20}")
    print(
        f"{'ingest':22} {count / wrote_seconds:10,.0f} {total / wrote_seconds / 1e6:8.1f} "
        f"{wrote_seconds:8.1f} {middle - before:20,}"
    )
    print(
        f"{'random read, verified':22} {count / read_seconds:10,.0f} "
        f"{total / read_seconds / 1e6:8.1f} {read_seconds:8.1f} {after - middle:20,}"
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
    print(f"all {count:,} files and {len(links)} symbolic links are as their source, byte by byte")


if __name__ == "__main__":
    main()
