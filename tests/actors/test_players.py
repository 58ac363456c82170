"""Players: their transitions, how far they can be ahead of the learner, and their replacement if they are lost."""

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

from fakes import Catch, Counting, Failing, Forgetful, Linear, Logged, Random, Slow, Unbuildable
from lib.actors.contract import ActorFailed, Actors
from lib.actors.player import Player, block_seed, block_size, selector_values
from lib.actors.players import Players, _Handle
from lib.envs.frames import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.experience.interface import Stopped
from lib.experience.source import ExperienceSourceFirstLast
from oracles import parallel as oracle

pytestmark = pytest.mark.usefixtures("warm_fork_server")


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

    def make(envs, agent=None, players=1, engine="process", **options):
        created.append(Players(source_of(envs, agent), players, engine, **options))
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


def take(stream, agent, count, every=4, start=0):
    """Return the next `count` transitions, from index `start` on, as plain values. The agent learns every 4th step."""
    result = []
    for index in range(start, start + count):
        result.append(plain(next(stream)))
        if (index + 1) % every == 0:
            change_weights(agent, np.random.default_rng(index))
    return result


def twin_of(envs, agent, players=1, ahead=2, rounds=8):
    parts = [[Random(5) for _ in part] for part in np.array_split(range(envs), players)]
    return oracle.transitions(parts, agent, 5, players, ahead, rounds)


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def processes_of(source):
    return [psutil.Process(child.process.pid) for child in source.actors.children]


@pytest.mark.parametrize("engine", ["inline", "process"])
@pytest.mark.parametrize(("envs", "players", "ahead", "rounds"), [(1, 1, 2, 8), (3, 2, 1, 3)])
def test_players_play_what_the_slow_twin_plays(players_of, engine, envs, players, ahead, rounds):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = players_of([Random(5) for _ in range(envs)], agent, players, engine, ahead=ahead, rounds=rounds)
    twin = twin_of(envs, twin_agent, players, ahead, rounds)
    assert take(iter(source), agent, 100) == take(twin, twin_agent, 100)
    assert source.steps_done == 100


def test_resumed_players_have_time_to_repeat_their_unfinished_episodes(players_of):
    source = players_of([Slow(0.002)], engine="inline")
    take(iter(source), source.agent, 40)
    resumed = players_of([Slow(0.002)], engine="inline")
    resumed.load_state_dict(source.state_dict())
    assert resumed._delay_of(0) == pytest.approx(source._delay_of(0))
    assert resumed._delay_of(0) > 2 * 32 * 0.002


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_slow_twin_depends_on_how_far_players_are_ahead(players_of, ahead):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = players_of([Random(5)], agent, engine="inline", ahead=2)
    assert take(iter(source), agent, 100) != take(twin_of(1, twin_agent, ahead=ahead), twin_agent, 100)


@pytest.mark.long
def test_players_on_ray_play_what_the_slow_twin_plays(players_of, ray_workers_find_the_fakes):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = players_of([Random(5), Random(5)], agent, 2, "ray")
    assert take(iter(source), agent, 100) == take(twin_of(2, twin_agent, 2), twin_agent, 100)


def test_inline_players_leave_the_learners_random_numbers_alone(players_of):
    source = iter(players_of([Random(5)], engine="inline"))
    np.random.seed(3)
    torch.manual_seed(3)
    expected = np.random.random(), torch.rand(()).item()
    np.random.seed(3)
    torch.manual_seed(3)
    list(itertools.islice(source, 20))
    assert (np.random.random(), torch.rand(()).item()) == expected


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_an_episode_is_reported_with_the_transition_that_ends_it(players_of, engine):
    source = players_of([Counting(4), Counting(3)], players=2, engine=engine, rounds=2)
    stream = iter(source)
    episodes = []
    for step in range(1, 21):
        next(stream)
        episodes += [(step, *episode[:3]) for episode in source.pop_episodes()]
    # A cycle has two steps of the first environment, then two of the second.
    assert episodes == [(6, 10.0, 4, 6), (7, 6.0, 3, 7), (12, 6.0, 3, 12), (14, 10.0, 4, 14), (19, 6.0, 3, 19)]


