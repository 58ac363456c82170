"""Behaviour of every engine that a learner may rely on."""

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

import fakes
from lib.actors import ray_cluster
from lib.actors.contract import ActorFailed, Actors, Stopped, Weights
from lib.actors.engines import start_actors
from lib.actors.process import ProcessActors
from lib.actors.process_worker import set_model
from lib.actors.ray_cluster import RayActors
from lib.actors.ray_package import check_cluster, import_ray
from lib.envs.checked_env import CheckedEnv
from lib.errors import CallInterrupted, Fault, UsageError
from lib.system import memory, processes
from lib.system.machine import cores
from lib.system.processes import SIGNALS
from lib.system.shared_memory import SharedWeights

pytestmark = pytest.mark.usefixtures("ray_workers_find_the_fakes", "warm_fork_server")


def model_of(version):
    tensors = {"a": torch.arange(6.0).view(2, 3) + version, "b": torch.tensor(version, dtype=torch.bfloat16)}
    return Weights(version, tensors)


def started(engine, number=2, make=fakes.Counter, **options):
    return start_actors(engine, make, number, model_of(1), **options)


def numbers(segments):
    return [(each["number"], each["count"], each["version"]) for each in segments]


@pytest.fixture(scope="module")
def _ray(ray_workers_find_the_fakes):
    """One Ray for all tests that do not start their own, because starting Ray takes seconds."""
    ray = import_ray(local_only=True)
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture
def _no_ray():
    """Shut down the shared Ray for a test that starts its own."""
    import_ray(local_only=True).shutdown()


@pytest.fixture(params=["inline", "process", pytest.param("ray", marks=pytest.mark.slow)])
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("_ray")
    return request.param


@pytest.fixture(params=["process", pytest.param("ray", marks=pytest.mark.slow)])
def losable(request):
    if request.param == "ray":
        request.getfixturevalue("_ray")
    return request.param


# A Ray actor takes four seconds to import. These cases do not test Ray-specific code.
with_ray_long = pytest.mark.parametrize(
    "engine", ["inline", "process", pytest.param("ray", marks=pytest.mark.long)], indirect=True
)
losable_with_ray_long = pytest.mark.parametrize(
    "losable", ["process", pytest.param("ray", marks=pytest.mark.long)], indirect=True
)


def test_segments_come_in_the_actors_order_with_the_newest_weights_and_no_process_is_left(engine):
    with started(engine, 3) as crew:
        assert numbers(crew.gather()) == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
        crew.broadcast(model_of(2))
        segments = crew.gather()
        assert numbers(segments) == [(0, 2, 2), (1, 2, 2), (2, 2, 2)]
        assert all(np.array_equal(each["weights"], np.arange(6.0).reshape(2, 3) + 2) for each in segments)
        assert all(each["b"] == 2.0 for each in segments)
        assert segments[1]["large"].shape == (1000, 7)
        assert (segments[1]["large"] == 102).all()  # second segment of actor 1
        # An earlier order is played with the version that was the newest then, or with a newer one.
        crew.order(0)
        crew.broadcast(model_of(3))
        crew.order(1)
        versions = {}
        while len(versions) < 2:
            versions |= {index: each["version"] for index, each in crew.take()}
        assert versions[0] in (2, 3)
        assert versions[1] == 3
    pids = {each["pid"] for each in segments} - {os.getpid()}  # of inline actors
    assert len(pids) == (0 if engine == "inline" else 3)
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@with_ray_long
def test_a_segment_is_valid_until_the_next_but_one_is_ordered(engine):
    with started(engine, 1) as crew:
        [first] = crew.gather()
        [second] = crew.gather()
        assert (first["large"] == 1).all()
        assert (second["large"] == 2).all()


@losable_with_ray_long
def test_a_segment_stays_valid_if_its_actor_is_replaced(losable):
    with started(losable, 1, state_of=lambda number: {"count": 1}) as crew:
        [first] = crew.gather()
        os.kill(first["pid"], signal.SIGKILL)
        crew.gather()
        assert crew.replaced == 1
        assert (first["large"] == 2).all()


def test_a_new_actor_has_extra_time_to_restore_its_state():
    with started("process", 1, patience=7.0, delay_of=lambda number: 1000.0) as crew:
        for more in (1000.0 + crew.STARTING, 0.0):
            crew.order(0)
            assert crew._deadlines()[0] - time.monotonic() == pytest.approx(7.0 + more, abs=1.0)
            crew.take()


