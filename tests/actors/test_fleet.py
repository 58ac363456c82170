"""The fleet on every engine: what a learner may rely on while actors are slow, hang and die."""

import logging
import os
import random
import signal
import subprocess
import time
from contextlib import closing

import psutil
import pytest
import torch

import fakes
from lib.actors.engines import Played, Weights, Worker
from lib.actors.fleet import Fleet
from lib.envs.checked_env import CheckedEnv
from lib.errors import Fault, UsageError
from lib.experience.interface import Stopped
from lib.system import processes
from oracles.fleet import Expected
from running import gone

pytestmark = pytest.mark.usefixtures("ray_workers_find_the_fakes")


def weights_of(version):
    return Weights(version, {"a": torch.tensor(version, dtype=torch.bfloat16)}, {})


def new_fleet(engine, number=2, before=lambda actor: None, states=None, **options):
    """Return a fleet of Counters. Each calls `before` before a segment."""
    fleet: Fleet[Played] = Fleet(engine, [f"Actor {index}" for index in range(number)], **options)
    for record, state in zip(fleet.records, states or (), strict=False):
        record.restart = state
    fleet.start([lambda index, state: fakes.Counter(index, state, before)] * number)
    return fleet


def fleet_of(*args, **options):
    """Return a context with a new fleet, which is closed at its end."""
    return closing(new_fleet(*args, **options))


def until(fleet, condition):
    """Take segments until the condition holds, and return them."""
    came, end = [], time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end
        came += fleet.take()
    return came


def gather(fleet, version=1):
    """Return a segment of every actor, in the actors' order, when all are ready."""
    until(fleet, lambda: len(fleet.idle()) == len(fleet.records))
    for index in range(len(fleet.records)):
        fleet.order(index, weights_of(version))
    came = dict(until(fleet, lambda: not fleet.open_orders))
    return [came[index] for index in sorted(came)]


