"""URLs, tokens, paths and handles that are wrong, and calls that are interrupted."""

import errno
import os
import pickle
import signal
import socket
import threading
import time

import pytest

import kestrelfs
from conftest import KESTREL, python, run


@pytest.mark.parametrize(
    "url, number",
    [
        ("/no/such/volume", errno.ENOENT),
        ("/etc", errno.ENOENT),
        ("", errno.EINVAL),
        ("kestrel://", errno.EINVAL),
        ("kestrel://host", errno.EINVAL),
        ("kestrel://host:0/v", errno.EINVAL),
        ("kestrel://host/a/b", errno.EINVAL),
        ("kestrel://host/v?tls=maybe", errno.EINVAL),
        ("kestrel://127.0.0.1:1/v", errno.EIO),
        ("s3://", None),
        ("kestrel://[::1/v", errno.EINVAL),
    ],
)
def test_urls_that_name_no_volume(url, number):
    with pytest.raises(OSError) as caught:
        kestrelfs.open_volume(url)
    assert number is None or caught.value.errno == number, caught.value
    assert caught.value.filename == url and len(caught.value.strerror) > 10


def test_urls_that_are_no_text(embedded):
    for bad in (None, 7, b"/volume"):
        with pytest.raises(TypeError):
            kestrelfs.open_volume(bad)
    with pytest.raises(ValueError):
        kestrelfs.open_volume(f"{embedded}\0")
    with pytest.raises(ValueError):
        kestrelfs.open_volume("/\ud800")


def test_volumes_that_are_not_there(served, work):
    alone = f"{work}/alone"
    run(KESTREL, "format", alone)
    with pytest.raises(OSError) as caught:
        kestrelfs.open_volume(f"{alone}@none")
    assert "no snapshot" in str(caught.value)
    with pytest.raises(OSError) as caught:
        kestrelfs.open_volume(f"{alone}//none")
    assert "no version" in str(caught.value)
    with pytest.raises(OSError) as caught:
        kestrelfs.open_volume(served.url.rsplit("/", 1)[0] + "/other")
    assert caught.value.errno == errno.ENOENT, caught.value


def test_volume_in_use(embedded):
    """A volume in a directory that another process has open."""
    with kestrelfs.open_volume(embedded):
        told = python(
            "import kestrelfs, sys\n"
            "try: kestrelfs.open_volume(sys.argv[1])\n"
            "except OSError as error: print(error.errno, error)\n",
            embedded,
        )
    assert told.stdout.startswith(f"{errno.EBUSY} "), told


@pytest.mark.parametrize("token", ["", "x", "kt1:", "kestrel-token:" + "a" * 300, "\0", "ä" * 20])
def test_tokens_that_are_none(served, token):
    with pytest.raises(OSError) as caught:
        kestrelfs.open_volume(served.url, token)
    assert caught.value.errno == errno.EINVAL
    assert token == "" or token not in str(caught.value)


def test_paths_with_nul(volume):
    for call in (volume.stat, volume.open, volume.listdir, volume.mkdir, volume.unlink):
        for path in ("/a\0b", b"/a\0b"):
            with pytest.raises(ValueError):
                call(path)
    with pytest.raises(ValueError):
        volume.read_many(["/a", "/\0"])


def test_paths_that_are_no_utf8(volume, top):
    """Bytes that are not UTF-8 are surrogates in a str, by the rules of os.fsencode."""
    raw = f"{top}/".encode() + b"\xff\xfe\xe4"
    volume.write_bytes(raw, b"1")
    name = os.fsdecode(b"\xff\xfe\xe4")
    assert volume.listdir(top) == [name]
    assert volume.listdir(top.encode()) == [b"\xff\xfe\xe4"]
    assert volume.list_many([top]) == [[name]]
    assert volume.read_bytes(f"{top}/{name}") == b"1"
    volume.symlink(b"\xff", f"{top}/link")
    assert volume.readlink(f"{top}/link") == os.fsdecode(b"\xff")
    with pytest.raises(FileNotFoundError) as caught:
        volume.open(f"{top}/{name}x")
    assert caught.value.filename == f"{top}/{name}x"
    # A surrogate that stands for no byte.
    for bad in ("/\ud800", "/\udc00a"):
        with pytest.raises(UnicodeEncodeError):
            volume.stat(bad)


