import dataclasses
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib.errors import Fault, UsageError
from lib.ppo import data_parallel
from lib.ppo.data_parallel import DataParallelTrainer, _collective
from lib.ppo.fast import FastModel
from lib.ppo.rollout import Rollout
from ppo_setup import trainer_of
from running import assignments, checkpoint_of, folder, run, start, wait_for, workers_of

ACTORS = Path("distributed/03_ppo_actors.py")


def image_model():
    torch.manual_seed(1)
    return FastModel(spaces.Box(0, 255, (2, 36, 36), np.uint8), 3)


def image_rollout(seed):
    generator = torch.Generator().manual_seed(seed)
    size = (8, 4)
    return Rollout(
        values=torch.randn(size, generator=generator),
        next_values=torch.randn(size, generator=generator),
        rewards=torch.randn(size, generator=generator),
        states=torch.randint(0, 255, (*size, 36, 36, 2), dtype=torch.uint8, generator=generator),
        actions=torch.randint(0, 3, size, generator=generator),
        log_probs=torch.full(size, -1.1),
        terminated=torch.zeros(size, dtype=torch.bool),
        ended=torch.zeros(size, dtype=torch.bool),
    )


def sgd_trainer():
    model = image_model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return trainer_of(model, sgd, minibatch=16, lam=0.95, entropy=0.01, kl_target=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("learners", [2, pytest.param(4, marks=pytest.mark.long)])
def test_several_learners_make_the_same_update_as_one(learners):
    alone, first = sgd_trainer(), sgd_trainer()
    settings = alone.settings
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    together = DataParallelTrainer(first, learners)
    try:
        for number, kl_target in enumerate((0.01, 0.01, 1e-6, 0.01)):
            metrics = []
            for trainer in (alone, together):
                torch.manual_seed(number)
                whole = trainer if trainer is alone else first
                whole.settings = dataclasses.replace(settings, kl_target=kl_target)
                metrics.append(trainer.update(image_rollout(number)))
            assert metrics[0] == pytest.approx(metrics[1], abs=1e-5)
            for one, other in zip(alone.model.parameters(), first.model.parameters(), strict=True):
                assert torch.allclose(one, other, atol=1e-6)
        assert not torch.allclose(alone.model.policy.weight, image_model().policy.weight, atol=1e-4)
        together.close()
        assert torch.get_num_threads() == 3
    finally:
        together.close()
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_death_of_a_learner_ends_the_run_which_can_be_resumed(tmp_path):
    settings = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128", "stop_reward=1000")
    options = ("--env-id", "CartPole-v1", *settings, "--quiet", "--engine", "inline", "--learners", 2)
    process = start(ACTORS, *options, "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-0000003*.pt")), process)
    [learner] = workers_of(process)  # all actors are inline, and the first learner is the run itself
    learner.kill()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"error: .*(lost contact|learner 1 .* was killed by SIGKILL).*--resume", stderr), stderr
    path = folder(tmp_path)
    resumed = run(ACTORS, "--resume", path, "--stop-after", checkpoint_of(path)["source"]["steps_done"] + 640)
    assert resumed.returncode == 0, resumed.stderr


def test_learners_that_cannot_share_the_minibatch_are_refused():
    with pytest.raises(UsageError, match=r"3 learners .* minibatches of 16.* 1, 2, 4, 8, 16"):
        DataParallelTrainer(trainer_of(image_model(), minibatch=16), 3)


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [
        ("cuda:1", 2, "--device cpu, .*cuda.* is cuda:1"),
        ("mps", 0, "--device cpu, .*cuda.* is mps"),
        ("cuda", 2, "4 learners .* GPU each, and 2 .*--learners 2"),
    ],
)
def test_devices_that_several_learners_cannot_use_are_refused(monkeypatch, device, gpus, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    trainer = trainer_of(image_model(), device=device)
    with pytest.raises(UsageError, match=message):
        DataParallelTrainer(trainer, 4)


def test_a_failed_exchange_becomes_a_fault_that_names_resume():
    with pytest.raises(Fault, match=r"probably because one of them died, .*--resume"), _collective():
        raise RuntimeError("Connection closed\nby peer")


def test_a_learner_that_dies_while_it_starts_ends_the_waiting(monkeypatch):
    monkeypatch.setattr(data_parallel, "ProcessGroup", lambda *_: time.sleep(60))
    trainer = DataParallelTrainer(trainer_of(image_model(), minibatch=16), 2)
    died = SimpleNamespace(process=SimpleNamespace(exitcode=-9), fate=lambda: "learner 1 was killed by SIGKILL")
    monkeypatch.setattr(trainer, "_children", [died])
    begun = time.monotonic()
    with pytest.raises(Fault, match="learner 1 was killed by SIGKILL while it started"):
        trainer._join("nowhere")
    assert time.monotonic() - begun < 5


def test_a_learner_that_runs_out_of_memory_says_what_needs_less(monkeypatch, caplog):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(data_parallel, "end_with_learner", lambda: None)
    monkeypatch.setattr(data_parallel.pickle, "loads", fail)
    threads = torch.get_num_threads()
    data_parallel.run_learner(None, SimpleNamespace(memory=b""), 3, 4, "nowhere", threads)
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.message.startswith("Learner 3: ")
    assert "memory" in record.message