@pytest.mark.parametrize("taken", [1, 17, 24])
def test_a_resumed_source_continues_with_the_same_transitions(players_of, taken):
    agent = agent_for(1)
    source = players_of([Random(5), Random(5), Random(5)], agent, 2, rounds=3)
    stream = iter(source)
    take(stream, agent, taken)
    state = source.state_dict()
    weights = {name: tensor.clone() for name, tensor in agent.model.state_dict().items()}
    epsilon = agent.action_selector.epsilon
    uninterrupted = take(stream, agent, 60, start=taken)
    resumed_agent = agent_for(1, epsilon)
    resumed_agent.model.load_state_dict(weights)
    resumed = players_of([Random(5), Random(5), Random(5)], resumed_agent, 2, "inline", rounds=3)
    resumed.load_state_dict(state)
    assert resumed.steps_done == taken
    assert take(iter(resumed), resumed_agent, 60, start=taken) == uninterrupted


def test_traces_lead_to_the_last_state_of_each_episode(players_of):
    source = players_of([Random(5), Random(3)], engine="inline", rounds=4)
    list(itertools.islice(source, 60))
    episodes = source.pop_episodes()
    assert len(episodes) > 8
    for episode in episodes:
        trace = episode.trace()
        env = Random(9)
        state, _ = env.reset(seed=trace.seed)
        for action in trace.actions[:-1]:
            state = env.step(action)[0]
        assert len(trace.actions) == episode.length
        assert np.array_equal(state, trace.last_state)


def test_no_transition_of_a_slow_player_is_repeated_or_left_out(players_of):
    source = players_of([Slow(0.02)], rounds=4)
    states = [int(transition.state[0]) for transition in itertools.islice(source, 40)]
    assert states == list(range(40))
    assert source.clock.seconds["wait"] > 36 * 0.02 * 0.9


