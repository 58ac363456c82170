"""Players in processes of their own: what they play, how both sides hold each other, and what their end looks like."""

import contextlib
import itertools
import os
import signal
import threading
import time

import numpy as np
import psutil
import ptan
import pytest
import torch

from fakes import Catch, Counting, Failing, Forgetful, Linear, Random, Slow, Unbuildable
from lib.actors import player
from lib.actors.parallel import Players, _plain
from lib.actors.player import Player
from lib.actors.player_process import block_seed
from lib.errors import UsageError
from lib.experience.source import ExperienceSourceFirstLast
from lib.system import processes
from lib.system.processes import ChildLost
from oracles import parallel as oracle


def agent_for(size, epsilon=0.3):
    torch.manual_seed(7)
    return ptan.agent.DQNAgent(Linear(size), ptan.actions.EpsilonGreedyActionSelector(epsilon))


def players_of(envs, agent=None, players=1, seed=5, **options):
    agent = agent or agent_for(int(np.prod(envs[0].observation_space.shape)))
    source = ExperienceSourceFirstLast(envs, agent, gamma=0.9, seed=seed)
    return Players(source, players, **options)


def learn(agent, rng):
    """Something that changes the weights and epsilon, as learning does."""
    with torch.no_grad():
        for weights in agent.model.parameters():
            weights += torch.from_numpy(rng.normal(size=weights.shape).astype(np.float32))
    agent.action_selector.epsilon = max(0.1, agent.action_selector.epsilon - 0.001)


def plain(transition):
    last = None if transition.last_state is None else np.asarray(transition.last_state).tolist()
    return np.asarray(transition.state).tolist(), int(transition.action), transition.reward, last


def taken(stream, agent, count, every=4, start=0):
    """The next `count` transitions, the first in place `start`, as plain values; the agent learns after `every`."""
    result = []
    for place in range(start, start + count):
        result.append(plain(next(stream)))
        if (place + 1) % every == 0:
            learn(agent, np.random.default_rng(place))
    return result


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def closing():
    """Ends whatever players a test has made."""
    made = []
    yield lambda source: made.append(source) or source
    for source in made:
        source.close()


@pytest.mark.parametrize(("envs", "players", "ahead", "rounds"), [(1, 1, 2, 8), (3, 2, 1, 3)])
def test_players_play_what_the_slow_twin_plays(closing, envs, players, ahead, rounds):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = closing(players_of([Random(5) for _ in range(envs)], agent, players, ahead=ahead, rounds=rounds))
    parts = [[Random(5) for _ in part] for part in np.array_split(range(envs), players)]
    twin = oracle.transitions(parts, twin_agent, 5, players, ahead, rounds)
    assert taken(iter(source), agent, 100) == taken(twin, twin_agent, 100)
    assert source.steps_done == 100


def test_episodes_are_told_with_the_transition_that_ends_them(closing):
    source = closing(players_of([Counting(4), Counting(3)], players=2, rounds=2))
    stream = iter(source)
    told = []
    for step in range(1, 21):
        next(stream)
        told += [(step, *episode[:3]) for episode in source.pop_episodes()]
    # A cycle is two steps of the first environment, then two of the second.
    assert told == [(6, 10.0, 4, 6), (7, 6.0, 3, 7), (12, 6.0, 3, 12), (14, 10.0, 4, 14), (19, 6.0, 3, 19)]


@pytest.mark.parametrize("place", [1, 17, 24])
def test_a_resumed_source_goes_on_with_the_same_transitions(closing, place):
    agent = agent_for(1)
    source = closing(players_of([Random(5), Random(5), Random(5)], agent, 2, rounds=3))
    stream = iter(source)
    before = taken(stream, agent, place)
    state = source.state_dict()
    weights = {name: tensor.clone() for name, tensor in agent.model.state_dict().items()}
    epsilon = agent.action_selector.epsilon
    uninterrupted = taken(stream, agent, 60, start=place)
    resumed_agent = agent_for(1, epsilon)
    resumed_agent.model.load_state_dict(weights)
    resumed = closing(players_of([Random(5), Random(5), Random(5)], resumed_agent, 2, rounds=3))
    resumed.load_state_dict(state)
    assert resumed.steps_done == place == len(before)
    assert taken(iter(resumed), resumed_agent, 60, start=place) == uninterrupted


def test_a_slow_player_is_waited_for_and_no_transition_comes_twice_or_is_left_out(closing):
    source = closing(players_of([Slow(0.02)], rounds=4))
    tape = []
    for step, transition in enumerate(itertools.islice(source, 40)):
        tape.append((step, int(transition.state[0])))
    assert [state for _, state in tape] == [step for step, _ in tape]
    assert source.clock.seconds["wait"] > 36 * 0.02 * 0.9
    assert source.players[0].steps <= 40 + 3 * 4


