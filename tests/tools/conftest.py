"""A trained agent for the tools."""

import shutil
from pathlib import Path

import pytest

from running import assignments, folder, run


@pytest.fixture(scope="session")
def original_run(tmp_path_factory):
    """A short run of 01_ppo on a small game that can render. Tests must not change it."""
    runs_dir = tmp_path_factory.mktemp("trained")
    small = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=640")
    options = ("--env-id", "fakes:Shown-v0", *small, "--stop-after", 1280, "--quiet", "--runs-dir", runs_dir)
    process = run(Path("distributed/01_ppo.py"), *options)
    assert process.returncode == 0, process.stderr
    return folder(runs_dir)


@pytest.fixture
def trained_run(original_run, tmp_path):
    """A copy of the run, which a test may change."""
    return Path(shutil.copytree(original_run, tmp_path / original_run.name))
