#!/usr/bin/env python3
"""Jobs with several servers that are killed while programs change names.

    storm.py run KESTREL VOLUME DIR SEED ROUNDS
    storm.py work LOG SEED WORKER

Each worker changes names in directories of its own and notes what it begins and what was
acknowledged. Servers are killed meanwhile, some or all, and resumed or not. The published version
has all that was acknowledged, and of each worker's last change all or nothing.
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
            file.flush()
            os.fsync(file.fileno())
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


def work(log, seed, worker):
    """In the root of the job's namespace, until it is ended."""
    rng = random.Random(f"{seed} {worker}")
    tree = first_tree(worker)
    for path in tree:
        os.makedirs(path, exist_ok=True)
    with open(log, "w", encoding="ascii") as out:
        number = 0
        while True:
            number += 1
            change = next_change(rng, tree, number)
            if same_file(tree, change):
                continue
            print(json.dumps(change), file=out, flush=True)
            do(change)
            print("done", file=out, flush=True)
            apply(tree, change)


def trees_of(log, worker):
    """What a worker's directories may be: with its last change, and without."""
    tree, last = first_tree(worker), None
    with open(log, encoding="ascii") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            if line == "done\n":
                apply(tree, last)
                last = None
            else:
                last = json.loads(line)
    trees = [dict(tree)]
    if last:
        apply(tree, last)
        trees.append(dict(tree))
        if last[0] == "make":
            # It was made, and nothing or not all was written to it.
            trees.append({**tree, last[1]: ""})
    return trees


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

    def run(self, rounds):
        count = self.rng.randint(2, 4)
        told = self.job("start", "--publish", self.name, "--servers", str(count))
        os.environ.update(dict(re.findall(r"^(\w+)='(.*?)';", told, re.MULTILINE)))
        mounted = []
        for mount in self.mounts:
            os.makedirs(mount, exist_ok=True)
            self.k("mount", os.environ["KESTREL_JOB"], mount)
            mounted.append(json.loads(self.k("status", mount, "--json"))["pid"])
        logs = [os.path.join(self.place, f"log{worker}") for worker in range(WORKERS)]
        workers = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "work", log, str(self.seed),
                 str(worker)],
                cwd=self.mounts[worker % 2], stderr=subprocess.DEVNULL,
            )
            for worker, log in enumerate(logs)
        ]
        killed = 0
        try:
            for turn in range(rounds):
                time.sleep(self.rng.uniform(0.3, 1.5))
                alive = [worker.poll() is None for worker in workers]
                assert all(alive), f"seed {self.seed}: a worker has failed: {alive}"
                killed += self.kill()
                if turn + 1 < rounds:
                    self.job("resume", self.name)
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
            for mount, pid in zip(self.mounts, mounted):
                self.k("umount", "--force", mount, check=False)
                # It waits for servers that are gone.
                os.kill(pid, signal.SIGKILL)
            for worker in workers:
                worker.wait(timeout=60)
        self.job("publish", self.name)
        self.check(logs, killed)

    def check(self, logs, killed):
        top = os.path.join(self.place, "version")
        os.makedirs(top, exist_ok=True)
        base, *options = self.volume.split("?", 1)
        self.k("mount", "?".join([f"{base}//{self.name}", *options]), top)
        changes = 0
        try:
            names = dirs = 0
            for worker, log in enumerate(logs):
                found, may_be = found_in(top, worker), trees_of(log, worker)
                with open(log, encoding="ascii") as lines:
                    changes += sum(line == "done\n" for line in lines)
                lacks = [sorted(set(tree.items()) ^ set(found.items())) for tree in may_be]
                assert found in may_be, f"seed {self.seed}: worker {worker}: {lacks}"
                dirs += sum(content is None for content in found.values())
                names += len(found)
            assert sorted(os.listdir(top)) == sorted(f"w{worker}" for worker in range(len(logs)))
        finally:
            self.k("umount", top)
        info = json.loads(self.k("version", "info", self.volume, self.name, "--json"))
        told = (info["files"], info["directories"])
        expected = (names - dirs, dirs + 1)
        assert told == expected, f"seed {self.seed}: {told}, {expected} expected"
        print(f"seed {self.seed}: {changes} changes, {killed} servers killed")


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        Storm(*sys.argv[2:5], int(sys.argv[5])).run(int(sys.argv[6]))
