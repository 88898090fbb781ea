#!/usr/bin/env python3
"""Parts of remove.sh.

    remove.py make DIR FILES      a tree: directories of 100 files each, links, a fifo, odd names
    remove.py judge KESTREL URL MOUNT LOCAL ROUNDS
                                  random trees, removed by a user: `kestrel rm -r` removes all of
                                  one, or nothing, as `rm -r` on a local file system can or cannot
    remove.py open KESTREL DIR    files that are open, and a process that works in a removed tree
"""

import os
import random
import shutil
import stat
import subprocess
import sys
import time

USER = 1234
PASSED = FAILED = 0


def report(good, text):
    global PASSED, FAILED
    if good:
        PASSED += 1
    else:
        FAILED += 1
    print(("ok   " if good else "FAIL ") + text)


def touch(path, data=b"x"):
    with open(path, "wb") as file:
        file.write(data)


def make(top, files):
    os.mkdir(top)
    for number in range(files):
        if number % 100 == 0:
            directory = f"{top}/{number // 1000}/{number // 100}"
            os.makedirs(directory)
        touch(f"{directory}/f{number}")
    os.makedirs(f"{top}/{'/'.join('d' * 40)}")
    os.symlink("/", f"{top}/root")
    os.symlink("..", f"{top}/above")
    os.symlink("nowhere", f"{top}/dangling")
    os.mkfifo(f"{top}/fifo")
    touch(os.fsencode(top) + b"/\xff\n")
    os.mkdir(f"{top}/ spaces ")


def random_tree(top, seed):
    """Directories of various owners and modes, three levels deep, the same for each top."""
    pick = random.Random(seed)

    def fill(directory, depth):
        for number in range(pick.randrange(4)):
            touch(f"{directory}/f{number}")
            os.chown(f"{directory}/f{number}", pick.choice([0, USER, USER]), 0)
        for number in range(pick.randrange(3) if depth < 3 else 0):
            below = f"{directory}/d{number}"
            os.mkdir(below)
            fill(below, depth + 1)
        odd = pick.random() < 0.2
        owner = pick.choice([0, USER, 1300]) if odd else USER
        mode = pick.choice([0o755, 0o555, 0o1777, 0o777, 0o300, 0o500, 0o1770, 0]) if odd else 0o755
        os.chown(directory, owner, 0)
        os.chmod(directory, mode)

    os.mkdir(top)
    fill(top, 0)


def listing(top):
    return sorted(
        os.path.relpath(os.path.join(at, name), top)
        for at, dirs, files in os.walk(top)
        for name in dirs + files
    )


def as_user(*command):
    return subprocess.run(
        ["setpriv", f"--reuid={USER}", "--regid=1234", "--clear-groups", *command],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )


def judge(kestrel, url, mount, local, rounds):
    counts = {True: 0, False: 0}
    for seed in range(rounds):
        tops = f"{mount}/j{seed}", f"{local}/j{seed}"
        for top in tops:
            os.mkdir(top)
            os.chmod(top, 0o777)
            random_tree(f"{top}/tree", seed)
        before = listing(tops[0])
        assert before == listing(tops[1])
        theirs = as_user("rm", "-rf", f"{tops[1]}/tree").returncode == 0
        dry = as_user(kestrel, "rm", "-r", "--dry-run", f"{url}:/j{seed}/tree")
        untouched = listing(tops[0]) == before
        ours = as_user(kestrel, "rm", "-r", f"{url}:/j{seed}/tree")
        same = theirs == (ours.returncode == 0) == (dry.returncode == 0)
        left = listing(tops[0])
        whole = left == ([] if theirs else before)
        counts[theirs] += 1
        if not (same and untouched and whole):
            said = f"{dry.stderr} {ours.stderr} {left}"
            report(False, f"tree {seed}: rm removes it: {theirs}; {said}")
            return
        for top in tops:
            shutil.rmtree(top)
    both = min(counts.values()) > rounds // 10
    report(both, f"{counts[True]} trees went, {counts[False]} stayed")


def gone(path, seconds=60):
    """Waits until there is nothing at a path."""
    end = time.monotonic() + seconds
    while os.path.lexists(path):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def open_files(kestrel, directory):
    top = f"{directory}/opened"
    os.makedirs(f"{top}/below")
    touch(f"{top}/read", b"still here")
    with open(f"{top}/read", "rb") as reading, open(f"{top}/write", "w+b") as writing:
        writing.write(b"before ")
        writing.flush()
        inside = os.open(f"{top}/below", os.O_RDONLY | os.O_DIRECTORY)
        subprocess.run([kestrel, "rm", "-r", "--eager", top], check=True, capture_output=True)
        report(not os.path.lexists(top), "the name is gone")
        report(reading.read() == b"still here", "an open file can be read")
        writing.write(b"after")
        writing.flush()
        os.fsync(writing.fileno())
        writing.seek(0)
        report(writing.read() == b"before after", "and written")
        report(stat.S_ISREG(os.fstat(writing.fileno()).st_mode), "and looked at")
        try:
            os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=inside))
            report(False, "something was made in a directory that is gone")
        except FileNotFoundError:
            report(True, "nothing is made in a directory that is gone")
        os.close(inside)
    # A new tree of the same name at once.
    os.mkdir(top)
    touch(f"{top}/new")
    subprocess.run([kestrel, "rm", "-r", top], check=True, capture_output=True)
    os.mkdir(top)
    touch(f"{top}/newer")
    time.sleep(0.1)
    report(os.listdir(top) == ["newer"], "a new directory of the same name stays")
    subprocess.run([kestrel, "rm", "-r", top], check=True, capture_output=True)
    # .trash itself is for root alone, so another user sees nothing of it.
    report(gone(f"{directory}/.trash"), "the trees that were removed are gone")


def main():
    what, arguments = sys.argv[1], sys.argv[2:]
    if what == "make":
        make(arguments[0], int(arguments[1]))
        return
    if what == "judge":
        judge(*arguments[:4], int(arguments[4]))
    else:
        open_files(*arguments)
    print(f"{PASSED} passed, {FAILED} failed")


if __name__ == "__main__":
    main()
