"""KestrelFS for PyTorch: data sets that read batches with one burst, and distributed checkpoints.

    from torch.utils.data import DataLoader
    from kestrelfs.torch import FileDataset

    files = FileDataset("kestrel://meta1/photos//imagenet@v3", root="/train", transform=decode)
    loader = DataLoader(files, batch_size=256, shuffle=True, num_workers=4, prefetch_factor=2)

A ``DataLoader`` asks a map-style data set for a batch at a time (``__getitems__``), and the data
set asks the volume for all files of the batch at once; ``num_workers`` and ``prefetch_factor`` read
the next batches meanwhile. Workers may be forked or spawned. A data set that many processes read is
best a published version (``VOLUME//NAME``): it never changes, and needs no server.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemBase
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from kestrelfs._files import RawFile, flags_of, wrap
from kestrelfs._volume import Volume


def _volume_of(volume: Volume | str, token: str | None) -> Volume:
    return volume if isinstance(volume, Volume) else Volume(volume, token, read_only=True)


def list_files(volume: Volume, root: str = "/") -> list[str]:
    """The paths of all regular files below a directory, in order; the directories of a level are
    listed at once.
    """
    found: list[str] = []
    level = [root.rstrip("/") or "/"]
    while level:
        below: list[str] = []
        for entries in (list(volume.scandir(directory)) for directory in level):
            found.extend(entry.path for entry in entries if entry.is_file(follow_symlinks=False))
            below.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        level = below
    return sorted(found)


class FileDataset(Dataset[Any]):  # type: ignore[misc,unused-ignore]
    """A map-style data set of whole files.

    ``paths`` names them; without it they are all files below ``root``. A sample is
    ``transform(path, content)``, by default the content.
    """

    def __init__(
        self,
        volume: Volume | str,
        paths: Sequence[str] | None = None,
        *,
        root: str = "/",
        token: str | None = None,
        transform: Callable[[str, bytes], Any] | None = None,
    ) -> None:
        self.volume = _volume_of(volume, token)
        self.paths = list_files(self.volume, root) if paths is None else list(paths)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch: its files are read with one burst."""
        paths = [self.paths[index] for index in indices]
        contents = self.volume.read_many(paths)
        if self.transform is None:
            return contents
        return [
            self.transform(path, content) for path, content in zip(paths, contents, strict=True)
        ]


class FileStream(IterableDataset[Any]):  # type: ignore[misc,unused-ignore]
    """An iterable data set of whole files, in the order of ``paths``, ``batch_files`` with each
    burst.

    The workers of a ``DataLoader`` share the files: each has every n-th burst.
    """

    def __init__(
        self,
        volume: Volume | str,
        paths: Sequence[str],
        *,
        token: str | None = None,
        transform: Callable[[str, bytes], Any] | None = None,
        batch_files: int = 256,
    ) -> None:
        if batch_files < 1:
            raise ValueError("batch_files: 1 or more")
        self.volume = _volume_of(volume, token)
        self.paths = list(paths)
        self.transform = transform
        self.batch_files = batch_files

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        starts = range(number * self.batch_files, len(self.paths), count * self.batch_files)
        for start in starts:
            paths = self.paths[start : start + self.batch_files]
            for path, content in zip(paths, self.volume.read_many(paths), strict=True):
                yield content if self.transform is None else self.transform(path, content)


class _CheckpointFiles(FileSystemBase):  # type: ignore[misc,unused-ignore]
    """The files of checkpoints, for the writer and reader of torch.distributed.checkpoint."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume

    def create_stream(self, path: Any, mode: str) -> Any:
        path = os.fspath(path)
        flags, raw_mode, is_text = flags_of(mode)
        raw = _SyncedFile(self.volume._native.open(path, flags), path, raw_mode)
        return wrap(raw, is_text, -1, None, None, None)

    def concat_path(self, path: Any, suffix: str) -> str:
        return os.path.join(os.fspath(path), suffix)

    def rename(self, path: Any, new_path: Any) -> None:
        self.volume.rename(path, new_path)

    def init_path(self, path: Any) -> str:
        return str(os.fspath(path))

    def mkdir(self, path: Any) -> None:
        self.volume.makedirs(path, exist_ok=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))

    def exists(self, path: Any) -> bool:
        return self.volume.exists(path)

    def rm_file(self, path: Any) -> None:
        self.volume.unlink(path)

    def ls(self, path: Any) -> list[str]:
        return [os.path.join(os.fspath(path), name) for name in self.volume.listdir(path)]


class _SyncedFile(RawFile):
    """A file of a checkpoint: durable when it is closed, before another file names it."""

    def close(self) -> None:
        if not self.closed and self.writable():
            self.fsync()
        super().close()


class StorageWriter(dcp.FileSystemWriter):  # type: ignore[misc,unused-ignore]
    """Writes distributed checkpoints into a directory of a volume:

    dcp.save(state, storage_writer=StorageWriter("kestrel://meta1/models", "/run7/step100"))
    """

    def __init__(
        self, volume: Volume | str, path: str, *, token: str | None = None, **options: Any
    ) -> None:
        opened = volume if isinstance(volume, Volume) else Volume(volume, token)
        # The files have no descriptor that could be synced: closing them does that.
        super().__init__(path, sync_files=False, **options)
        self.fs = _CheckpointFiles(opened)
        self.path = self.fs.init_path(path)


class StorageReader(dcp.FileSystemReader):  # type: ignore[misc,unused-ignore]
    """Reads distributed checkpoints from a directory of a volume, a snapshot or a version:

    dcp.load(state, storage_reader=StorageReader("kestrel://meta1/models", "/run7/step100"))
    """

    def __init__(
        self, volume: Volume | str, path: str, *, token: str | None = None, **options: Any
    ) -> None:
        super().__init__(path, **options)
        self.fs = _CheckpointFiles(_volume_of(volume, token))
        self.path = self.fs.init_path(path)


def save(value: Any, volume: Volume, path: str) -> None:
    """As ``torch.save``: the file is there whole, or as it was before."""
    import torch

    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        with volume.open(temporary, "wb") as file:
            torch.save(value, file)
        volume.rename(temporary, path)
    except BaseException:
        if volume.exists(temporary):
            volume.unlink(temporary)
        raise


def load(volume: Volume, path: str, **options: Any) -> Any:
    """As ``torch.load``."""
    import torch

    return torch.load(io.BytesIO(volume.read_bytes(path)), **options)