def test_paths_of_wrong_types(volume):
    class Path:
        def __fspath__(self):
            return "/"

    assert volume.stat(Path()).st_ino == 1
    for bad in (None, 3, 1.5, object(), ["/"]):
        with pytest.raises(TypeError):
            volume.stat(bad)
    with pytest.raises(TypeError):
        volume.read_many(3)
    with pytest.raises(TypeError):
        volume.read_many([None])


def test_paths_that_lead_nowhere(volume, top):
    for path, error in [
        ("", FileNotFoundError),
        (f"{top}/no/x", FileNotFoundError),
        (f"/{'x' * 256}", OSError),
        ("/" + "a/" * 3000, OSError),
    ]:
        for call in (volume.stat, volume.open, volume.listdir, volume.unlink, volume.mkdir):
            with pytest.raises(error) as caught:
                call(path)
            assert isinstance(caught.value.errno, int)
    volume.write_bytes(f"{top}/file", b"")
    with pytest.raises(NotADirectoryError):
        volume.open(f"{top}/file/x")
    with pytest.raises(IsADirectoryError):
        volume.open(top, "w")
    with pytest.raises(IsADirectoryError):
        volume.open("/")
    with pytest.raises(OSError) as caught:
        volume.rename(f"{top}/file", f"{top}/no/file")
    assert caught.value.filename2 == f"{top}/no/file"
    with pytest.raises(OSError):
        volume.rmdir("/")
    with pytest.raises(OSError):
        volume.truncate(f"{top}/file", -1)
    with pytest.raises(OSError):
        volume.truncate(f"{top}/file", 1 << 63)
    with pytest.raises(OverflowError):
        volume.truncate(f"{top}/file", 1 << 65)


def test_closed_handles(url, top):
    volume = kestrelfs.open_volume(url)
    file = volume.open(f"{top}/file", "w+b", buffering=0)
    file.close()
    file.close()
    for call in (file.readall, file.tell, file.truncate, file.flush, file.stat, file.readable):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError):
        file.write(b"")
    # A file that is open outlives its volume.
    file = volume.open(f"{top}/file", "w+b", buffering=0)
    volume.close()
    volume.close()
    assert volume.closed
    file.write(b"late")
    file.close()
    for call in (volume.listdir, volume.statvfs, volume.sync):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError):
        volume.open("/x")
    with kestrelfs.open_volume(url) as again:
        assert again.read_bytes(f"{top}/file") == b"late"


def test_files_that_are_not_open_for_it(volume, top):
    import io

    with volume.open(f"{top}/file", "wb", buffering=0) as file:
        with pytest.raises(io.UnsupportedOperation):
            file.readall()
        with pytest.raises(OSError):
            file.seek(-1)
        with pytest.raises(ValueError):
            file.seek(0, 9)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        with pytest.raises(TypeError):
            pickle.dumps(file)
    with volume.open(f"{top}/file", "rb") as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")


