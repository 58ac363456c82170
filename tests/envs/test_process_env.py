"""Environments in processes of their own: the same steps as one after the other, and no process is lost or left."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

import fakes
from lib.envs import process_env, vector_env
from lib.envs.single_env import make_env
from lib.errors import CallInterrupted, EnvironmentFailed, Fault, UsageError
from lib.experience.stream import Stream
from running import (
    ENVIRONMENT,
    assignments,
    checkpoint_of,
    differences,
    episodes_of,
    first_line,
    folder,
    run,
    start_program,
    trusting,
)

PPO = Path("distributed/01_ppo.py")
CATCH, SNAKE = "fakes:Catch-v0", "examples.snake:Snake-v0"

pytestmark = pytest.mark.usefixtures("warm_fork_server")


@pytest.fixture
def make():
    """Function that makes environments, in processes by default. They are closed after the test."""
    made = []

    def make_envs(env_id, num_envs=3, processes=True):
        made.append(vector_env.make_vector_env(env_id, num_envs, processes=processes))
        return made[-1]

    yield make_envs
    for envs in made:
        envs.close()


def assert_equal_infos(infos, others, ended):
    assert infos.keys() == others.keys()
    if ended.any():
        assert np.array_equal(infos["final_obs"][ended], others["final_obs"][ended])
        for name in ("r", "l"):
            assert np.array_equal(infos["episode"][name][ended], others["episode"][name][ended])


@pytest.mark.slow
def test_a_program_ends_if_one_of_its_environments_cannot_be_made():
    program = 'from lib.envs import vector_env; vector_env.make_vector_env("fakes:SecondFails-v0", 4, processes=True)'
    process = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 1
    assert "RuntimeError: only one game can be open\nRaised by fakes:SecondFails-v0 (in its constr" in process.stderr
    assert (
        "the process of environment 1 of fakes:SecondFails-v0 (last seed None) died with exit code 1" in process.stderr
    )


@pytest.mark.slow
def test_ctrl_c_ends_a_program_whose_environments_wait_in_their_constructors(tmp_path):
    make = 'vector_env.make_vector_env("fakes:WaitsForLicence-v0", 2, processes=True)'
    program = start_program(f'from lib.envs import vector_env\nif __name__ == "__main__":\n    {make}', tmp_path)
    assert first_line(program) == "waiting for a licence"
    program.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in program.communicate(timeout=30)[1]


def test_an_environment_may_start_a_process_of_its_own(make):
    envs = make("fakes:Simulated-v0", 2)
    assert envs.reset(seed=1)[0].shape == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [CATCH, SNAKE, "examples.blocks:Blocks-v0", "CartPole-v1"])
def test_steps_and_episode_ends_are_those_of_one_after_the_other(make, env_id):
    envs, others = make(env_id), make(env_id, processes=False)
    assert envs.single_observation_space == others.single_observation_space
    seeds = [5, 6, 7]
    states, expected = envs.reset(seed=seeds)[0], others.reset(seed=seeds)[0]
    rng, ends = np.random.default_rng(1), 0
    for step in range(60):
        assert np.array_equal(states, expected)
        actions = allowed_actions(envs, states, rng)
        states, *results, infos = envs.step(actions)
        expected, *others_results, others_infos = others.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(results, others_results, strict=True))
        assert_equal_infos(infos, others_infos, results[1] | results[2])
        ends += (results[1] | results[2]).sum()
        if step % 20 == 7:
            which = np.array([False, True, step > 20])
            states, expected = (each.reset(seed=[1, 2, 3], options={"reset_mask": which})[0] for each in (envs, others))
    assert ends > 0


def allowed_actions(envs, states, rng):
    import torch

    from lib.nets.masking import MaskSplitter

    _, allowed = MaskSplitter(envs.single_observation_space)(torch.from_numpy(states))
    if allowed is None:
        return rng.integers(envs.single_action_space.n, size=envs.num_envs)
    return np.array([rng.choice(np.flatnonzero(row)) for row in allowed.numpy()])


@pytest.mark.slow
def test_a_resume_that_an_environment_refuses_says_what_to_do(make):
    first, resumed = (Stream(make("examples.blocks:Blocks-v0"), seed=1) for _ in range(2))
    first.begin()
    first.step(allowed_actions(first.envs, first.states, np.random.default_rng(1)))
    saved = first.state_dict()
    saved["snapshot"]["actions"][:] = -1  # as if the game had changed
    with pytest.raises(Fault, match=r"could not be restored .*illegal.* Resume once with --no-async-envs"):
        resumed.load_state_dict(saved)


@pytest.mark.slow
def test_slow_environments_step_at_the_same_time(make):
    envs = make("fakes:Slow-v0", 8)
    envs.reset(seed=1)
    start = time.perf_counter()
    envs.step(np.zeros(8, np.int64))
    together = time.perf_counter() - start
    alone = make("fakes:Slow-v0", 8, processes=False)
    alone.reset(seed=1)
    start = time.perf_counter()
    alone.step(np.zeros(8, np.int64))
    assert together < 0.6 * (time.perf_counter() - start)


@pytest.mark.slow
def test_a_stream_is_restored_bit_for_bit(make):
    def stream(processes):
        source = Stream(make(CATCH, processes=processes), seed=3)
        source.RESEED_EVERY = 60  # environments are reset at different steps
        source.begin()
        return source

    def play(source, steps, first=0):
        return [source.step(np.full(3, (first + t) % 3)).rewards.tolist() for t in range(steps)], source.states.copy()

    uninterrupted, stopped, resumed = stream(False), stream(True), Stream(make(CATCH), seed=3)
    resumed.RESEED_EVERY = 60
    play(uninterrupted, 50), play(stopped, 50)
    resumed.load_state_dict(stopped.state_dict())
    rewards, states = play(uninterrupted, 40, 50)
    assert play(resumed, 40, 50)[0] == rewards
    assert np.array_equal(resumed.states, states)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "facts"),
    [
        (
            "local",
            EnvironmentFailed,
            r"^environment \d of fakes:Failing-local-v0 \(last seed \d\) raised LocalError\(",
        ),
        ("nan", Fault, r"^fakes:Failing-nan-v0 \(episode 17 from seed \d.*: its reward is nan"),
        (
            "die",
            Fault,
            r"^the process of environment \d of fakes:Failing-die-v0 \(last seed \d\) died with exit code 7",
        ),
    ],
)
def test_an_error_of_an_environment_arrives(make, how, kind, facts):
    envs = make(f"fakes:Failing-{how}-v0", 2)
    envs.reset(seed=1)
    for _ in range(101):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(kind, match=facts) as raised:
        envs.step(np.zeros(2, np.int64))
    if how == "local":
        assert "LocalError: the paddle broke\nRaised by fakes:Failing-local-v0 (episode 17" in raised.value.__notes__[0]
    processes = envs.unwrapped.processes
    envs.close()
    assert not any(process.is_alive() for process in processes)


def test_each_environment_is_constructed_once_and_one_more_is_asked_for_the_spaces(make):
    before = fakes.Constructed.made
    make("fakes:Constructed-v0", 3, processes=False)
    assert fakes.Constructed.made == before + 3
    envs = make("fakes:Constructed-v0", 3)
    assert fakes.Constructed.made == before + 4
    assert envs.unwrapped.call("made") == (1, 1, 1)
    make_env("fakes:Constructed-v0")
    assert fakes.Constructed.made == before + 5


HOLDER = """
import sys, time
from lib.envs.vector_env import make_vector_env

