#!/usr/bin/env python3
"""Jobs on random inputs against a model that applies their changes in order.

    dag.py run KESTREL VOLUME DIR SEED JOBS
    dag.py act PLAN

A version of the model is what its job has changed, by path, above the versions that it was made on.
The versions below a job are in one order: each above those that it was made on, else as the job
names them. The first one that says something of a path decides. A change below a directory says of
each directory above it that it is there.

Some versions are compacted, and are the same. Some jobs are done by ranks that log for themselves,
at the same time: each is a version on the job's input, and the job's version has them as inputs in
the order of their numbers. Some have several servers, of which some are killed when the job's
command has ended: what a server has acknowledged is published all the same.

Renames are of what the job has made itself: what becomes of a file that one job has renamed and
another one has changed depends on more than paths (tests/jobs/jobs.sh has such cases).
"""

import json
import os
import random
import re
import signal
import subprocess
import sys

NAMES = ["a", "b", "c", "data", "x"]


class Version:
    def __init__(self, name, inputs):
        self.name = name
        self.inputs = inputs
        self.changes = {}

    def stack(self):
        """This one and those below it, the first one first."""
        return [self] + stacked(self.inputs)


def stacked(inputs):
    """What is below a job: the order of a more important input stays, and what another one has
    besides comes in as low as may be."""
    out = []
    for version in inputs:
        stack = version.stack()
        for at in reversed(range(len(stack))):
            if stack[at] not in out:
                below = [out.index(each) for each in stack[at + 1 :] if each in out]
                out.insert(min(below, default=len(out)), stack[at])
    return out


def view(layers):
    """The tree of some layers: what each path is."""
    first = {}
    for layer in reversed(layers):
        first.update(layer.changes)
    tree = {"": ["dir"]}
    for path in sorted(first, key=lambda path: path.count("/")):
        above = os.path.dirname(path)
        if first[path] is not None and tree.get(above, [""])[0] == "dir":
            tree[path] = first[path]
    del tree[""]
    return tree


class Job:
    """Changes of one job, as they are made and in the model."""

    def __init__(self, rng, version):
        self.rng = rng
        self.version = version
        self.tree = view(version.stack())
        self.before = set(self.tree)
        # In order: a set has another one in each run.
        self.own = {}
        self.acts = []

    def below(self, path):
        return [other for other in self.tree if other.startswith(path + "/")]

    def dirs(self):
        return [""] + [path for path, what in self.tree.items() if what[0] == "dir"]

    def files(self):
        return [path for path, what in self.tree.items() if what[0] == "file"]

    def free(self):
        """A path that there is nothing at, and never was."""
        for _ in range(20):
            above = self.rng.choice(self.dirs())
            name = self.rng.choice(NAMES + [f"n{self.rng.randrange(10**6)}"])
            path = f"{above}/{name}".lstrip("/")
            was = any(path in layer.changes for layer in self.version.stack())
            if path not in self.tree and not was:
                return path
        return None

    def put(self, path, what):
        self.tree[path] = what
        self.version.changes[path] = what
        while path := os.path.dirname(path):
            self.version.changes[path] = ["dir"]

    def gone(self, path):
        for each in [path, *self.below(path)]:
            del self.tree[each]
            # What the job has made itself and removed again it says nothing of.
            self.version.changes.pop(each, None)
            if each in self.before:
                self.version.changes[each] = None
        while path := os.path.dirname(path):
            self.version.changes[path] = ["dir"]

    def content(self):
        size = self.rng.choice([0, 10, 3000, 70_000, 1_500_000])
        return [self.rng.randrange(2**30), size]

    def step(self):
        act = self.rng.choice(
            ["make", "make", "mkdir", "mkdir", "write", "patch", "remove", "tree", "rename"]
            + ["symlink", "link", "chmod"]
        )
        if act in ("make", "mkdir", "symlink"):
            path = self.free()
            if path is None:
                return
            if act == "make":
                what = ["file", [self.content()], 0o644]
            elif act == "mkdir":
                what = ["dir"]
            else:
                what = ["link", f"to {self.rng.randrange(99)}"]
            self.own[path] = True
            self.put(path, what)
            self.acts.append([act, path, what])
            return
        if act == "tree":
            path = self.rng.choice([*self.dirs()[1:], None])
            if path and self.rng.random() < 0.5:
                self.gone(path)
                self.acts.append([act, path])
            return
        if act == "rename":
            own = [path for path in self.own if path in self.tree]
            path, to = self.rng.choice([*own, None]), self.free()
            if not path or not to or to.startswith(path + "/"):
                return
            moved = {to + each[len(path) :]: self.tree[each] for each in [path, *self.below(path)]}
            if any(each not in self.own for each in self.below(path)):
                return
            self.gone(path)
            for each in sorted(moved):
                self.put(each, moved[each])
                self.own[each] = True
            self.acts.append([act, path, to])
            return
        path = self.rng.choice([*self.files(), None])
        if not path:
            return
        _, parts, mode = self.tree[path]
        if act == "remove":
            self.gone(path)
            self.acts.append([act, path])
        elif act == "write":
            self.put(path, ["file", [self.content()], mode])
            self.acts.append([act, path, self.tree[path]])
        elif act == "patch":
            at, data = self.rng.randrange(100_000), [self.rng.randrange(2**30), 5000]
            self.put(path, ["file", [*parts, [*data, at]], mode])
            self.acts.append([act, path, [*data, at]])
        elif act == "chmod":
            mode = self.rng.choice([0o600, 0o640, 0o755])
            self.put(path, ["file", parts, mode])
            self.acts.append([act, path, mode])
        elif act == "link":
            to = self.free()
            # Later changes would be those of both names.
            if to and path in self.own:
                self.own.pop(path, None)
                what = self.tree[path]
                copy = ["file", what[1], what[2]]
                self.put(to, copy)
                self.acts.append(["copy", path, to])


