#!/usr/bin/env python3
"""Runs a command and writes how much processor time it used to a file.

    tests/cost.py FILE COMMAND…

The time is that of the command and of all processes that it started, servers and mounts in the
background included: this process adopts them when their parents end (PR_SET_CHILD_SUBREAPER),
and getrusage counts every child that was waited for. Processes that outlive the command are not
waited for. The exit status is the command's.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def main():
    target, command = sys.argv[1], sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)

    # `timeout` also sends its signal to the group, so the command has it: it ends in its own way,
    # and this process waits for it. The child is forked before this, so its signals are as usual.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)

    status = None
    while status is None:
        pid, ended = os.wait()
        if pid == child:
            status = ended
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(target, "w", encoding="ascii") as file:
        file.write(f"{used.ru_utime + used.ru_stime:.1f}\n")
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
