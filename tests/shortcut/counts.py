"""Requests to metadata nodes of the main calls, cold, at depths of 1, 4 and 8 names."""

import os
import shutil

from harness import case, open_and_close, write

DEPTHS = (1, 4, 8)
CREATE = os.O_CREAT | os.O_RDWR


def place(depth, what):
    """A directory in which nothing has been done yet, so that a file in it is `depth` names below
    the case's directory."""
    return "/".join([f"{what}{depth}"] + ["d"] * (depth - 2)) if depth > 1 else ""


def tree(root):
    shutil.rmtree(f"{root}/a")
    for depth in DEPTHS:
        for what in (
            "open",
            "stat",
            "create",
            "unlink",
            "mkdir",
            "rename",
            "rmdir",
            "symlink",
            "link",
            "chmod",
            "list",
            "absent",
        ):
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


def hundred(root):
    shutil.rmtree(f"{root}/a")
    os.makedirs(f"{root}/many")
    for number in range(100):
        write(f"{root}/many/f{number:03}", b"x")


def listing(fd):
    """Looks at each name of an open directory, and at its extended attributes, as `ls -l` does."""
    here = f"/proc/self/fd/{fd}"
    with os.scandir(fd) as entries:
        names = [entry.name for entry in entries]
    sizes = [os.stat(name, dir_fd=fd).st_size for name in names]
    return len(names), sum(sizes), [os.listxattr(f"{here}/{name}") for name in names[:3]]


def counted(run, label, most, call):
    """Demands at most so many requests of a call on a mount with the shortcut: without it a look
    cannot be told from an open."""
    if run.side.name != "shortcut":
        return run.do(label, call)
    before = run.side.requests()
    run.do(label, call)
    after = run.side.requests()
    spent = {
        kind: after[kind] - before.get(kind, 0)
        for kind in after
        if after[kind] != before.get(kind, 0)
    }
    if sum(spent.values()) > most:
        run.wrong.append(f"{label}: {sum(spent.values())} requests {spent}, at most {most} wanted")


@case(setup=hundred, remote=True)
def requests_of_a_listing(run):
    """looking at a hundred names that were listed costs far less than a request each, and removing
    them one each"""
    fd = os.open(run.path("many"), os.O_RDONLY)
    counted(run, "look at all", 30, lambda: listing(fd))

    def remove():
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            os.unlink(name, dir_fd=fd)

    counted(run, "remove all", 130, remove)
    os.close(fd)