def test_a_fast_player_stays_within_its_bound_and_sleeps(closing):
    ahead, rounds = 2, 4
    source = closing(players_of([Counting(200), Counting(200)], players=2, ahead=ahead, rounds=rounds))
    stream = iter(source)
    for step in range(24):
        next(stream)
        # However slow the learner: no more than it may be ahead, and no less, as it plays while the learner learns.
        bound = [(step // (2 * rounds) + ahead + 1) * rounds] * 2
        wait_until(lambda bound=bound: [each.steps for each in source.players] == bound)
        time.sleep(0.02)
        assert [each.steps for each in source.players] == bound
    used = [psutil.Process(each.process.pid).cpu_times().user for each in source.players]
    time.sleep(1)
    assert [psutil.Process(each.process.pid).cpu_times().user for each in source.players] == pytest.approx(
        used, abs=0.05
    )


def test_the_lag_of_the_policy_is_bounded_and_known(closing):
    ahead, rounds = 2, 4
    source = closing(players_of([Counting(200)], ahead=ahead, rounds=rounds))
    lags = []
    for _ in itertools.islice(source, 40):
        lags.append(source.metrics()["policy_lag"])
    assert lags[:12] == list(range(1, 13))  # until the first weights that were learnt come into play
    assert lags[12:] == [9, 10, 11, 12] * 7


def test_the_learners_speed_leaves_out_the_warm_up_and_its_waiting(closing):
    source = closing(players_of([Slow(0.02)], rounds=4))
    stream = iter(source)
    list(itertools.islice(stream, 20))
    source.metrics()
    for _ in itertools.islice(stream, 20):
        time.sleep(0.01)
    assert 55 < source.metrics()["learner_fps"] <= 101  # together they make 50


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_player_is_named_within_ten_seconds(closing, which):
    source = closing(players_of([Slow(0.01), Slow(0.01)], players=2))
    stream = iter(source)
    next(stream)
    victim = source.players[which].process.pid
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(ChildLost, match=rf"player {which} \(process {victim}\) was killed by SIGKILL"):
        list(stream)
    assert time.monotonic() - start < 10
    assert source.state_dict()["steps_done"] == source.steps_done  # what has been learnt can still be saved


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"player 1 \(process \d+\) failed: RuntimeError: the paddle broke"),
        ("die", r"player 1 \(process \d+\) died with exit code 7"),
        ("hang", r"player 1 \(process \d+\) is stuck: it has not made a step for 8 seconds, and was killed"),
    ],
)
def test_a_failing_player_is_named_with_its_failure(closing, how, message):
    source = closing(players_of([Catch(), Failing(how, at=30)], players=2))
    stream = iter(source)
    times = []
    source.on_step = lambda steps: times.append(time.monotonic())
    with pytest.raises(ChildLost, match=message):
        list(stream)
    assert time.monotonic() - times[-1] < 10.5
    assert 0 < source.steps_done <= 64  # its good blocks may still have been taken


def test_a_player_that_fails_while_the_learner_learns_is_heard_all_the_same(closing):
    source = closing(players_of([Failing("raise", at=20)]))
    stream = iter(source)
    next(stream)
    source.players[0].process.join(60)  # it has failed and gone, and its message waits
    with pytest.raises(ChildLost, match="failed: RuntimeError: the paddle broke"):
        list(stream)
    state = source.state_dict()
    assert state["steps_done"] == source.steps_done == state["place"] + 8 * state["cycle"]


def test_a_lost_player_costs_no_transition(closing):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = closing(players_of([Random(5)], agent))
    stream = iter(source)
    before = taken(stream, agent, 19)
    os.kill(source.players[0].process.pid, signal.SIGKILL)
    time.sleep(1.5)  # so that it is looked after, and may be missed, in the middle of a cycle
    with contextlib.suppress(ChildLost):
        while True:
            before += taken(stream, agent, 1, start=len(before))
    assert len(before) == source.steps_done <= 40
    resumed = closing(players_of([Random(5)], agent))
    resumed.load_state_dict(source.state_dict())
    after = taken(iter(resumed), agent, 20, start=len(before))
    twin = oracle.transitions([[Random(5)]], twin_agent, 5, 1, 2, 8)
    assert before + after == taken(twin, twin_agent, len(before) + 20)


def test_an_environment_that_does_not_repeat_itself_goes_on_with_a_new_episode_on_both_sides(closing):
    agent = agent_for(84 * 84)
    source = closing(players_of([Forgetful(), Forgetful()], agent, players=1, rounds=5))
    taken(iter(source), agent, 3)
    resumed = closing(players_of([Forgetful(), Forgetful()], agent, players=1, rounds=5))
    state = source.state_dict()
    state["players"][0]["slots"][0] |= {
        "actions": torch.tensor([0, 0]),
        "state": torch.zeros(84, 84, dtype=torch.uint8),
    }
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert [slot["episode"] for slot in resumed.players[0].slots] == [1, 0]
    assert [slot["actions"] for slot in resumed.players[0].slots] == [[], []]