@with_ray_long
def test_an_actor_starts_from_the_given_state(engine):
    with started(engine, 2, state_of=lambda number: {"count": 10 * number}) as crew:
        assert numbers(crew.gather()) == [(0, 1, 1), (1, 11, 1)]


def test_inline_actors_have_no_deadline():
    with started("inline", 3, make=fakes.Counter.slow, patience=0.1) as crew:
        for count in (1, 2):
            assert numbers(crew.gather()) == [(number, count, 1) for number in range(3)]
        assert crew.replaced == 0


@with_ray_long
def test_orders_beyond_the_depth_and_takes_without_an_order_are_refused(engine):
    with started(engine) as crew:
        with pytest.raises(RuntimeError, match="no segment was ordered"):
            crew.take()
        crew.order(1)
        with pytest.raises(RuntimeError, match="actor 1 already has an open order"):
            crew.order(1)
        [(index, segment)] = crew.take()
        assert (index, segment["number"]) == (1, 1)


@with_ray_long
def test_an_actor_may_have_several_open_orders_each_with_its_own_weights(engine):
    with started(engine, 2, depth=3) as crew:
        for version in (1, 2, 3):
            crew.broadcast(model_of(version))
            for index in (0, 1):
                crew.order(index)
        with pytest.raises(RuntimeError, match="actor 0 already has 3 open orders"):
            crew.order(0)
        came = {0: [], 1: []}
        while sum(map(len, came.values())) < 6:
            for index, segment in crew.take():
                came[index].append((segment["count"], segment["version"], segment["weights"][0, 0]))
        assert came == {index: [(1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0)] for index in (0, 1)}


def test_a_replaced_actor_gets_all_its_open_orders_again_with_their_weights(losable):
    received = []
    with started(losable, 1, depth=3, state_of=lambda number: {"count": len(received)}) as crew:
        for version in (1, 2, 3):
            crew.broadcast(model_of(version))
            crew.order(0)
        received += [segment for _, segment in crew.take()]
        os.kill(received[0]["pid"], signal.SIGKILL)
        while len(received) < 3:
            received += [segment for _, segment in crew.take()]
        assert [(each["count"], each["version"]) for each in received] == [(1, 1), (2, 2), (3, 3)]
        assert [each["b"] for each in received] == [1.0, 2.0, 3.0]


def test_an_actor_that_raises_is_reported_with_its_traceback(engine):
    with started(engine, make=fakes.Counter.raising) as crew:
        for _ in range(3):
            crew.gather()
        with pytest.raises(ActorFailed, match=r"(?s)Actor 1 failed at 3.*in fail_on_purpose.*Error: out of numbers"):
            crew.gather()


@with_ray_long
def test_an_actor_that_cannot_be_made_is_reported_with_its_traceback(engine):
    with (
        started(engine, make=fakes.Counter.unmakeable) as crew,
        pytest.raises(ActorFailed, match=r"(?s)Actor \d failed while it was made.*ValueError: no such counter"),
    ):
        crew.gather()


def test_a_fault_in_the_making_of_an_actor_is_reported_in_one_line():
    def make(number, state):
        raise Fault("Own-v0 (at its reset): its observation is nan", 5)

    with started("inline", 1, make=make) as crew, pytest.raises(ActorFailed) as failed:
        crew.gather()
    assert str(failed.value).endswith("Actor 0 failed while it was made: Own-v0 (at its reset): its observation is nan")
    assert failed.value.exit_code == 5


@with_ray_long
def test_an_actor_that_does_not_accept_its_weights_ends_the_run_at_once(engine):
    with (
        started(engine, make=fakes.Counter.picky) as crew,
        pytest.raises(ActorFailed, match=r"(?s)Actor \d failed when it was given new weights.*no such weight"),
    ):
        crew.gather()
    assert crew.replaced == 0


@with_ray_long
@pytest.mark.parametrize("make", [fakes.Counter.unaffordable, fakes.Counter.unaffordable_later])
def test_a_usage_error_of_an_actor_stays_a_usage_error(engine, make):
    with (
        started(engine, make=make) as crew,
        pytest.raises(UsageError, match=r"^counter 1000 needs 9 GB; take 3 at most$"),
    ):
        crew.gather()