@pytest.fixture(scope="module")
def _ray(ray_workers_find_the_fakes):
    """One Ray for all tests, because its start takes seconds."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(params=["inline", "process", pytest.param("ray", marks=pytest.mark.long)])
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("_ray")
    return request.param


def test_a_fleet_does_what_its_model_does_whatever_happens_to_its_actors(engine, monkeypatch):
    monkeypatch.setattr(Fleet, "POLL", 0.2)
    draw, version, models = random.Random(25), 1, [Expected() for _ in range(3)]

    def take():
        for index, segment in fleet.take():
            models[index].came(segment)
        for model, record in zip(models, fleet.records, strict=True):
            model.compare(record)

    def states():
        result = fleet.states()
        take()
        for model, state in zip(models, result, strict=True):
            state = state or {"steps_done": 0, "began": 0}
            assert state["steps_done"] == 10 * model.count
            assert state.get("began", model.count) == model.began
        return result

    harms = () if engine == "inline" else ("kill", "stop")
    with fleet_of(engine, 3, lambda actor: time.sleep(0.05 * (actor.number == 1)), patience=3.0) as fleet:
        until(fleet, lambda: fleet.idle() == [0, 1, 2])
        for _ in range(50):
            index = draw.randrange(3)
            what = draw.choice(["order"] * 6 + ["take"] * 6 + ["broadcast", "states", *harms])
            if what == "order":
                while not fleet.records[index].ready:
                    take()
                fleet.order(index, weights_of(version))
                models[index].orders.append(version)
            elif what == "take":
                take()
            elif what == "broadcast":
                version += 1
            elif what == "states":
                states()
            elif what in harms and models[index].pid not in models[index].harmed:
                os.kill(models[index].pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
                models[index].harmed.add(models[index].pid)
        while fleet.open_orders or len(fleet.idle()) < 3:
            take()
        last = states()
    assert sum(model.count for model in models) > 5
    assert fleet.lost > 1 or engine == "inline"
    with fleet_of(engine, 3, states=last) as resumed:
        found = [(segment.began, segment.nth) for segment in gather(resumed)]
        assert found == [(state["began"], state["steps_done"] // 10 + 1) for state in last]


def test_an_actor_that_raises_is_one_fault_with_its_name_and_traceback(engine):
    with fleet_of(engine, before=fakes.fail_on_purpose) as fleet:
        gather(fleet)
        gather(fleet)
        with pytest.raises(Fault, match=r"(?s)^Actor 1 failed at 2:\n.*in fail_on_purpose.*RuntimeError: out of num"):
            gather(fleet)


def test_no_process_is_left_after_close_and_environments_are_closed(engine, tmp_path):
    class Closed(fakes.Counting):
        def close(self):
            (tmp_path / "closed").touch()

    with fleet_of(engine, before=lambda actor: setattr(actor, "env", CheckedEnv(Closed(), "Closed-v0"))) as fleet:
        pids = {segment.pid for segment in gather(fleet)} - {os.getpid()}
        assert len(pids) == (0 if engine == "inline" else 2)
    assert gone(pids)
    assert (tmp_path / "closed").exists() == (engine == "process")


@pytest.mark.parametrize("engine", ["process", pytest.param("ray", marks=pytest.mark.long)])
def test_no_process_is_left_after_the_learner_was_killed(engine):
    ours, theirs = processes.context.Pipe()
    learner = processes.context.Process(target=fakes.play_and_hang, args=(theirs, engine))
    learner.start()
    pids, children = ours.recv(), psutil.Process(learner.pid).children(recursive=True)
    pids |= {child.pid for child in children if not child.name().endswith("Agent")}  # Ray's agents end a minute later
    learner.kill()
    assert gone(pids)


def test_sigterm_ends_the_programs_of_an_actor_but_not_the_actor():
    with fleet_of("process", 1, lambda actor: subprocess.run(["timeout", "0.1", "sleep", "100"])) as fleet:
        [segment] = gather(fleet)
        os.kill(segment.pid, signal.SIGTERM)
        assert gather(fleet)[0].pid == segment.pid


def test_an_actor_that_dies_is_lost_although_a_process_that_it_forked_lives():
    def fork_sleeper(actor):
        if not os.fork():
            time.sleep(20)
            os._exit(0)

    with fleet_of("process", 1, fork_sleeper) as fleet:
        [segment] = gather(fleet)
        [helper] = psutil.Process(segment.pid).children()
        os.kill(segment.pid, signal.SIGKILL)
        until(fleet, lambda: fleet.lost == 1)
        assert helper.status() == psutil.STATUS_SLEEPING  # it still holds the pipe
        helper.kill()
        assert gather(fleet)[0].began == 1


def test_losses_in_a_row_without_a_segment_end_the_run():
    with fleet_of("process", 1, lambda actor: os._exit(7) if actor.count else None) as fleet:
        for _ in range(5):  # the first one counts a segment, and four losses follow
            gather(fleet)
        assert fleet.lost == 4
        with pytest.raises(Fault, match=r"^Actor 0 died with exit code 7; that was the 5th time in a row"):
            gather(fleet)


@pytest.mark.parametrize(
    ("error", "message"), [(UsageError("too many"), "^too many$"), (Fault("late", 130), "^Actor 0 failed at 0: late$")]
)
def test_errors_for_the_user_keep_their_class_and_exit_code(error, message):
    def fail(actor):
        raise error

    with fleet_of("inline", 1, fail) as fleet, pytest.raises(type(error), match=message) as failed:
        gather(fleet)
    assert failed.value.exit_code == error.exit_code


def test_inline_actors_are_never_late():
    with fleet_of("inline", 3, lambda actor: time.sleep(0.2), patience=0.1) as fleet:
        assert [each.nth for each in gather(fleet) + gather(fleet)] == [1, 1, 1, 2, 2, 2]


@pytest.fixture
def faked(monkeypatch):
    """Function (number, delay, ...) that returns a fleet and its FakeEngine."""

    def make(number, delay, **options):
        engine = fakes.FakeEngine(delay)
        monkeypatch.setattr("lib.actors.fleet.make_engine", lambda *_: engine)
        return new_fleet("fake", number, clock=lambda: engine.now, **options), engine

    return make


def test_a_hanging_actor_is_killed_after_its_patience_and_others_go_on(faked):
    seconds: dict[int, float | None] = {0: 1.0, 1: 1.0, 2: 4.0}
    fleet, engine = faked(3, lambda index, method: seconds[index] if method == "play" else 1.0, patience=5.0)
    gather(fleet)
    seconds |= {0: None, 2: 11.0}  # less than three times as long as before
    fleet.order(0, weights_of(1))
    fleet.order(2, weights_of(1))
    came = []
    while 2 not in came:
        if 1 in fleet.idle():
            fleet.order(1, weights_of(1))
        came += [index for index, _ in fleet.take()]
        assert engine.killed == ([0] if engine.now > 110.0 else [])  # ordered at 105
    assert came.count(1) > 8


def test_a_suspended_learner_kills_nobody(faked):
    fleet, engine = faked(1, lambda index, method: None if method == "play" else 1.0, patience=5.0)
    until(fleet, fleet.idle)
    fleet.order(0, weights_of(1))
    for _ in range(2):
        engine.now += 1000.0
        fleet.take()
    assert engine.killed == []
    until(fleet, lambda: engine.killed)


@pytest.mark.parametrize("hangs", ["play", "state"])
def test_a_stopping_learner_waits_ten_seconds_for_an_actor_that_hangs_and_saves_without_it(faked, caplog, hangs):
    asked = []
    fleet, engine = faked(
        2, lambda index, method: None if (index, method) == (0, hangs) else 1.0, stop_asked=lambda: bool(asked)
    )
    until(fleet, lambda: len(fleet.idle()) == 2)
    asked, began = [True], engine.now
    if hangs == "play":
        fleet.order(0, weights_of(1))
        with pytest.raises(Stopped):
            until(fleet, lambda: False)
        assert "Actor 0 sent no segment for 10 seconds" in caplog.text
    assert fleet.states() == [None, {"steps_done": 0, "began": 0}]
    assert 10.0 < engine.now - began <= 13.0


def test_an_actor_with_another_version_of_torch_is_one_line(monkeypatch):
    monkeypatch.setattr(Worker, "hello", lambda worker: ("node 2", "1.0.0"))
    with fleet_of("inline", 1) as fleet, pytest.raises(Fault, match=r"^Actor 0 runs on node 2 with torch 1\.0\.0, .*$"):
        fleet.take()


def test_an_actor_that_waits_for_room_is_expected_for_as_long_as_the_patience(faked):
    seconds = {(0, "hello"): 10.0, (0, "start"): 30.0, (1, "start"): 20.0}
    fleet, engine = faked(3, lambda index, method: seconds.get((index, method), 1.0), patience=5.0)
    for now, expected in ((0, [0, 1, 2]), (4, [0, 1]), (7, [1]), (12, [0, 1]), (22, [0]), (32, [])):
        until(fleet, lambda now=now: engine.now >= 100.0 + now)
        assert fleet.expected() == expected
    engine.lose(2)
    until(fleet, lambda: fleet.lost)
    assert fleet.expected() == []


def test_the_verdict_names_who_waits_and_who_is_slow(faked, caplog, tmp_path):
    caplog.set_level(logging.INFO, "lib.actors.fleet")
    seconds = {(3, "hello"): None, (4, "hello"): None, (3, "start"): None, (4, "start"): None, (2, "play"): 30.0}
    fleet, engine = faked(5, lambda index, method: seconds.get((index, method), 10.0 if method == "play" else 0.0))
    fleet.take()
    for version, done in ((1, lambda: fleet.idle() == [0, 1]), (2, lambda: not fleet.open_orders)):
        for index in fleet.idle():
            fleet.order(index, weights_of(version))
        until(fleet, done)
    engine.now += 40.0
    verdict = (
        "3 of 5 actors play; waiting for room (see `ray status`): 3, 4; the learner waits 44% of its time, the actors "
        "80% of theirs; playing is 75% environment, 25% act; actor 2 takes 3 times as long as the median; more actors "
        "would hardly help."
    )
    assert fleet.verdict() == verdict
    fleet.take()
    assert caplog.text.count("3 of 5 actors play") == 1
    assert fleet.report(tmp_path) == {"actors": fleet.verdict()}
    rows = (tmp_path / "actors.csv").read_text().splitlines()
    assert (rows[3].split(",", 2)[2], rows[5]) == ("10,1,30.0,41.0,0,1.00", "4,,0,0,0.0,71.0,0,")
