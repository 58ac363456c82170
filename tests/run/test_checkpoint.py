"""Checkpoints: written, rotated, read back and restored."""

import math
import os

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ignite.engine import Engine, Events
from torch import nn

from lib.errors import Fault, UsageError
from lib.ppo.fast import FastModel
from lib.run import checkpoint
from lib.run.checkpoint import Checkpoints, load, newest, remove_outdated, restore
from lib.run.episodes import EpisodeEvents, register_events
from lib.run.stopping import EXIT_CODES, NOT_FINITE, Stopper
from running import full_disk

WEIGHTS = {"net": {"w": torch.arange(4.0)}}


def save(folder, name="step-000000001.pt", content=WEIGHTS):
    checkpoint.save(content, folder / name)
    return folder / name


def names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []

    def recorded(name, place_of):
        function = getattr(os, name)

        def call(*arguments):
            calls.append((name, place_of(*arguments)))
            return function(*arguments)

        monkeypatch.setattr(os, name, call)

    recorded("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    recorded("replace", lambda old, new: str(new))
    file = save(tmp_path)
    temporary = str(tmp_path / f".{file.name}.{os.getpid()}.tmp")
    assert calls == [("fsync", temporary), ("replace", str(file)), ("fsync", str(tmp_path))]


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path, caplog):
    assert newest(tmp_path) == {}
    files = [save(tmp_path, f"step-00000000{step}.pt", WEIGHTS | {"iteration": step}) for step in (1, 2)]
    assert newest(tmp_path)["iteration"] == 2
    files[1].write_bytes(files[1].read_bytes()[:-7])
    assert newest(tmp_path)["iteration"] == 1
    assert "step-000000002.pt is damaged" in caplog.text
    files[0].write_bytes(b"")
    with pytest.raises(Fault, match="none of the 2 checkpoints"):
        newest(tmp_path)


def test_a_flipped_bit_is_noticed_or_belongs_to_no_content(tmp_path):
    file = save(tmp_path, content=WEIGHTS | {"iteration": 1})
    original, draw, outcomes = file.read_bytes(), np.random.default_rng(1), set()
    for place in draw.integers(0, len(original), 200):
        data = bytearray(original)
        data[place] ^= 1 << int(draw.integers(8))
        file.write_bytes(data)
        try:
            content = load(file)
        except Fault:
            outcomes.add("refused")
        else:
            outcomes.add("unchanged")
            assert content["iteration"] == 1
            assert torch.equal(content["net"]["w"], WEIGHTS["net"]["w"])
    assert outcomes == {"refused", "unchanged"}


class Code:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_code_in_a_checkpoint_is_rejected_and_not_run(tmp_path):
    file = tmp_path / "step-000000001.pt"
    torch.save({"net": Code(tmp_path / "executed")}, file)
    with pytest.raises(Fault, match=r"holds (posix\.)?mkdir, and only tensors"):
        load(file)
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_leaves_the_previous_checkpoint_readable(tmp_path):
    file = save(tmp_path)
    with full_disk(20_000), pytest.raises(Fault, match=r"step-000000002\.pt could not be saved: File too large\. Earl"):
        save(tmp_path, "step-000000002.pt", {"net": {"weight": torch.ones(100_000)}})
    assert list(tmp_path.iterdir()) == [file]
    load(file)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    with pytest.raises(Fault, match="not finite"):
        save(tmp_path, content={"net": {"w": torch.tensor([1.0, math.nan])}})
    assert list(tmp_path.iterdir()) == []


def test_the_best_network_at_a_resumable_checkpoint_is_kept_until_the_next_one(tmp_path):
    def saved(*kinds_and_steps):
        for name in kinds_and_steps:
            (tmp_path / f"{name}.pt").touch()
            remove_outdated(tmp_path)
        return [path.stem for path in sorted(tmp_path.iterdir())]

    assert saved("best-3", "step-10", "best-12", "best-15") == ["best-15", "best-3", "step-10"]
    assert saved("step-20") == ["best-15", "step-10", "step-20"]
    (tmp_path / "step-5.pt").touch()  # left behind by a kill
    assert saved("step-30") == ["best-15", "step-20", "step-30"]