@losable_with_ray_long
def test_an_actor_that_dies_is_replaced_and_each_segment_comes_once(losable, caplog):
    counts, pids = {0: 0, 1: 0}, {}
    with started(losable, 2, state_of=lambda number: {"count": counts[number]}) as crew:
        for expected in range(1, 7):
            if expected in (3, 5):  # while it is idle
                os.kill(pids[1], signal.SIGKILL)
            for index in range(2):
                crew.order(index)
            if expected == 4:  # while it plays, or just after
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


def test_an_actor_that_dies_is_replaced_although_a_process_that_it_forked_lives():
    class WithHelper(fakes.Counter):
        def get_trajectory_segment(self):
            return super().get_trajectory_segment() | {"helper": fakes.forked_sleeper()}

    with started("process", 1, make=WithHelper) as crew:
        [segment] = crew.gather()
        os.kill(segment["pid"], signal.SIGKILL)
        [after] = crew.gather()
        assert crew.replaced == 1
        for each in (segment, after):
            helper = psutil.Process(each["helper"])
            assert helper.status() != psutil.STATUS_ZOMBIE  # it still holds the pipe
            helper.kill()


def test_an_actor_ends_programs_that_it_has_started_and_is_not_ended_itself():
    class WithProgram(fakes.Counter):
        def get_trajectory_segment(self):
            program = subprocess.Popen(["sleep", "20"])
            program.terminate()
            return super().get_trajectory_segment() | {"code": program.wait()}

    with started("process", 1, make=WithProgram) as crew:
        [segment] = crew.gather()
        assert segment["code"] == -signal.SIGTERM
        os.kill(segment["pid"], signal.SIGTERM)
        assert crew.gather()[0]["pid"] == segment["pid"]


def test_environments_of_an_actor_are_closed_at_its_end(tmp_path):
    class Closed(fakes.Counting):
        def close(self):
            (tmp_path / "closed").touch()

    class WithEnv(fakes.Counter):
        def __init__(self, number, state=None):
            super().__init__(number, state)
            self.env = CheckedEnv(Closed(), "Closed-v0")

    with started("process", 1, make=WithEnv) as crew:
        crew.gather()
        assert not (tmp_path / "closed").exists()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.long)])
def test_actors_are_replaced_if_their_fork_server_dies(kills):
    counts = {0: 0, 1: 0}
    with started("process", 2, state_of=lambda number: {"count": counts[number]}) as crew:
        for expected in range(1, kills + 2):
            segments = crew.gather()
            assert [segment["count"] for segment in segments] == [expected, expected]
            if expected == kills + 1:
                break
            counts = dict.fromkeys(counts, expected)
            actors = [psutil.Process(segment["pid"]) for segment in segments]
            server = actors[0].parent()
            assert server is not None
            server.kill()
            psutil.wait_procs(actors, timeout=20)  # they die with it
        assert crew.replaced == 2 * kills


def test_replaced_actors_leave_no_open_handles():
    gc.collect()  # what other tests have left must not disappear meanwhile
    with started("process", 1) as crew:
        handles = []
        for _ in range(4):
            os.kill(crew.gather()[0]["pid"], signal.SIGKILL)
            crew.gather()
            handles.append(psutil.Process().num_fds())
    assert handles == [handles[0]] * 4


@losable_with_ray_long
def test_an_actor_that_hangs_is_replaced_after_its_patience(losable, tmp_path):
    once = tmp_path / "hung"
    with started(losable, 2, make=fakes.Counter.hanging(once), patience=1.0) as crew:
        crew.gather()  # the first segments have more time
        start = time.monotonic()
        segments = crew.gather()
        assert 1.0 <= time.monotonic() - start < 30
        assert crew.replaced == 1
        assert once.exists()
        assert segments[0]["number"] == 0


@pytest.mark.parametrize("stopped", [100.0, 1000.0])
def test_the_time_in_which_the_learner_was_stopped_is_not_an_actors(stopped):
    with started("process", 1, patience=200.0) as crew:
        crew.gather()
        crew.order(0)
        [record] = crew._records
        record.waiting_since -= 5.0 + stopped  # five seconds before, the order was given
        record.deadline -= 5.0 + stopped
        crew._last_poll -= stopped
        crew._note_poll()
        assert record.waited == pytest.approx(5.0, abs=1.0)
        assert record.deadline - time.monotonic() == pytest.approx(195.0, abs=1.0)
        crew.take()


