"""Runs the same cases on several sides (a mount in shortcut mode, a plain one, a local directory)
and compares what every call answered; counts the requests that a call cost where that is known.

A case is a function of a `Run`. It makes its calls with `run.do(label, call)`, which notes the
value or the errno. All sides must note the same. `requests=N` demands N requests to metadata nodes
in shortcut mode (what comes after the call has returned, as RELEASE, does not count); `plain=N` the
same in plain mode, without those for the names above the case's directory.

Trees are made beforehand (`prepare`), through another mount, so that the kernel has seen none of
their names.
"""

import errno
import fnmatch
import json
import os
import subprocess
import time
import traceback

KESTREL = os.environ.get("KESTREL", "kestrel")
USER = 20001
# Answered after the call that caused them, or not caused by a call at all.
LATER = {"release", "release_many", "renew", "reap"}
CASES = []


class Case:
    def __init__(self, function, setup, remote, local):
        self.name, self.function = function.__name__, function
        self.setup, self.remote, self.local = setup, remote, local


def case(function=None, *, setup=None, remote=False, local=True):
    """Declares a case. `setup(dir)` adds to its tree; `remote`: it needs a second mount; `local`: a
    local file system does the same (False: only plain and shortcut are compared)."""

    def declare(function):
        CASES.append(Case(function, setup, remote, local))
        return function

    return declare(function) if function else declare


def write(path, data=b"", mode=0o644):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
    os.write(fd, data)
    os.close(fd)
    os.chmod(path, mode)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def open_and_close(path, flags=os.O_RDONLY, mode=0o644, dir_fd=None):
    os.close(os.open(path, flags, mode, dir_fd=dir_fd))


def standard_tree(root):
    """What every case finds in its directory (one level below the mount)."""
    os.makedirs(f"{root}/a/b/c/d/e", 0o755)
    for path in ("a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"):
        write(f"{root}/{path}/file", path.encode())
    for number in range(8):
        write(f"{root}/a/b/c/d/e/n{number}", b"n%d" % number)
    os.makedirs(f"{root}/a/real/sub")
    os.chmod(f"{root}/a/real", 0o750)
    write(f"{root}/a/real/x", b"x", 0o600)
    write(f"{root}/a/real/sub/y", b"y")
    os.symlink("real", f"{root}/a/link")
    os.symlink("../a/b/c", f"{root}/a/uplink")
    os.symlink("link", f"{root}/a/link2")
    os.symlink("real/sub", f"{root}/a/coldlink")
    os.symlink("nowhere", f"{root}/a/dangling")
    os.symlink("loop", f"{root}/a/loop")
    os.makedirs(f"{root}/secret/in")
    write(f"{root}/secret/in/file", b"secret")
    os.chmod(f"{root}/secret", 0o700)
    os.mkdir(f"{root}/pub")
    os.chmod(f"{root}/pub", 0o777)
    os.chmod(root, 0o755)


def prepare(root, wanted):
    for one in chosen(wanted):
        directory = f"{root}/{one.name}"
        os.mkdir(directory)
        standard_tree(directory)
        if one.setup:
            one.setup(directory)


def chosen(wanted):
    return [
        one
        for one in CASES
        if any(fnmatch.fnmatch(one.name, pattern) for pattern in wanted or ["*"])
    ]


