"""Requests to metadata nodes of the main calls, cold, at depths of 1, 4 and 8 names."""

import os
import shutil

from harness import case, open_and_close, write

DEPTHS = (1, 4, 8)
CREATE = os.O_CREAT | os.O_RDWR


def place(depth, what):
    """A directory in which nothing has been done yet, so that a file in it is `depth` names below the case's directory."""
    return "/".join([f"{what}{depth}"] + ["d"] * (depth - 2)) if depth > 1 else ""


def tree(root):
    shutil.rmtree(f"{root}/a")
    for depth in DEPTHS:
        for what in ("open", "stat", "create", "unlink", "mkdir", "rename", "rmdir", "symlink", "link", "chmod", "list", "absent"):
            directory = "/".join(filter(None, [root, place(depth, what)]))
            os.makedirs(directory, exist_ok=True)
            write(f"{directory}/{what}-file")
            os.makedirs(f"{directory}/{what}-dir")


@case(setup=tree)
def requests_by_depth(run):
    """requests of a cold call do not depend on the depth of its path"""
    for depth in DEPTHS:
        def at(what, name, depth=depth):
            return run.path(*filter(None, [place(depth, what), f"{what}-{name}"]))

        for what, call, shortcut, plain in [
            ("open", lambda: open_and_close(at("open", "file")), 1, depth + 1),
            ("stat", lambda: os.stat(at("stat", "file")).st_size, 1, None),
            ("create", lambda: open_and_close(at("create", "new"), CREATE), 1, depth + 1),
            ("unlink", lambda: os.unlink(at("unlink", "file")), 2, depth + 1),
            ("mkdir", lambda: os.mkdir(at("mkdir", "new")), 2, depth + 1),
            ("rename", lambda: os.rename(at("rename", "file"), at("rename", "new")), 3, None),
            ("rmdir", lambda: os.rmdir(at("rmdir", "dir")), 2, depth + 1),
            ("symlink", lambda: os.symlink("x", at("symlink", "new")), 2, depth + 1),
            ("absent", lambda: os.stat(at("absent", "nothing")), 1, depth),
        ]:
            run.do(f"{what} at {depth}", call, requests=shortcut, plain=plain)