def test_volume_that_is_read_only(served, work):
    with kestrelfs.open_volume(served.url) as volume:
        volume.write_bytes("/kept", b"1")
    with kestrelfs.open_volume(served.url, read_only=True) as volume:
        assert volume.read_only and volume.read_bytes("/kept") == b"1"
        for call in (
            lambda: volume.open("/kept", "w"),
            lambda: volume.mkdir("/d"),
            lambda: volume.unlink("/kept"),
            lambda: volume.rename("/kept", "/k"),
            lambda: volume.chmod("/kept", 0),
            lambda: volume.symlink("a", "/l"),
            lambda: volume.setxattr("/kept", "user.a", b""),
            lambda: volume.open("/new", "a"),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EROFS


def test_snapshots_and_versions(work):
    """A snapshot and a version are opened by their URLs, and nothing changes them."""
    path = f"{work}/history"
    run(KESTREL, "format", path)
    with kestrelfs.open_volume(path) as volume:
        volume.makedirs("/tree/sub")
        volume.write_bytes("/tree/sub/file", b"old")
        volume.write_bytes("/tree/large", b"z" * 200_000)
    run(KESTREL, "snapshot", "create", f"{path}:/tree", "first")
    run(KESTREL, "publish", f"{path}:/tree", "tree@v1")
    with kestrelfs.open_volume(path) as volume:
        volume.write_bytes("/tree/sub/file", b"new")
        volume.unlink("/tree/large")
    for url in (f"{path}:/tree@first", f"{path}//tree@v1"):
        with kestrelfs.open_volume(url) as seen:
            assert seen.read_only
            assert seen.read_bytes("/sub/file") == b"old"
            assert seen.read_many(["/sub/file", "/large"]) == [b"old", b"z" * 200_000]
            assert seen.listdir("/") == ["large", "sub"]
            assert seen.list_many(["/", "/sub"]) == [["large", "sub"], ["file"]]
            assert seen.stat_many(["/sub/file"])[0].st_size == 3
            with seen.open("/large", "rb") as file:
                assert len(file.read()) == 200_000
            with pytest.raises(OSError) as caught:
                seen.write_bytes("/x", b"")
            assert caught.value.errno == errno.EROFS


# A program of its own: pytest has its own handler of Ctrl-C.
INTERRUPTED = """
import json, os, shutil, signal, sys, tempfile, threading, time
sys.path.insert(0, sys.argv[1])
import conftest, kestrelfs

work = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/var/tmp"))
server = conftest.Served(work)
pid = int(json.loads(conftest.run(conftest.KESTREL, "status", server.dir, "--json"))["pid"])
volume = kestrelfs.open_volume(server.url)
volume.write_bytes("/file", b"1")

def stop():
    os.kill(pid, signal.SIGSTOP)
    for task in os.listdir(f"/proc/{pid}/task"):
        while open(f"/proc/{pid}/task/{task}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.01)

for name, call in {
    "stat": lambda: volume.stat("/file"), "open": lambda: volume.open("/file"),
    "many": lambda: volume.read_many(["/file"] * 9), "make": lambda: volume.mkdir("/made"),
}.items():
    stop()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    try:
        call()
        print(name, "was answered")
    except KeyboardInterrupt:
        took = time.monotonic() - begun
        print(name, "ended" if took < 1.5 else took)
    os.kill(pid, signal.SIGCONT)
    volume.stat("/file")
volume.close()
server.stop()
shutil.rmtree(work)
"""


def test_ctrl_c_ends_a_call():
    """A call that waits for a server which does not answer ends with KeyboardInterrupt, at once."""
    told = python(INTERRUPTED, os.path.dirname(__file__))
    assert told.stdout.split("\n")[:4] == [
        "stat ended",
        "open ended",
        "many ended",
        "make ended",
    ], told
    assert told.returncode == 0, told


def test_signal_handler_without_exception(volume, top):
    """A signal with a handler that returns leaves the call as it is."""
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            volume.write_bytes(f"{top}/file", b"x" * 10_000)
            assert volume.read_bytes(f"{top}/file") == b"x" * 10_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen


def test_server_that_is_none():
    """What answers at the address is no server of KestrelFS. It is asked again for a minute, unless
    Ctrl-C.
    """

    class Enough(Exception):
        pass

    def raising(*_):
        raise Enough

    before = signal.signal(signal.SIGALRM, raising)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def answer():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        begun = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            with pytest.raises((Enough, OSError)):
                kestrelfs.open_volume(f"kestrel://127.0.0.1:{listening.getsockname()[1]}/v")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - begun < 3