def test_a_signal_while_an_actor_starts_leaves_no_process(monkeypatch):
    children = []

    start = processes.context.Process.start

    def start_and_interrupt(process):
        start(process)
        children.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes.context.Process, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:  # the traceback keeps the crew alive, as a run does
        started("process", 1)
    [child] = children
    child.join(20)
    assert not child.is_alive()
    assert kept.tb is not None


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_actors_on_other_nodes_are_not_replaced_because_the_learner_was_away(monkeypatch):
    with started("ray", 2, patience=1.0) as crew:
        crew.gather()
        wait = crew._ray.wait

        def transfers_the_second_while_waiting(references, num_returns, timeout):
            number = len(references) if num_returns > 1 and timeout > 0 else 1
            return wait(references[:number], num_returns=number, timeout=timeout)

        monkeypatch.setattr(crew._ray, "wait", transfers_the_second_while_waiting)
        for index in range(2):
            crew.order(index)
        time.sleep(1.5)  # longer than the patience
        assert numbers(segment for _, segment in crew.take()) == [(0, 2, 1), (1, 2, 1)]
        assert crew.replaced == 0


@losable_with_ray_long
def test_an_actor_that_has_shown_to_be_slow_is_waited_for(losable):
    with started(losable, 1, make=fakes.Counter.slow, patience=0.1) as crew:
        crew.gather()  # the first segments have more time
        for _ in range(3):
            crew.gather()
        assert crew.replaced == 0


def test_an_actor_that_cannot_start_ends_the_run_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(ProcessActors, "_why_not_started", lambda crew, index: "Ray has 0 free CPUs")
    with started("process", 1, make=fakes.Counter.hanging(tmp_path / "hung"), patience=1.0) as crew:
        crew.gather()  # the first segments have more time
        with pytest.raises(ActorFailed, match=r"actor 0 has not started for \d seconds: Ray has 0 free CPUs"):
            crew.gather()
    assert crew.replaced == 0


@pytest.mark.long
@pytest.mark.usefixtures("_ray")
def test_an_actor_waits_for_a_cpu_that_another_one_holds(monkeypatch):
    monkeypatch.setattr(Actors, "STARTING", 3.0)
    with (
        started("ray", 4, cpus=1.0) as first,
        started("ray", 1, cpus=1.0, patience=1.0) as second,
    ):
        first.gather()
        with pytest.raises(ActorFailed, match=r"has not started for \d+ seconds: Ray's nodes have 0 free CPUs, and"):
            second.gather()


@pytest.mark.parametrize(
    ("free", "reason"),
    [([1.0, 1.0], "Ray's nodes have 1 + 1 free CPUs, and each process needs 2 on one"), ([0, 2.0], "")],
)
def test_an_actor_cannot_start_on_cpus_of_several_nodes(free, reason):
    crew = object.__new__(RayActors)
    crew._ray = SimpleNamespace(wait=lambda references, timeout: ([], references))
    crew._started, crew._cpus, crew._free_cpus = {0: None}, 2.0, lambda: free
    assert crew._why_not_started(0).startswith(reason)
    assert bool(crew._why_not_started(0)) == bool(reason)


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_a_cluster_whose_head_is_gone_ends_the_run(monkeypatch):
    monkeypatch.setattr(ray_cluster, "HEAD_PATIENCE", 1.0)
    with started("ray", 1, make=fakes.Counter.slow) as crew:
        crew._address = "127.0.0.1:1"
        with pytest.raises(Fault, match=r"cluster at 127\.0\.0\.1:1 does not answer any more.*--resume"):
            crew.gather()
        crew._head_lost = False  # so that the actor is ended


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_a_head_that_is_gone_is_noticed_although_segments_come(monkeypatch):
    monkeypatch.setattr(ray_cluster, "HEAD_PATIENCE", 1.0)
    monkeypatch.setattr(ray_cluster, "HEAD_INTERVAL", 0.0)
    with started("ray", 1) as crew:
        crew.gather()
        crew.order(0)
        crew._ray.wait(list(crew._references[0]), timeout=60)  # the segment is ready
        crew._address = "127.0.0.1:1"
        with pytest.raises(Fault, match="does not answer any more"):
            crew.take()
        crew._head_lost = False  # so that the actor is ended


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_an_actor_whose_code_is_missing_on_its_node_is_not_replaced(monkeypatch):
    class Missing:
        """Like what Ray puts in the place of a class that it cannot import."""

        def __init__(self, *arguments):
            raise TypeError("TemporaryActor() takes no arguments")

        def started(self):
            pass

        def segment(self, version, weights):
            pass

    monkeypatch.setattr(ray_cluster, "RemoteActor", Missing)
    with started("ray", 1) as crew, pytest.raises(ActorFailed, match="Actor 0 failed to start on its node"):
        crew.gather()
    assert crew.replaced == 0


