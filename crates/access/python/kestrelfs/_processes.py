"""The compiled part, for this process.

A process that was forked has none of its parent's threads, but all of its locks, as they were at
that moment: nothing of the parent's library can be used. Such a process loads the library once
more, from a copy that the parent made before the fork and that all its children share. A copy it
has to be: the loader knows a file again by its inode.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import tempfile
from types import ModuleType
from typing import Any

from kestrelfs import _native

# The library that this process uses; none: that of its parent is of no use to it.
_module: Any = _native
# The copy that a child will load, as a descriptor.
_spare: int | None = None


def native() -> Any:
    """The compiled part that this process can use."""
    global _module, _spare
    if _module is None:
        # Of a process that was forked while another thread was about to prepare it, there is none.
        spare = _copy() if _spare is None else _spare
        # The descriptor stays open: its number is the name by which the loader knows the library.
        _module, _spare = _load(f"/proc/self/fd/{spare}"), None
    return _module


def _copy() -> int:
    """A copy of the library that has no name."""
    source = _native.__file__
    assert source is not None
    try:
        target = os.memfd_create("kestrelfs", os.MFD_CLOEXEC)
    except OSError:
        file, path = tempfile.mkstemp(prefix="kestrelfs-")
        os.unlink(path)
        target = file
    with open(source, "rb") as library, open(target, "wb", closefd=False) as copy:
        shutil.copyfileobj(library, copy, 1 << 20)
    return target


def _load(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("kestrelfs._native", path)
    spec = importlib.util.spec_from_file_location("kestrelfs._native", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _before_fork() -> None:
    global _spare
    if _spare is None and _module is not None and _module.was_used():
        _spare = _copy()


def _in_child() -> None:
    global _module
    if _spare is not None:
        _module = None


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
