"""Files by path: what os and open do."""

import errno
import io
import os
import random
import threading

import pytest

import kestrelfs


def test_modes_of_open(volume, top):
    """Every mode of builtin open does what it does on a local file."""
    path = f"{top}/file"
    with volume.open(path, "w") as file:
        assert file.write("one\ntwo\n") == 8
    with volume.open(path) as file:
        assert file.readlines() == ["one\n", "two\n"]
    with volume.open(path, "a") as file:
        file.write("three\n")
    with volume.open(path, "rb") as file:
        assert isinstance(file, io.BufferedReader)
        assert file.read() == b"one\ntwo\nthree\n"
        file.seek(-6, os.SEEK_END)
        assert file.read(3) == b"thr"
    with volume.open(path, "r+b") as file:
        file.seek(4)
        file.write(b"TWO")
        file.seek(0)
        assert file.read() == b"one\nTWO\nthree\n"
        assert file.truncate(3) == 3
    assert volume.read_bytes(path) == b"one"
    with pytest.raises(FileExistsError):
        volume.open(path, "x")
    with volume.open(path, "wb", buffering=0) as file:
        assert isinstance(file, kestrelfs.RawFile)
        assert file.write(b"abc") == 3
        assert file.tell() == 3
    with volume.open(path, encoding="utf-16", mode="w", newline="\r\n") as file:
        file.write("ä\n")
    assert volume.read_bytes(path).decode("utf-16") == "ä\r\n"


@pytest.mark.parametrize("mode", ["", "rw", "rr", "q", "rbt", "b"])
def test_modes_that_are_none(volume, top, mode):
    with pytest.raises(ValueError):
        volume.open(f"{top}/file", mode)


def test_arguments_of_binary_files(volume, top):
    with pytest.raises(ValueError):
        volume.open(f"{top}/file", "wb", encoding="utf-8")
    with pytest.raises(ValueError):
        volume.open(f"{top}/file", "w", buffering=0)


def test_random_writes_and_reads(volume, top):
    """Random reads, writes and truncations, beside a bytearray."""
    chance = random.Random(7)
    model = bytearray()
    with volume.open(f"{top}/file", "w+b", buffering=0) as file:
        for _ in range(200):
            at, length = chance.randrange(300_000), chance.randrange(20_000)
            if chance.random() < 0.05:
                file.truncate(at)
                model = model[:at] + bytes(max(0, at - len(model)))
            elif chance.random() < 0.5:
                data = chance.randbytes(length)
                model += bytes(max(0, at - len(model)))
                model[at : at + length] = data
                file.pwrite(data, at)
            else:
                room = bytearray(length)
                read = file.pread_into(room, at)
                assert room[:read] == model[at : at + length]
        file.seek(0)
        assert file.readall() == model
    assert volume.read_bytes(f"{top}/file") == model


def test_buffers_of_other_types(volume, top):
    import array

    with volume.open(f"{top}/file", "w+b", buffering=0) as file:
        assert file.write(array.array("i", [1, 2, 3])) == 12
        file.seek(0)
        numbers = array.array("i", [0, 0, 0])
        assert file.readinto(numbers) == 12
        assert list(numbers) == [1, 2, 3]
        with pytest.raises((TypeError, BufferError)):
            file.readinto(b"read-only")
        with pytest.raises((TypeError, BufferError)):
            file.write(memoryview(bytes(8))[::2])
        with pytest.raises(TypeError):
            file.write("text")


def test_large_file(volume, top):
    """A file of several blocks, written and read through the buffers."""
    data = random.Random(1).randbytes(9_000_001)
    with volume.open(f"{top}/large", "wb") as file:
        file.write(data)
    assert volume.read_bytes(f"{top}/large") == data
    assert volume.read_many([f"{top}/large"] * 2) == [data, data]
    volume.copy_file(f"{top}/large", f"{top}/copy")
    assert volume.read_bytes(f"{top}/copy") == data


