"""Volumes across processes: fork, spawn, forkserver, pickles."""

import errno
import multiprocessing
import os
import pickle
import sys
import threading
import time
import warnings

import pytest

import kestrelfs
from conftest import python


def read_there(volume, path):
    """What another process reads."""
    return volume.read_bytes(path)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(served, method):
    """A worker uses the volume of its parent, whichever way it is started."""
    context = multiprocessing.get_context(method)
    with kestrelfs.open_volume(served.url) as volume:
        volume.write_bytes(f"/{method}", method.encode() * 1000)
        with context.Pool(2) as pool:
            read = pool.starmap(read_there, [(volume, f"/{method}")] * 6)
        assert read == [method.encode() * 1000] * 6
        assert volume.read_bytes(f"/{method}") == method.encode() * 1000


def forked(work):
    """The exit status of a child that runs `work`, which must not take long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            os._exit(work() or 0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(99)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "it hangs"


def test_fork_in_the_midst_of_calls(served):
    """Children are made while other threads of the parent are in calls; both go on."""
    with kestrelfs.open_volume(served.url) as volume:
        volume.write_bytes("/parent", b"p" * 5000)
        end, failed = threading.Event(), []

        def work(number):
            try:
                while not end.is_set():
                    volume.write_bytes(f"/busy{number}", b"b" * 3000)
                    assert volume.read_many(["/parent"] * 20) == [b"p" * 5000] * 20
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        [thread.start() for thread in threads]

        def child():
            assert volume.read_bytes("/parent") == b"p" * 5000
            volume.write_bytes(f"/child{os.getpid()}", b"c")
            volume.close()

        try:
            assert [forked(child) for _ in range(10)] == [0] * 10
        finally:
            end.set()
            [thread.join() for thread in threads]
        assert not failed
        assert len([name for name in volume.listdir("/") if name.startswith("child")]) == 10


def test_open_file_after_fork(served):
    """A file that was opened before a fork is the parent's: the child is told, the parent goes on.
    """
    with kestrelfs.open_volume(served.url) as volume:
        file = volume.open("/forked", "wb", buffering=0)
        file.write(b"parent")

        def child():
            try:
                file.write(b"child")
                return 1
            except OSError as error:
                assert error.errno == errno.EBADF
            file.close()
            return 0

        assert forked(child) == 0
        file.write(b" goes on")
        file.close()
        assert volume.read_bytes("/forked") == b"parent goes on"


def test_objects_left_by_a_child(served):
    """A child that uses nothing of its parent's volume ends as any other."""
    with kestrelfs.open_volume(served.url) as volume:
        file = volume.open("/left", "wb")
        file.write(b"1")
        told = python(
            "import kestrelfs, os, sys, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "volume = kestrelfs.open_volume(sys.argv[1])\n"
            "file = volume.open('/mine', 'wb', buffering=0)\n"
            "file.write(b'1')\n"
            "if os.fork() == 0:\n"
            "    del file, volume\n"
            "    sys.exit(0)\n"
            "print(os.wait()[1])\n"
            "file.write(b'2')\n"
            "file.close()\n"
            "print(volume.read_bytes('/mine'))\n",
            served.url,
        )
        assert told.stdout == "0\nb'12'\n", told
        file.close()


def test_embedded_volume_after_fork(embedded):
    """A volume in a directory is its parent's: a child is told so, with errno EBUSY."""
    with kestrelfs.open_volume(embedded) as volume:
        volume.write_bytes("/parents", b"1")

        def child():
            try:
                volume.read_bytes("/parents")
                return 1
            except OSError as error:
                return 0 if error.errno == errno.EBUSY else 2

        assert forked(child) == 0
        assert volume.read_bytes("/parents") == b"1"


def test_pickles(url):
    with kestrelfs.open_volume(url) as volume:
        volume.write_bytes("/pickled", b"1")
        with pickle.loads(pickle.dumps(volume)) as again:
            assert again.url == volume.url and again.read_bytes("/pickled") == b"1"
        assert volume.read_bytes("/pickled") == b"1"
    with pytest.raises(ValueError):
        volume.read_bytes("/pickled")


def test_end_of_a_program_with_open_files(served):
    """A program that ends without closing anything has stored what it wrote."""
    told = python(
        "import kestrelfs, sys\n"
        "volume = kestrelfs.open_volume(sys.argv[1])\n"
        "file = volume.open('/unclosed', 'wb')\n"
        "file.write(b'all of it')\n",
        served.url,
    )
    assert told.returncode == 0, told
    with kestrelfs.open_volume(served.url) as volume:
        assert volume.read_bytes("/unclosed") == b"all of it"
