"""Processes that lock, for tests: each Locker is a process of its own that does what it is told
over a pipe.

    a = Locker("/mnt/one/file")
    a.posix("x", 0, 9)          # F_SETLK; raises OSError
    wait = a.start("posixw", "x", 0, 9)   # F_SETLKW in the background: wait.done(), wait.result()
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
KINDS = {"s": fcntl.F_RDLCK, "x": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
FLOCKS = {"s": fcntl.LOCK_SH, "x": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
FLOCK = "hhqqi4x"


def span(kind, first, last):
    """A lock on bytes first..=last; last None: to the end, however far."""
    length = 0 if last is None else last - first + 1
    return struct.pack(FLOCK, KINDS[kind], 0, first, length, 0)


class Worker:
    """What runs in the process."""

    def __init__(self, path):
        self.path = path
        self.fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o666)]

    def posix(self, kind, first=0, last=None, fd=0):
        fcntl.fcntl(self.fds[fd], fcntl.F_SETLK, span(kind, first, last))

    def posixw(self, kind, first=0, last=None, fd=0):
        fcntl.fcntl(self.fds[fd], fcntl.F_SETLKW, span(kind, first, last))

    def ofd(self, kind, first=0, last=None, fd=0):
        fcntl.fcntl(self.fds[fd], F_OFD_SETLK, span(kind, first, last))

    def ofdw(self, kind, first=0, last=None, fd=0):
        fcntl.fcntl(self.fds[fd], F_OFD_SETLKW, span(kind, first, last))

    def test(self, kind, first=0, last=None, fd=0):
        """What is in the way: [kind, first, last or None, pid], or None."""
        answer = fcntl.fcntl(self.fds[fd], fcntl.F_GETLK, span(kind, first, last))
        found, _, start, length, pid = struct.unpack(FLOCK, answer)
        if found == fcntl.F_UNLCK:
            return None
        name = next(name for name, value in KINDS.items() if value == found)
        return [name, start, None if length == 0 else start + length - 1, pid]

    def flock(self, kind, fd=0):
        fcntl.flock(self.fds[fd], FLOCKS[kind] | fcntl.LOCK_NB)

    def flockw(self, kind, fd=0):
        fcntl.flock(self.fds[fd], FLOCKS[kind])

    def open(self):
        self.fds.append(os.open(self.path, os.O_RDWR))
        return len(self.fds) - 1

    def open_readonly(self):
        self.fds.append(os.open(self.path, os.O_RDONLY))
        return len(self.fds) - 1

    def dup(self, fd=0):
        self.fds.append(os.dup(self.fds[fd]))
        return len(self.fds) - 1

    def close(self, fd=0):
        os.close(self.fds[fd])

    def read(self, first, length, fd=0):
        return os.pread(self.fds[fd], length, first).decode("latin-1")

    def write(self, first, text, fd=0):
        return os.pwrite(self.fds[fd], text.encode("latin-1"), first)

    def sync(self, fd=0):
        os.fsync(self.fds[fd])

    def alarm(self, seconds):
        """The next call that waits gets a signal; Python's handler raises, so the call is not
        restarted."""

        def rung(*_):
            raise InterruptedError(errno.EINTR, "alarm")

        signal.signal(signal.SIGALRM, rung)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def child(self):
        """A child that shares the descriptors and sleeps until it is killed."""
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            while True:
                signal.pause()
        return pid

    def reap(self, pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def count(self, times):
        """Adds to the number in the file, each time under a lock, through one descriptor that stays
        open."""
        for _ in range(times):
            fcntl.fcntl(self.fds[0], fcntl.F_SETLKW, span("x", 1000, 1000))
            number = int(os.pread(self.fds[0], 20, 0) or b"0")
            os.pwrite(self.fds[0], b"%d" % (number + 1), 0)
            fcntl.fcntl(self.fds[0], fcntl.F_SETLK, span("u", 1000, 1000))
        return times

    def records(self, how, mark, times):
        """Appends so many records of 50 bytes, each under an exclusive lock of the whole file
        (`how`: flock, posix, ofd) or without any (none), through one descriptor that stays open."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        for number in range(times):
            self.whole(how, fd, "x")
            record = f"{mark} {number}".ljust(49).encode() + b"\n"
            assert os.write(fd, record) == len(record)
            self.whole(how, fd, "u")
        os.close(fd)
        return times

    def appends(self, mark, times, length=50, each="keep"):
        """Appends so many records with O_APPEND and no lock. `each`: after each of them the
        descriptor is kept, synced (fsync), or closed and opened anew (close)."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        for number in range(times):
            record = f"{mark} {number}".ljust(length - 1).encode() + b"\n"
            assert os.write(fd, record) == len(record)
            if each == "fsync":
                os.fsync(fd)
            elif each == "close":
                os.close(fd)
                fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.close(fd)
        return times

    def whole(self, how, fd, kind):
        """Takes or gives up a lock of the whole file."""
        if how == "flock":
            fcntl.flock(fd, FLOCKS[kind])
        elif how == "posix":
            fcntl.fcntl(fd, fcntl.F_SETLKW, span(kind, 0, None))
        elif how == "ofd":
            fcntl.fcntl(fd, F_OFD_SETLKW, span(kind, 0, None))

    def map(self, length):
        """Maps the file, shared, as soon as it is seen to be so long."""
        eventually(lambda: self.size() >= length, f"{self.path} has {length} bytes")
        self.mapped = mmap.mmap(self.fds[0], length)

    def count_mapped(self, how, times):
        """Adds to a number of 8 bytes in the map, each time under a lock, with msync(2) before it
        goes. The map stays."""
        for _ in range(times):
            self.whole(how, self.fds[0], "x")
            number = int.from_bytes(self.mapped[:8], "little")
            self.mapped[:8] = (number + 1).to_bytes(8, "little")
            self.mapped.flush()
            self.whole(how, self.fds[0], "u")
        return times

    def mapped_at(self, first, length):
        """Bytes of the map."""
        return self.mapped[first : first + length].decode("latin-1")

    def size(self):
        return os.fstat(self.fds[0]).st_size

    def known_size(self):
        """The size that the kernel knows, which it does not ask for (statx(2) with
        AT_STATX_DONT_SYNC)."""
        answer = ctypes.create_string_buffer(256)
        empty_path, dont_sync, size = 0x1000, 0x4000, 0x200
        if ctypes.CDLL(None, use_errno=True).statx(
            self.fds[0], b"", empty_path | dont_sync, size, answer
        ):
            raise OSError(ctypes.get_errno(), "statx")
        # stx_size of struct statx.
        return struct.unpack_from("Q", answer, 40)[0]

    def count_flock(self, times):
        """The same with flock(2) and a new open each time."""
        for _ in range(times):
            fcntl.flock(self.fds[0], fcntl.LOCK_EX)
            with open(self.path, "r+b", buffering=0) as file:
                number = int(file.read(20) or b"0")
                file.seek(0)
                file.write(b"%d" % (number + 1))
            fcntl.flock(self.fds[0], fcntl.LOCK_UN)
        return times


class Call:
    """A call under way."""

    def __init__(self, locker):
        self.locker = locker

    def done(self, within=0.0):
        """Whether it has ended, looked at for so many seconds."""
        import select

        return bool(select.select([self.locker.process.stdout], [], [], within)[0])

    def result(self, within=60):
        if not self.done(within):
            raise TimeoutError(f"no answer of {self.locker.path} within {within} s")
        line = self.locker.process.stdout.readline()
        if not line:
            raise EOFError(f"the process at {self.locker.path} is gone")
        answer = json.loads(line)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["text"])
        return answer["value"]


class Locker:
    """A process with the file open."""

    def __init__(self, path):
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, __file__, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        Call(self).result()

    @property
    def pid(self):
        return self.process.pid

    def start(self, name, *arguments, **keywords):
        print(json.dumps([name, arguments, keywords]), file=self.process.stdin, flush=True)
        return Call(self)

    def __getattr__(self, name):
        return lambda *arguments, **keywords: self.start(name, *arguments, **keywords).result()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def main():
    worker = Worker(sys.argv[1])
    print(json.dumps({"value": None}), flush=True)
    for line in sys.stdin:
        name, arguments, keywords = json.loads(line)
        try:
            answer = {"value": getattr(worker, name)(*arguments, **keywords)}
        except OSError as error:
            answer = {"errno": error.errno, "text": str(error)}
        print(json.dumps(answer), flush=True)


def eventually(true, what, within=60):
    """Waits until a condition holds."""
    end = time.monotonic() + within
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