def train(folder, iterations, losses=None, best_at=(), clock=lambda iteration: None):
    """Train a network whose weight counts iterations, and save it every ten. One iteration is one agent step.

    `clock` is called with the number of each iteration.
    """
    net = nn.Linear(1, 1, bias=False)

    def process(engine, batch):
        clock(engine.state.iteration)
        nn.init.constant_(net.weight, engine.state.iteration)
        return {"loss": (losses or {}).get(engine.state.iteration, 0.0)}

    engine = Engine(process)
    register_events(engine)
    stopper = Stopper(lambda: engine.state.iteration, iterations, None)
    stopper.watch_loss(engine)
    best = Events.ITERATION_COMPLETED(event_filter=lambda engine, iteration: iteration in best_at)
    engine.add_event_handler(best, Engine.fire_event, EpisodeEvents.BEST_REWARD_REACHED)
    stopper.watch_ends(engine)
    Checkpoints({"net": net}, folder, 10, stopper).attach(engine)
    engine.run(iter(range(10_000)))
    stopper.release_signals()
    return stopper


def test_checkpoints_are_saved_at_the_first_iteration_regularly_and_at_the_end_and_two_are_kept(tmp_path):
    (tmp_path / "step-copy.pt").write_bytes(b"mine")
    train(tmp_path, 1)
    assert names(tmp_path) == ["step-000000001.pt", "step-copy.pt"]
    train(tmp_path, 25, best_at=(3, 17))
    kept = ["best-000000017.pt", "step-000000020.pt", "step-000000025.pt", "step-copy.pt"]
    assert names(tmp_path) == kept
    assert load(tmp_path / "best-000000017.pt") == {"net": {"weight": torch.tensor([[17.0]])}}


def test_checkpoints_are_at_most_five_minutes_apart(tmp_path, monkeypatch):
    def clock(iteration):
        monkeypatch.setattr(checkpoint, "since_process_start", lambda: 70.0 * iteration)

    clock(0)
    monkeypatch.setattr(checkpoint, "remove_outdated", lambda folder: None)
    train(tmp_path, 12, clock=clock)
    saved = [int(name[5:14]) for name in names(tmp_path)]
    assert saved == [1, 6, 10, 12]  # after 5 x 70 seconds, by its steps, and at the end


def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_state(tmp_path):
    stopper = train(tmp_path, 25, losses={20: math.nan}, best_at=(20,))
    assert EXIT_CODES[stopper.reason] == EXIT_CODES[NOT_FINITE] == 1
    assert names(tmp_path) == ["step-000000001.pt", "step-000000010.pt"]


def test_a_run_that_is_stopped_before_its_first_iteration_saves_nothing(tmp_path):
    """A source of players stops the first batch at a time limit. A resumed run would fill its replay only in part."""
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    register_events(engine)
    Checkpoints({"net": nn.Linear(1, 1)}, tmp_path, 10, Stopper(lambda: 5, 100, None)).attach(engine)
    engine.run(iter(()), epoch_length=1)
    assert names(tmp_path) == []


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_a_checkpoint_loads_into_a_network_of_another_precision(dtypes):
    saved, own = (FastModel(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6, dtype) for dtype in dtypes)
    saved.normalise_by(torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8))
    restore({"net": own}, {"net": saved.state_dict()})
    for name, value in saved.state_dict().items():  # also the means, which are rounded, fit into both
        assert torch.equal(own.state_dict()[name].float(), value.float()), name


def test_a_checkpoint_that_does_not_fit_is_reported_in_one_line():
    with pytest.raises(UsageError, match="does not fit 'net'") as error:
        restore({"net": nn.Linear(1, 1)}, {"net": nn.Linear(2, 1).state_dict()})
    assert "\n" not in str(error.value)
