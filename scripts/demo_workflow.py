"""The jobs of demo-workflow.sh, and a table of what they took. Called by demo-workflow.sh."""

import json
import os
import resource
import subprocess
import sys
import threading
import time

# Directories that the files of all stages are in.
DIRS = 64
# Files that are created through a served node, for what one costs there.
SERVED = 20_000
# Bar of the issue: processor time against inserting everything through one served node.
CPU_MIN = 5.0


def cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Workflow:
    """Jobs of one volume."""

    def __init__(self, kestrel, volume, work, name, is_related):
        self.kestrel, self.volume, self.work, self.name = kestrel, volume, work, name
        self.is_related = is_related
        self.expected, self.rows, self.made = set(), [], 0

    def run(self, *words):
        done = subprocess.run(
            [self.kestrel, *map(str, words)], text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"kestrel {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def url(self, version):
        base, options = self.volume.split("?", 1)
        return f"{base}//{version}?{options}"

    def lists(self, stage, files, processes):
        """The names that each process makes: new ones, in directories that all have in common."""
        if not self.is_related:
            self.expected = set()
        paths = []
        for rank in range(processes):
            names = [f"{n % DIRS}/stage{stage}.{n}" for n in range(rank, files, processes)]
            self.expected.update(names)
            paths.append(f"{self.work}/{self.name}-{rank}.list")
            with open(paths[-1], "w", encoding="ascii") as file:
                file.write("\n".join(names) + "\n")
        return paths

    def stage(self, stage, files, processes):
        lists = self.lists(stage, files, processes)
        version, whole = f"{self.name}-{stage}@1", f"{self.name}-{stage}@2"
        before = f"{self.name}-{stage - 1}@2"
        given = ["--input", before] if self.is_related and stage > 0 else []
        times, begun, used = [], time.monotonic(), cpu()
        self.run("job", "start", self.volume, *given, "--publish", version, "--log")
        ranks = [
            subprocess.Popen(
                [self.kestrel, "job", "log", self.volume, version, "--rank", str(rank)]
                + ["--list", path],
                stdout=subprocess.DEVNULL,
            )
            for rank, path in enumerate(lists)
        ]
        # All of them, whatever one has come to.
        if any([rank.wait() for rank in ranks]):
            raise SystemExit(f"stage {stage}: a process failed")
        times.append(time.monotonic() - begun)
        self.run("job", "publish", self.volume, version)
        times.append(time.monotonic() - begun - sum(times))
        self.run("version", "compact", self.url(version), "--into", whole)
        times.append(time.monotonic() - begun - sum(times))
        used = cpu() - used
        found = self.listing(whole)
        if found != self.expected:
            lacks, more = len(self.expected - found), len(found - self.expected)
            raise SystemExit(f"stage {stage}: the version lacks {lacks} files, and has {more} more")
        self.made += files
        row = {"workflow": self.name, "stage": stage, "processes": processes, "new": files}
        row |= {"files": len(found), "log_s": times[0], "publish_s": times[1]}
        row |= {"compact_s": times[2], "seconds": sum(times), "cpu_s": used}
        self.rows.append(row)
        print(
            f"{stage:>5} {processes:>9} {files:>9,} {len(found):>10,} {times[0]:>7.2f}"
            f" {times[1]:>8.2f} {times[2]:>8.2f} {sum(times):>7.2f} {used:>7.2f}   verified"
        )

    def listing(self, version):
        """All files of a version, by a mount of it."""
        at = f"{self.work}/version.mnt"
        os.makedirs(at, exist_ok=True)
        self.run("mount", self.url(version), at)
        found = set()
        for name in os.listdir(at):
            with os.scandir(f"{at}/{name}") as entries:
                found.update(f"{name}/{entry.name}" for entry in entries)
        self.run("umount", at)
        return found

    def all(self, first, stages):
        print(f"\n{'related' if self.is_related else 'unrelated'} jobs")
        print("STAGE PROCESSES       NEW      FILES     LOG  PUBLISH  COMPACT     ALL     CPU")
        files = first
        for stage in range(stages):
            # The first version, then as many new files as there are.
            self.stage(stage, files, min(2 << max(stage - 1, 0), 16))
            files = files if stage == 0 else 2 * files
        seconds = sum(row["seconds"] for row in self.rows)
        used = sum(row["cpu_s"] for row in self.rows)
        print(f"in all {seconds:.1f} s, {used:.1f} s of processor time, {self.made:,} files made")
        return used / self.made, seconds


def served(kestrel, work):
    """Processor time of a create through one served node, by everything that takes part."""
    volume, at = f"{work}/served", f"{work}/served.mnt"
    os.makedirs(at)
    run = lambda *words: subprocess.run([kestrel, *words], check=True, capture_output=True)
    run("format", volume)
    told = subprocess.run(
        [kestrel, "serve", volume, "--listen", "127.0.0.1:0"],
        check=True, capture_output=True, text=True,
    ).stdout
    url = next(word for word in told.split() if word.startswith("kestrel://"))
    run("mount", url, at)

    def pid(target):
        told = subprocess.run(
            [kestrel, "status", target, "--json"], check=True, capture_output=True, text=True
        )
        return json.loads(told.stdout)["pid"]

    def used():
        total = sum(os.times()[:2])
        for process in (pid(volume), pid(at)):
            with open(f"/proc/{process}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    for dir in range(DIRS):
        os.mkdir(f"{at}/{dir}")

    def create(first, step):
        for n in range(first, SERVED, step):
            os.mknod(f"{at}/{n % DIRS}/file.{n}", 0o100644)

    before, begun, step = used(), time.monotonic(), 8
    threads = [threading.Thread(target=create, args=(first, step)) for first in range(step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, spent = time.monotonic() - begun, used() - before
    run("umount", at)
    run("serve", volume, "--stop")
    return spent / SERVED, seconds / SERVED


def main():
    kestrel, work, volume, out = sys.argv[1:5]
    first = int(os.environ.get("FILES", "10000"))
    stages = int(os.environ.get("STAGES", "7")) + 1
    subprocess.run([kestrel, "format", volume], check=True, stdout=subprocess.DEVNULL)
    related = Workflow(kestrel, volume, work, "related", True)
    each, seconds = related.all(first, stages)
    unrelated = Workflow(kestrel, volume, work, "unrelated", False)
    apart, _ = unrelated.all(first, stages)
    through, wall = served(kestrel, work)
    print(f"\nprocessor time of a file: {each * 1e6:.1f} us in related jobs, {apart * 1e6:.1f} us"
          f" in unrelated ones, {through * 1e6:.1f} us through one served node")
    ratio, faster = through / each, wall * related.made / seconds
    print(f"all files through one served node: {ratio:.1f} times the processor time, "
          f"{faster:.1f} times the time (both from {SERVED:,} files)")
    is_met = ratio >= CPU_MIN
    print(f"{'ok  ' if is_met else 'MISS'} {ratio:.1f} times less processor time"
          f" (at least {CPU_MIN})")
    report = {"cores": os.cpu_count(), "rows": related.rows + unrelated.rows,
              "cpu_us": {"related": each * 1e6, "unrelated": apart * 1e6, "served": through * 1e6},
              "bars": [{"what": f"{ratio:.1f} times less processor time", "met": is_met}]}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    print(f"\n{out}")


if __name__ == "__main__":
    main()