def test_an_environment_that_cannot_be_sent_is_wrong_use(closing):
    env = Counting()
    env.lock = threading.Lock()
    source = closing(players_of([env]))
    with pytest.raises(UsageError, match=r"cannot be sent to another process: cannot pickle '_thread\.lock'"):
        next(iter(source))


def test_the_players_are_started_once(closing):
    source = closing(players_of([Counting()]))
    next(iter(source))
    with pytest.raises(RuntimeError, match="playing already"):
        next(iter(source))


def test_an_environment_that_cannot_even_be_built_is_named(closing):
    source = closing(players_of([Unbuildable()]))
    with pytest.raises(ChildLost, match=r"player 0 .* failed: ModuleNotFoundError"):
        next(iter(source))


def test_an_environment_that_hangs_while_it_is_built_is_named(closing, monkeypatch):
    monkeypatch.setattr(player, "PATIENCE", 1)
    source = closing(players_of([Unbuildable("__import__('time').sleep(1000)")]))
    began = time.monotonic()
    with pytest.raises(ChildLost, match=r"player 0 .* is stuck"):
        next(iter(source))
    assert time.monotonic() - began < 30


def test_a_player_that_never_comes_to_life_is_named(closing, monkeypatch):
    monkeypatch.setattr(player, "STARTING", 1)
    source = closing(players_of([Counting()]))
    start = Player.start

    def start_and_stop(self):
        start(self)
        self._awake = False
        os.kill(self.process.pid, signal.SIGSTOP)

    monkeypatch.setattr(Player, "start", start_and_stop)
    with pytest.raises(ChildLost, match=r"player 0 .* is stuck"):
        next(iter(source))


def test_more_players_than_environments_are_refused():
    with pytest.raises(UsageError, match="2 players need an environment each, and there are 1"):
        players_of([Counting()], players=2)


def test_closing_leaves_no_process_behind(closing):
    source = closing(players_of([Counting(), Counting()], players=2))
    next(iter(source))
    processes = [psutil.Process(each.process.pid) for each in source.players]
    source.close()
    assert not any(process.is_running() for process in processes)


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_player_that_dies_while_it_starts_is_named_too(closing, monkeypatch, seconds):
    start = Player.start

    def start_and_die(self):
        start(self)
        time.sleep(seconds)
        os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(Player, "start", start_and_die)
    source = closing(players_of([Counting()]))
    with pytest.raises(ChildLost, match="was killed by SIGKILL"):
        next(iter(source))


def stop_server_of(source):
    server = psutil.Process(source.players[0].process.pid).parent()
    assert server.pid != os.getpid()
    server.suspend()
    return server


def test_players_end_though_the_process_that_forked_them_is_stopped(closing):
    source = closing(players_of([Counting(), Counting()], players=2))
    next(iter(source))
    processes = [psutil.Process(each.process.pid) for each in source.players]
    server = stop_server_of(source)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 10
    wait_until(lambda: not any(process.is_running() for process in processes))
    assert server.status() == psutil.STATUS_ZOMBIE  # killed; whoever wants another player next clears it away


def test_a_player_that_cannot_be_forked_is_named(closing, monkeypatch):
    first = closing(players_of([Counting()]))
    next(iter(first))
    server = stop_server_of(first)
    monkeypatch.setattr(processes, "IMPORTING", 1)
    with pytest.raises(ChildLost, match="player 0 could not be started in 1 seconds"):
        next(iter(closing(players_of([Counting()]))))
    server.resume()


def test_a_second_interrupt_while_the_players_end_leaves_none_behind(closing, monkeypatch):
    source = closing(players_of([Counting(), Counting()], players=2))
    next(iter(source))
    processes = [psutil.Process(each.process.pid) for each in source.players]
    monkeypatch.setattr(Player, "end", lambda self: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        source.close()
    monkeypatch.undo()
    assert not any(process.is_running() for process in processes)


def test_the_numbers_of_the_selector_travel_and_nothing_else():
    selector = ptan.actions.EpsilonGreedyActionSelector(0.25)
    assert _plain(selector) == {"_epsilon": 0.25}
    assert _plain(ptan.actions.ArgmaxActionSelector()) == {}


def test_every_block_has_random_numbers_of_its_own():
    seeds = {block_seed(*numbers) for numbers in itertools.product(range(3), range(4), range(50))}
    assert len(seeds) == 3 * 4 * 50
