"""Volumes for the tests: embedded, served, a version, a snapshot. tests/access/python.sh runs them.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

import kestrelfs

KESTREL = os.environ.get("KESTREL", "kestrel")


def run(*command):
    """Runs a program to its end; what it printed."""
    words = [str(word) for word in command]
    # Files, not pipes: a server that goes to the background keeps them open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True)
        out.seek(0)
        err.seek(0)
        said = out.read()
        assert done.returncode == 0, f"{command}: {said}{err.read()}"
    return said


def python(text, *arguments, **options):
    """Runs a program text in another interpreter."""
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        text=True,
        capture_output=True,
        timeout=60,
        **options,
    )


class Served:
    """A volume of its own that a server serves."""

    def __init__(self, work, *options):
        self.dir = f"{work}/volume"
        run(KESTREL, "format", self.dir)
        said = run(KESTREL, "serve", self.dir, "--listen", "127.0.0.1:0", *options)
        self.url = re.search(r"kestrel://\S+", said).group()

    def stop(self):
        run(KESTREL, "serve", self.dir, "--stop")


@pytest.fixture(scope="session")
def work():
    """A directory that is not memory."""
    path = tempfile.mkdtemp(prefix="kestrel-python-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def served(work):
    """A volume that is served, for many tests."""
    os.mkdir(f"{work}/served")
    server = Served(f"{work}/served")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def embedded(work):
    """A volume in a directory, for many tests."""
    path = f"{work}/embedded"
    run(KESTREL, "format", path)
    return path


@pytest.fixture(scope="session", params=["embedded", "served"])
def url(request, embedded, served):
    """The URL of a volume of each kind."""
    return embedded if request.param == "embedded" else served.url


@pytest.fixture(scope="session")
def volume(url):
    """A volume of each kind, open all the time."""
    with kestrelfs.open_volume(url) as opened:
        yield opened


@pytest.fixture
def top(volume, request):
    """A directory of the test's own."""
    path = "/" + re.sub(r"\W+", "-", request.node.name)[:200]
    volume.makedirs(path)
    return path