@with_ray_long
def test_versions_may_skip_but_not_go_back(engine):
    with started(engine, 2) as crew:
        for version in (1, 2, 6, 11, 12, 20):
            crew.broadcast(model_of(version))
            if version != 11:
                assert [each["version"] for each in crew.gather()] == [version] * 2
        with pytest.raises(ValueError, match="version 19 of the weights is older than 20"):
            crew.broadcast(model_of(19))


@losable_with_ray_long
def test_a_stopping_learner_reports_an_actor_that_hangs_and_does_not_wait(losable, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Actors, "STOPPING", 1.0)
    asked = []
    with started(losable, 2, make=fakes.Counter.hanging(tmp_path / "hung"), stop_asked=lambda: bool(asked)) as crew:
        crew.gather()
        asked.append(True)
        start = time.monotonic()
        with pytest.raises(Stopped):
            crew.gather()
        assert time.monotonic() - start < 10
    assert re.search(r"Actor \d has sent no segment for \d+ seconds\. The run stops without", caplog.text)


@losable_with_ray_long
def test_an_actor_that_dies_again_and_again_ends_the_run(losable, monkeypatch):
    monkeypatch.setattr(Actors, "TRIES", 3)
    with (
        started(losable, 1, make=fakes.Counter.dying) as crew,
        pytest.raises(ActorFailed, match=r"(?s)actor 0 .* replaced 3 times"),
    ):
        crew.gather()


def test_only_losses_in_a_row_end_the_run(monkeypatch):
    monkeypatch.setattr(Actors, "TRIES", 1)
    with started("process", 1) as crew:
        for _ in range(3):
            [segment] = crew.gather()
            os.kill(segment["pid"], signal.SIGKILL)
        crew.gather()
        assert crew.replaced == 3


def test_the_exit_code_of_a_fault_in_an_actor_is_kept():
    class Interrupted(fakes.Counter):
        def get_trajectory_segment(self):
            raise CallInterrupted("a call hangs", 130)

    with started("inline", 1, make=Interrupted) as crew, pytest.raises(ActorFailed, match="a call hangs") as failed:
        crew.gather()
    assert failed.value.exit_code == 130


@pytest.mark.parametrize(("wrong", "number", "message"), [("inline", 0, "at least 1"), ("cloud", 1, "inline, process")])
def test_unknown_engines_and_too_few_actors_are_refused(wrong, number, message):
    with pytest.raises(UsageError, match=message):
        start_actors(wrong, fakes.Counter, number, model_of(1))


def test_more_processes_than_fit_into_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: int(1e9))
    with pytest.raises(
        UsageError, match=r"50 processes need .* and 1 GB are free; 17 might fit, or use --engine inline"
    ):
        started("process", 50)


def test_a_state_that_cannot_be_pickled_is_refused(losable):
    with pytest.raises(UsageError, match=r"cannot be sent to another process.*--engine inline"):
        start_actors(losable, fakes.Counter, 1, model_of(1), lambda number: threading.Lock())


def test_arrays_that_do_not_fit_into_shared_memory_go_through_the_pipe():
    with started("process", 1, room=1000) as crew:
        assert (crew.gather()[0]["large"] == 1).all()


def test_an_overwritten_version_is_replaced_by_the_newest():
    weights = SharedWeights(model_of(0).tensors.values(), 2)
    for version in (4, 5, 6):
        weights.publish(version, model_of(version).tensors.values())
    seen = []

    class Seeing:
        def set_model(self, model):
            seen.append((model.version, model.tensors["a"][0, 0].item()))

    for version in (4, 5):
        set_model(Seeing(), ["a", "b"], weights, version)
    assert seen == [(6, 6.0), (5, 5.0)]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_start_of_ray_that_fails_is_repeated_once(failures):
    calls = []

    def init(**options):
        calls.append("init")
        if calls.count("init") <= failures:
            raise Exception("The current node timed out during startup")

    crew = object.__new__(RayActors)
    crew._ray = SimpleNamespace(init=init, shutdown=lambda: calls.append("shutdown"))
    error = pytest.raises(Fault, match=r"Ray could not be started: The current node timed out .* --engine process")
    with nullcontext() if failures == 1 else error:
        crew._init(address="local")
    assert calls == (["init", "shutdown"] * 2)[: failures + 2]


