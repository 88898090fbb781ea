"""KestrelFS for fsspec: pandas, pyarrow, dask, zarr, torch and datasets open ``kestrel://`` by it.

    import pandas as pd

    frame = pd.read_parquet("kestrel://meta1/photos/tables/labels.parquet")

A URL is that of a served volume and the path in it: ``kestrel://HOST[:PORT]/VOLUME/PATH``. A
snapshot (``kestrel://HOST/VOLUME@NAME/PATH``) and a published version
(``kestrel://HOST/VOLUME//NAME/PATH``) are named alike. Any other volume is named by the option
``volume``, and the path stands alone:

pd.read_parquet("kestrel:///tables/labels.parquet", storage_options={"volume": "/srv/photos"})

Options: ``volume`` (what ``kestrelfs.open_volume`` takes), ``token``, ``read_only``. Installed with
the package, the protocol is known to fsspec. ``cat`` of many files is ``Volume.read_many``: one
burst of requests.
"""

from __future__ import annotations

import errno
import os
import re
import stat as stat_module
from collections.abc import Iterable
from typing import IO, Any

from fsspec.spec import AbstractFileSystem

from kestrelfs._volume import Volume

# Host and volume, which may be at a snapshot or a version, and the path.
_URL = re.compile(r"(kestrel://[^/]+/[^/]+(?://[^/]+)?)(/.*)?$", re.DOTALL)

_KINDS = {
    stat_module.S_IFDIR: "directory",
    stat_module.S_IFREG: "file",
    stat_module.S_IFLNK: "link",
}


def split_url(url: str) -> tuple[str, str]:
    """The URL of the volume, and the path in it."""
    found = _URL.match(url)
    if found is None:
        raise ValueError(f"{url!r}: write kestrel://HOST/VOLUME/PATH, or give the option volume")
    return found.group(1), found.group(2) or "/"


class KestrelFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A volume of KestrelFS as an fsspec file system."""

    protocol = "kestrel"
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        volume: str | None = None,
        token: str | None = None,
        read_only: bool = False,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if volume is None:
            raise ValueError(
                "kestrel: no volume is named: use kestrel://HOST/VOLUME/PATH, or the option volume"
            )
        self.auto_mkdir = auto_mkdir
        self.volume = Volume(volume, token, read_only=read_only)

    @property
    def fsid(self) -> str:
        """The volume's URL."""
        return f"kestrel:{self.volume.url}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith("kestrel:///") or path == "kestrel://":
            path = path[len("kestrel://") :]
        elif path.startswith("kestrel://"):
            path = split_url(path)[1]
        path = "/" + path.strip("/") if path.strip("/") else "/"
        return path

    def unstrip_protocol(self, name: str) -> str:
        path = self._strip_protocol(name)
        if self.volume.url.startswith("kestrel://") and "?" not in self.volume.url:
            return f"{self.volume.url}{path}"
        return f"kestrel://{path}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        if path.startswith("kestrel://") and not path.startswith("kestrel:///"):
            return {"volume": split_url(path)[0]} if len(path) > len("kestrel://") else {}
        return {}

    def _info(self, path: str, known: os.stat_result) -> dict[str, Any]:
        kind = _KINDS.get(stat_module.S_IFMT(known.st_mode), "other")
        is_dir = kind == "directory"
        return {
            "name": path,
            "size": 0 if is_dir else known.st_size,
            "type": kind,
            "mode": known.st_mode,
            "uid": known.st_uid,
            "gid": known.st_gid,
            "ino": known.st_ino,
            "nlink": known.st_nlink,
            "created": known.st_ctime,
            "mtime": known.st_mtime,
        }

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.volume.stat(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            names = self.volume.listdir(path)
        except NotADirectoryError:
            found = self.info(path)
            return [found] if detail else [path]
        above = "" if path == "/" else path
        paths = [f"{above}/{name}" for name in names]
        if not detail:
            return paths
        stats = self.volume.stat_many(paths, return_exceptions=True)
        dangling = [
            path for path, known in zip(paths, stats, strict=True) if isinstance(known, OSError)
        ]
        links = dict(
            zip(
                dangling,
                self.volume.stat_many(dangling, follow_symlinks=False, return_exceptions=True),
                strict=True,
            )
        )
        infos = []
        for path, known in zip(paths, stats, strict=True):
            known = links.get(path, known)
            # What was removed since it was listed is left out.
            if not isinstance(known, OSError):
                infos.append(self._info(path, known))
        return infos

    def exists(self, path: str, **_: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.volume.isdir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.volume.isfile(self._strip_protocol(path))

    def created(self, path: str) -> Any:
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.timezone.utc)

    def modified(self, path: str) -> Any:
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(path)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.volume.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else path
        for one in self.expand_path(paths, recursive=recursive, maxdepth=maxdepth)[::-1]:
            known = self.volume.lstat(one)
            if stat_module.S_ISDIR(known.st_mode):
                if not recursive:
                    raise IsADirectoryError(
                        errno.EISDIR, "it is a directory: rm needs recursive", one
                    )
                self.volume.rmdir(one)
            else:
                self.volume.unlink(one)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.auto_mkdir:
            self.volume.makedirs(self._parent(path2), exist_ok=True)
        if self.volume.isdir(path1):
            self.volume.makedirs(path2, exist_ok=True)
        else:
            self.volume.copy_file(path1, path2)

    def mv(
        self,
        path1: str,
        path2: str,
        recursive: bool = False,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        if maxdepth is not None or isinstance(path1, list):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        source, destination = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.volume.isdir(destination):
            destination = f"{destination.rstrip('/')}/{os.path.basename(source)}"
        self.volume.rename(source, destination)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.volume.exists(path):
            self._open(path, "wb").close()
        else:
            self.volume.utime(path)

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any
    ) -> Any:
        if options.get("start") is not None or options.get("end") is not None:
            return super().cat(path, recursive, on_error, **options)
        paths = self.expand_path(path, recursive=recursive)
        if recursive or any(mark in str(path) for mark in "*?["):
            # Directories among what was found have no content.
            kinds = self.volume.stat_many(paths, return_exceptions=True)
            paths = [
                one
                for one, known in zip(paths, kinds, strict=True)
                if isinstance(known, OSError) or not stat_module.S_ISDIR(known.st_mode)
            ]
        contents = self.volume.read_many(paths, return_exceptions=on_error != "raise")
        if (
            len(paths) == 1
            and isinstance(path, (str, os.PathLike))
            and paths[0] == self._strip_protocol(path)
        ):
            if isinstance(contents[0], OSError) and on_error == "omit":
                return {}
            return contents[0]
        return {
            one: data
            for one, data in zip(paths, contents, strict=True)
            if not (isinstance(data, OSError) and on_error == "omit")
        }

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.volume.read_bytes(path)
        with self.volume.open(path, "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            begin = 0 if start is None else start if start >= 0 else max(0, size + start)
            stop = size if end is None else end if end >= 0 else size + end
            room = bytearray(max(0, min(stop, size) - begin))
            read = file.pread_into(room, begin)  # type: ignore[attr-defined]
            return bytes(memoryview(room)[:read])

    def cat_ranges(
        self,
        paths: Iterable[str],
        starts: Any,
        ends: Any,
        max_gap: Any = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        paths = list(paths)
        starts = starts if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = ends if isinstance(ends, Iterable) else [ends] * len(paths)
        found: list[Any] = []
        for path, start, end in zip(paths, starts, ends, strict=True):
            try:
                found.append(self.cat_file(path, start, end))
            except OSError as error:
                if on_error == "raise":
                    raise
                found.append(error)
        return found

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        with self._open(self._strip_protocol(path), "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        cache_options: Any = None,
        compression: Any = None,
        **options: Any,
    ) -> Any:
        # A whole file of Python's own: nothing has to be read ahead above it.
        return super().open(path, mode, block_size, cache_options, compression, **options)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> IO[bytes]:
        if self.auto_mkdir and mode[0] in "wax":
            self.volume.makedirs(self._parent(path), exist_ok=True)
        if autocommit or mode[0] == "r":
            return self.volume.open(path, mode)
        return _Transacted(self, path, mode)  # type: ignore[return-value]

    def sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        raise NotImplementedError("KestrelFS has no URLs that carry a permission; make a token")

    def close(self) -> None:
        """Ends the use of the volume."""
        self.volume.close()
        type(self).clear_instance_cache()


class _Transacted:
    """A file of a transaction: under another name until it is committed."""

    def __init__(self, fs: KestrelFileSystem, path: str, mode: str) -> None:
        self._volume = fs.volume
        self._path = path
        self._temporary = f"{fs._parent(path).rstrip('/')}/.{os.urandom(8).hex()}.tmp"
        if mode.startswith("a") and fs.volume.exists(path):
            fs.volume.copy_file(path, self._temporary)
        self._file = fs.volume.open(self._temporary, mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Transacted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def commit(self) -> None:
        """Gives the file its name."""
        self._file.close()
        self._volume.rename(self._temporary, self._path)

    def discard(self) -> None:
        """Removes the file."""
        self._file.close()
        self._volume.unlink(self._temporary)
