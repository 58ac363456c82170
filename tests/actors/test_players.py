"""Players: their transitions, how far they can be ahead of the learner, and what happens if one is lost."""

import itertools
import threading

import numpy as np
import psutil
import ptan
import pytest
import torch

from fakes import Counting, Linear, Random, Unbuildable
from lib.actors.players import Players
from lib.actors.process import ProcessEngine
from lib.errors import Fault, UsageError
from lib.experience.transitions import ExperienceSourceFirstLast
from lib.system.seeds import hashed_seed, seed_everything
from oracles import parallel as oracle

pytestmark = pytest.mark.usefixtures("ray_workers_find_the_fakes")


def agent_for(size, epsilon=0.3):
    torch.manual_seed(7)
    return ptan.agent.DQNAgent(Linear(size), ptan.actions.EpsilonGreedyActionSelector(epsilon))


def source_of(envs, agent=None, seed=5):
    agent = agent or agent_for(int(np.prod(envs[0].observation_space.shape)))
    return ExperienceSourceFirstLast(envs, agent, gamma=0.9, seed=seed)


@pytest.fixture
def players_of():
    """Function that makes Players; they are closed at the end of the test."""
    created = []

    def make(envs, agent=None, players=1, engine="process", ahead=2, rounds=8):
        kind = type("Own", (Players,), {"AHEAD": ahead, "ROUNDS": rounds})
        created.append(kind(source_of(envs, agent), players, engine))
        return created[-1]

    yield make
    for source in created:
        source.close()


def change_weights(agent, rng):
    """Replace the weights, so that each version chooses other actions, and lower epsilon."""
    with torch.no_grad():
        for weights in agent.model.parameters():
            weights.copy_(torch.from_numpy(rng.normal(size=weights.shape).astype(np.float32)))
    agent.action_selector.epsilon = max(0.1, agent.action_selector.epsilon - 0.001)


def plain(transition):
    last = None if transition.last_state is None else np.asarray(transition.last_state).tolist()
    return np.asarray(transition.state).tolist(), int(transition.action), transition.reward, last


def take(stream, agent, count, start=0):
    """Return the next `count` transitions, from index `start` on, as plain values. The agent learns every 4th step."""
    result = []
    for index in range(start, start + count):
        result.append(plain(next(stream)))
        if (index + 1) % 4 == 0:
            change_weights(agent, np.random.default_rng(index))
    return result


def twin_of(envs, agent, players=1, ahead=2, rounds=8):
    parts = [[Random(5) for _ in part] for part in np.array_split(range(envs), players)]
    return oracle.transitions(parts, agent, 5, players, ahead, rounds)


def processes_of(source):
    return [psutil.Process(child.process.pid) for _, child in sorted(source.fleet._engine._children.items())]


@pytest.mark.parametrize(
    ("envs", "players", "ahead", "rounds", "engine"),
    [(1, 1, 2, 8, "inline"), (3, 2, 1, 3, "process"), pytest.param(3, 2, 1, 3, "ray", marks=pytest.mark.long)],
)
def test_players_play_what_the_slow_twin_plays(players_of, envs, players, ahead, rounds, engine):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = players_of([Random(5) for _ in range(envs)], agent, players, engine, ahead=ahead, rounds=rounds)
    twin = twin_of(envs, twin_agent, players, ahead, rounds)
    reported = []
    source.on_step = reported.append
    assert take(iter(source), agent, 100) == take(twin, twin_agent, 100)
    assert reported == [1] * source.steps_done == [1] * 100


def test_inline_players_leave_the_learners_random_numbers_alone(players_of):
    source = iter(players_of([Random(5)], engine="inline"))
    seed_everything(3)
    expected = np.random.random(), torch.rand(()).item()
    seed_everything(3)
    list(itertools.islice(source, 20))
    assert (np.random.random(), torch.rand(()).item()) == expected


