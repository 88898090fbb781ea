"""Volumes for asyncio: every method of ``kestrelfs.Volume`` as an awaitable.

    import asyncio
    from kestrelfs import aio

async def main() -> None: async with await aio.open_volume("kestrel://meta1/photos") as volume:
first, second = await asyncio.gather(volume.read_bytes("/a"), volume.read_bytes("/b")) contents =
await volume.read_many(["/c", "/d"])

Calls run on threads of the volume's own (``max_workers``), so that the event loop never waits; the
bursts of ``read_many`` need one for all their files. A call that is cancelled goes on, and nobody
hears of its end. ``blocking`` is the volume itself, for what has no awaitable.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kestrelfs._volume import Volume as _Volume

# Methods that wait for the volume.
_METHODS = frozenset(
    {
        "access",
        "chmod",
        "chown",
        "copy_file",
        "exchange",
        "exists",
        "getxattr",
        "isdir",
        "isfile",
        "link",
        "list_many",
        "listdir",
        "listxattr",
        "lstat",
        "makedirs",
        "mkdir",
        "read_bytes",
        "read_many",
        "readlink",
        "remove",
        "removexattr",
        "rename",
        "replace",
        "rmdir",
        "setxattr",
        "stat",
        "stat_many",
        "statvfs",
        "symlink",
        "sync",
        "truncate",
        "unlink",
        "utime",
        "write_bytes",
    }
)


class Volume:
    """A volume for asyncio. ``open_volume`` makes one."""

    def __init__(self, volume: _Volume, max_workers: int = 32) -> None:
        self.blocking = volume
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="kestrelfs")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _METHODS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        method = getattr(self.blocking, name)

        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._run(functools.partial(method, *arguments, **options))

        return call

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_METHODS})

    async def open(self, path: Any, mode: str = "r", **options: Any) -> File:
        """Opens a file; its methods are awaitables."""
        return File(
            self, await self._run(functools.partial(self.blocking.open, path, mode, **options))
        )

    async def close(self) -> None:
        """Ends the use of the volume, when the calls that are under way have ended."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        await asyncio.get_running_loop().run_in_executor(None, self.blocking.close)

    async def __aenter__(self) -> Volume:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class File:
    """An open file: ``read``, ``write``, ``seek``, ``truncate``, ``flush`` and ``close`` are
    awaitables.
    """

    def __init__(self, volume: Volume, file: Any) -> None:
        self.blocking = file
        self._volume = volume

    async def read(self, size: int = -1) -> Any:
        """As of the file that ``open`` gives."""
        return await self._volume._run(functools.partial(self.blocking.read, size))

    async def write(self, data: Any) -> int:
        """As of the file that ``open`` gives."""
        written: int = await self._volume._run(functools.partial(self.blocking.write, data))
        return written

    async def seek(self, offset: int, whence: int = 0) -> int:
        """As of the file that ``open`` gives."""
        position: int = await self._volume._run(
            functools.partial(self.blocking.seek, offset, whence)
        )
        return position

    async def truncate(self, size: int | None = None) -> int:
        """As of the file that ``open`` gives."""
        done: int = await self._volume._run(functools.partial(self.blocking.truncate, size))
        return done

    async def flush(self) -> None:
        """As of the file that ``open`` gives."""
        await self._volume._run(self.blocking.flush)

    async def close(self) -> None:
        """Stores what was written, and closes it."""
        await self._volume._run(self.blocking.close)

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def open_volume(
    url: str, token: str | None = None, *, read_only: bool = False, max_workers: int = 32
) -> Volume:
    """As ``kestrelfs.open_volume``."""
    opening = functools.partial(_Volume, url, token, read_only=read_only)
    return Volume(await asyncio.get_running_loop().run_in_executor(None, opening), max_workers)