def data_of(part):
    return random.Random(part[0]).randbytes(part[1])


def content_of(parts):
    out = bytearray(data_of(parts[0]))
    for part in parts[1:]:
        at = part[2]
        if at > len(out):
            out.extend(bytes(at - len(out)))
        out[at : at + part[1]] = data_of(part)
    return bytes(out)


def check(root, tree, what):
    """The tree below a directory is that of the model."""
    found = {}
    for where, dirs, files in os.walk(root):
        where = os.path.relpath(where, root)
        for name in dirs + files:
            path = os.path.normpath(os.path.join(where, name))
            full = os.path.join(root, path)
            if os.path.islink(full):
                found[path] = "link"
            else:
                found[path] = "dir" if os.path.isdir(full) else "file"
    expected = {path: what[0] for path, what in tree.items()}
    lacks = {path: kind for path, kind in expected.items() if found.get(path) != kind}
    more = {path: kind for path, kind in found.items() if path not in expected}
    assert not lacks and not more, f"{what}: lacks {lacks}, has {more} too"
    for path, (kind, *rest) in tree.items():
        full = os.path.join(root, path)
        stat = os.lstat(full)
        if kind == "file":
            with open(full, "rb") as file:
                assert file.read() == content_of(rest[0]), f"{what}: {path}: other content"
            assert stat.st_mode & 0o7777 == rest[1], f"{what}: {path}: mode {stat.st_mode:o}"
        elif kind == "link":
            assert os.readlink(full) == rest[0], f"{what}: {path}: other target"
        else:
            inside = [each for each in tree if os.path.dirname(each) == path]
            subdirs = sum(tree[each][0] == "dir" for each in inside)
            assert stat.st_nlink == 2 + subdirs, f"{what}: {path}: {stat.st_nlink} links"


def act(plan):
    """In the namespace of a job: checks it, changes it, and checks it again."""
    with open(plan) as file:
        plan = json.load(file)
    check(".", plan["before"], "before")
    for act, path, *rest in plan["acts"]:
        if act in ("make", "write"):
            with open(path, "wb") as file:
                file.write(content_of(rest[0][1]))
            if act == "make":
                os.chmod(path, rest[0][2])
        elif act == "mkdir":
            os.mkdir(path)
        elif act == "symlink":
            os.symlink(rest[0][1], path)
        elif act == "patch":
            with open(path, "r+b") as file:
                file.seek(rest[0][2])
                file.write(data_of(rest[0]))
        elif act == "chmod":
            os.chmod(path, rest[0])
        elif act == "copy":
            subprocess.run(["cp", "-p", path, rest[0]], check=True)
        elif act == "rename":
            os.rename(path, rest[0])
        elif act == "remove":
            os.unlink(path)
        else:
            subprocess.run(["rm", "-r", path], check=True)
    check(".", plan["after"], "after")


def url_of(volume, version):
    base, *options = volume.split("?", 1)
    return "?".join([f"{base}//{version}", *options])


