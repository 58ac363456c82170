"""Environments in processes of their own: errors arrive, each is constructed once, and no process is lost or left.

test_vector_env.py compares their steps with those of single environments.
"""

import signal

import numpy as np
import psutil
import pytest

import fakes
from lib.envs import vector_env
from lib.envs.single_env import make_env
from lib.errors import EnvironmentFailed, Fault
from running import first_line, gone, start_program


@pytest.fixture
def make():
    """Function that makes environments in processes. They are closed after the test."""
    made = []

    def make_envs(env_id, num_envs=3):
        made.append(vector_env.make_vector_env(env_id, num_envs, processes=True))
        return made[-1]

    yield make_envs
    for envs in made:
        envs.close()


MAKE = """
import time
from lib.envs import vector_env

if __name__ == "__main__":
    envs = vector_env.make_vector_env("fakes:{}-v0", 2, processes=True)
    print("made", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_program_ends_if_one_of_its_environments_cannot_be_made(tmp_path):
    program = start_program(MAKE.format("Failing-fail"), tmp_path)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 1
    assert "RuntimeError: only one game can be open\nRaised by fakes:Failing-fail-v0 (in its constr" in errors
    assert "the process of environment 1 of fakes:Failing-fail-v0 died with exit code 1" in errors


@pytest.mark.slow
def test_ctrl_c_ends_a_program_whose_environments_wait_in_their_constructors(tmp_path):
    program = start_program(MAKE.format("Failing-wait"), tmp_path)
    assert first_line(program) == "waiting for a licence"
    program.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in program.communicate(timeout=30)[1]


def test_an_environment_may_start_a_process_of_its_own(make):
    envs = make("fakes:Failing-ask-v0", 2)
    assert envs.reset(seed=1)[0].shape[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "facts"),
    [
        ("raise", EnvironmentFailed, r"^environment \d of fakes:Failing-raise-v0 raised LocalError\("),
        ("nan", Fault, r"^fakes:Failing-nan-v0 \(episode 17 from seed \d.*: its reward is nan"),
        ("die", Fault, r"^the process of environment \d of fakes:Failing-die-v0 died with exit code 7"),
    ],
)
def test_an_error_of_an_environment_arrives(make, how, kind, facts):
    envs = make(f"fakes:Failing-{how}-v0", 2)
    envs.reset(seed=1)
    for _ in range(101):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(kind, match=facts) as raised:
        envs.step(np.zeros(2, np.int64))
    if how == "raise":
        assert "LocalError: the paddle broke\nRaised by fakes:Failing-raise-v0 (episode 17" in raised.value.__notes__[0]
    processes = envs.unwrapped.processes
    envs.close()
    assert not any(process.is_alive() for process in processes)


def test_each_environment_is_constructed_once_and_one_more_is_asked_for_the_spaces(make):
    before = fakes.Counting.made
    vector_env.make_vector_env("fakes:Counting-v0", 3)
    assert fakes.Counting.made == before + 3
    envs = make("fakes:Counting-v0", 3)
    assert fakes.Counting.made == before + 4
    assert envs.unwrapped.call("made") == (1, 1, 1)
    make_env("fakes:Counting-v0")
    assert fakes.Counting.made == before + 5


@pytest.mark.slow
def test_no_process_outlives_a_program_that_was_killed(tmp_path):
    program = start_program(MAKE.format("Counting"), tmp_path)
    assert first_line(program) == "made"
    processes = psutil.Process(program.pid).children(recursive=True)
    assert len(processes) > 2  # a fork server, too
    program.kill()
    assert gone(process.pid for process in processes)
