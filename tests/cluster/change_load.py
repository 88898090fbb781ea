#!/usr/bin/env python3
"""Several processes that work on two mounts of one volume until a file appears, and then verify
what they made, each through the other mount.

    change_load.py A B STOP [SEED]

Prints what went wrong, how much was done, and "N passed, N failed". No operation may fail, whatever
the volume's metadata nodes do meanwhile.
"""

import fcntl
import hashlib
import io
import multiprocessing
import os
import random
import sys
import tarfile
import time
import traceback

# Names that many directories have.
HOT = ["Makefile", "index.html", "__init__.py"]
SIZES = [0, 10, 3000, 5000, 60_000, 200_000]
# Steps that take longer have not failed, but a user that waits for them notices. One of Tar is
# several hundred operations.
SLOW, SLOW_TAR = 20, 300


def content(seed, size):
    return random.Random(seed).randbytes(size)


class Files:
    """Files of one process: made, written anew, renamed, removed through one mount, read through
    either."""

    def __init__(self, here, there, seed):
        self.mounts, self.random = (here, there), random.Random(seed)
        self.base, self.known, self.ops = f"files-{seed}", {}, 0
        os.mkdir(f"{here}/{self.base}")

    def path(self, name, mount=0):
        return f"{self.mounts[mount]}/{self.base}/{name}"

    def write(self, name):
        seed, size = self.random.random(), self.random.choice(SIZES)
        with open(self.path(name), "wb") as file:
            file.write(content(seed, size))
            if self.random.random() < 0.3:
                file.flush()
                os.fsync(file.fileno())
        self.known[name] = (seed, size)

    def check(self, name, mount):
        with open(self.path(name, mount), "rb") as file:
            found = file.read()
        seed, size = self.known[name]
        assert found == content(
            seed, size
        ), f"{name}: {len(found)} bytes are not the {size} that were written"

    def step(self):
        self.ops += 1
        kind = self.random.random()
        if kind < 0.4 or not self.known:
            below = f"d{self.random.randrange(1000)}"
            if not os.path.isdir(self.path(below)):
                os.mkdir(self.path(below))
            hot = self.random.random() < 0.4
            name = self.random.choice(HOT) if hot else f"file-{self.random.randrange(300)}"
            return self.write(f"{below}/{name}")
        name = self.random.choice(list(self.known))
        if kind < 0.65:
            self.check(name, self.random.randrange(2))
        elif kind < 0.85:
            to = f"{os.path.dirname(name)}/{self.random.choice(HOT + ['renamed', 'other'])}"
            os.rename(self.path(name), self.path(to))
            self.known[to] = self.known.pop(name)
        elif kind < 0.95:
            os.unlink(self.path(name))
            del self.known[name]
        else:
            below = os.path.dirname(name)
            expected = sorted(
                os.path.basename(one) for one in self.known if os.path.dirname(one) == below
            )
            assert sorted(os.listdir(self.path(below, self.random.randrange(2)))) == expected, below

    def verify(self):
        for name in self.known:
            self.check(name, 1)
        for below in {os.path.dirname(name) for name in self.known}:
            expected = sorted(
                os.path.basename(one) for one in self.known if os.path.dirname(one) == below
            )
            assert sorted(os.listdir(self.path(below, 1))) == expected, below


class Tar:
    """An archive that is unpacked again and again, and compared."""

    def __init__(self, here, there, seed):
        self.mounts, self.base, self.ops = (here, there), f"tar-{seed}", 0
        self.members, archive = {}, io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for number in range(150):
                name = (
                    f"src/m{number % 12}/{HOT[number % 3] if number < 36 else f'part-{number}.c'}"
                )
                data = content(seed * 1000 + number, SIZES[number % 5])
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                self.members[name] = hashlib.sha256(data).digest()
        self.archive = archive.getvalue()
        os.mkdir(f"{here}/{self.base}")

    def step(self):
        to = f"{self.base}/{self.ops}"
        os.mkdir(f"{self.mounts[0]}/{to}")
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            tar.extractall(f"{self.mounts[0]}/{to}", filter="data")
        self.ops += 1
        self.compare(to)

    def compare(self, to):
        for name, digest in self.members.items():
            with open(f"{self.mounts[1]}/{to}/{name}", "rb") as file:
                assert hashlib.sha256(file.read()).digest() == digest, f"{to}/{name}"

    def verify(self):
        for number in range(max(0, self.ops - 3), self.ops):
            self.compare(f"{self.base}/{number}")