if __name__ == "__main__":
    envs = make_vector_env("CartPole-v1", 2, processes=True)
    envs.reset(seed=1)
    print(*(process.pid for process in envs.unwrapped.processes), flush=True)
    if sys.argv[1] == "kill":
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "kill"])
def test_no_process_outlives_the_program(tmp_path, how):
    program = start_program(HOLDER, tmp_path, how)
    if how == "kill":
        first_line(program)
        program.kill()
    numbers = [int(number) for number in program.communicate()[0].split()]
    assert len(numbers) == 2
    end = time.monotonic() + 20
    while any(psutil.pid_exists(number) for number in numbers):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_atari_games_are_refused():
    with pytest.raises(UsageError, match="leave --async-envs out"):
        vector_env.make_vector_env("PongNoFrameskip-v4", 2, processes=True)


@pytest.mark.long
def test_a_run_may_change_between_both_when_it_is_resumed(tmp_path):
    small = ("--env-id", SNAKE, *assignments("envs=2", "rollout=32", "minibatch=32", "checkpoint_every=64"))
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    process = run(PPO, *small, "--stop-after", 256, "--quiet", "--runs-dir", whole)
    assert process.returncode == 0, process.stderr
    process = run(PPO, *small, "--stop-after", 128, "--quiet", "--runs-dir", halves, "--async-envs")
    assert process.returncode == 0, process.stderr
    path = folder(halves)
    process = run(PPO, "--resume", path, *trusting(path), "--stop-after", 256, "--async-envs")
    assert process.returncode == 0, process.stderr
    assert differences(checkpoint_of(folder(whole)), checkpoint_of(path)) == []
    assert episodes_of(folder(whole)) == episodes_of(path)
    assert len(episodes_of(path)) > 3


@pytest.mark.slow
def test_an_environment_that_does_not_answer_is_reported_by_its_number(make, monkeypatch):
    envs = make("fakes:Slow-v0", 2)
    envs.reset(seed=7)
    monkeypatch.setattr(process_env, "connection", Mock(wait=Mock(side_effect=CallInterrupted("no answer"))))
    with pytest.raises(CallInterrupted) as error:
        envs.step(np.zeros(2, np.int64))
    assert error.value.__notes__ == ["Raised by environment 0 of fakes:Slow-v0 (last seed 7)"]


@pytest.mark.slow
def test_a_dead_process_is_reported_although_one_that_it_forked_lives(make):
    envs = make("fakes:Forking-v0", 2)
    envs.reset(seed=1)
    process = psutil.Process(envs.unwrapped.processes[0].pid)
    envs.step(np.zeros(2, np.int64))
    [helper] = process.children()
    process.kill()
    with pytest.raises(Fault, match=r"environment 0 of fakes:Forking-v0 \(last seed 1\) was killed by SIGKILL"):
        envs.step(np.zeros(2, np.int64))
    assert helper.status() != psutil.STATUS_ZOMBIE  # it still holds the pipe
    helper.kill()
