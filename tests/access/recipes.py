"""Executes the recipes of docs/operations/python.md, one after the other, in one program."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../crates/access/python/tests"))
from conftest import Served  # noqa: E402

PAGE = os.path.join(os.path.dirname(__file__), "../../docs/operations/python.md")


def test_recipes(tmp_path):
    """Every recipe runs; those for PyTorch and zarr where they are installed."""
    server = Served(tmp_path)
    try:
        with open(PAGE, encoding="utf-8") as file:
            text = file.read().replace("kestrel://meta1/photos", server.url)
        block = r"^```python(?: (torch|zarr))?\n(.*?)^```"
        recipes = re.findall(block, text, re.DOTALL | re.MULTILINE)
        assert len(recipes) >= 10
        is_there = {name: importlib.util.find_spec(name) is not None for name in ("torch", "zarr")}
        program = tmp_path / "recipes.py"
        program.write_text(
            "\n".join(recipe for needs, recipe in recipes if not needs or is_there[needs])
        )
        done = subprocess.run([sys.executable, program], text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
    finally:
        server.stop()
