"""Processes that start while their parent ends stay silent; their own errors are shown."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("from multiprocessing.connection import Client; Client('/nowhere/socket')", False),
        ("open('/nowhere/file')", True),
        ("raise ValueError", True),
    ],
)
def test_only_broken_connections_to_the_parent_are_silent(call, shown):
    program = f"from lib.system import forkserver; {call}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 1
    assert ("Traceback" in process.stderr) is shown