def planned(rng, version, plan):
    """The command that makes random changes on a version's inputs, which the version has then."""
    before = view(stacked(version.inputs))
    job = Job(rng, version)
    for _ in range(rng.randrange(25)):
        job.step()
    after = view(version.stack())
    assert after == job.tree, "the model contradicts itself"
    with open(plan, "w") as file:
        json.dump({"before": before, "acts": job.acts, "after": after}, file)
    return ["--", sys.executable, os.path.abspath(__file__), "act", plan]


def done(what, *commands):
    """Runs commands at the same time."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begun = [subprocess.Popen(command, **pipes) for command in commands]
    told = [process.communicate()[1] for process in begun]
    failed = [why for process, why in zip(begun, told) if process.returncode]
    assert not failed, f"{what}: {failed}"


def check_version(kestrel, url, work, tree, what):
    """A mount of a version has the tree of the model."""
    at = os.path.join(work, "version")
    os.makedirs(at, exist_ok=True)
    done(what, [kestrel, "mount", url, at])
    try:
        check(at, tree, what)
    finally:
        done(what, [kestrel, "umount", at])


def among(kestrel, volume, version, given, command, rng):
    """Runs a command in a job with several servers, some of which are killed when it has ended."""
    job = [kestrel, "job", "start", volume, *given, "--publish", version.name]
    started = subprocess.run(
        [*job, "--servers", str(rng.randint(2, 4))], capture_output=True, text=True
    )
    assert started.returncode == 0, f"{version.name}: {started.stderr}"
    variables = dict(re.findall(r"^(\w+)='(.*?)';", started.stdout, re.MULTILINE))
    joined = subprocess.run(
        [kestrel, "job", "join", *command],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert joined.returncode == 0, f"{version.name}: {joined.stderr}"
    told = subprocess.run(
        [kestrel, "job", "status", volume, version.name, "--json"], capture_output=True, text=True
    )
    words = " ".join(server["open_by"] or "" for server in json.loads(told.stdout)["servers"])
    pids = [int(pid) for pid in re.findall(r"process (\d+)", words)]
    for pid in rng.sample(pids, rng.choice([0, 1, len(pids)])):
        os.kill(pid, signal.SIGKILL)
    done(version.name, [kestrel, "job", "publish", volume, version.name])


def run(kestrel, volume, work, seed, count):
    rng = random.Random(seed)
    versions = []
    for number in range(count):
        inputs = rng.sample(versions, min(len(versions), rng.choice([0, 1, 1, 2, 2, 3])))
        name, what = f"dag{seed}@{number}", f"seed {seed}, job {number}"
        given = [word for each in inputs for word in ("--input", each.name)]
        plan = os.path.join(work, f"plan-{seed}")
        if len(inputs) < 2 and rng.random() < 0.4:
            some = range(rng.choice([1, 2, 3]))
            ranks = [Version(f"{name}-rank-{rank}", inputs) for rank in some]
            version = Version(name, ranks)
            done(what, [kestrel, "job", "start", volume, *given, "--publish", name, "--log"])
            log = [kestrel, "job", "log", volume, name, "--rank"]
            done(what, *([*log, str(rank), *planned(rng, each, f"{plan}-{rank}")]
                         for rank, each in enumerate(ranks)))
            done(what, [kestrel, "job", "publish", volume, name])
        else:
            version = Version(name, inputs)
            command = planned(rng, version, plan)
            others = random.Random(f"{seed} {number}")
            if others.random() < 0.5:
                job = [kestrel, "job", "run", volume, *given, "--publish", name]
                done(what, [*job, *command])
            else:
                among(kestrel, volume, version, given, command, others)
        after = view(version.stack())
        check_version(kestrel, url_of(volume, name), work, after, f"seed {seed}, version {name}")
        if rng.random() < 0.3:
            compacted = f"{name}-compacted"
            done(what, [kestrel, "version", "compact", url_of(volume, name), "--into", compacted])
            told = f"seed {seed}, version {compacted}"
            check_version(kestrel, url_of(volume, compacted), work, after, told)
            done(what, [kestrel, "version", "delete", volume, compacted])
        info = json.loads(
            subprocess.run(
                [kestrel, "version", "info", volume, version.name, "--json"],
                check=True,
                capture_output=True,
            ).stdout
        )
        files = sum(what[0] != "dir" for what in after.values())
        dirs = sum(what[0] == "dir" for what in after.values()) + 1
        told = (info["files"], info["directories"])
        assert told == (files, dirs), f"seed {seed}: {told}, {files} and {dirs} expected"
        versions.append(version)


if __name__ == "__main__":
    if sys.argv[1] == "act":
        act(sys.argv[2])
    else:
        run(*sys.argv[2:5], int(sys.argv[5]), int(sys.argv[6]))