class Counter:
    """A number in a file that everybody increments under a lock of the whole file."""

    def __init__(self, here, _, seed):
        self.path, self.ops, self.flock = f"{here}/counter-{seed % 2}", 0, seed % 2
        self.random = random.Random(seed)

    def step(self):
        fd = os.open(self.path, os.O_RDWR)
        try:
            if self.flock:
                fcntl.flock(fd, fcntl.LOCK_EX)
            else:
                fcntl.lockf(fd, fcntl.LOCK_EX)
            number = int(os.pread(fd, 20, 0))
            os.pwrite(fd, b"%020d" % (number + 1), 0)
        finally:
            os.close(fd)
        self.ops += 1
        # Slots in which files are locked do not move: there are moments when nobody locks.
        time.sleep(self.random.uniform(0.1, 0.4))

    def verify(self):
        pass


class Open:
    """Files that stay open, one of them without a name, written through the handle and read through
    both."""

    def __init__(self, here, there, seed):
        self.here, self.there, self.ops, self.seed = here, there, 0, seed
        self.named, self.gone = [
            os.open(f"{here}/open-{seed}-{which}", os.O_RDWR | os.O_CREAT)
            for which in ("named", "gone")
        ]
        self.reader = os.open(f"{there}/open-{seed}-gone", os.O_RDONLY)
        os.unlink(f"{there}/open-{seed}-gone")

    def step(self):
        for fd in (self.named, self.gone):
            os.pwrite(fd, b"%020d" % self.ops, 20 * self.ops)
        os.fsync(self.gone)
        self.ops += 1
        if self.ops % 20 == 0:
            os.rename(f"{self.here}/open-{self.seed}-named", f"{self.here}/open-{self.seed}-other")
            os.rename(f"{self.here}/open-{self.seed}-other", f"{self.here}/open-{self.seed}-named")
        time.sleep(0.02)

    def verify(self):
        expected = b"".join(b"%020d" % number for number in range(self.ops))
        os.fsync(self.named)
        with open(f"{self.there}/open-{self.seed}-named", "rb") as file:
            assert file.read() == expected, "the file with a name"
        assert os.pread(self.gone, len(expected) + 1, 0) == expected, "the file without one"
        assert os.fstat(self.reader).st_size == len(expected), "its size through the other mount"


def work(kind, here, there, seed, stop, told):
    name = f"{kind.__name__} {seed}"
    try:
        worker, slowest = kind(here, there, seed), 0
        while not os.path.exists(stop):
            begun = time.monotonic()
            worker.step()
            slowest = max(slowest, time.monotonic() - begun)
        worker.verify()
        assert slowest < (SLOW_TAR if kind is Tar else SLOW), f"a step took {slowest:.1f} s"
        told.put((name, worker.ops, slowest, None))
    except Exception:
        told.put((name, 0, 0, traceback.format_exc()))


def main():
    a, b, stop = sys.argv[1:4]
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    for number in range(2):
        with open(f"{a}/counter-{number}", "w") as file:
            file.write("%020d" % 0)
    told, workers = multiprocessing.Queue(), []
    kinds = [Files, Files, Files, Tar, Counter, Counter, Counter, Counter, Open, Open]
    for number, kind in enumerate(kinds):
        here, there = (a, b) if number % 2 == 0 else (b, a)
        # Both counters are for both mounts.
        number = number // 2 if kind is Counter else number
        arguments = (kind, here, there, seed * 100 + number, stop, told)
        workers.append(multiprocessing.Process(target=work, args=arguments))
    for worker in workers:
        worker.start()
    passed = failed = 0
    counted = 0
    for _ in workers:
        name, ops, slowest, why = told.get()
        if why is None:
            passed += 1
            print(f"ok   {name}: {ops} steps, the slowest {slowest:.2f} s", flush=True)
        else:
            failed += 1
            # The error itself in the line that the report of all suites shows.
            print(f"FAIL {name}: {why.splitlines()[-1]}\n{why}", flush=True)
        counted += ops if name.startswith("Counter") else 0
    for worker in workers:
        worker.join()
    total = 0
    for number in range(2):
        with open(f"{b}/counter-{number}") as file:
            total += int(file.read())
    if total == counted:
        passed += 1
    else:
        failed += 1
        print(f"FAIL the counters say {total}, incremented were {counted}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
