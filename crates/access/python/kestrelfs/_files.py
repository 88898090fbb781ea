"""File objects: io.RawIOBase over a file of a volume, and what builtin open puts above it."""

from __future__ import annotations

import io
import os
from typing import IO, TYPE_CHECKING, Any, cast

from kestrelfs import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kestrelfs._volume import StrOrBytesPath

# What one system call of a file costs is a round trip here: the buffer is larger than that of open.
BUFFER_BYTES = 1 << 20


class RawFile(io.RawIOBase):
    """An unbuffered file of a volume, as ``io.FileIO`` is one of the system.

    It has no ``fileno``: no system call knows it. ``pread_into`` and ``pwrite`` read and write at
    an offset, from any number of threads.
    """

    def __init__(self, file: _native.File, name: StrOrBytesPath, mode: str) -> None:
        self._file = file
        self.name = name
        self.mode = mode

    def __repr__(self) -> str:
        return f"<kestrelfs.RawFile name={self.name!r} mode={self.mode!r}>"

    def __getstate__(self) -> Any:
        raise TypeError("an open file cannot be pickled; pickle its volume and its path")

    def readable(self) -> bool:
        return self._file.readable()

    def writable(self) -> bool:
        return self._file.writable()

    def seekable(self) -> bool:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        self._check("r", self._file.readable())
        return self._file.readinto(_bytes_of(buffer))

    def readall(self) -> bytes:
        self._check("r", self._file.readable())
        return self._file.readall()

    def write(self, buffer: Buffer, /) -> int:
        self._check("w", self._file.writable())
        return self._file.write(_bytes_of(buffer))

    def pread_into(self, buffer: Buffer, offset: int) -> int:
        """Fills a writable buffer with the bytes from ``offset`` on; how many, fewer only at the
        end of the file.
        """
        self._check("r", self._file.readable())
        return self._file.pread_into(_bytes_of(buffer), offset)

    def pwrite(self, buffer: Buffer, offset: int) -> int:
        """Writes all bytes of a buffer at ``offset``."""
        self._check("w", self._file.writable())
        return self._file.pwrite(_bytes_of(buffer), offset)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        self._check("w", self._file.writable())
        size = self.tell() if size is None else size
        if size < 0:
            raise OSError(22, "Invalid argument (a size is not negative)", self.name)
        self._file.truncate(size)
        return size

    def flush(self) -> None:
        """Nothing is kept here: ``commit`` shows other clients what was written."""
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def commit(self) -> None:
        """Has other clients see what was written so far. ``close`` does so, too."""
        self._file.flush()

    def fsync(self) -> None:
        """Makes what was written durable, as ``os.fsync``."""
        self._file.fsync()

    def stat(self) -> os.stat_result:
        """As ``os.fstat``."""
        return self._file.stat()

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._file.close()

    def _check(self, what: str, is_allowed: bool) -> None:
        if not is_allowed:
            raise io.UnsupportedOperation({"r": "not readable", "w": "not writable"}[what])


def _bytes_of(buffer: Buffer) -> Buffer:
    """The memory of a buffer as bytes, whatever its elements are."""
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def flags_of(mode: str) -> tuple[int, str, bool]:
    """The flags of os.open for a mode of open, the mode of the raw file, and whether it is text."""
    letters = set(mode)
    if len(letters) != len(mode) or letters - set("rwxab+t"):
        raise ValueError(f"invalid mode: {mode!r}")
    if len(letters & set("rwxa")) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    if {"b", "t"} <= letters:
        raise ValueError("can't have text and binary mode at once")
    kind = (letters & set("rwxa")).pop()
    update = "+" in letters
    flags = os.O_RDWR if update else os.O_RDONLY if kind == "r" else os.O_WRONLY
    flags |= {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }[kind]
    return flags, f"{kind}b{'+' if update else ''}", "b" not in letters


def wrap(
    raw: RawFile,
    is_text: bool,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> IO[Any]:
    """Puts above a raw file what builtin open puts above one of the system."""
    if not is_text:
        for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
            if value is not None:
                raise ValueError(f"binary mode doesn't take an {name!r} argument")
    line_buffering = buffering == 1 and is_text
    if buffering == 0:
        if is_text:
            raise ValueError("can't have unbuffered text I/O")
        return cast("IO[Any]", raw)
    size = BUFFER_BYTES if buffering in (-1, 1) else buffering
    if size < 0:
        raise ValueError("invalid buffering size")
    buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
    if "+" in raw.mode:
        buffered = io.BufferedRandom(raw, size)
    elif raw.mode.startswith("r"):
        buffered = io.BufferedReader(raw, size)
    else:
        buffered = io.BufferedWriter(raw, size)
    if not is_text:
        return buffered
    return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering)
