#!/usr/bin/env python3
"""Measures `kestrel gateway` beside versitygw on the same disk, in the same run: GET and PUT of
4 KiB, 1 MiB and 1 GiB, a list of many keys, and memory under 1,000 connections.

    bench/gateway.py [--full]       --full: 1,000,000 keys instead of 100,000

The client is this program: requests that are signed by hand, over connections that stay, of four
processes (1 GiB: of one). Results go to target/bench/gateway.json.
"""

import hashlib
import http.client
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/access"))
from sigv4 import signed  # noqa: E402

PROCESSES = 4
SECONDS = 5
PIECE = 1 << 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


class Server:
    """A server, its address and its access key."""

    def __init__(self, name, work):
        self.name, port = name, free_port()
        self.url = f"http://127.0.0.1:{port}"
        if name == "kestrel":
            kestrel = os.environ.get("KESTREL", str(target() / "release/kestrel"))
            subprocess.run([kestrel, "format", work / "v"], check=True, capture_output=True)
            command = [kestrel, "gateway", work / "v", "--listen", f"127.0.0.1:{port}",
                       "--foreground", "--access-log", "off"]
        else:
            tools = os.environ.get("KESTREL_TOOLS", os.path.expanduser("~/.cache/kestrel-tools"))
            (work / "versity").mkdir()
            command = [shutil.which("versitygw") or f"{tools}/bin/versitygw", "--port",
                       f"127.0.0.1:{port}", "--quiet", "--access", "bench", "--secret",
                       "only-for-tests", "posix", work / "versity"]
            self.key, self.secret = "bench", "only-for-tests"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        if name == "kestrel":
            lines = (work / "v/gateway.keys").read_text().splitlines()
            self.key, self.secret = [line for line in lines if not line.startswith("#")][0].split()
        self.one("PUT", "/bench")

    def line(self):
        return http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=600)

    def ask(self, line, method, path, body=b"", query="", sink=None, length=None):
        names = signed(method, path, query=query, key=self.key, secret=self.secret, url=self.url,
                       payload="UNSIGNED-PAYLOAD")
        names["content-length"] = str(len(body) if length is None else length)
        line.request(method, path + (f"?{query}" if query else ""), body=body, headers=names)
        answer = line.getresponse()
        if answer.status >= 300:
            raise RuntimeError(f"{self.name}: {method} {path}: {answer.status} {answer.read()}")
        if sink is None:
            return answer.read()
        while piece := answer.read(PIECE):
            sink(piece)

    def one(self, method, path, **how):
        return self.ask(self.line(), method, path, **how)

    def rss(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def work_on(server, method, size, number, keys, done):
    line, body, count, end = server.line(), os.urandom(size), 0, time.time() + SECONDS
    while time.time() < end or (method == "PUT" and count < keys):
        key = f"/bench/{size}/{number}-{count % keys}"
        if method == "PUT":
            server.ask(line, "PUT", key, body)
        elif len(server.ask(line, "GET", key)) != size:
            raise RuntimeError("a body of another size")
        count += 1
    done.put(count)


def rate(server, method, size, keys):
    """Requests a second of several processes."""
    done = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=work_on,
                                       args=(server, method, size, number, keys, done))
               for number in range(PROCESSES)]
    begun = time.time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    taken = time.time() - begun
    if any(worker.exitcode for worker in workers):
        raise RuntimeError(f"{server.name}: {method} of {size} failed")
    return sum(done.get() for _ in workers) / taken


def large(server):
    """MB/s of a PUT and a GET of 1 GiB."""
    size, piece = 1 << 30, os.urandom(PIECE)
    body = (piece for _ in range(size // PIECE))
    begun = time.time()
    server.one("PUT", "/bench/large", body=body, length=size)
    put = size / 1e6 / (time.time() - begun)
    got = []
    begun = time.time()
    server.one("GET", "/bench/large", sink=lambda piece: got.append(len(piece)))
    assert sum(got) == size
    return put, size / 1e6 / (time.time() - begun)


def fill(server, first, count):
    line = server.line()
    for number in range(first, first + count):
        server.ask(line, "PUT", f"/bench/many/{number % 100:02}/{number:07}", b"")


def listing(server, count):
    """Keys a second of a list of all of them, by pages of 1,000."""
    share = count // PROCESSES
    workers = [multiprocessing.Process(target=fill, args=(server, number * share, share))
               for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    line, token, found, begun = server.line(), "", 0, time.time()
    while True:
        more = f"continuation-token={urllib.parse.quote(token, safe='')}&" if token else ""
        page = server.ask(line, "GET", "/bench",
                          query=f"{more}list-type=2&prefix=many%2F").decode()
        found += page.count("<Key>")
        if "<IsTruncated>true" not in page:
            break
        token = page.split("<NextContinuationToken>")[1].split("<")[0]
    if found != share * PROCESSES:
        raise RuntimeError(f"{server.name}: listed {found} of {share * PROCESSES} keys")
    return found / (time.time() - begun)


def crowd(server):
    """MiB of memory with 1,000 connections, each in the middle of a GET of 1 GiB."""
    before, lines = server.rss(), []
    names = signed("GET", "/bench/large", key=server.key, secret=server.secret, url=server.url,
                   payload="UNSIGNED-PAYLOAD")
    head = "GET /bench/large HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in names.items()) + "\r\n"
    for _ in range(1000):
        where = urllib.parse.urlsplit(server.url)
        line = socket.create_connection((where.hostname, where.port), timeout=60)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        line.sendall(head.encode())
        lines.append(line)
    for line in lines:
        line.recv(4096)
    time.sleep(3)
    after = server.rss()
    for line in lines:
        line.close()
    return before, after


def main():
    keys = 1_000_000 if "--full" in sys.argv else 100_000
    keys = int(os.environ.get("KEYS", keys))
    results = {}
    base = os.environ.get("BENCH_DIR", str(target() / "bench"))
    pathlib.Path(base).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as work:
        for name in ["kestrel", "versitygw"]:
            server = Server(name, pathlib.Path(work))
            try:
                out = results[name] = {}
                for label, size, some in [("4 KiB", 4096, 200), ("1 MiB", 1 << 20, 20)]:
                    out[f"PUT {label} /s"] = rate(server, "PUT", size, some)
                    out[f"GET {label} /s"] = rate(server, "GET", size, some)
                out["PUT 1 GiB MB/s"], out["GET 1 GiB MB/s"] = large(server)
                out["memory MiB"], out["memory MiB, 1,000 connections"] = crowd(server)
                out[f"list {keys} keys, keys/s"] = listing(server, keys)
            finally:
                server.stop()
    print(f"{'':34} {'kestrel':>12} {'versitygw':>12} {'ratio':>8}")
    for what, ours in results["kestrel"].items():
        theirs = results["versitygw"][what]
        print(f"{what:34} {ours:12.1f} {theirs:12.1f} {ours / theirs:8.2f}")
    about = {"cores": os.cpu_count(), "load": os.getloadavg(),
             "python": sys.version.split()[0],
             "digest": hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:12]}
    pathlib.Path(base, "gateway.json").write_text(
        json.dumps({"about": about, "results": results}, indent=2))


if __name__ == "__main__":
    main()
