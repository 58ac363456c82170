"""The fork server imports this checkout, and its children start with what they need and nothing else."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from running import PROJECT

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import gc, json, os
import numpy as np
import lib.envs.frames  # imports numpy
from lib.system.processes import Child, start_server

def tell(connection):
    variables = [os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")]
    imported = sys.modules["lib.system.forkserver"].__file__
    connection.send((imported, variables, np.random.rand(), gc.get_freeze_count()))

if __name__ == "__main__":
    start_server()
    children = [Child(str(number)) for number in range(2)]
    for child in children:
        child.launch(tell)
    print(json.dumps([child.connection.recv() for child in children]))
"""


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    """What two children tell that a program starts in a copy of this project."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PROJECT / "lib", folder / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    program = folder / "main.py"
    program.write_text(PROGRAM.format(folder=str(folder)))
    environment = os.environ | {"PYTHONPATH": "/nowhere"}
    output = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    return folder, json.loads(output.stdout)


def test_the_server_imports_the_copy_of_this_project_that_starts_it(children):
    folder, told = children
    assert [imported for imported, *_ in told] == [str(folder / "lib" / "system" / "forkserver.py")] * 2


def test_programs_that_environments_start_have_the_users_variables(children):
    assert [variables for _, variables, *_ in children[1]] == [["/nowhere", None]] * 2


def test_children_draw_different_random_numbers(children):
    first, second = (number for *_, number, _ in children[1])
    assert first != second


def test_a_garbage_collection_leaves_shared_memory_alone(children):
    assert all(frozen > 1000 for *_, frozen in children[1])


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
