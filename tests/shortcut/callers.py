"""Unusual callers: programs executed from deep below, io_uring, many threads and processes, other
pid and user namespaces, bind mounts, an overlay on top."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading

from harness import attempt, case, open_and_close, read, write
from iouring import ASYNC, Ring

CREATE = os.O_CREAT | os.O_RDWR


def said(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr[:0]


def programs(root):
    for name in ("a/b/c/d", "a/real/sub"):
        shutil.copy("/bin/echo", f"{root}/{name}/echo")
        write(f"{root}/{name}/script", f"#!{root}/{name}/echo from\n".encode(), 0o755)
        write(f"{root}/{name}/sh", b"#!/bin/sh\nread line < ${0%/*}/data\necho $line\n", 0o755)
        write(f"{root}/{name}/data", b"data\n")
    write(f"{root}/a/b/plain", b"not executable")


@case(setup=programs)
def executes(run):
    """programs, scripts and their interpreters deep below, and through links"""
    run.do("program", said, run.path("a/b/c/d/echo"), "x")
    run.do("again", said, run.path("a/b/c/d/echo"), "x")
    run.do("script", said, run.path("a/b/c/d/sh"))
    run.do("through a link", said, run.path("a/link/sub/sh"))
    run.do("relative", said, "./c/d/echo", "y", cwd=run.path("a/b"))
    run.child("not executable", os.execv, run.path("a/b/plain"), ["x"])
    run.child("absent", os.execv, run.path("a/nope/x"), ["x"])
    run.child("a directory", os.execv, run.path("a/b/c"), ["x"])
    run.child(
        "by descriptor", lambda: os.execve(os.open(run.path("a/b/file"), os.O_RDONLY), ["x"], {})
    )
    run.user("no permission on the way", os.execv, run.path("secret/in/file"), ["x"])


@case
def by_io_uring(run):
    """io_uring: opens, statx, mkdir and unlink, at once and by its workers"""
    ring = Ring()
    for name, flags in [("at once", 0), ("by a worker", ASYNC)]:
        run.do(f"{name}: open", ring.read_file, run.path("a/b/c/d/e/n1"), flags)
        run.do(f"{name}: again", ring.read_file, run.path("a/b/c/d/e/n1"), flags)
        run.do(f"{name}: through a link", ring.read_file, run.path("a/link2/sub/y"), flags)
        run.do(f"{name}: statx", ring.size, run.path("a/b/c/d/file"), flags)
        run.do(f"{name}: absent", ring.size, run.path("a/b/nope/d/file"), flags)
        run.do(f"{name}: file on the way", ring.size, run.path("a/b/file/x"), flags)
        run.do(f"{name}: back", ring.size, run.path("a/nope/../file"), flags)
        run.do(
            f"{name}: create",
            lambda flags=flags: os.close(
                ring.open(run.path(f"a/b/c/d/u{flags}"), CREATE, sqe_flags=flags)
            ),
        )
        run.do(
            f"{name}: exclusive",
            lambda flags=flags: ring.open(
                run.path(f"a/b/c/d/u{flags}"), CREATE | os.O_EXCL, sqe_flags=flags
            ),
        )
        run.do(f"{name}: mkdir", ring.mkdir, run.path(f"a/b/c/d/v{flags}"), flags)
        run.do(f"{name}: unlink", ring.unlink, run.path(f"a/b/c/d/u{flags}"), flags)
        run.do(f"{name}: unlinked", ring.size, run.path(f"a/b/c/d/u{flags}"), flags)
    many = [
        attempt(ring.read_file, run.path(f"a/b/c/d/e/n{number % 8}"), ASYNC * (number % 2))
        for number in range(200)
    ]
    run.do("many", lambda: many == [b"n%d" % (number % 8) for number in range(200)])
    ring.close()


def forest(root):
    for number in range(16):
        os.makedirs(f"{root}/t{number}/same/same/same")
        write(f"{root}/t{number}/same/same/same/same", b"tree %d" % number)


@case(setup=forest)
def many_threads(run):
    """32 threads open and stat different files by similar paths: each gets its own"""
    wrong = []

    def load(number):
        for turn in range(60):
            tree = (number + turn) % 16
            path = run.path(f"t{tree}/same/same/same/same")
            got = (
                attempt(read, path)
                if turn % 3
                else attempt(
                    lambda path=path: (
                        b"tree %d" % tree
                        if os.stat(path).st_size == len(b"tree %d" % tree)
                        else b"?"
                    )
                )
            )
            if got != b"tree %d" % tree:
                wrong.append((path, got))
            got = attempt(os.stat, run.path(f"t{tree}/same/absent{number}/same/same"))
            if got != "ENOENT":
                wrong.append(("absent", got))

    threads = [threading.Thread(target=load, args=(number,)) for number in range(32)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    run.do("wrong", lambda: wrong[:5])


@case(setup=forest)
def many_processes(run):
    """300 short processes with ids that fall on the same hint slots open through names that
    clash"""
    command = (
        "for f; do read -r line < \"$f\" && echo \"$line\"; cat \"${f%/*}x/same\" 2>/dev/null && "
        "echo wrong; done; :"
    )
    for number in range(300):
        # Ids go on, so that slots chosen by them are used by others soon.
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    running = [
        subprocess.Popen(
            ["sh", "-c", command, "sh"]
            + [run.path(f"t{(number + turn) % 16}/same/same/same/same") for turn in range(16)],
            stdout=subprocess.PIPE,
        )
        for number in range(20)
    ]
    answers = [process.communicate(timeout=120)[0].split(b"tree ")[1:] for process in running]
    # The files do not end in a newline: read fails, and says nothing.
    run.do("nothing wrong", lambda: any(b"wrong" in word for answer in answers for word in answer))
    cats = [
        subprocess.run(
            ["cat"]
            + [run.path(f"t{(number + turn) % 16}/same/same/same/same") for turn in range(16)],
            capture_output=True,
            check=False,
        ).stdout
        for number in range(40)
    ]
    run.do(
        "each its own",
        lambda: all(
            out == b"".join(b"tree %d" % ((number + turn) % 16) for turn in range(16))
            for number, out in enumerate(cats)
        ),
    )


@case
def other_pid_namespace(run):
    """callers in a pid namespace of their own (a container)"""
    for name, command in [
        ("pid", ["unshare", "--pid", "--fork"]),
        ("pid and mount", ["unshare", "--pid", "--fork", "--mount-proc"]),
        ("user", ["unshare", "--user", "--map-root-user", "--pid", "--fork"]),
    ]:
        run.do(f"{name}: read", said, *command, "cat", run.path("a/b/c/d/file"))
        run.do(f"{name}: link", said, *command, "cat", run.path("a/link/sub/y"))
        run.do(f"{name}: absent", said, *command, "cat", run.path("a/nope/d/file"))
        run.do(
            f"{name}: create",
            said,
            *command,
            "sh",
            "-c",
            f"echo new > {run.path('pub', name.replace(' ', '-'))}",
        )
        run.do(f"{name}: created", read, run.path("pub", name.replace(" ", "-")))


@case(local=False)
def bind_mounts(run):
    """a bind mount of a directory deep below: names, data, and whatever becomes of it when it is
    renamed"""
    point = tempfile.mkdtemp(dir=os.environ.get("WORK", "/var/tmp"))
    run.do("bind", said, "mount", "--bind", run.path("a/b/c"), point)
    try:
        run.do("read", read, f"{point}/d/e/n1")
        run.do("list", lambda: sorted(os.listdir(point)))
        run.do("absent", read, f"{point}/d/nope/n1")
        run.do("create", open_and_close, f"{point}/d/made", CREATE)
        run.do("seen", lambda: os.path.exists(run.path("a/b/c/d/made")))
        run.do("mkdir", os.mkdir, f"{point}/d/dir")
        run.do("rename", os.rename, f"{point}/d/dir", f"{point}/dir")
        run.do(
            "back out is the point's parent",
            lambda: os.path.samefile(f"{point}/..", os.path.dirname(point)),
        )
        run.do("rename it here", os.rename, run.path("a/b"), run.path("pub/b"))
        run.do("still the same", read, f"{point}/d/e/n1")
    finally:
        subprocess.run(["umount", point], check=True)
        os.rmdir(point)


@case
def overlay_on_top(run):
    """an overlay file system with ours as its lower layer: names are as they are below, nothing
    absent appears"""
    work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/var/tmp"))
    for name in ("space", "merged"):
        os.mkdir(f"{work}/{name}")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", f"{work}/space"], check=True)
    os.mkdir(f"{work}/space/upper")
    os.mkdir(f"{work}/space/work")
    layers = f"lowerdir={run.path('a')},upperdir={work}/space/upper,workdir={work}/space/work"
    try:
        run.do("mount", said, "mount", "-t", "overlay", "overlay", "-o", layers, f"{work}/merged")
        run.do("read", read, f"{work}/merged/b/c/d/e/n1")
        run.do("absent on the way", read, f"{work}/merged/b/nope/d/e/n1")
        run.do(
            "absent was not made up",
            lambda: (
                os.path.lexists(f"{work}/merged/b/nope"),
                sorted(os.listdir(f"{work}/merged/b")),
            ),
        )
        run.do("file on the way", read, f"{work}/merged/b/file/x")
        run.do("link", read, f"{work}/merged/link/sub/y")
        run.do("create", write, f"{work}/merged/b/c/new", b"upper")
        run.do("not below", os.stat, run.path("a/b/c/new"))
        run.do("create on the way to nowhere", write, f"{work}/merged/b/zz/new", b"upper")
        run.do("change", write, f"{work}/merged/b/c/file", b"upper")
        run.do("below is as it was", read, run.path("a/b/c/file"))
        run.do("remove", os.unlink, f"{work}/merged/b/c/d/file")
        run.do("removed", os.stat, f"{work}/merged/b/c/d/file")
        run.do("below it is there", read, run.path("a/b/c/d/file"))
        run.do("names below the upper's", os.makedirs, f"{work}/merged/b/up/c/d")
        run.do("deep in the upper", write, f"{work}/merged/b/up/c/d/file", b"1")
        run.do("read it", read, f"{work}/merged/b/up/c/d/file")
    finally:
        for name in ("merged", "space"):
            subprocess.run(["umount", f"{work}/{name}"], check=False)
        shutil.rmtree(work)


@case
def several_mount_namespaces(run):
    """a mount namespace of its own, and a changed root directory inside the mount"""
    run.do("unshare -m", said, "unshare", "--mount", "cat", run.path("a/b/c/d/file"))

    def changed_root():
        os.chroot(run.path("a"))
        os.chdir("/")
        return (
            read("/b/c/file"),
            attempt(read, "/../../file"),
            attempt(read, "/nope/x"),
            sorted(os.listdir("/b")),
        )

    run.child("chroot", changed_root)
    run.do(
        "python there",
        said,
        sys.executable,
        "-c",
        "print(open('d/file').read())",
        cwd=run.path("a/b/c"),
    )
