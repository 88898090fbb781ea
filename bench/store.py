"""An object store for benchmarks: versitygw behind kestrel-s3proxy, and volumes on it."""

import json
import os
import re
import subprocess
import sys
import time

from common import JUDGES, KESTREL, ROOT, TOOLS, run

sys.path.insert(0, f"{ROOT}/tests/s3")
import s3  # noqa: E402  the tests' own S3 client


def wait_for(what, condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise SystemExit(f"{what} did not come up")


class Store:
    """versitygw on a socket, the proxy in front of it."""

    def __init__(self, scratch, *proxy_options):
        os.environ.update(
            AWS_ACCESS_KEY_ID="kestrelbench",
            AWS_SECRET_ACCESS_KEY="only-for-the-bench",
            AWS_REGION="us-east-1",
        )
        self.dir, socket = f"{scratch}/store", f"{scratch}/s3.sock"
        os.makedirs(self.dir)
        command = [f"{TOOLS}/bin/versitygw", "--port", socket, "--keep-alive", "--quiet"]
        command += ["--access", "kestrelbench", "--secret", "only-for-the-bench", "posix", self.dir]
        self.gateway = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for("versitygw", lambda: os.path.exists(socket))
        self.proxy = subprocess.Popen(
            [f"{JUDGES}/kestrel-s3proxy", "serve", "--store", f"unix:{socket}", *proxy_options],
            stdout=subprocess.PIPE,
            text=True,
        )
        _, address, _, self.control = self.proxy.stdout.readline().split()
        self.endpoint = f"http://{address}"
        s3.Client(self.endpoint, "bench").make_bucket()

    def url(self, prefix):
        return f"s3://bench/{prefix}?endpoint={self.endpoint}&region=us-east-1&path-style=true"

    def latency(self, ms, link=0):
        """Puts the store so far away, behind a link of so many MB/s each way (0: as fast as this
        machine)."""
        rules = [f"latency:ms={ms}"] if ms else []
        rules += [f"bandwidth:up={link}000000,down={link}000000"] if link else []
        run(
            f"{JUDGES}/kestrel-s3proxy",
            "rules",
            "--control",
            self.control,
            "--set",
            " ".join(rules),
        )

    def counts(self):
        """What was counted since the last call."""
        return json.loads(
            run(f"{JUDGES}/kestrel-s3proxy", "counts", "--control", self.control, "--reset")
        )

    def close(self):
        for process in (self.proxy, self.gateway):
            process.kill()
            process.wait()


class Volume:
    """A volume on the store, mounted with different options in turn."""

    def __init__(self, store, scratch, name):
        self.path, self.mnt = f"{scratch}/{name}", f"{scratch}/{name}.mnt"
        os.makedirs(self.mnt)
        run(KESTREL, "format", self.path, "--storage", store.url(name))

    def mount(self, *options):
        """Mounts anew: nothing is in memory."""
        self.umount()
        run(KESTREL, "mount", self.path, self.mnt, *options)

    def umount(self):
        if os.path.ismount(self.mnt):
            run(KESTREL, "umount", self.mnt)

    def pid(self):
        return json.loads(run(KESTREL, "status", self.path, "--json"))["pid"]

    def cpu_seconds(self):
        with open(f"/proc/{self.pid()}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib_max(self):
        with open(f"/proc/{self.pid()}/status", encoding="ascii") as file:
            return int(re.search(r"VmHWM:\s*(\d+)", file.read()).group(1)) >> 10
