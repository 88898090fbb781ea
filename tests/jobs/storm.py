#!/usr/bin/env python3
"""Jobs with several servers that are killed while programs change names.

    storm.py run KESTREL VOLUME DIR SEED ROUNDS
    storm.py work LOG SEED WORKER

Each worker changes names in directories of its own, notes what it does, and syncs now and then.
After a while servers are killed, some or all, and then the workers. What was synced is there, in
the job that is resumed or in its version; of what was changed later each name is as it was at the
sync or as a later change left it.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

WORKERS = 4


def apply(tree, change):
    """A change of a tree: paths, each with the content of its file or None."""
    act, path, *rest = change
    if act == "make":
        tree[path] = rest[0]
    elif act == "mkdir":
        tree[path] = None
    elif act in ("remove", "rmdir"):
        del tree[path]
    elif act == "link":
        tree[rest[0]] = tree[path]
    else:
        for each in [each for each in tree if each == path or each.startswith(path + "/")]:
            tree[rest[0] + each[len(path) :]] = tree.pop(each)


def next_change(rng, tree, number):
    dirs = [path for path, content in tree.items() if content is None]
    files = [path for path, content in tree.items() if content is not None]
    new = f"{rng.choice(dirs)}/n{number}"
    movable = [path for path in dirs if path.count("/") > 1]
    empty = [path for path in movable if not any(other.startswith(path + "/") for other in tree)]
    act = rng.choice(["make", "make", "mkdir", "rename", "rename", "replace", "link"]
                     + ["remove", "rmdir", "rename-dir"])
    if act == "mkdir":
        return ["mkdir", new]
    if act == "rename" and files:
        return ["rename", rng.choice(files), new]
    if act == "replace" and len(files) > 1:
        return ["rename", *rng.sample(files, 2)]
    if act == "rename-dir" and movable:
        path = rng.choice(movable)
        if not new.startswith(path + "/"):
            return ["rename", path, new]
    if act == "link" and files:
        return ["link", rng.choice(files), new]
    if act == "remove" and files:
        return ["remove", rng.choice(files)]
    if act == "rmdir" and empty:
        return ["rmdir", rng.choice(empty)]
    return ["make", new, f"{number}" * rng.randrange(1, 50)]


def do(change):
    act, path, *rest = change
    if act == "make":
        with open(path, "x", encoding="ascii") as file:
            file.write(rest[0])
    elif act == "mkdir":
        os.mkdir(path)
    elif act == "remove":
        os.unlink(path)
    elif act == "rmdir":
        os.rmdir(path)
    elif act == "link":
        os.link(path, rest[0])
    else:
        os.rename(path, rest[0])


def first_tree(worker):
    return {f"w{worker}/{name}".rstrip("/"): None for name in ["", "a", "b", "c", "c/d"]}


def same_file(tree, change):
    """A rename of one name of a file to another one of the same file does nothing."""
    act, path, *rest = change
    return act == "rename" and tree.get(rest[0]) is not None and tree[rest[0]] == tree[path]


def sync():
    place = os.open(".", os.O_RDONLY)
    os.fsync(place)
    os.close(place)


def work(log, seed, worker):
    """In the root of the job's namespace, until it is ended."""
    rng = random.Random(f"{seed} {worker}")
    for path in first_tree(worker):
        os.makedirs(path, exist_ok=True)
    sync()
    tree = found_in(".", worker)
    number = max([int(re.findall(r"\d+", path)[-1]) for path in tree] + [0])
    with open(log, "w", encoding="ascii") as out:
        print(json.dumps(["synced", tree]), file=out, flush=True)
        while True:
            number += 1
            change = next_change(rng, tree, number)
            if same_file(tree, change):
                continue
            print(json.dumps(change), file=out, flush=True)
            do(change)
            apply(tree, change)
            if rng.random() < 0.1:
                sync()
                print(json.dumps(["synced", tree]), file=out, flush=True)


def log_of(path):
    """What a worker had synced, and what it changed or began to change later."""
    synced, later = None, []
    with open(path, encoding="ascii") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            change = json.loads(line)
            if change[0] == "synced":
                synced, later = change[1], []
            else:
                later.append(change)
    return synced, later


def is_below(path, above):
    return path == above or path.startswith(above + "/")


def judge(found, synced, later):
    """What is not as it may be."""
    touched = [path for change in later for path in change[1:] if change[0] != "make"]
    touched += [change[1] for change in later if change[0] == "make"]
    contents = {content for content in synced.values() if content is not None} | {""}
    contents |= {change[2] for change in later if change[0] == "make"}
    wrong = []
    for path in sorted(set(found) | set(synced)):
        if any(is_below(path, each) for each in touched):
            if found.get(path) is not None and found[path] not in contents:
                wrong.append(f"{path}: content of no file")
        elif (path in found, found.get(path)) != (path in synced, synced.get(path)):
            wrong.append(f"{path}: {found.get(path, 'missing')}, {synced.get(path, 'missing')}")
    return wrong


