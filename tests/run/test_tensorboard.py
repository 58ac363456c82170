import pytest
from ignite.engine import Engine, Events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.actors.players import Players
from lib.experience.episodes import Episode
from lib.run.episodes import EpisodeFile, Episodes
from lib.run.events import EpisodeEvents, register_events
from lib.run.folder import GrowingFiles
from lib.run.speed import Speed
from lib.run.tensorboard import TensorBoard
from running import episodes_of
from sources import CountingSource


class RemoteSource(CountingSource):
    """A source whose environments run in other processes."""

    PARTS = Players.PARTS
    METRICS = Players.METRICS

    def metrics(self):
        return dict.fromkeys(self.METRICS, 1.0)


def run(source, iterations, folder, during=lambda engine, board: None, extra=(), epsilon=0.5):
    """Run an engine that writes TensorBoard's files and episodes.csv."""
    folder.mkdir(exist_ok=True)
    engine = Engine(lambda engine, batch: {"loss": 1.0 / engine.state.iteration, "epsilon": epsilon})
    register_events(engine)
    episodes, speed, board = Episodes(source, 18.0), Speed(source), TensorBoard(folder)
    speed.attach(engine)
    episodes.attach(engine)
    board.attach(engine, speed, ["reward", *extra])
    engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, EpisodeFile(folder / "episodes.csv", episodes))
    during(engine, board)
    engine.run(source.batches(), max_iters=iterations, epoch_length=iterations)
    board.close()


def scalars(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_scalars_are_written_by_episode_and_by_agent_step(tmp_path):
    run(CountingSource({50: 1.0, 150: 2.0}), 200, tmp_path)
    written = scalars(tmp_path)
    assert written["episodes/reward"] == [(1, 1.0), (2, 2.0)]
    assert [step for step, _ in written["train/loss"]] == [100, 200]
    assert written["train/loss"][1][1] == pytest.approx(1 / 200)


def test_a_metric_that_comes_later_is_written_from_then_on_without_a_warning(tmp_path, recwarn):
    def set_later(engine, board):
        @engine.on(Events.ITERATION_COMPLETED(once=150))
        def set_values(engine):
            engine.state.metrics["values"] = 2.0

    run(CountingSource({50: 1.0}), 300, tmp_path, set_later, extra=["values"])
    assert scalars(tmp_path)["train/values"] == [(200, 2.0), (300, 2.0)]
    assert [str(each.message) for each in recwarn if "values" in str(each.message)] == []


def test_an_output_that_is_none_is_left_out_without_a_warning(tmp_path, recwarn):
    run(CountingSource({50: 1.0}), 100, tmp_path, epsilon=None)
    assert "train/epsilon" not in scalars(tmp_path)
    assert [str(each.message) for each in recwarn if "can not log" in str(each.message)] == []


def test_the_mean_of_100_episodes_begins_with_the_tenth(tmp_path):
    run(CountingSource(dict.fromkeys(range(5, 65, 5), 1.0)), 100, tmp_path)
    written = scalars(tmp_path)
    assert [step for step, _ in written["episodes/reward"]] == list(range(1, 13))
    assert [step for step, _ in written["episodes/mean_100"]] == [10, 11, 12]
    assert [step for step, _ in written["episodes_by_step/mean_100"]] == [50, 55, 60]


def test_agent_steps_of_episodes_never_decrease(tmp_path):
    class Rollout(CountingSource):
        def pop_episodes(self):
            ends = (50, 20, 90) if self.steps_done == 100 else ()
            return [Episode(float(end), 10, end, 5.0) for end in ends]

    run(Rollout(), 100, tmp_path)
    assert scalars(tmp_path)["episodes_by_step/reward"] == [(50, 50.0), (50, 20.0), (90, 90.0)]


def test_a_source_in_other_processes_has_tags_of_its_own(tmp_path):
    run(CountingSource({1: 1.0}), 100, tmp_path / "here")
    run(RemoteSource({1: 1.0}), 100, tmp_path / "remote")
    own = set(scalars(tmp_path / "remote")) - set(scalars(tmp_path / "here"))
    assert own == {"time/wait", "train/policy_lag", "train/player_fps", "train/learner_fps"}


def test_files_that_are_truncated_to_a_checkpoint_hold_nothing_that_comes_after_it(tmp_path):
    sizes = {}

    def save_sizes(engine, board):
        files = GrowingFiles(tmp_path, board.flush)
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=150), lambda: sizes.update(files.state_dict()))

    run(CountingSource(dict.fromkeys(range(10, 300, 10), 1.0)), 290, tmp_path, save_sizes)
    assert int(episodes_of(tmp_path)[-1][1]) == 290
    (tmp_path / "events.out.tfevents.9.lost").write_bytes(b"written after the checkpoint")

    GrowingFiles(tmp_path, lambda: None).load_state_dict(sizes)
    written = scalars(tmp_path)
    assert [step for step, _ in written["train/loss"]] == [100]
    assert [step for step, _ in written["episodes/reward"]] == list(range(1, 16))
    assert int(episodes_of(tmp_path)[-1][1]) == 150
    assert not (tmp_path / "events.out.tfevents.9.lost").exists()
