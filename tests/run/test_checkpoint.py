import errno
import math
import os
import pickle
import textwrap
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events

from lib.errors import Fault
from lib.run import checkpoint, checkpoint_reading
from lib.run.checkpoint_files import set_aside_newer
from lib.run.events import EpisodeEvents, register_events
from lib.run.stopping import EXIT_CODES, NOT_FINITE, Stopper
from running import full_disk, start_program, wait_for

WEIGHTS = {"net": {"w": torch.arange(4.0)}}


def save(folder, name="step-000000001.pt", content=WEIGHTS):
    checkpoint.VerifiedSaver(folder)(content, name)
    return folder / name


def test_a_saved_checkpoint_is_read_back(tmp_path):
    file = save(tmp_path)
    assert torch.equal(checkpoint_reading.load(file)["net"]["w"], WEIGHTS["net"]["w"])
    assert list(tmp_path.iterdir()) == [file]


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
    assert calls == [("fsync", f"{file}.tmp"), ("replace", str(file)), ("fsync", str(tmp_path))]


def test_weights_that_are_not_finite_are_not_loaded(tmp_path):
    torch.save({"net": {"w": torch.tensor([1.0, math.nan])}}, tmp_path / "step-000000001.pt")
    with pytest.raises(Fault, match="holds NaN or a number that is too large; it was not loaded"):
        checkpoint_reading.load(tmp_path / "step-000000001.pt")


def test_without_checkpoints_the_newest_is_none(tmp_path):
    assert checkpoint_reading.newest(tmp_path) is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-7], lambda data: data[:40] + b"?" + data[41:], lambda data: b""]
)
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path, caplog, damage):
    save(tmp_path, "step-000000001.pt", WEIGHTS | {"iteration": 1})
    file = save(tmp_path, "step-000000002.pt", WEIGHTS | {"iteration": 2})
    assert checkpoint_reading.newest(tmp_path)["iteration"] == 2
    file.write_bytes(damage(file.read_bytes()))
    damaged = []
    assert checkpoint_reading.newest(tmp_path, damaged)["iteration"] == 1
    assert "step-000000002.pt is damaged" in caplog.text
    assert damaged == [file]


def test_if_all_checkpoints_are_damaged_nothing_is_changed(tmp_path):
    files = [save(tmp_path, f"step-00000000{k}.pt") for k in (1, 2)]
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Fault, match="none of the 2 checkpoints"):
        checkpoint_reading.newest(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "problem", [OSError(5, "Input/output error"), RuntimeError("unable to mmap: Cannot allocate memory")]
)
def test_a_checkpoint_that_cannot_be_read_now_is_not_renamed(tmp_path, monkeypatch, problem):
    for step in (1, 2):
        save(tmp_path, f"step-{step:09d}.pt")
    before = sorted(tmp_path.iterdir())

    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(Fault, match=r"step-000000002\.pt cannot be read now: .* No file was changed"):
        checkpoint_reading.newest(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_flipped_bit_is_noticed_or_belongs_to_no_content(tmp_path):
    file = save(tmp_path, "step-000000001.pt", WEIGHTS | {"iteration": 1})
    expected = torch.load(file, weights_only=True)
    original = file.read_bytes()
    rng = np.random.default_rng(1)
    outcomes = set()
    for place in rng.integers(0, len(original), 200):
        data = bytearray(original)
        data[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
        try:
            content = checkpoint_reading.load(file)
        except Fault:
            outcomes.add("refused")
        else:  # the byte belongs to no content
            outcomes.add("unchanged")
            assert content["iteration"] == 1
            assert all(torch.equal(content["net"][name], tensor) for name, tensor in expected["net"].items())
    assert outcomes == {"refused", "unchanged"}


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e300, float("nan")])
def test_a_number_that_is_too_large_is_rejected(tmp_path, number):
    file = save(tmp_path, content=WEIGHTS | {"episodes": {"returns": [1, (2, number)]}})
    with pytest.raises(Fault, match="holds NaN or a number that is too large"):
        checkpoint_reading.load(file)


