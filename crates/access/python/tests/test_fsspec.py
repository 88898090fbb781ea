"""fsspec: its own abstract test suites, and what is built on it."""

import os
import pickle
import uuid

import fsspec
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from kestrelfs.fsspec import KestrelFileSystem, split_url


class KestrelFixtures(AbstractFixtures):
    """What the abstract suites need of a file system."""

    @pytest.fixture(scope="class")
    def fs(self, url):
        # As the suites have it of local files.
        return KestrelFileSystem(volume=url, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self):
        return f"/abstract-{uuid.uuid4()}"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        return True

    @pytest.fixture(autouse=True)
    def directory(self, fs, fs_path):
        fs.mkdir(fs_path)


class TestCopy(KestrelFixtures, AbstractCopyTests):
    pass


class TestGet(KestrelFixtures, AbstractGetTests):
    pass


class TestPut(KestrelFixtures, AbstractPutTests):
    pass


class TestOpen(KestrelFixtures, AbstractOpenTests):
    pass


class TestPipe(KestrelFixtures, AbstractPipeTests):
    pass


def test_protocol_is_known(served):
    """The entry point of the package: fsspec opens kestrel:// URLs."""
    with fsspec.open(f"{served.url}/known.txt", "wt") as file:
        file.write("known")
    with fsspec.open(f"{served.url}/known.txt", "rb") as file:
        assert file.read() == b"known"
    fs, path = fsspec.core.url_to_fs(f"{served.url}/known.txt")
    assert path == "/known.txt" and fs.unstrip_protocol(path) == f"{served.url}/known.txt"
    assert fs.size(path) == 5 and fs.checksum(path) and fs.modified(path)


def test_urls_and_paths():
    assert split_url("kestrel://h:1,i/v/a/b") == ("kestrel://h:1,i/v", "/a/b")
    assert split_url("kestrel://h/v") == ("kestrel://h/v", "/")
    assert split_url("kestrel://h/v//data@3/a") == ("kestrel://h/v//data@3", "/a")
    assert split_url("kestrel://h/v@s/a") == ("kestrel://h/v@s", "/a")
    strip = KestrelFileSystem._strip_protocol
    assert (
        strip("kestrel:///a/b/") == "/a/b" and strip("a") == "/a" and strip("kestrel://h/v") == "/"
    )
    for bad in ("kestrel://", "kestrel://h", "kestrel://h/"):
        with pytest.raises(ValueError):
            split_url(bad)
    with pytest.raises(ValueError):
        KestrelFileSystem()


def test_files_and_names(url, top):
    fs = fsspec.filesystem("kestrel", volume=url)
    assert fs is fsspec.filesystem("kestrel", volume=url)
    fs.pipe({f"{top}/{number}": b"%d" % number for number in range(20)})
    assert fs.cat([f"{top}/{number}" for number in range(20)]) == {
        f"{top}/{number}": b"%d" % number for number in range(20)
    }
    assert fs.cat(f"{top}/7") == b"7" and fs.cat_file(f"{top}/11", -1) == b"1"
    assert fs.cat_file(f"{top}/11", 0, 1) == b"1"
    assert len(fs.cat(f"{top}/1*")) == 11
    assert fs.cat([f"{top}/1", f"{top}/no"], on_error="omit") == {f"{top}/1": b"1"}
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{top}/no")
    fs.touch(f"{top}/7", truncate=False)
    assert fs.size(f"{top}/7") == 1
    fs.mv(f"{top}/7", f"{top}/seven")
    assert fs.find(top) == sorted(
        f"{top}/{number}" for number in [*range(7), *range(8, 20), "seven"]
    )
    assert fs.glob(f"{top}/s*") == [f"{top}/seven"]
    assert fs.info(f"{top}/seven")["type"] == "file" and fs.isdir(top)
    with fs.transaction:
        with fs.open(f"{top}/later", "wb") as file:
            file.write(b"later")
        assert not fs.exists(f"{top}/later")
    assert fs.cat(f"{top}/later") == b"later"
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat(f"{top}/seven") == b"7"
    with pytest.raises(IsADirectoryError):
        fs.rm(top)
    fs.rm(top, recursive=True)
    assert not fs.exists(top)


def test_parquet_with_pandas_and_pyarrow(url, top):
    """A table goes through pandas and pyarrow, whole and as a data set of several files."""
    pandas = pytest.importorskip("pandas")
    dataset = pytest.importorskip("pyarrow.dataset")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow.fs

    options = {"volume": url}
    frame = pandas.DataFrame({"a": range(1000), "b": [f"text {number}" for number in range(1000)]})
    frame.to_parquet(f"kestrel://{top}/whole.parquet", storage_options=options)
    read = pandas.read_parquet(f"kestrel://{top}/whole.parquet", storage_options=options)
    pandas.testing.assert_frame_equal(read, frame)
    frame.to_csv(f"kestrel://{top}/table.csv", index=False, storage_options=options)
    assert pandas.read_csv(f"kestrel://{top}/table.csv", storage_options=options).equals(frame)
    fs = fsspec.filesystem("kestrel", **options)
    assert parquet.read_table(f"{top}/whole.parquet", filesystem=fs).num_rows == 1000
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    table = dataset.dataset(f"{top}/whole.parquet", filesystem=arrow).to_table()
    dataset.write_dataset(
        table,
        f"{top}/parts",
        format="parquet",
        filesystem=arrow,
        max_rows_per_file=100,
        max_rows_per_group=100,
    )
    assert len(fs.ls(f"{top}/parts")) == 10
    assert dataset.dataset(f"{top}/parts", filesystem=arrow).count_rows() == 1000


def test_version_by_url(served):
    """A published version that a server's store has, as an fsspec URL."""
    from conftest import KESTREL, run

    fs, _ = fsspec.core.url_to_fs(served.url)
    fs.pipe("/published/file", b"once") if fs.exists("/published") else (
        fs.mkdir("/published"),
        fs.pipe("/published/file", b"once"),
    )
    run(KESTREL, "publish", f"{served.url}:/published", f"set@{os.getpid()}")
    with fsspec.open(f"{served.url}//set@{os.getpid()}/file") as file:
        assert file.read() == b"once"
