import csv
import math
from pathlib import Path
from types import SimpleNamespace

import ptan
import pytest
from ignite.engine import Engine, Events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.actors.parallel import Players
from lib.experience.episodes import Episode
from lib.experience.source import ExperienceSourceFirstLast
from lib.run.episodes import EpisodeFile, Episodes, last_step
from lib.run.events import EpisodeEvents, register_events
from lib.run.growing_files import GrowingFiles
from lib.run.speed import Speed
from lib.run.tensorboard import TensorBoard
from lib.system import clock
from lib.system.clock import Stopwatch

PROJECT = Path(__file__).parents[1]


class Source:
    """An experience source in whose step number `step` an episode of return `returns[step]` ends."""

    PARTS = ExperienceSourceFirstLast.PARTS

    def __init__(self, returns):
        self.returns = returns
        self.steps_done = 0
        self.clock = Stopwatch()

    def batches(self):
        while True:
            self.steps_done += 1
            yield self.steps_done

    def pop_episodes(self):
        if self.steps_done not in self.returns:
            return []
        return [Episode(self.returns[self.steps_done], 10, self.steps_done, 5.0)]


class PlayedElsewhere(Source):
    PARTS = Players.PARTS
    METRICS = Players.METRICS

    def metrics(self):
        return dict.fromkeys(self.METRICS, 1.0)


def run(returns, iterations, stop_reward=18.0, milestone=17.0, folder=None, make=Source):
    source = make(returns)
    engine = Engine(lambda engine, batch: {"loss": 1.0 / engine.state.iteration, "epsilon": 0.5})
    register_events(engine)
    episodes = Episodes(source, lambda: source.steps_done, stop_reward, milestone)
    speed = Speed(source, lambda: source.steps_done)
    speed.attach(engine)
    episodes.attach(engine)
    fired = []
    for event in EpisodeEvents:
        engine.add_event_handler(event, lambda engine, event: fired.append((source.steps_done, event.name)), event)
    if folder is not None:
        folder.mkdir(exist_ok=True)
        board = TensorBoard(folder)
        board.attach(engine, speed, ["reward"])
        file = EpisodeFile(folder / "episodes.csv", episodes)
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, file)
        engine.add_event_handler(Events.COMPLETED, lambda: board.close())
    engine.run(source.batches(), max_iters=iterations, epoch_length=iterations)
    return engine, episodes, speed, fired


def test_solved_means_the_true_mean_of_the_last_hundred():
    # 60 bad episodes, then perfect ones: the smoothed average of ptan says 18 only after some 190 of these.
    returns = {step: -21.0 if step <= 60 else 21.0 for step in range(1, 400)}
    _, episodes, _, fired = run(returns, 399)
    first = next(step for step, event in fired if event == "BOUND_REWARD_REACHED")
    bad = math.floor((21 - 18) / 42 * 100)  # bad ones that a window of mean 18 can hold
    assert first == 60 + 100 - bad
    assert episodes.reached["17.0"]["step"] == 60 + 100 - math.floor((21 - 17) / 42 * 100)
    assert episodes.reached["18.0"]["step"] == first


def test_a_stop_reward_below_the_milestone_stops_there():
    _, episodes, _, fired = run({step: step / 10 for step in range(1, 250)}, 249, stop_reward=10.0)
    first = next(step for step, event in fired if event == "BOUND_REWARD_REACHED")
    assert first == 150  # the mean of 5.1 to 15.0 is the first above 10
    assert set(episodes.reached) == {"10.0", "17.0"}


def test_without_a_bound_nothing_is_solved():
    _, episodes, _, fired = run(dict.fromkeys(range(1, 150), 21.0), 149, stop_reward=None, milestone=None)
    assert episodes.reached == {}
    assert "BOUND_REWARD_REACHED" not in {event for _, event in fired}


def test_fewer_than_a_hundred_episodes_never_solve():
    _, episodes, _, fired = run(dict.fromkeys(range(1, 100), 21.0), 99)
    assert episodes.reached == {}
    assert "BOUND_REWARD_REACHED" not in {event for _, event in fired}


def test_the_best_is_a_mean_of_at_least_ten_episodes():
    returns = {1: 21.0} | dict.fromkeys(range(2, 13), -21.0) | {13: 0.0}
    _, episodes, _, fired = run(returns, 13)
    assert [step for step, event in fired if event == "BEST_REWARD_REACHED"] == [10, 13]
    assert episodes.best_mean == pytest.approx((21 - 21 * 11 + 0) / 13)


def test_the_smoothed_average_is_ptans():
    returns = {1: 10.0, 2: 0.0, 3: -4.0}
    _, episodes, _, _ = run(returns, 3)
    source = Source(returns)
    source.pop_rewards_steps = lambda: [(episode.total, episode.length) for episode in source.pop_episodes()]
    engine = Engine(lambda engine, batch: None)
    ptan.ignite.EndOfEpisodeHandler(source).attach(engine)
    engine.run(source.batches(), max_iters=3, epoch_length=3)
    assert episodes.smoothed == pytest.approx(engine.state.metrics["avg_reward"])


def test_episodes_go_on_after_a_resume():
    _, before, _, _ = run({1: 1.0, 2: 3.0}, 2)
    after = Episodes(Source({}), lambda: 0, 18.0)
    after.load_state_dict(before.state_dict())
    assert (after.count, list(after.returns), after.best_mean) == (2, [1.0, 3.0], before.best_mean)
    assert after.seconds > before.seconds - 1


