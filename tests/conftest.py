"""Fixtures for all tests.

tests/<folder>/ mirrors lib/<folder>/; the test modules at the top level run whole scripts or check the project itself.
fakes.py holds toy environments, oracles/ a slow and simple twin of each fast part; running.py and forked.py start
scripts.
`make check` leaves out the tests marked `slow`, and `make test` those marked `long`.
"""

import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

import forked

# One thread per process, set before torch is imported. Four test processes run at a time; with one thread per
# core, they would mostly wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

PROJECT = Path(__file__).parents[1]
# Files that take longest, the longest first.
LONGEST = (
    "test_golden.py",
    "test_scripts.py",
    "ppo/test_action_spaces.py",
    "run/test_damaged_runs.py",
    "test_distributed.py",
    "actors/test_fleet.py",
    "chapter08/test_scripts.py",
    "test_resume.py",
    "test_faults.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with slow tests first, so that all test processes end at about the same time."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        file = item.path.relative_to(Path(__file__).parent).as_posix()
        slowest = LONGEST.index(file) if file in LONGEST else len(LONGEST)
        return slowest, item.get_closest_marker("slow") is None

    items.sort(key=place)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Start the fork servers before the first test, in each process that runs tests."""
    if session.items:
        forked.start(preload=any(item.get_closest_marker("slow") for item in session.items))
        forked.fork_server_of_actors()
    return (yield)  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """Undo the signal handlers of runs that an earlier test has aborted, and seed all random generators with 0."""
    from lib.system.seeds import seed_everything

    forked.restore_default_signals()
    seed_everything(0)


@pytest.fixture(scope="module")
def ray_workers_find_the_fakes() -> Iterator[None]:
    """Let the worker processes of Ray import the modules of tests/, because they unpickle classes of fakes.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        yield


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Function (script, *options) that runs a script in this process; returns exit code, standard output and error.

    A new process would spend most of its time importing.
    """
    from lib import cli
    from lib.system.seeds import seed_everything

    def run_inline(script: Path, *options: object) -> tuple[int, str, str]:
        monkeypatch.setattr(cli, "prepare", seed_everything)  # its other settings would stay in this process
        monkeypatch.setattr(sys, "argv", [str(PROJECT / script), *map(str, options)])
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run_inline


@pytest.fixture
def answer(ends: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Function (script, *options, code=0) that runs a script in this process and returns its output.

    The script has to exit with that code. The output is standard error for an error code, otherwise standard output.
    """

    def run_inline(script: Path, *options: object, code: int = 0) -> str:
        ended, output, errors = ends(script, *options)
        assert ended == code, errors
        return errors if code else output

    return run_inline


@pytest.fixture
def refused(answer: Callable[..., str]) -> Callable[..., str]:
    """Function (script, *options, code=2) that returns the error message for a wrong command line."""
    return lambda script, *options, code=2: answer(script, *options, code=code)


@pytest.fixture(scope="session")
def original_run(tmp_path_factory, worker_id):
    """A short run of 01_ppo on a small game that can render. Tests must not change it.

    The first test process that needs it makes it for all.
    """
    from running import SMALL_PPO, assignments, folder, run

    temporary = tmp_path_factory.getbasetemp()
    runs_dir = (temporary if worker_id == "master" else temporary.parent) / "trained"
    with FileLock(runs_dir.with_suffix(".lock")):
        if not list(runs_dir.glob("*/result.json")):
            small = (*SMALL_PPO, *assignments("checkpoint_every=640"))
            options = ("--env-id", "fakes:Shown-v0", *small, "--stop-after", 1280, "--quiet", "--runs-dir", runs_dir)
            process = run(Path("distributed/01_ppo.py"), *options)
            assert process.returncode == 0, process.stderr
    return folder(runs_dir)


@pytest.fixture
def trained_run(original_run, tmp_path):
    """A copy of the run, which a test may change."""
    return Path(shutil.copytree(original_run, tmp_path / original_run.name))


@pytest.fixture
def register(monkeypatch):
    """gymnasium's `register`, without effect after the test."""
    import gymnasium as gym

    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.envs.registration.registry))
    return gym.register
