#!/usr/bin/env python3
"""Runs a command as systemd runs a service of Type=notify, and says what it was told.

notified.py [--abstract] [--when-ready COMMAND] -- COMMAND…

Prints each state that arrives, a line each. When READY=1 has come it runs the shell command of
--when-ready, if there is one, and sends the process SIGTERM. The exit code is that of the process;
99 if it has not said READY=1 or not ended in time.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

# How long it may take until the process is ready, and until it has ended, in seconds.
DEADLINE = 60.0


def states(listener: socket.socket, wait: float) -> list[str]:
    """What has arrived within this time, in seconds."""
    listener.settimeout(wait)
    try:
        return listener.recv(65536).decode().splitlines()
    except TimeoutError:
        return []


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--abstract", action="store_true")
    parser.add_argument("--when-ready", default="")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"kestrel-notified-{os.getpid()}" if args.abstract else f"{place}/notify"
        listener.bind(f"\0{name}" if args.abstract else name)
        told = f"@{name}" if args.abstract else name
        environment = {**os.environ, "NOTIFY_SOCKET": told}
        with subprocess.Popen(args.command, env=environment) as process:
            ready, end = False, time.monotonic() + DEADLINE
            while time.monotonic() < end and process.poll() is None:
                for state in states(listener, 0.05):
                    print(state, flush=True)
                    if state == "READY=1":
                        ready, end = True, time.monotonic() + DEADLINE
                        if args.when_ready:
                            subprocess.run(args.when_ready, shell=True, check=True)
                        process.terminate()
            if process.poll() is None:
                process.kill()
                return 99
        for state in states(listener, 0.05):
            print(state, flush=True)
        return process.returncode if ready else 99


if __name__ == "__main__":
    sys.exit(main())