class Code:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("write", [torch.save, lambda content, file: pickle.dump(content, file.open("wb"))])
def test_code_in_a_checkpoint_is_rejected_and_not_run(tmp_path, write):
    file = save(tmp_path)
    write({"net": Code(tmp_path / "executed")}, file)
    with pytest.raises(Fault, match=r"more than tensors and plain values|is damaged"):
        checkpoint_reading.load(file)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left"),
        (RuntimeError("[enforce fail at inline_container.cc:664] . no luck\nmore"), "no luck"),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), "the file is incomplete"),
    ],
)
def test_a_full_disk_leaves_the_previous_checkpoint_readable(tmp_path, monkeypatch, error, reason):
    file = save(tmp_path)

    def write_half(content, into):
        into.write(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", write_half)
    saver = checkpoint.VerifiedSaver(tmp_path)
    saver.remove(file.name)
    with pytest.raises(Fault, match=rf"step-000000002\.pt could not be saved: (\[Errno 28\] )?{reason}"):
        saver(WEIGHTS, "step-000000002.pt")
    assert list(tmp_path.iterdir()) == [file]
    checkpoint_reading.load(file)


def test_the_advice_after_a_full_disk_depends_on_the_checkpoints(tmp_path, monkeypatch):
    def full(content, into):
        raise OSError(28, "No space left on device")

    save(tmp_path, "best-000000001.pt")  # which cannot be resumed
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        with pytest.raises(Fault, match="There is no earlier checkpoint; make room, and start a new run"):
            save(tmp_path, "step-000000002.pt")
    save(tmp_path, "step-000000002.pt")
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(Fault, match="Earlier checkpoints are kept; make room, and continue with --resume"):
        save(tmp_path, "step-000000003.pt")


def test_the_advice_fits_the_cause(tmp_path, monkeypatch):
    with (
        full_disk(20),
        pytest.raises(Fault, match=r"File too large \(ulimit -f allows 0.0 MB\)\. .*; allow larger"),
    ):
        checkpoint.VerifiedSaver(tmp_path)({"net": {"weight": torch.ones(100_000)}}, "step-000000001.pt")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(torch, "save", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(Fault, match=r"Too many open files\. .*; raise the limit on open files"):
        save(tmp_path, "step-000000001.pt")


def test_an_outdated_file_is_removed_after_its_successor_is_written(tmp_path):
    first = save(tmp_path, "step-000000001.pt")
    saver = checkpoint.VerifiedSaver(tmp_path)
    saver.remove(first.name)
    assert first.exists()
    saver(WEIGHTS, "step-000000002.pt")
    assert not first.exists()
    saver.remove("step-000000002.pt")
    saver(WEIGHTS, "step-000000002.pt")  # saved once more under the same name, as after a resume
    assert checkpoint_reading.load(tmp_path / "step-000000002.pt")


def test_the_best_network_at_a_resumable_checkpoint_is_kept_until_the_next_one(tmp_path):
    saver = checkpoint.VerifiedSaver(tmp_path)
    saver(WEIGHTS, "best-000000003.pt")
    saver(WEIGHTS, "step-000000010.pt")
    for step, before in ((12, 3), (15, 12)):
        saver.remove(f"best-{before:09d}.pt")
        saver(WEIGHTS, f"best-{step:09d}.pt")
    assert names(tmp_path) == ["best-000000003.pt", "best-000000015.pt", "step-000000010.pt"]
    saver(WEIGHTS, "step-000000020.pt")
    assert names(tmp_path) == ["best-000000015.pt", "step-000000010.pt", "step-000000020.pt"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, bad):
    with pytest.raises(Fault, match="not finite"):
        save(tmp_path, content={"net": {"w": torch.tensor([1.0, bad])}})
    assert list(tmp_path.iterdir()) == []


WRITER = """
    import sys, torch
    from pathlib import Path
    from lib.run import checkpoint
    folder = Path(sys.argv[1])
    saver = checkpoint.VerifiedSaver(folder)
    content = {"net": {"w": torch.zeros(3_000_000)}}
    for step in range(1, 10_000):
        if step > 2:
            saver.remove(f"step-{step - 2:09d}.pt")
        content["net"]["w"][0] = step
        saver(content, f"step-{step:09d}.pt")
        print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.043, *(pytest.param(delay, marks=pytest.mark.long) for delay in (0.011, 0.087))])
def test_a_process_killed_while_saving_leaves_a_readable_checkpoint(tmp_path, delay):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    writer = start_program(textwrap.dedent(WRITER), tmp_path, folder)
    wait_for(lambda: writer.read("stdout").count("\n") >= 3, writer)
    time.sleep(delay)
    writer.kill()
    printed = [int(line) for line in writer.communicate()[0].split()]
    saved = int(checkpoint_reading.newest(folder)["net"]["w"][0])
    assert saved >= max([3, *printed])
    checkpoint.VerifiedSaver(folder)
    assert not list(folder.glob("*.tmp"))
    assert {path.name for path in folder.iterdir()} == set(names(folder))


class Scalar:
    def __init__(self, value=0.0):
        self.value = value

    def state_dict(self):
        return {"value": torch.tensor(self.value)}

    def load_state_dict(self, state):
        self.value = state["value"].item()


def train(folder, iterations, every, losses=None, best_at=()):
    """An engine whose network is a number that counts iterations; one iteration is one agent step."""
    net = Scalar()
    losses = losses or {}

    def process(engine, batch):
        net.value = float(engine.state.iteration)
        return {"loss": losses.get(engine.state.iteration, 0.0)}

    engine = Engine(process)
    register_events(engine)
    stopper = Stopper(lambda: engine.state.iteration, iterations, None)
    objects = {"net": net, "iteration": checkpoint.Iteration(engine), "epsilon": Scalar(1.0)}
    stopper.watch_loss(engine)

    @engine.on(Events.ITERATION_COMPLETED)
    def best(engine):
        if engine.state.iteration in best_at:
            engine.fire_event(EpisodeEvents.BEST_REWARD_REACHED)

    stopper.watch_ends(engine)
    checkpoint.Checkpointer(objects, folder, every, stopper).attach(engine)
    engine.run(iter(range(10_000)))
    stopper.release_signals()
    return stopper


def names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def test_checkpoints_are_saved_at_the_first_iteration_regularly_and_at_the_end_and_two_are_kept(tmp_path):
    train(tmp_path, 1, every=10)
    assert names(tmp_path) == ["step-000000001.pt"]
    train(tmp_path, 25, every=10)
    assert names(tmp_path) == ["step-000000020.pt", "step-000000025.pt"]


def test_a_third_file_that_a_kill_has_left_is_removed_with_the_next_save(tmp_path):
    for number in (10, 20, 30):
        save(tmp_path, f"step-{number:09d}.pt")
    checkpointer = checkpoint.Checkpointer({"net": Scalar()}, tmp_path, 10, Stopper(lambda: 30, 100, None))
    checkpointer._saver(WEIGHTS, "step-000000040.pt")
    assert names(tmp_path) == ["step-000000020.pt", "step-000000030.pt", "step-000000040.pt"]


def test_the_best_checkpoint_holds_the_networks_and_only_one_is_kept(tmp_path):
    train(tmp_path, 25, every=10, best_at=(3, 17))
    assert names(tmp_path) == ["best-000000017.pt", "step-000000020.pt", "step-000000025.pt"]
    best = checkpoint_reading.load(tmp_path / "best-000000017.pt")
    assert best == {"net": {"value": torch.tensor(17.0)}, "iteration": {"iteration": 17}}


def test_best_checkpoints_after_the_resumed_step_are_set_aside(tmp_path, caplog):
    caplog.set_level("INFO", "lib")
    train(tmp_path, 25, every=10, best_at=(17,))
    set_aside_newer(tmp_path, 17)
    assert "best-000000017.pt" in names(tmp_path)
    set_aside_newer(tmp_path, 16)
    assert names(tmp_path) == ["step-000000020.pt", "step-000000025.pt"]
    assert (tmp_path / "best-000000017.undone").exists()
    assert "is renamed to best-000000017.undone" in caplog.text


def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_state(tmp_path):
    stopper = train(tmp_path, 25, every=10, losses={20: float("nan")}, best_at=(20,))
    assert stopper.reason == NOT_FINITE
    assert EXIT_CODES[stopper.reason] == 1
    assert names(tmp_path) == ["step-000000001.pt", "step-000000010.pt"]


@pytest.mark.parametrize("error", [KeyError(7), RecursionError("maximum recursion depth exceeded")])
def test_any_error_of_the_unpickler_means_damage(tmp_path, monkeypatch, error):
    file = save(tmp_path)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(checkpoint_reading.Damaged, match="cannot be read"):
        checkpoint_reading.load(file)


def test_a_checkpoint_that_contains_itself_is_rejected(tmp_path, monkeypatch):
    file = save(tmp_path)
    content = {"net": []}
    content["net"].append(content["net"])
    monkeypatch.setattr(torch, "load", lambda *_, **__: content)
    with pytest.raises(checkpoint_reading.Damaged, match="contains itself"):
        checkpoint_reading.load(file)


def test_an_error_while_acting_saves_the_state_and_says_how_to_continue(tmp_path, caplog):
    def batches():
        yield from range(3)
        raise RuntimeError("the paddle broke")

    caplog.set_level("INFO")
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    register_events(engine)
    stopper = Stopper(lambda: engine.state.iteration, 100, None)
    objects = {"net": Scalar(), "iteration": checkpoint.Iteration(engine)}
    checkpointer = checkpoint.Checkpointer(
        objects, tmp_path, 10, stopper, how_to_continue=lambda: "./own.py --resume here"
    )
    checkpointer.attach(engine)
    errors: list[Exception] = []
    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: errors.append(error))
    engine.run(batches())  # nobody raises the error again
    assert errors[0].__notes__ == ["To continue: ./own.py --resume here"]
    assert "The last complete iteration is saved." in caplog.text
    assert "step-000000003.pt" in names(tmp_path)


@pytest.mark.parametrize(("warms_up", "saved"), [(True, []), (False, ["step-000000005.pt"])])
def test_a_run_that_is_stopped_in_its_warm_up_saves_nothing(tmp_path, warms_up, saved):
    """A source of players stops the first batch at a time limit. A resumed run would fill its replay only in part."""
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    register_events(engine)
    stopper = Stopper(lambda: 5, 100, None)
    objects = {"net": Scalar(), "iteration": checkpoint.Iteration(engine)}
    checkpoint.Checkpointer(objects, tmp_path, 10, stopper, warms_up).attach(engine)
    engine.run(iter(()), epoch_length=1)
    assert engine.state.iteration == 0
    assert names(tmp_path) == saved


def test_copies_beside_the_checkpoints_are_left_alone(tmp_path):
    for copy in ("step-copy.pt", "step-000000099 (1).pt", "best.pt"):
        (tmp_path / copy).write_bytes(b"mine")
    train(tmp_path, 45, every=10)
    assert names(tmp_path) == [
        "best.pt",
        "step-000000040.pt",
        "step-000000045.pt",
        "step-000000099 (1).pt",
        "step-copy.pt",
    ]
    assert checkpoint_reading.newest(tmp_path)["iteration"] == {"iteration": 45}