def test_a_missing_ray_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install -e '?/.*\[ray\]'"):
        start_actors("ray", fakes.Counter, 1, model_of(1))


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_too_few_cpus_are_reported_with_the_fraction_that_fits():
    with pytest.raises(UsageError, match=r"8 actors .* Ray has 4; use at most --actors 4, or --actor-cpus 0\.5"):
        started("ray", 8, cpus=1.0)


@pytest.mark.parametrize(
    ("nodes", "number", "requested", "share"),
    [
        ([4.0], 8, None, 0.5),
        ([4.0], 2, None, 1.0),
        ([2.0], 3, None, 0.6666),
        ([1.0, 2.0, 2.0], 8, None, 0.5),  # 5 CPUs / 8 actors = 0.625, but only 7 such actors fit
        ([1.0, 2.0, 2.0], 8, 0.5, 0.5),
        ([0.0, 3.0], 3, 1.0, 1.0),
        ([4.0], 3, 0.333333, 0.3333),
    ],
)
def test_the_share_of_a_cpu_per_actor(nodes, number, requested, share):
    assert RayActors._share(SimpleNamespace(count=number, name_of="actor {}".format), nodes, requested) == share


@pytest.mark.parametrize(
    ("name", "nodes", "number", "requested", "advice"),
    [
        ("actor", [1.0, 2.0, 2.0], 8, 0.625, r"Ray has 1 \+ 2 \+ 2; use at most --actors 7, or --actor-cpus 0\.5$"),
        ("actor", [2.0], 2, 5.0, r"Ray has 2; use --actor-cpus 1$"),
        ("actor", [2.0], 2, 0.00001, r"Ray has 2; use --actor-cpus 1$"),
        ("actor", [0.0], 2, None, r"Ray has no CPUs for 2 actors"),
        ("actor", [], 2, 1.0, r"Ray has no CPUs for 2 actors"),
        ("player", [2.0], 3, 1.0, r"3 players with 1 CPU .* Ray has 2; use at most --players 2$"),
        ("player", [0.5], 1, 1.0, r"1 players with 1 CPU .* Ray has 0\.5; use more CPUs$"),
    ],
)
def test_actors_that_do_not_fit_on_the_nodes_are_refused(name, nodes, number, requested, advice):
    with pytest.raises(UsageError, match=advice):
        RayActors._share(SimpleNamespace(count=number, name_of=f"{name} {{}}".format), nodes, requested)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_ray")
def test_our_own_ray_listens_on_this_machine_only_and_ends():
    with started("ray", cores() + 1) as crew:
        segments = crew.gather()
        assert numbers(segments) == [(number, 1, 1) for number in range(cores() + 1)]
        assert {psutil.Process(each["pid"]).nice() for each in segments} == {psutil.Process().nice()}
        processes = psutil.Process().children(recursive=True)
        connections = [each for process in [psutil.Process(), *processes] for each in process.net_connections("inet")]
        listening = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
        of_ray = [process for process in processes if process.name() in ("raylet", "gcs_server")]
        assert len(of_ray) == 2
        for process in of_ray:  # a closing terminal or a batch system must not end them before the learner has saved
            blocked = re.search(r"^SigBlk:\s(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
            assert all(int(blocked[1], 16) >> (number - 1) & 1 for number in SIGNALS)
    assert listening
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not any("raylet" in process.name() for process in psutil.Process().children(recursive=True))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("somewhere", "it has to be HOST:PORT"),
        ("127.0.0.1:1", "nothing answers at 127.0.0.1:1"),
        ("127.0.0.1:99999", "nothing answers"),
        ("10..0.0.1:6379", "nothing answers"),
        ("localhost:²", "it has to be HOST:PORT"),
    ],
)
def test_an_address_without_an_answer_is_refused(address, message):
    start = time.monotonic()
    with pytest.raises(UsageError, match=message):
        check_cluster(address)
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_a_port_without_a_ray_cluster_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        start = time.monotonic()
        with pytest.raises(UsageError, match="no Ray cluster answers there"):
            check_cluster(f"127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - start < 30