class Side:
    """A directory under test. `there` shows the same tree through another mount (or None)."""

    def __init__(self, name, here, there):
        self.name, self.here, self.there = name, here, there
        self.mount, self.above = here, 0  # the mount itself, and the names from there to `here`
        while not os.path.ismount(self.mount) and self.mount != "/":
            self.mount, self.above = os.path.dirname(self.mount), self.above + 1

    def requests(self):
        """Requests so far that a caller waits for, by kind. Asked of the mount's root: nothing is
        looked up for that."""
        said = subprocess.run(
            [KESTREL, "stats", "--once", "--json", self.mount],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        stats = json.loads(said)
        kinds = {
            row["kind"]: row["requests"]
            for row in stats["metadata_requests"]
            if row["kind"] not in LATER
        }
        # Once for a directory: nobody waits for it.
        kinds["looked at meanwhile"] = -stats.get("shortcut_directory_looks_total", 0)
        return kinds


class Run:
    """One case on one side. `here` is its directory, `there` the same through another mount."""

    def __init__(self, side, name):
        self.side = side
        self.here = f"{side.here}/{name}"
        self.there = f"{side.there}/{name}" if side.there else None
        self.notes, self.wrong = [], []

    def path(self, *names):
        return "/".join([self.here, *names])

    def do(self, label, call, *arguments, requests=None, plain=None, unlike=None, **options):
        """Makes a call and notes how it ended. `unlike="local"`: a local file system answers
        something else, and why is said beside the call."""
        above = self.side.above + 1  # with the case's own directory
        wanted = {"shortcut": requests, "plain": plain and plain + above}.get(self.side.name)
        before = self.side.requests() if wanted is not None else None
        outcome = attempt(call, *arguments, **options)
        if wanted is not None:
            after = self.side.requests()
            spent = {
                kind: after[kind] - before.get(kind, 0)
                for kind in after
                if after[kind] != before.get(kind, 0)
            }
            if sum(spent.values()) != wanted:
                self.wrong.append(
                    f"{label}: {sum(spent.values())} requests {spent}, wanted {wanted}"
                )
        self.notes.append((label, show(outcome), unlike))
        return outcome

    def user(self, label, call, *arguments, **options):
        """The same as an ordinary user, in a process of its own."""
        return self.do(label, lambda: in_child(call, *arguments, uid=USER), **options)

    def child(self, label, call, *arguments, **options):
        """The same in a process of its own, so that working directory and the like are not ours."""
        return self.do(label, lambda: in_child(call, *arguments), **options)


def show(value):
    return value if isinstance(value, str) else repr(value)


def attempt(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except OSError as error:
        if error.errno is None:
            raise
        return errno.errorcode[error.errno]


def in_child(call, *arguments, uid=0):
    """Calls in a forked process; what it answered as text."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            if uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            said = show(attempt(call, *arguments))
        except BaseException:  # whatever it is, the parent has to hear of it
            said = traceback.format_exc()
        os.write(write_end, said.encode()[:60000])
        os._exit(0)
    os.close(write_end)
    said = b""
    while piece := os.read(read_end, 65536):
        said += piece
    os.close(read_end)
    os.waitpid(pid, 0)
    return said.decode()


def run_case(one, sides):
    """What is wrong with it: lines of text; or None if it does not concern these sides."""
    runs = []
    for side in sides:
        if (one.remote and not side.there) or (side.name == "local" and not one.local):
            continue
        run = Run(side, one.name)
        try:
            one.function(run)
        except Exception:
            run.wrong.append(traceback.format_exc().rstrip())
        runs.append(run)
    if not any(run.side.name != "local" for run in runs):
        return None
    found = [f"{run.side.name}: {text}" for run in runs for text in run.wrong]
    judged = [run for run in runs if run.side.name == "shortcut"] or runs[:1]
    for run in judged:
        for other in runs:
            if other is not run:
                found += differences(run, other)
    return found


def differences(run, other):
    if len(run.notes) != len(other.notes):
        return [
            f"{run.side.name} noted {len(run.notes)} calls, {other.side.name} {len(other.notes)}"
        ]
    return [
        f"{label}: {run.side.name} {mine}, {other.side.name} {theirs}"
        for (label, mine, unlike), (_, theirs, _) in zip(run.notes, other.notes)
        if mine != theirs and unlike != other.side.name
    ]


def run_all(sides, wanted):
    """Runs the cases, prints a line for each; True if all passed."""
    passed = failed = 0
    for one in chosen(wanted):
        begun = time.monotonic()
        found = run_case(one, sides)
        if found is None:
            continue
        what = " ".join((one.function.__doc__ or one.name).split("\n\n")[0].split())
        if found:
            failed += 1
            print(f"FAIL {one.name}: {what} ({time.monotonic() - begun:.1f} s)")
            print(
                "\n".join(f"       {line}" for text in found for line in text.split("\n")),
                flush=True,
            )
        else:
            passed += 1
            print(f"ok   {one.name}: {what}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed == 0
