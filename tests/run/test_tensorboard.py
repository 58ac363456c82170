import math

import pytest
from ignite.engine import Engine, Events
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.experience.interface import Episode
from lib.run import tensorboard
from lib.run.episodes import Episodes, register_events
from lib.run.speed import Speed
from lib.run.tensorboard import TensorBoard
from sources import CountingSource


def run(source, iterations, folder, during=lambda engine: None, extra=(), epsilon=0.5, figures=()):
    """Run an engine that writes TensorBoard's files."""
    engine = Engine(lambda engine, batch: {"loss": 1.0 / engine.state.iteration, "epsilon": epsilon})
    register_events(engine)
    episodes, speed, board = Episodes(source, 18.0), Speed(source), TensorBoard(folder)
    speed.attach(engine)
    engine.add_event_handler(Events.ITERATION_COMPLETED, episodes)
    board.attach_all(engine, speed, extra, dict(figures))
    during(engine)
    engine.run(source.batches(), max_iters=iterations, epoch_length=iterations)
    board.close()


def read(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder):
    accumulator = read(folder)
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def set_values(engine, value):
    engine.state.metrics["values"] = value


def test_scalars_are_written_by_episode_and_by_agent_step(tmp_path, recwarn):
    def set_later(engine):
        for once, value in (50, math.nan), (150, 2.0):
            engine.add_event_handler(Events.ITERATION_COMPLETED(once=once), set_values, value)

    source = CountingSource({step: float(step) for step in range(1005, 1065, 5)})
    source.steps_done = 1000
    run(source, 300, tmp_path, set_later, extra=["values"], epsilon=None)
    written = scalars(tmp_path)
    assert written["episodes/reward"] == [(n, 1000 + 5.0 * n) for n in range(1, 13)]
    assert [step for step, _ in written["episodes/mean_100"]] == [10, 11, 12]
    assert [step for step, _ in written["episodes_by_step/mean_100"]] == [1050, 1055, 1060]
    assert written["train/loss"] == [(1000 + n, pytest.approx(1 / n)) for n in (100, 200, 300)]
    assert written["train/values"] == [(1200, 2.0), (1300, 2.0)]  # set after 150 iterations
    assert "train/epsilon" not in written
    assert not [each for each in recwarn if "metric" in str(each.message) or "can not log" in str(each.message)]


def test_agent_steps_of_episodes_never_decrease(tmp_path):
    class Rollout(CountingSource):
        def pop_episodes(self):
            ends = (*range(1, 11), 5, 12) if self.steps_done == 100 else ()
            return [Episode(float(end), 10, end, 5.0) for end in ends]

    run(Rollout(), 100, tmp_path)
    assert [step for step, _ in scalars(tmp_path)["episodes_by_step/mean_100"]] == [10, 10, 12]


def test_figures_and_the_result_are_written_at_agent_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "FIGURES_EVERY", 3)
    source = CountingSource()
    source.steps_done = 1000
    run(source, 7, tmp_path, figures={"empty": lambda: Figure(figsize=(1, 1))})
    board = TensorBoard(tmp_path)
    speed = {"this_process": {"steps_per_second": None}}
    result = {"steps": 70, "mean_100": 1.5, "best_mean": 2.5, "seconds": 3.0, **speed}
    board.write_end(result)
    board.close()
    assert [event.step for event in read(tmp_path).Images("pictures/empty")] == [1003, 1006]
    assert {tag: values for tag, values in scalars(tmp_path).items() if tag.startswith("result/")} == {
        "result/mean_100": [(70, 1.5)],
        "result/best_mean": [(70, 2.5)],
        "result/seconds": [(70, 3.0)],
    }
