"""Volumes: the operations of os, by path."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, overload

from kestrelfs import _processes
from kestrelfs._files import RawFile, flags_of, wrap

if TYPE_CHECKING:
    from kestrelfs import _native

StrOrBytesPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class DirEntry:
    """A name in a directory, as ``os.DirEntry``: its type is known without another question."""

    __slots__ = ("_volume", "_type", "_ino", "name", "path")

    def __init__(self, volume: Volume, path: str, name: str, ino: int, kind: int) -> None:
        self._volume = volume
        self._type = kind
        self._ino = ino
        self.name = name
        self.path = path

    def __repr__(self) -> str:
        return f"<kestrelfs.DirEntry {self.name!r}>"

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        return self._ino

    def is_symlink(self) -> bool:
        return self._type == stat_module.S_IFLNK >> 12

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat_module.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat_module.S_IFREG, follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._volume.stat(self.path, follow_symlinks=follow_symlinks)

    def _is(self, kind: int, follow: bool) -> bool:
        if not (follow and self.is_symlink()):
            return self._type == kind >> 12
        try:
            return stat_module.S_IFMT(self.stat().st_mode) == kind
        except FileNotFoundError:
            return False


class Volume:
    """An open volume. ``open_volume`` makes one; ``with`` closes it.

    All methods have the names and arguments of ``os``, and take paths from the volume's root.
    """

    def __init__(self, url: str, token: str | None = None, *, read_only: bool = False) -> None:
        self._arguments = (url, token, read_only)
        self._closed = False
        self._opened: _native.Volume = _processes.native().Volume(url, token, read_only)
        self._pid = os.getpid()

    @property
    def _native(self) -> _native.Volume:
        """The volume as this process has it: one that was forked opens it anew."""
        if self._pid != os.getpid() and not self._closed:
            self._opened = _processes.native().Volume(*self._arguments)
            self._pid = os.getpid()
        return self._opened

    @property
    def url(self) -> str:
        """The URL by which it was opened."""
        return self._arguments[0]

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed: a version, a snapshot, or opened so."""
        return self._native.read_only

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def close(self) -> None:
        """Ends the use of the volume. The last user of it in this process stores what was written,
        and closes it.
        """
        self._closed = True
        self._opened.close()

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kestrelfs.Volume {self.url!r}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> tuple[Callable[..., Volume], tuple[str, str | None, bool]]:
        # The token goes along: the process that unpickles it acts for this one.
        return _reopen, self._arguments

    # Files.

    @overload
    def open(
        self,
        path: StrOrBytesPath,
        mode: Literal["r", "w", "x", "a", "r+", "w+", "x+", "a+", "rt", "wt", "xt", "at"] = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[str]: ...

    @overload
    def open(
        self,
        path: StrOrBytesPath,
        mode: Literal["rb", "wb", "xb", "ab", "rb+", "wb+", "xb+", "ab+", "r+b", "w+b"],
        buffering: int = -1,
    ) -> IO[bytes]: ...

    @overload
    def open(
        self,
        path: StrOrBytesPath,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]: ...

    def open(
        self,
        path: StrOrBytesPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens a file as builtin ``open`` does: the same modes, and the same layers of ``io``.

        Unbuffered binary files are ``RawFile``s. What was written is seen by others, and stored,
        when the file is closed or committed (``RawFile.commit``), or after a second.
        """
        flags, raw_mode, is_text = flags_of(mode)
        raw = RawFile(self._native.open(path, flags), path, raw_mode)
        try:
            return wrap(raw, is_text, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise

    def read_bytes(self, path: StrOrBytesPath) -> bytes:
        """The whole content of a file."""
        data: bytes = self._native.read_many([path])[0]
        return data

    def write_bytes(self, path: StrOrBytesPath, data: Any) -> int:
        """Makes ``data`` the whole content of a file."""
        with self.open(path, "wb", buffering=0) as file:
            return file.write(data)

    def read_many(
        self, paths: Iterable[StrOrBytesPath], *, return_exceptions: bool = False
    ) -> list[Any]:
        """The contents of many files, in the order of ``paths``, with one burst of requests.

        The first error is raised; with ``return_exceptions`` an ``OSError`` is in the place of what
        could not be read. All contents are in memory at the same time. Access times stay what they
        were.
        """
        return self._native.read_many(paths, return_exceptions)

    def stat_many(
        self,
        paths: Iterable[StrOrBytesPath],
        *,
        follow_symlinks: bool = True,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """``os.stat`` of many files with one burst of requests; errors as with ``read_many``."""
        return self._native.stat_many(paths, follow_symlinks, return_exceptions)

    def list_many(
        self, paths: Iterable[StrOrBytesPath], *, return_exceptions: bool = False
    ) -> list[Any]:
        """``os.listdir`` of many directories with bursts of requests; errors as with ``read_many``.
        """
        return self._native.list_many(paths, return_exceptions)

    def truncate(self, path: StrOrBytesPath, length: int) -> None:
        """As ``os.truncate``."""
        if length < 0:
            raise OSError(22, "Invalid argument (a size is not negative)", path)
        self._native.truncate(path, length)

    def copy_file(self, source: StrOrBytesPath, destination: StrOrBytesPath) -> None:
        """Copies a file within the volume. Of a large one no byte is moved: both files refer to
        what is stored.
        """
        self._native.copy_file(source, destination)

    # Names.

    def listdir(self, path: StrOrBytesPath = "/") -> list[Any]:
        """The names in a directory, in the order of their bytes; ``bytes`` if ``path`` is."""
        return [name for name, _, _ in self._native.list(path)]

    def scandir(self, path: StrOrBytesPath = "/") -> Iterator[DirEntry]:
        """The entries of a directory, with their types."""
        top = os.fsdecode(path)
        above = top if top.endswith("/") else f"{top}/"
        for name, ino, kind in self._native.list(top):
            yield DirEntry(self, above + name, name, ino, kind)

    def walk(
        self, top: StrOrBytesPath = "/", *, topdown: bool = True
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``; symbolic links to directories are listed, and not followed."""
        where = os.fsdecode(top)
        dirs: list[str] = []
        files: list[str] = []
        for entry in self.scandir(where):
            (dirs if entry.is_dir() else files).append(entry.name)
        if topdown:
            yield where, dirs, files
        for name in list(dirs):
            below = os.path.join(where, name)
            if not stat_module.S_ISLNK(self.lstat(below).st_mode):
                yield from self.walk(below, topdown=topdown)
        if not topdown:
            yield where, dirs, files

    def mkdir(self, path: StrOrBytesPath, mode: int = 0o777) -> None:
        """As ``os.mkdir``."""
        self._native.mkdir(path, mode)

    def makedirs(self, path: StrOrBytesPath, mode: int = 0o777, exist_ok: bool = False) -> None:
        """As ``os.makedirs``."""
        self._native.makedirs(path, mode, exist_ok)

    def unlink(self, path: StrOrBytesPath) -> None:
        """As ``os.unlink``."""
        self._native.unlink(path)

    remove = unlink

    def rmdir(self, path: StrOrBytesPath) -> None:
        """As ``os.rmdir``."""
        self._native.rmdir(path)

    def rename(self, source: StrOrBytesPath, destination: StrOrBytesPath) -> None:
        """As ``os.rename``: what is at ``destination`` is replaced at once."""
        self._native.rename(source, destination)

    replace = rename

    def exchange(self, one: StrOrBytesPath, other: StrOrBytesPath) -> None:
        """Has two files or directories change places, at once (``RENAME_EXCHANGE``)."""
        self._native.rename(one, other, False, True)

    def symlink(self, target: StrOrBytesPath, path: StrOrBytesPath) -> None:
        """As ``os.symlink``. A target that begins with a slash is a path from the volume's root
        here.
        """
        self._native.symlink(target, path)

    def readlink(self, path: StrOrBytesPath) -> Any:
        """As ``os.readlink``."""
        return self._native.readlink(path)

    def link(self, source: StrOrBytesPath, destination: StrOrBytesPath) -> None:
        """As ``os.link``."""
        self._native.link(source, destination)

    # Attributes.

    def stat(self, path: StrOrBytesPath, *, follow_symlinks: bool = True) -> os.stat_result:
        """As ``os.stat``. ``st_dev`` is 0."""
        return self._native.stat(path, follow_symlinks)

    def lstat(self, path: StrOrBytesPath) -> os.stat_result:
        """As ``os.lstat``."""
        return self._native.stat(path, False)

    def exists(self, path: StrOrBytesPath) -> bool:
        """Whether something is there; other errors than that it is not are raised."""
        return self._mode(path) is not None

    def isdir(self, path: StrOrBytesPath) -> bool:
        """Whether a directory is there."""
        mode = self._mode(path)
        return mode is not None and stat_module.S_ISDIR(mode)

    def isfile(self, path: StrOrBytesPath) -> bool:
        """Whether a regular file is there."""
        mode = self._mode(path)
        return mode is not None and stat_module.S_ISREG(mode)

    def _mode(self, path: StrOrBytesPath) -> int | None:
        try:
            return self.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def access(self, path: StrOrBytesPath, mode: int) -> bool:
        """As ``os.access``."""
        try:
            self._native.access(path, mode)
        except OSError:
            return False
        return True

    def chmod(self, path: StrOrBytesPath, mode: int, *, follow_symlinks: bool = True) -> None:
        """As ``os.chmod``."""
        self._native.chmod(path, mode, follow_symlinks)

    def chown(
        self, path: StrOrBytesPath, uid: int, gid: int, *, follow_symlinks: bool = True
    ) -> None:
        """As ``os.chown``."""
        self._native.chown(path, uid, gid, follow_symlinks)

    def utime(
        self,
        path: StrOrBytesPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """As ``os.utime``."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = (round(times[0] * 10**9), round(times[1] * 10**9))
        self._native.utime(path, ns, follow_symlinks)

    def getxattr(
        self, path: StrOrBytesPath, name: str | bytes, *, follow_symlinks: bool = True
    ) -> bytes:
        """As ``os.getxattr``."""
        return self._native.getxattr(path, name, follow_symlinks)

    def setxattr(
        self,
        path: StrOrBytesPath,
        name: str | bytes,
        value: bytes,
        flags: int = 0,
        *,
        follow_symlinks: bool = True,
    ) -> None:
        """As ``os.setxattr``."""
        self._native.setxattr(path, name, value, flags, follow_symlinks)

    def listxattr(self, path: StrOrBytesPath, *, follow_symlinks: bool = True) -> list[str]:
        """As ``os.listxattr``."""
        return self._native.listxattr(path, follow_symlinks)

    def removexattr(
        self, path: StrOrBytesPath, name: str | bytes, *, follow_symlinks: bool = True
    ) -> None:
        """As ``os.removexattr``."""
        self._native.removexattr(path, name, follow_symlinks)

    # The volume.

    def statvfs(self) -> os.statvfs_result:
        """As ``os.statvfs``, of the whole volume: quotas of directories are not counted."""
        size, blocks, free, files, name_max = self._native.room()
        return os.statvfs_result((size, size, blocks, free, free, files, 0, 0, 0, name_max))

    def sync(self) -> None:
        """Makes everything that is committed durable, as ``os.sync``."""
        self._native.sync()


def open_volume(url: str, token: str | None = None, *, read_only: bool = False) -> Volume:
    """Opens the volume that ``url`` names.

    ``url`` is what ``kestrel mount`` takes: ``kestrel://HOST/NAME``, ``s3://BUCKET/PREFIX?…``, the
    directory of a volume, ``VOLUME@SNAPSHOT``, ``VOLUME:/DIR@SNAPSHOT``, ``VOLUME//VERSION``.
    ``token`` is the text of a token (``kestrel token create``); without one the file that
    ``KESTREL_TOKEN_FILE`` names is read. Several users of the same URL, token and ``read_only`` in
    a process share one connection.

    Raises an ``OSError`` that says what to do if the volume cannot be opened: ``FileNotFoundError``
    if there is none, errno ``EBUSY`` if it is not served and another process has it open.
    """
    return Volume(url, token, read_only=read_only)


def _reopen(url: str, token: str | None, read_only: bool) -> Volume:
    return Volume(url, token, read_only=read_only)
