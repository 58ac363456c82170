"""Several learners: together they learn what one learns, and they end together."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gymnasium import spaces

from lib.errors import UsageError
from lib.ppo.actor import ActorSettings
from lib.ppo.fast import FastModel
from lib.ppo.learner import join_learners
from lib.ppo.rollout import Rollout
from lib.ppo.update import LearnerGroup
from ppo_setup import random_rollout, trainer_of
from running import (
    ENVIRONMENT,
    PROJECT,
    assert_equal_runs,
    assignments,
    checkpoint_of,
    differences,
    episodes_of,
    folder,
    resuming,
    start,
    start_program,
    wait_for,
)

ACTORS = Path("distributed/03_ppo_actors.py")
SMALL = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128")
POLE = ("--env-id", "CartPole-v1", *SMALL, "--seed", 3, "--quiet", "--actors", 2)
LAST = 1280
ENVS, STEPS, MINIBATCH = 4, 8, 16

MEMBER = """
import os, sys
import torch
sys.path.append(sys.argv[1])
import test_learner
os.environ |= {"RANK": sys.argv[2], "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[3]}
group = test_learner.join_learners(torch.device("cpu"))
torch.save(test_learner.updates(group), sys.argv[2] + ".pt")
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def updates(group):
    """Metrics and weights after each of some updates from a learner's part of the environments."""
    torch.manual_seed(1)
    model = FastModel(spaces.Box(-1.0, 1.0, (5,)), 4)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    trainer = trainer_of(
        model, optimizer, minibatch=MINIBATCH, entropy=0.01, learning_rate_max=10.0, gradient_norm=9.0, group=group
    )
    results = []
    for number, kl_target in enumerate((0.01, 0.01, 1e-6, 0.01)):
        torch.manual_seed(number)
        trainer.settings.kl_target = kl_target
        rollout = vars(random_rollout(STEPS, ENVS))
        torch.manual_seed(number)
        metrics = trainer.update(
            Rollout(**{name: each.chunk(group.size, 1)[group.rank] for name, each in rollout.items()})
        )
        results.append((metrics, {name: each.clone() for name, each in model.state_dict().items()}))
    return results


@pytest.mark.slow
def test_several_learners_make_the_same_update_as_one(tmp_path, monkeypatch):
    port = free_port()
    processes = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        processes.append(start_program(MEMBER, tmp_path / str(rank), Path(__file__).parent, rank, port))
    for process in processes:
        assert process.communicate()[1] == ""
    first, second = (torch.load(tmp_path / str(rank) / f"{rank}.pt") for rank in range(2))
    assert differences(first, second) == []
    randperm = torch.randperm

    def union(count, **_):
        """Indices of one learner's transitions whose minibatches are the unions of those of two."""
        own = randperm(count // 2).view(-1, MINIBATCH // 2)
        steps, envs = own // (ENVS // 2), own % (ENVS // 2)
        return torch.stack([steps * ENVS + envs + rank * ENVS // 2 for rank in range(2)], 1).flatten()

    monkeypatch.setattr(torch, "randperm", union)
    alone = updates(LearnerGroup())
    for (metrics, weights), (expected, expected_weights) in zip(first, alone, strict=True):
        assert metrics == pytest.approx(expected, abs=1e-5)
        assert all(torch.allclose(weights[name], expected_weights[name], atol=1e-6) for name in weights)
    assert not torch.allclose(alone[0][1]["policy.weight"], alone[3][1]["policy.weight"], atol=1e-4)


def start_learners(*options):
    """Start the script once for each of two learners, as a launcher does."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [start(ACTORS, *options, env=ENVIRONMENT | shared | {"RANK": str(rank)}) for rank in range(2)]


def finish(learners):
    """Wait for the learners to end."""
    for learner in learners:
        assert learner.communicate()[1] == ""
        assert learner.returncode == 0


@pytest.mark.long
def test_torchrun_starts_the_learners(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = map(str, (PROJECT / ACTORS, *POLE, "--stop-after", LAST, "--runs-dir", tmp_path))
    process = subprocess.run([*torchrun, *options], env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert "torchrun --nproc-per-node 2 " in process.stdout + process.stderr  # the command to continue


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_the_learners_end_together_and_resume_bit_for_bit(tmp_path, number):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(start_learners(*POLE, "--stop-after", LAST, "--runs-dir", whole))
    first, second = start_learners(*POLE, "--stop-after", LAST, "--runs-dir", parts)
    wait_for(lambda: list(parts.glob("*/checkpoints/step-0000003*.pt")), first)
    first.send_signal(number)
    _, stderr = second.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert second.returncode == 1
        assert re.search(r"error: the learners lost contact.*--resume", stderr), stderr
    else:
        first.communicate()
        assert (first.returncode, second.returncode, stderr) == (130, 0, "")
    finish(start_learners(*resuming(folder(parts)), "--stop-after", LAST))
    assert_equal_runs(folder(whole), folder(parts))
    saved, episodes = checkpoint_of(folder(whole)), episodes_of(folder(whole))
    # It has the actors and the episodes of both learners. Some steps belong to episodes that have not ended.
    assert [state["steps_done"] for state in saved["source"]["actors"]] == [LAST // 4] * 4
    assert len({state["snapshot"]["states"].numpy().tobytes() for state in saved["source"]["actors"]}) == 4
    assert 0.7 * LAST < sum(int(row[3]) for row in episodes[1:]) < LAST


def test_learners_that_cannot_share_the_environments_and_more_learners_than_gpus_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="3 learners cannot share 4 environments"):
        ActorSettings("CartPole-v1", envs=4, actors=1, rollout=16, seed=1, learners=3)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="2 GPUs"):
        join_learners(torch.device("cuda"))