@pytest.mark.parametrize("taken", [1, 17])
def test_a_resumed_source_continues_with_the_same_transitions(players_of, taken):
    agent = agent_for(1)
    source = players_of([Random(5), Random(5), Random(5)], agent, 2, rounds=3)
    stream = iter(source)
    take(stream, agent, taken)
    state = source.state_dict()
    assert [blocks["lengths"] for blocks in state["blocks"]] == [[6, 6, 6], [3, 3, 3]]
    weights = {name: tensor.clone() for name, tensor in agent.model.state_dict().items()}
    epsilon = agent.action_selector.epsilon
    uninterrupted = take(stream, agent, 60, start=taken)
    resumed_agent = agent_for(1, epsilon)
    resumed_agent.model.load_state_dict(weights)
    resumed = players_of([Random(5), Random(5), Random(5)], resumed_agent, 2, "inline", rounds=3)
    resumed.load_state_dict(state)
    assert resumed.steps_done == taken
    assert take(iter(resumed), resumed_agent, 60, start=taken) == uninterrupted


def test_the_policy_lag_is_bounded_and_known(players_of):
    source = players_of([Counting(200)], engine="inline", ahead=2, rounds=4)
    lags = [source.metrics()["policy_lag"] for _ in itertools.islice(source, 40)]
    assert lags[:12] == list(range(1, 13))  # until the first changed weights reach the player
    assert lags[12:] == [9, 10, 11, 12] * 7


def test_a_lost_player_starts_new_episodes_and_cycles_go_on_without_it(players_of, caplog):
    source = players_of([Counting(23), Counting(23, first=100)], players=2)
    source.traces = True
    stream = iter(source)
    states = [int(next(stream).state[0]) for _ in range(40)]
    processes_of(source)[1].kill()
    while not (source.fleet.lost and source.fleet.records[1].ready):
        states.append(int(next(stream).state[0]))
    states += [int(next(stream).state[0]) for _ in range(200)]
    assert "Player 1 (environment 1, seed 5) " in caplog.text
    kept, lost = [[state % 100 for state in states if state // 100 == env] for env in (0, 1)]
    assert kept == [step % 23 for step in range(len(kept))]
    assert len(kept) > len(lost) + 16
    [restart] = [step for step, (before, after) in enumerate(itertools.pairwise(lost)) if (after - before) % 23 != 1]
    assert lost[restart + 1] == 0
    numbers = {hashed_seed(5, 1, number): number for number in range(1000)}
    ended = [numbers[episode.trace.seed] for episode in source.pop_episodes() if episode.trace.seed in numbers]
    [(last, first)] = [(a, b) for a, b in itertools.pairwise([-1, *ended]) if b != a + 1]
    assert first > last + 1  # the episode that was lost is not played again


def test_a_run_is_resumed_in_a_cycle_that_lacks_a_player(players_of, monkeypatch):
    source = players_of([Counting(20, first=100), Counting(20)], players=2, rounds=4)
    stream = iter(source)
    states = [int(next(stream).state[0]) for _ in range(9)]
    monkeypatch.setattr(ProcessEngine, "start", lambda *_: None)  # the lost player does not come back
    processes_of(source)[0].kill()
    while max(states[-8:]) >= 100 or source.state_dict()["place"] != 2:
        states.append(int(next(stream).state[0]))
    resumed = players_of([Counting(20, first=100), Counting(20)], players=2, engine="inline", rounds=4)
    resumed.load_state_dict(source.state_dict())
    states += [int(transition.state[0]) for transition in itertools.islice(resumed, 60)]
    kept = [state for state in states if state < 100]
    assert kept == [step % 20 for step in range(len(kept))]
    assert max(states[-8:]) >= 100  # it is back


def test_environments_that_cannot_be_sent_are_refused(players_of):
    env = Counting()
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"^Player 0 .* cannot be sent to another process: cannot pickle '_thread\.lo"):
        next(iter(players_of([env])))
    with pytest.raises(Fault, match=r"(?s)Player 0 .* failed while it was made.*ModuleNotFoundError"):
        next(iter(players_of([Unbuildable()])))
