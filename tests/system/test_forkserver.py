"""The fork server imports the copy of the project that starts it. Its children have their own random numbers."""

import json
import os
import shutil
import subprocess
import sys

from running import PROJECT

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import gc, json, os, random
import numpy as np
import torch
from lib.envs import checked_env  # the server imports it, too, and with gymnasium numpy.random
from lib.nets import losses  # and torch
from lib.system.processes import context, start_server

def report(connection):
    imported = sys.modules["lib.system.forkserver"].__file__
    numbers = np.random.rand(), random.random(), torch.rand(()).item()
    connection.send((imported, numbers, gc.get_freeze_count()))

if __name__ == "__main__":
    start_server()
    pipes = [context.Pipe() for _ in range(2)]
    for _, theirs in pipes:
        context.Process(target=report, args=(theirs,)).start()
    print(json.dumps([ours.recv() for ours, _ in pipes]))
"""


def test_children_have_modules_of_the_copy_only_and_random_numbers_of_their_own(tmp_path):
    copy, cwd = tmp_path / "copy", tmp_path / "cwd"
    shutil.copytree(PROJECT / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "main.py").write_text(PROGRAM.format(folder=str(copy)))
    cwd.mkdir()
    for module in ("multiprocessing", "tempfile", "psutil", "numpy"):
        (cwd / f"{module}.py").write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, copy / "main.py"]
    process = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=True)
    (first, numbers, frozen), (second, other_numbers, _) = json.loads(process.stdout)
    assert first == second == str(copy / "lib" / "system" / "forkserver.py")
    assert not set(numbers) & set(other_numbers)
    assert frozen > 1000  # objects of the server that no garbage collection touches
    assert not (cwd / "imported").exists()