def found_in(top, worker):
    tree = {}
    start = os.path.join(top, f"w{worker}")
    for where, dirs, files in os.walk(start):
        path = os.path.relpath(where, top)
        tree[path] = None
        links = 2 + len(dirs)
        assert os.stat(where).st_nlink == links, f"{path}: not {links} links"
        for name in files:
            with open(os.path.join(where, name), encoding="ascii") as file:
                tree[f"{path}/{name}"] = file.read()
    return tree


class Storm:
    def __init__(self, kestrel, volume, place, seed):
        self.kestrel, self.volume, self.place, self.seed = kestrel, volume, place, seed
        self.rng = random.Random(f"storm {seed}")
        self.name = f"storm@{seed}"
        self.figures = None
        self.mounts = [os.path.join(place, f"mount{number}") for number in range(2)]

    def k(self, *words, check=True):
        done = subprocess.run(
            [self.kestrel, *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def job(self, verb, *words):
        return self.k("job", verb, self.volume, *words)

    def servers(self):
        told = json.loads(self.job("status", self.name, "--json"))
        words = " ".join(server["open_by"] or "" for server in told["servers"])
        return [int(pid) for pid in re.findall(r"process (\d+)", words)]

    def kill(self):
        pids = self.servers()
        chosen = self.rng.sample(pids, self.rng.choice([1, 1, len(pids)]))
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)
        return len(chosen)

    def round(self, logs):
        """Workers, and servers that are killed; how many of these."""
        mounted = []
        for mount in self.mounts:
            os.makedirs(mount, exist_ok=True)
            self.k("mount", os.environ["KESTREL_JOB"], mount)
            mounted.append(json.loads(self.k("status", mount, "--json"))["pid"])
        workers = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "work", log,
                 str(self.rng.randrange(2**30)), str(worker)],
                cwd=self.mounts[worker % 2], stderr=subprocess.PIPE,
            )
            for worker, log in enumerate(logs)
        ]
        killed = 0
        try:
            until = time.monotonic() + 60
            while not all(os.path.exists(log) for log in logs) and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(self.rng.uniform(0.3, 2.0))
            for worker in workers:
                if worker.poll() is not None:
                    raise AssertionError(f"seed {self.seed}: {worker.stderr.read().decode()}")
            killed = self.kill()
            time.sleep(self.rng.uniform(0, 0.3))
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
            for mount, pid in zip(self.mounts, mounted):
                self.k("umount", "--force", mount, check=False)
                # It waits for servers that are gone.
                os.kill(pid, signal.SIGKILL)
            for worker in workers:
                worker.wait(timeout=60)
        return killed

    def run(self, rounds):
        count = self.rng.randint(2, 4)
        told = self.job("start", "--publish", self.name, "--servers", str(count))
        os.environ.update(dict(re.findall(r"^(\w+)='(.*?)';", told, re.MULTILINE)))
        changes = killed = 0
        top = os.path.join(self.place, "version")
        os.makedirs(top, exist_ok=True)
        for turn in range(rounds):
            logs = [os.path.join(self.place, f"log{turn}-{worker}") for worker in range(WORKERS)]
            for log in logs:
                if os.path.exists(log):
                    os.unlink(log)
            killed += self.round(logs)
            if turn + 1 < rounds:
                self.job("resume", self.name)
                self.k("mount", os.environ["KESTREL_JOB"], top)
            else:
                self.job("publish", self.name)
                base, *options = self.volume.split("?", 1)
                self.k("mount", "?".join([f"{base}//{self.name}", *options]), top)
            try:
                changes += self.check(top, logs, turn)
            finally:
                self.k("umount", top)
        info = json.loads(self.k("version", "info", self.volume, self.name, "--json"))
        told = (info["files"], info["directories"])
        assert told == self.figures, f"seed {self.seed}: {told}, {self.figures} expected"
        print(f"seed {self.seed}: {changes} changes, {killed} servers killed")

    def check(self, top, logs, turn):
        """Compares the directories of all workers; how many changes they have made."""
        changes = names = dirs = 0
        for worker, log in enumerate(logs):
            found, (synced, later) = found_in(top, worker), log_of(log)
            wrong = judge(found, synced, later)
            assert not wrong, f"seed {self.seed}, round {turn}, worker {worker}: {wrong}"
            dirs += sum(content is None for content in found.values())
            names += len(found)
            with open(log, encoding="ascii") as lines:
                changes += sum(1 for line in lines)
        assert sorted(os.listdir(top)) == sorted(f"w{worker}" for worker in range(len(logs)))
        self.figures = (names - dirs, dirs + 1)
        return changes


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        Storm(*sys.argv[2:5], int(sys.argv[5])).run(int(sys.argv[6]))