def test_speed_counts_training_and_never_the_warm_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "since_process_start", lambda: now[0])
    source = Source({})
    engine = Engine(lambda engine, batch: now.__setitem__(0, now[0] + 0.5))
    register_events(engine)
    speed = Speed(source, lambda: source.steps_done)
    speed.attach(engine)

    def batches():
        source.steps_done, now[0] = 1000, 1.0  # a warm-up of a thousand steps a second
        while True:
            source.steps_done += 1
            yield None

    engine.run(batches(), max_iters=200, epoch_length=200)
    assert speed.warm_up == (1001, 1.0)
    assert speed.of_warm_up == pytest.approx(1001)
    assert speed.now == pytest.approx(199 / 100, rel=0.01)
    assert speed.overall == speed.now
    assert speed.updates_per_second == pytest.approx(2.0)


def test_parts_add_up_to_the_seconds_of_training():
    source = Source({})
    engine = Engine(lambda engine, batch: speed.time.sleep(0.002))
    register_events(engine)
    speed = Speed(source, lambda: source.steps_done)
    speed.attach(engine)

    def batches():
        speed.time.sleep(0.2)  # the warm-up, which belongs to no part
        while True:
            source.steps_done += 1
            with source.clock("act"):
                speed.time.sleep(0.001)
            with source.clock("environment"):
                speed.time.sleep(0.003)
            speed.time.sleep(0.001)
            yield None

    engine.run(batches(), max_iters=30, epoch_length=30)
    parts = speed.parts
    assert sum(parts.values()) <= speed.seconds < 0.9
    assert parts["environment"] > parts["learn"] > parts["act"] > 0.029
    assert parts["sample"] > 0.025
    assert "environment" in speed.table()


def scalars(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_what_others_play_has_tags_of_its_own(tmp_path):
    run({50: 1.0, 150: 2.0}, 200, folder=tmp_path)
    written = scalars(tmp_path)
    run({}, 100, folder=tmp_path / "players", make=PlayedElsewhere)
    elsewhere = set(scalars(tmp_path / "players")) - set(written)
    assert elsewhere == {"time/wait", "train/policy_lag", "train/player_fps", "train/learner_fps"}
    assert written["episodes/reward"] == [(1, 1.0), (2, 2.0)]
    assert [step for step, _ in written["train/loss"]] == [100, 200]
    assert written["train/loss"][1][1] == pytest.approx(1 / 200)


def test_a_cut_back_board_and_table_double_nothing(tmp_path):
    returns = dict.fromkeys(range(10, 300, 10), 1.0)
    source = Source(returns)
    engine = Engine(lambda engine, batch: {"loss": 1.0, "epsilon": 0.5})
    register_events(engine)
    episodes = Episodes(source, lambda: source.steps_done, 18.0)
    speed = Speed(source, lambda: source.steps_done)
    speed.attach(engine)
    episodes.attach(engine)
    board = TensorBoard(tmp_path)
    board.attach(engine, speed, ())
    file = EpisodeFile(tmp_path / "episodes.csv", episodes)
    engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, file)
    files = GrowingFiles(tmp_path)
    files.flush = board.flush
    sizes = {}
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=150), lambda: sizes.update(files.state_dict()))
    engine.run(source.batches(), max_iters=290, epoch_length=290)
    board.close()
    assert last_step(tmp_path) == 290
    (tmp_path / "events.out.tfevents.9.lost").write_bytes(b"written after the checkpoint")

    GrowingFiles(tmp_path).load_state_dict(sizes)
    written = scalars(tmp_path)
    assert [step for step, _ in written["train/loss"]] == [100]
    assert [step for step, _ in written["episodes/reward"]] == list(range(1, 16))
    assert last_step(tmp_path) == 150
    assert not (tmp_path / "events.out.tfevents.9.lost").exists()


def test_a_file_that_is_shorter_than_it_was_is_not_filled_with_nothing(tmp_path, caplog):
    for name in ("episodes.csv", "events.out.tfevents.1"):
        (tmp_path / name).write_bytes(b"12345")
    GrowingFiles(tmp_path).load_state_dict({"episodes.csv": 8, "events.out.tfevents.1": 3})
    assert (tmp_path / "episodes.csv").read_bytes() == b"12345"
    assert (tmp_path / "events.out.tfevents.1").read_bytes() == b"123"
    assert "episodes.csv is shorter than it was: what its last 3 bytes told is lost." in caplog.text
    assert "tfevents" not in caplog.text


def test_before_anything_is_learnt_no_part_of_training_has_taken_time():
    source = SimpleNamespace(PARTS=("act",), clock=Stopwatch(), steps_done=0)
    speed = Speed(source, lambda: source.steps_done)
    speed.attach(Engine(lambda engine, batch: None))
    source.clock.seconds["act"] = 5.0
    assert speed.parts == {"act": 0.0, "sample": 0.0, "learn": 0.0}
    assert speed.updates == 0


def test_episodes_csv_has_a_row_an_episode(tmp_path):
    run({3: -21.0, 5: 2.5}, 5, folder=tmp_path)
    with (tmp_path / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["episode"], row["step"], row["length"], row["return"], row["video"]) for row in rows] == [
        ("1", "3", "10", "-21", ""),
        ("2", "5", "10", "2.5", ""),
    ]
    assert last_step(tmp_path / "nowhere") == 0