def test_a_fast_player_stays_within_its_bound_and_then_sleeps(players_of, tmp_path):
    ahead, rounds = 2, 4
    source = players_of([Logged(tmp_path / "0"), Logged(tmp_path / "1")], players=2, ahead=ahead, rounds=rounds)
    stream = iter(source)
    for step in range(24):
        next(stream)
        bound = (step // (2 * rounds) + ahead + 1) * rounds
        wait_until(lambda bound=bound: steps_of(tmp_path) == [bound] * 2)
    time.sleep(0.3)
    assert steps_of(tmp_path) == [bound] * 2
    used = [process.cpu_times().user for process in processes_of(source)]
    time.sleep(0.5)
    assert [process.cpu_times().user for process in processes_of(source)] == pytest.approx(used, abs=0.05)


def steps_of(folder):
    return [len(path.read_text()) for path in sorted(folder.iterdir())]


def test_the_policy_lag_is_bounded_and_known(players_of):
    source = players_of([Counting(200)], engine="inline", ahead=2, rounds=4)
    lags = [source.metrics()["policy_lag"] for _ in itertools.islice(source, 40)]
    assert lags[:12] == list(range(1, 13))  # until the first changed weights reach the player
    assert lags[12:] == [9, 10, 11, 12] * 7


def test_each_step_of_the_learner_is_reported(players_of):
    source, reported = players_of([Counting(200)], engine="inline"), []
    source.on_step = reported.append
    list(itertools.islice(source, 30))
    assert reported == [1] * 30


def test_the_learners_speed_excludes_waiting(players_of):
    source = players_of([Slow(0.02)], rounds=4)
    stream = iter(source)
    list(itertools.islice(stream, 20))
    source.metrics()
    waited, start = source.clock.seconds["wait"], time.perf_counter()
    for _ in itertools.islice(stream, 20):
        time.sleep(0.01)
    speed, seconds = source.metrics()["learner_fps"], time.perf_counter() - start
    waited = source.clock.seconds["wait"] - waited
    assert waited > 0.0
    assert speed == pytest.approx(20 / (seconds - waited), rel=0.05)


@pytest.mark.parametrize("kills", [[19], [3, 70]])
def test_a_killed_player_is_reported_and_replaced_and_changes_no_transition(players_of, caplog, kills):
    agent, twin_agent = agent_for(1), agent_for(1)
    source = players_of([Random(5), Random(5)], agent, 2)
    stream = iter(source)
    transitions = []
    for stop in [*kills, 130]:
        transitions += take(stream, agent, stop - len(transitions), start=len(transitions))
        if stop < 130:
            os.kill(processes_of(source)[1].pid, signal.SIGKILL)
    assert transitions == take(twin_of(2, twin_agent, 2), twin_agent, 130)
    assert "Player 1 (environment 1, seed 5) was killed by SIGKILL. It is replaced" in caplog.text
    assert source.actors.replaced == len(kills)


def test_a_player_that_hangs_is_replaced_after_its_patience(players_of, caplog, monkeypatch):
    monkeypatch.setattr(Actors, "STARTING", 5.0)
    agent, twin_agent = agent_for(1), agent_for(1)
    source = players_of([Random(5)], agent, patience=1.0)
    stream = iter(source)
    transitions = take(stream, agent, 9)
    processes_of(source)[0].suspend()
    transitions += take(stream, agent, 31, start=9)
    assert transitions == take(twin_of(1, twin_agent), twin_agent, 40)
    assert "sent no segment for" in caplog.text


def test_a_player_that_dies_again_before_its_first_block_ends_the_run(players_of, monkeypatch):
    monkeypatch.setattr(Actors, "TRIES", 1)
    source = players_of([Catch(), Failing("die", at=3)], players=2)
    with pytest.raises(
        ActorFailed, match=r"player 1 \(environment 1, seed 5\) died with exit code 7; it was replaced 1 times"
    ):
        next(iter(source))
    assert source.state_dict()["steps_done"] == source.steps_done  # what has been learnt can still be saved


@pytest.mark.parametrize(("batch_size", "threads"), [(None, 4), (63, 2), (64, 4)])
def test_a_learner_with_small_updates_leaves_a_core_to_each_player(players_of, monkeypatch, batch_size, threads):
    monkeypatch.setattr("lib.actors.players.cores", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        source = players_of([Catch(), Catch()], players=2, engine="inline", batch_size=batch_size)
        assert torch.get_num_threads() == 4
        next(iter(source))
        assert torch.get_num_threads() == threads
        source.close()
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("engine", "speed"), [("inline", 50.0), ("process", 100.0)])
def test_inline_players_are_as_fast_as_one(players_of, engine, speed):
    source = players_of([Catch(), Catch()], players=2, engine=engine)
    next(iter(source))
    source._played, source._busy, source._marks = 100, 2.0, (0, 0.0, 0.0, 0, 0.0)
    assert source.metrics()["player_fps"] == speed


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_an_environment_that_raises_is_reported_with_its_traceback(players_of, engine):
    source = players_of([Catch(), Failing("raise", at=30)], players=2, engine=engine)
    with pytest.raises(
        ActorFailed, match=r"(?s)Player 1 \(environment 1, seed 5\) failed in block \d.*RuntimeError: the paddle broke"
    ):
        list(source)
    state = source.state_dict()
    assert state["steps_done"] == source.steps_done == state["place"] + 16 * state["cycle"]


def test_a_player_that_hangs_does_not_keep_a_stopping_run(players_of, monkeypatch):
    monkeypatch.setattr(Actors, "STOPPING", 0.5)
    source = players_of([Counting(200)])
    source.stop_asked = lambda: source.steps_done > 10
    stream = iter(source)
    list(itertools.islice(stream, 9))
    processes_of(source)[0].suspend()
    with pytest.raises(Stopped):
        list(stream)


def test_an_environment_that_cannot_be_restored_starts_its_next_episode_in_player_and_learner(players_of, caplog):
    agent = agent_for(84 * 84)
    source = players_of([Forgetful(), Forgetful()], agent, engine="inline", rounds=5)
    take(iter(source), agent, 3)
    resumed = players_of([Forgetful(), Forgetful()], agent, engine="inline", rounds=5)
    state = source.state_dict()
    state["players"][0] |= {
        "actions": torch.tensor([[0, 0], [0, 0]], dtype=torch.int32),
        "states": torch.zeros(2, 84, 84, dtype=torch.uint8),
    }
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert "could not be restored" in caplog.text
    snapshot = resumed.state_dict()["players"][0]
    assert snapshot["resets"].tolist() == [1, 1]
    assert len(snapshot["actions"]) == 0


def test_an_environment_that_cannot_be_sent_is_refused(players_of):
    env = Counting()
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"cannot be sent to another process: cannot pickle '_thread\.lock'.*inline"):
        next(iter(players_of([env])))