def test_names(volume, top):
    """Names are made, moved, linked and removed."""
    volume.makedirs(f"{top}/a/b/c")
    volume.makedirs(f"{top}/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        volume.makedirs(f"{top}/a/b/c")
    volume.write_bytes(f"{top}/a/file", b"x")
    volume.rename(f"{top}/a/file", f"{top}/a/b/moved")
    volume.link(f"{top}/a/b/moved", f"{top}/linked")
    assert volume.stat(f"{top}/linked").st_nlink == 2
    volume.unlink(f"{top}/linked")
    assert volume.listdir(f"{top}/a/b") == ["c", "moved"]
    volume.write_bytes(f"{top}/one", b"1")
    volume.exchange(f"{top}/one", f"{top}/a")
    assert volume.isdir(f"{top}/one") and volume.isfile(f"{top}/a")
    walked = list(volume.walk(top))
    assert walked == [
        (top, ["one"], ["a"]),
        (f"{top}/one", ["b"], []),
        (f"{top}/one/b", ["c"], ["moved"]),
        (f"{top}/one/b/c", [], []),
    ]
    with pytest.raises(OSError) as caught:
        volume.rmdir(f"{top}/one")
    assert caught.value.errno == errno.ENOTEMPTY
    volume.rmdir(f"{top}/one/b/c")


def test_symbolic_links(volume, top):
    """Links are followed wherever they stand in a path, and `..` follows what was resolved."""
    volume.makedirs(f"{top}/real/deep")
    volume.write_bytes(f"{top}/real/file", b"here")
    volume.symlink("real", f"{top}/dir")
    volume.symlink(f"{top}/real/deep", f"{top}/absolute")
    volume.symlink("dir/file", f"{top}/chain")
    volume.symlink("chain", f"{top}/chain2")
    volume.symlink("loop", f"{top}/loop")
    volume.symlink("new", f"{top}/dangling")
    assert volume.read_bytes(f"{top}/dir/file") == b"here"
    assert volume.read_bytes(f"{top}/chain2") == b"here"
    assert volume.read_bytes(f"{top}/absolute/../file") == b"here"
    assert volume.read_bytes(f"{top}/absolute/./.././../chain") == b"here"
    assert volume.readlink(f"{top}/chain") == "dir/file"
    assert volume.readlink(f"{top}/chain".encode()) == b"dir/file"
    assert volume.lstat(f"{top}/dir").st_mode & 0o170000 == 0o120000
    assert volume.isdir(f"{top}/dir") and volume.stat(f"{top}/dir/").st_ino
    volume.write_bytes(f"{top}/dir/made", b"1")
    volume.write_bytes(f"{top}/dangling", b"2")
    assert volume.listdir(f"{top}/dir") == ["deep", "file", "made"]
    assert volume.read_bytes(f"{top}/new") == b"2"
    volume.mkdir(f"{top}/absolute/below")
    assert volume.listdir(f"{top}/real/deep") == ["below"]
    with pytest.raises(OSError) as caught:
        volume.open(f"{top}/loop")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(NotADirectoryError):
        volume.stat(f"{top}/real/file/")
    entries = {entry.name: entry for entry in volume.scandir(top)}
    assert entries["dir"].is_dir() and entries["dir"].is_symlink()
    assert not entries["dir"].is_dir(follow_symlinks=False)
    assert not entries["loop"].is_symlink() or entries["chain"].is_file()


def test_attributes(volume, top):
    path = f"{top}/file"
    volume.write_bytes(path, b"12345")
    volume.chmod(path, 0o640)
    volume.utime(path, ns=(1_000_000_001, 2_000_000_002))
    stat = volume.stat(path)
    assert (stat.st_mode, stat.st_size, stat.st_blocks) == (0o100640, 5, 1)
    assert (stat.st_atime_ns, stat.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    assert stat.st_uid == os.geteuid()
    volume.utime(path, (3.5, 4.5))
    assert volume.stat(path).st_mtime == 4.5
    volume.utime(path)
    assert volume.stat(path).st_mtime > 1e9
    if os.geteuid() == 0:
        volume.chown(path, 12, -1)
        assert volume.stat(path).st_uid == 12
    volume.truncate(path, 2)
    assert volume.read_bytes(path) == b"12"
    volume.setxattr(path, "user.a", b"value")
    assert volume.getxattr(path, "user.a") == b"value"
    assert volume.listxattr(path) == ["user.a"]
    with pytest.raises(FileExistsError):
        volume.setxattr(path, "user.a", b"", os.XATTR_CREATE)
    volume.removexattr(path, "user.a")
    with pytest.raises(OSError) as caught:
        volume.getxattr(path, "user.a")
    assert caught.value.errno == errno.ENODATA
    assert volume.access(path, os.R_OK) and not volume.access(f"{top}/no", os.F_OK)
    assert volume.statvfs().f_bfree > 0


def test_umask_of_new_files(volume, top):
    before = os.umask(0o027)
    try:
        volume.write_bytes(f"{top}/file", b"")
        volume.mkdir(f"{top}/dir")
    finally:
        os.umask(before)
    assert volume.stat(f"{top}/file").st_mode & 0o777 == 0o640
    assert volume.stat(f"{top}/dir").st_mode & 0o777 == 0o750


def test_holes(volume, top):
    with volume.open(f"{top}/file", "w+b", buffering=0) as file:
        file.truncate(50 << 20)
        file.pwrite(b"x", 30 << 20)
        assert file.seek(0, os.SEEK_DATA) == 30 << 20
        assert file.seek(0, os.SEEK_HOLE) == 0


def test_open_file_without_name(volume, top):
    """A file that is removed while it is open can be read until it is closed."""
    path = f"{top}/file"
    volume.write_bytes(path, b"still there")
    with volume.open(path, "rb") as file:
        volume.unlink(path)
        assert file.read() == b"still there"
    assert not volume.exists(path)


def test_many_threads(volume, top):
    """Threads write, read and list at the same time; the interpreter runs on."""
    failed = []

    def work(number):
        try:
            for turn in range(20):
                path = f"{top}/{number}-{turn}"
                volume.write_bytes(path, path.encode() * 500)
                assert volume.read_bytes(path) == path.encode() * 500
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed
    assert len(volume.listdir(top)) == 160


def test_many_with_one_burst(volume, top):
    """Contents, attributes and listings of many, with links, large files and errors among them."""
    names = [f"{number:04d}" for number in range(600)]
    contents = [os.urandom(number * 37 % 9000) for number in range(600)]
    for name, data in zip(names, contents, strict=True):
        volume.write_bytes(f"{top}/{name}", data)
    volume.symlink("0100", f"{top}/link")
    volume.mkdir(f"{top}/dir")
    paths = [f"{top}/{name}" for name in names]
    order = list(range(600))
    random.Random(3).shuffle(order)
    assert volume.read_many(paths[at] for at in order) == [contents[at] for at in order]
    assert [s.st_size for s in volume.stat_many(paths)] == [len(data) for data in contents]
    assert volume.read_many([]) == []
    mixed = [f"{top}/link", f"{top}/dir", f"{top}/no", f"{top}/../{top}/0007", paths[9] + "/"]
    got = volume.read_many(mixed, return_exceptions=True)
    assert got[0] == contents[100] and got[3] == contents[7]
    assert isinstance(got[1], IsADirectoryError) and isinstance(got[2], FileNotFoundError)
    assert isinstance(got[4], NotADirectoryError)
    assert got[2].filename == f"{top}/no"
    with pytest.raises(FileNotFoundError):
        volume.read_many(mixed[:1] + mixed[2:3])
    stats = volume.stat_many([f"{top}/link", f"{top}/no"], return_exceptions=True)
    assert stats[0].st_size == len(contents[100]) and stats[1].errno == errno.ENOENT
    assert volume.stat_many([f"{top}/link"], follow_symlinks=False)[0].st_mode & 0o120000
    lists = volume.list_many([top, f"{top}/dir", f"{top}/no", paths[0]], return_exceptions=True)
    assert lists[0] == sorted([*names, "link", "dir"]) and lists[1] == []
    assert lists[2].errno == errno.ENOENT and lists[3].errno == errno.ENOTDIR


def test_burst_shows_what_is_being_written(volume, top):
    """What this process has written and not committed is read and shown by bursts, too."""
    with volume.open(f"{top}/file", "wb", buffering=0) as file:
        file.write(b"x" * 100)
        assert volume.read_many([f"{top}/file"]) == [b"x" * 100]
        assert volume.stat_many([f"{top}/file"])[0].st_size == 100
        assert volume.stat(f"{top}/file").st_size == 100


def test_large_directory(volume, top):
    """A listing of several pages."""
    names = sorted(f"{number:05d}" for number in range(5000))
    for name in names:
        volume._native.open(f"{top}/{name}", os.O_CREAT | os.O_WRONLY).close()
    assert volume.listdir(top) == names
    assert volume.list_many([top, top]) == [names, names]


def test_what_others_write(served, work):
    """What one client writes and closes another one reads at once."""
    import conftest

    with kestrelfs.open_volume(served.url) as volume:
        volume.write_bytes("/shared", b"one")
        told = conftest.python(
            "import kestrelfs, sys\n"
            "with kestrelfs.open_volume(sys.argv[1]) as volume:\n"
            "    print(volume.read_bytes('/shared').decode())\n"
            "    volume.write_bytes('/shared', b'two')\n",
            served.url,
        )
        assert told.stdout == "one\n", told.stderr
        assert volume.read_bytes("/shared") == b"two"
