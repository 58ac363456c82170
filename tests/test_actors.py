"""One contract, held by every engine; each test says what a learner may rely on."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

import fakes
from lib.actors.contract import ActorFailed, Actors, Stopped, Weights
from lib.actors.engines import start_actors
from lib.actors.process_worker import _set_model, packed, unpacked
from lib.actors.ray_cluster import RayActors, knock, ray_package
from lib.errors import UsageError
from lib.system.machine import cores
from lib.system.shared_memory import SharedWeights

ENGINES = ("inline", "process", "ray")


def model_of(version):
    tensors = {"a": torch.arange(6.0).view(2, 3) + version, "b": torch.tensor(version, dtype=torch.bfloat16)}
    return Weights(version, tensors)


def started(engine, number=2, make=fakes.Counter, **options):
    return start_actors(engine, make, number, model_of(1), **options)


def numbers(segments):
    return [(each["number"], each["count"], each["version"]) for each in segments]


@pytest.fixture(scope="module", autouse=True)
def _workers_find_the_fakes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fakes.__file__).parent), *sys.path]))
        yield


@pytest.fixture(scope="module")
def _ray():
    """One for all tests that do not ask for their own: it takes seconds to start."""
    ray = ray_package(alone=True)
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture
def _no_ray():
    """For a test that starts its own; the shared one has to be gone."""
    ray_package(alone=True).shutdown()


@pytest.fixture(params=ENGINES)
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("_ray")
    return request.param


@pytest.fixture(params=["process", "ray"])
def losable(request):
    if request.param == "ray":
        request.getfixturevalue("_ray")
    return request.param


def test_segments_come_in_the_actors_order_made_with_the_newest_weights(engine):
    with started(engine, 3) as crew:
        assert numbers(crew.gather()) == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
        crew.broadcast(model_of(2))
        segments = crew.gather()
        assert numbers(segments) == [(0, 2, 2), (1, 2, 2), (2, 2, 2)]
        assert all(np.array_equal(each["weights"], np.arange(6.0).reshape(2, 3) + 2) for each in segments)
        assert all(each["b"] == 2.0 for each in segments)
        assert segments[1]["large"].shape == (1000, 7)
        assert (segments[1]["large"] == 102).all()  # of actor 1, its second
        # What was ordered before is made with the weights that were the newest then, or newer ones.
        crew.order(0)
        crew.broadcast(model_of(3))
        crew.order(1)
        versions = {}
        while len(versions) < 2:
            versions |= {index: each["version"] for index, each in crew.take()}
        assert versions[0] in (2, 3)
        assert versions[1] == 3


def test_a_segment_is_valid_until_the_next_but_one(engine):
    with started(engine, 1) as crew:
        [first] = crew.gather()
        [second] = crew.gather()
        assert (first["large"] == 1).all()
        assert (second["large"] == 2).all()


def test_a_segment_stays_as_it_is_when_its_actor_is_replaced(losable):
    with started(losable, 1, state_of=lambda number: {"count": 1}) as crew:
        [first] = crew.gather()
        os.kill(first["pid"], signal.SIGKILL)
        crew.gather()
        assert crew.replaced == 1
        assert (first["large"] == 2).all()


def test_an_actor_has_more_time_while_it_comes_to_its_state():
    with started("process", 1, patience=7.0, delay_of=lambda number: 1000.0) as crew:
        for more in (1000.0 + crew.STARTING, 0.0):
            crew.order(0)
            assert crew._deadlines[0] - time.monotonic() == pytest.approx(7.0 + more, abs=1.0)
            crew.take()


def test_an_actor_begins_with_the_state_that_it_is_given(engine):
    with started(engine, 2, state_of=lambda number: {"count": 10 * number}) as crew:
        assert numbers(crew.gather()) == [(0, 1, 1), (1, 11, 1)]


def test_inline_actors_wait_for_their_turn_without_being_late():
    with started("inline", 3, make=fakes.Counter.slow, patience=0.1) as crew:
        for count in (1, 2):
            assert numbers(crew.gather()) == [(number, count, 1) for number in range(3)]
        assert crew.replaced == 0


def test_an_actor_owes_one_segment_at_a_time_and_nothing_unasked(engine):
    with started(engine) as crew:
        with pytest.raises(RuntimeError, match="no segment was ordered"):
            crew.take()
        crew.order(1)
        with pytest.raises(RuntimeError, match="actor 1 owes a segment already"):
            crew.order(1)
        [(index, segment)] = crew.take()
        assert (index, segment["number"]) == (1, 1)


def test_the_traceback_of_an_actor_that_raises_is_shown(engine):
    with started(engine, make=fakes.Counter.raising) as crew:
        for _ in range(3):
            crew.gather()
        with pytest.raises(ActorFailed, match=r"(?s)counter 1 at 3.*in fail_on_purpose.*Error: out of numbers"):
            crew.gather()


def test_the_traceback_of_an_actor_that_cannot_be_made_is_shown(engine):
    with (
        started(engine, make=fakes.Counter.unmakeable) as crew,
        pytest.raises(ActorFailed, match=r"(?s)Actor \d could not be made.*ValueError: no such counter"),
    ):
        crew.gather()


def test_what_an_actor_cannot_be_given_is_wrong_use_as_it_is_without_actors(engine):
    with (
        started(engine, make=fakes.Counter.unaffordable) as crew,
        pytest.raises(UsageError, match=r"^counter 1000 needs 9 GB; take 3 at most$"),
    ):
        crew.gather()


def test_an_actor_that_dies_is_replaced_and_what_it_owed_comes_once(losable, caplog):
    counts, pids = {0: 0, 1: 0}, {}
    with started(losable, 2, state_of=lambda number: {"count": counts[number]}) as crew:
        for expected in range(1, 7):
            if expected in (3, 5):  # while it is idle
                os.kill(pids[1], signal.SIGKILL)
            for index in range(2):
                crew.order(index)
            if expected == 4:  # while it is at work, or just done
                os.kill(pids[1], signal.SIGKILL)
            came = []
            while len(came) < 2:
                came += crew.take()
            assert sorted((index, each["count"]) for index, each in came) == [(0, expected), (1, expected)]
            counts |= {index: each["count"] for index, each in came}
            pids = {index: each["pid"] for index, each in came}
        assert crew.replaced in (2, 3)  # one may have given its segment before it was killed
    assert "Actor 1 " in caplog.text
    assert "It is replaced" in caplog.text


def test_an_actor_that_hangs_is_killed_and_replaced_after_the_time_that_was_stated(losable, tmp_path):
    once = tmp_path / "hung"
    with started(losable, 2, make=fakes.Counter.hanging(once), patience=1.0) as crew:
        crew.gather()  # the first segments have more time
        start = time.monotonic()
        segments = crew.gather()
        assert 1.0 <= time.monotonic() - start < 30
        assert crew.replaced == 1
        assert once.exists()
        assert segments[0]["number"] == 0


def test_versions_may_be_left_out_but_not_go_back(engine):
    with started(engine, 2) as crew:
        for version in (1, 2, 6, 11, 12, 20):
            crew.broadcast(model_of(version))
            if version != 11:
                assert [each["version"] for each in crew.gather()] == [version] * 2
        with pytest.raises(ValueError, match="version 19 of the weights is older than 20"):
            crew.broadcast(model_of(19))


def test_a_learner_that_is_to_stop_does_not_wait_for_one_that_hangs(losable, tmp_path, monkeypatch):
    monkeypatch.setattr(Actors, "STOPPING", 1.0)
    asked = []
    with started(losable, 2, make=fakes.Counter.hanging(tmp_path / "hung"), stop_asked=lambda: bool(asked)) as crew:
        crew.gather()
        asked.append(True)
        start = time.monotonic()
        with pytest.raises(Stopped):
            crew.gather()
        assert time.monotonic() - start < 10


def test_one_that_always_dies_is_given_up(losable, monkeypatch):
    monkeypatch.setattr(Actors, "TRIES", 3)
    with (
        started(losable, 1, make=fakes.Counter.dying) as crew,
        pytest.raises(ActorFailed, match=r"(?s)actor 0 .* 3 before it"),
    ):
        crew.gather()


def test_nothing_is_left_when_they_are_closed(losable):
    crew = started(losable, 2)
    pids = {each["pid"] for each in crew.gather()}
    crew.close()
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(("wrong", "number", "message"), [("inline", 0, "at least 1"), ("cloud", 1, "inline, process")])
def test_wrong_use(wrong, number, message):
    with pytest.raises(UsageError, match=message):
        start_actors(wrong, fakes.Counter, number, model_of(1))


def test_what_cannot_be_sent_elsewhere_is_refused():
    with pytest.raises(UsageError, match=r"cannot be sent to another process.*--engine inline"):
        start_actors("process", fakes.Counter, 1, model_of(1), lambda number: threading.Lock())


def test_arrays_that_find_no_room_in_shared_memory_come_all_the_same():
    with started("process", 1, room=1000) as crew:
        assert (crew.gather()[0]["large"] == 1).all()


@pytest.mark.parametrize("sizes", [[], [1], [64, 65, 0, 3]])
def test_packing_keeps_arrays_apart(sizes):
    memory = bytearray(2048)
    arrays = [np.full(size, number, np.uint8) for number, size in enumerate(sizes, 1)]
    for turn in (0, 1):
        found = unpacked(*packed(arrays, memory, turn), memory)
        assert [each.tolist() for each in found] == [each.tolist() for each in arrays]


def test_a_version_that_was_overtaken_is_replaced_by_the_newest():
    weights = SharedWeights(model_of(0).tensors.values(), 2)
    for version in (4, 5, 6):
        weights.publish(version, model_of(version).tensors.values())
    seen = []

    class Seeing:
        def set_model(self, model):
            seen.append((model.version, model.tensors["a"][0, 0].item()))

    for version in (4, 5):
        _set_model(Seeing(), ["a", "b"], weights, version)
    assert seen == [(6, 6.0), (5, 5.0)]


def test_ray_that_is_not_installed_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[ray\]'"):
        start_actors("ray", fakes.Counter, 1, model_of(1))


@pytest.mark.usefixtures("_ray")
def test_too_few_cpus_are_told_of_with_the_fraction_that_fits():
    with pytest.raises(UsageError, match=r"8 actors .* Ray has 4; take --actors 4 at most, or --actor-cpus 0\.5"):
        started("ray", 8, cpus=1.0)


@pytest.mark.parametrize(
    ("nodes", "number", "asked", "share"),
    [
        ([4.0], 8, None, 0.5),
        ([4.0], 2, None, 1.0),
        ([2.0], 3, None, 0.6666),
        ([1.0, 2.0, 2.0], 8, None, 0.5),  # with 0.625, five CPUs by eight, the nodes have room for seven
        ([1.0, 2.0, 2.0], 8, 0.5, 0.5),
        ([0.0, 3.0], 3, 1.0, 1.0),
        ([4.0], 3, 0.333333, 0.3333),
    ],
)
def test_the_part_of_a_cpu_that_each_actor_has(nodes, number, asked, share):
    assert RayActors._share(SimpleNamespace(number=number), nodes, asked) == share


@pytest.mark.parametrize(
    ("nodes", "number", "asked", "advice"),
    [
        ([1.0, 2.0, 2.0], 8, 0.625, r"Ray has 1 \+ 2 \+ 2; take --actors 7 at most, or --actor-cpus 0\.5$"),
        ([2.0], 2, 5.0, r"Ray has 2; take --actor-cpus 1$"),
        ([2.0], 2, 0.00001, r"Ray has 2; take --actor-cpus 1$"),
        ([0.0], 2, None, r"Ray has no CPUs for 2 actors"),
    ],
)
def test_actors_that_the_nodes_have_no_room_for(nodes, number, asked, advice):
    with pytest.raises(UsageError, match=advice):
        RayActors._share(SimpleNamespace(number=number), nodes, asked)


@pytest.mark.usefixtures("_no_ray")
def test_a_ray_of_its_own_listens_on_this_machine_alone_is_shared_by_more_actors_than_cpus_and_ends():
    with started("ray", cores() + 1) as crew:
        segments = crew.gather()
        assert numbers(segments) == [(number, 1, 1) for number in range(cores() + 1)]
        assert {psutil.Process(each["pid"]).nice() for each in segments} == {psutil.Process().nice()}
        processes = psutil.Process().children(recursive=True)
        connections = [each for process in [psutil.Process(), *processes] for each in process.net_connections("inet")]
        listening = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    assert listening
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not any("raylet" in process.name() for process in psutil.Process().children(recursive=True))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("somewhere", "no HOST:PORT"),
        ("127.0.0.1:1", "nothing answers at 127.0.0.1:1"),
        ("127.0.0.1:99999", "nothing answers"),
    ],
)
def test_an_address_that_answers_nothing(address, message):
    start = time.monotonic()
    with pytest.raises(UsageError, match=message):
        knock(address)
    assert time.monotonic() - start < 15


def test_a_port_where_something_else_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        start = time.monotonic()
        with pytest.raises(UsageError, match="no Ray cluster answers there"):
            knock(f"127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - start < 15
