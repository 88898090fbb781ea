"""KestrelFS volumes without a mount: no root, no FUSE, no daemon.

Open a volume by the URL that ``kestrel mount`` takes, and use it as you use ``os`` and ``open``:

    import kestrelfs

    volume = kestrelfs.open_volume("kestrel://meta1/photos", token="…")
    with volume.open("/notes.txt", "w") as file:
        file.write("hello")
    volume.listdir("/")

What a mount cannot do: ask for many files at once. ``read_many``, ``stat_many`` and ``list_many``
send one burst of requests, and take the time of one for all:

    contents = volume.read_many(f"/train/{number}.jpg" for number in batch)

- Paths are ``str``, ``bytes`` or ``os.PathLike``, and begin at the volume's root, with or without a
  slash. Names that are not UTF-8 are surrogates in a ``str``, as with ``os.fsencode``.
- What fails raises an ``OSError`` with errno and file name, of the subclass that ``os`` raises.
- The interpreter runs on while a call waits, and Ctrl-C ends the call.
- A process that was forked opens the volume anew at its first call; files that are open are the
  parent's. A volume can be pickled: ``spawn`` and ``forkserver`` open it by its URL and token.
- A volume in a directory (not served) can be open in one process at a time. Processes that work
  together use a served volume, or a published version (``VOLUME//NAME``), which any number of
  processes read.

Modules: ``kestrelfs.fsspec`` (fsspec file system ``kestrel://``), ``kestrelfs.aio`` (asyncio),
``kestrelfs.torch`` (data sets and distributed checkpoints for PyTorch).
"""

from kestrelfs._files import RawFile
from kestrelfs._native import __version__
from kestrelfs._volume import DirEntry, Volume, open_volume

__all__ = ["DirEntry", "RawFile", "Volume", "__version__", "open_volume"]