def test_an_environment_that_the_player_cannot_unpickle_is_reported(players_of):
    with pytest.raises(ActorFailed, match=r"(?s)Player 0 .* failed while it was made.*ModuleNotFoundError"):
        next(iter(players_of([Unbuildable()])))


def test_an_environment_that_hangs_while_it_is_built_is_reported(players_of, monkeypatch):
    monkeypatch.setattr(Actors, "STARTING", 2.0)
    monkeypatch.setattr(Actors, "TRIES", 0)
    source = players_of([Unbuildable("__import__('time').sleep(1000)")], patience=1.0)
    with pytest.raises(ActorFailed, match=r"player 0 \(environment 0, seed 5\) sent no segment for"):
        next(iter(source))


def test_players_are_started_once(players_of):
    source = players_of([Counting()], engine="inline")
    next(iter(source))
    with pytest.raises(RuntimeError, match="have an iterator already"):
        next(iter(source))


def test_more_players_than_environments_are_refused():
    with pytest.raises(UsageError, match="each of 2 players needs an environment, but the source has only 1"):
        Players(source_of([Counting()]), players=2)


NEW = {"states": None}  # snapshot of environments that have not been reset


def test_a_frame_is_kept_once():
    def stacked():
        return source_of([FrameStack(Counting(50), 2)], agent_for(2))

    player, handle = Player(0, (stacked(), 0, NEW), rounds=4), _Handle(stacked())
    for _ in range(2):
        handle.add(player.get_trajectory_segment())
    states = [
        state
        for transitions, _ in handle.blocks
        for transition in transitions
        for state in (transition.state, transition.last_state)
    ]
    assert all(isinstance(state, LazyFrames) for state in states)
    arrays = [np.asarray(state) for state in states]
    assert [int(array[1, 0]) for array in arrays[1::2]] == list(range(1, 9))
    assert all(np.shares_memory(a[1], b[0]) for a, b in zip(arrays[0::2], arrays[1::2], strict=True))


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: FrameStack(env, 3)])
def test_the_arrays_of_a_block_fit_into_the_forecast_size(wrap):
    envs = [wrap(Random(1)) for _ in range(3)]  # every step ends an episode
    source = source_of(envs, agent_for(int(np.prod(envs[0].observation_space.shape))))
    player = Player(0, (source, 0, NEW), rounds=5)
    for _ in range(3):
        arrays = player.get_trajectory_segment().arrays
        assert sum(-(-array.nbytes // 64) * 64 for array in arrays.values()) <= block_size(envs[0], 15, 3)


def test_only_the_numbers_of_the_selector_are_sent():
    assert selector_values(ptan.actions.EpsilonGreedyActionSelector(0.25)) == {"_epsilon": 0.25}
    assert selector_values(ptan.actions.ArgmaxActionSelector()) == {}


def test_every_block_has_its_own_random_numbers():
    seeds = {block_seed(*numbers) for numbers in itertools.product(range(3), range(4), range(50))}
    assert len(seeds) == 3 * 4 * 50
