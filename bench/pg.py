#!/usr/bin/env python3
"""Metadata in PostgreSQL (crates/metadata/postgres/examples/pg_bench.rs) against the same server's
bare batched upserts, alone and with a synchronous standby, and against the embedded engine. Needs
root (the servers run as user postgres), PostgreSQL 15, and cargo build --release -p
kestrel-postgres --example pg_bench.

    bench/pg.py [--creates N] [--out FILE]
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

BIN = pathlib.Path("/usr/lib/postgresql/15/bin")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def as_postgres(*command):
    subprocess.run(
        ["runuser", "-u", "postgres", "--", *map(str, command)],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server that runs; its data is there."""

    def __init__(self, data, port):
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]
        command = [
            BIN / "postgres",
            "-D",
            data,
            "-k",
            data.parent,
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        self.port = port
        self.process = subprocess.Popen(
            [*user, *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        while (
            subprocess.run(
                [BIN / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)], check=False
            ).returncode
            != 0
        ):
            time.sleep(0.1)

    def sql(self, text):
        command = [
            "psql",
            "-qAtX",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "kestrel",
            "postgres",
            "-c",
            text,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(home, port, creates):
    url = f"postgres://kestrel@127.0.0.1:{port}/postgres?schema=bench"
    command = [ROOT / "target/release/examples/pg_bench", home / "embedded", url, str(creates)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--creates", type=int, default=200_000)
    parser.add_argument("--out", help="JSON goes there as well")
    args = parser.parse_args()
    # Not below /tmp, which may be memory.
    home = pathlib.Path(tempfile.mkdtemp(prefix="kestrel-pg.", dir="/var/tmp"))
    shutil.chown(home, "postgres")
    servers = []
    try:
        as_postgres(
            BIN / "initdb",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "-U",
            "kestrel",
            "-D",
            home / "one",
        )
        one = Server(home / "one", free_port())
        servers.append(one)
        result = {"alone": measure(home, one.port, args.creates)}
        as_postgres(
            BIN / "pg_basebackup",
            "-h",
            "127.0.0.1",
            "-p",
            one.port,
            "-U",
            "kestrel",
            "-D",
            home / "two",
            "-R",
            "-c",
            "fast",
        )
        servers.append(Server(home / "two", free_port()))
        one.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        one.sql("SELECT pg_reload_conf()")
        while one.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "1":
            time.sleep(0.1)
        result["standby"] = measure(home, one.port, args.creates)
    finally:
        for server in reversed(servers):
            server.stop()
        shutil.rmtree(home)
    result["load_average"] = os.getloadavg()[0]
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
