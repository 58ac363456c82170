import csv
import math

import pytest
from ignite.engine import Engine
from ptan.ignite import EndOfEpisodeHandler

from lib.experience.episodes import Episode
from lib.run.episodes import EpisodeFile, Episodes, format_return, reaches
from lib.run.events import EpisodeEvents, register_events
from lib.system.clock import since_process_start
from sources import CountingSource


def run(returns, iterations, stop_reward=18.0, milestone=17.0, path=None, trained=False, length=10):
    """Run an engine in which episodes end with the given returns.

    Returns:
        the counter of the episodes, and the fired events as (step, name).
    """
    source = CountingSource(returns, length)
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    register_events(engine)
    episodes = Episodes(source, stop_reward, milestone, trained)
    episodes.attach(engine)
    fired = []
    for event in EpisodeEvents:
        engine.add_event_handler(event, lambda engine, event: fired.append((source.steps_done, event.name)), event)
    if path is not None:
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, EpisodeFile(path, episodes))
    engine.run(source.batches(), max_iters=iterations, epoch_length=iterations)
    return episodes, fired


def test_a_table_that_was_deleted_is_begun_anew_with_its_header(tmp_path, caplog):
    table = EpisodeFile(tmp_path / "episodes.csv", Episodes(CountingSource({}), 1.0, 0.5))
    table.path.unlink()
    table._append(["1", "2", "3", "4", "5", ""])
    assert table.path.read_text().splitlines() == ["episode,step,length,return,seconds,video", "1,2,3,4,5,"]
    assert f"{table.path} was deleted or emptied" in caplog.text


def first_step_of(name, fired):
    return next(step for step, event in fired if event == name)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (18.126, "18.13"),
        (-0.5, "-0.50"),
        (0.0034, "0.0034"),
        (-6e-5, "-6e-05"),
        (2e-16, "0.00"),
        (-1.5e30, "-1.5e+30"),
        (123456.789, "123456.79"),
        (math.nan, "nan"),
    ],
)
def test_a_small_return_keeps_its_digits(value, text):
    assert format_return(value) == text


def test_the_game_is_solved_by_the_mean_of_the_last_hundred_episodes():
    # ptan's smoothed average would need about 190 good episodes after the 60 bad ones.
    returns = {step: -21.0 if step <= 60 else 21.0 for step in range(1, 400)}
    episodes, fired = run(returns, 399)
    solved_at = first_step_of("BOUND_REWARD_REACHED", fired)
    bad_allowed = math.floor((21 - 18) / 42 * 100)  # bad episodes in a window with mean 18
    assert solved_at == 60 + 100 - bad_allowed
    assert episodes.reached["17.0"]["step"] == 60 + 100 - math.floor((21 - 17) / 42 * 100)
    assert episodes.reached["18.0"]["step"] == solved_at


@pytest.mark.parametrize("total", [0.1, -0.7, sum([0.1] * 10)])
def test_a_game_whose_every_return_equals_the_goal_is_solved(total):
    """Sums of floating-point numbers round: sum([0.1] * 100) / 100 and sum([0.1] * 10) are below 0.1 and 1."""
    episodes, fired = run(dict.fromkeys(range(1, 101), total), 100, stop_reward=round(total, 3), milestone=None)
    assert episodes.solved is not None
    assert first_step_of("BOUND_REWARD_REACHED", fired) == 100


@pytest.mark.parametrize(
    ("mean", "goal", "is_reached"), [(17.999, 18.0, False), (-1e-12, 0.0, True), (-1e6, -1e6, True)]
)
def test_a_goal_is_reached_within_rounding(mean, goal, is_reached):
    assert reaches(mean, goal) == is_reached


def test_a_mean_that_reaches_the_goal_only_within_an_iteration_does_not_solve_the_game():
    class Rollouts(CountingSource):
        def pop_episodes(self):
            returns = [1.0] * 100 + [0.0] * 20 if self.steps_done < 3 else [1.0] * 100
            return [Episode(each, 5, 5 * self.steps_done, 5.0) for each in returns]

    source = Rollouts()
    episodes = Episodes(source, 0.9, 0.95)
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    register_events(engine)
    episodes.attach(engine)
    solved_in = []
    engine.add_event_handler(EpisodeEvents.BOUND_REWARD_REACHED, lambda: solved_in.append(episodes.mean))
    engine.run(source.batches(), max_iters=3, epoch_length=3)
    assert solved_in == [1.0]
    assert {bound: moment["iteration"] for bound, moment in episodes.reached.items()} == {"0.95": 3, "0.9": 3}


@pytest.mark.parametrize(("first", "trained", "warnings"), [(18.0, False, 1), (17.9, False, 0), (18.0, True, 0)])
def test_a_goal_that_the_first_episodes_of_new_weights_reach_is_named(caplog, first, trained, warnings):
    run(dict.fromkeys(range(1, 300), first), 60, trained=trained)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
    assert ("which reaches the goal of 18" in caplog.text) == bool(warnings)


# In 64 environments, the first episode ends after 64 times its own steps.
@pytest.mark.parametrize(
    ("later", "warnings"),
    [(18.5, 0), (30.0, 1)],  # solved before six episodes per environment have ended
)
def test_the_goal_is_compared_with_several_episodes_of_every_environment(caplog, later, warnings):
    returns = {step: 10.0 if step < 64 + 50 else later for step in range(64, 1000)}
    run(returns, 64 + 384, length=1)
    assert caplog.text.count("which reaches the goal of 18") == warnings


def test_the_comparison_with_the_goal_goes_on_after_a_resume(caplog):
    before, _ = run(dict.fromkeys(range(1, 50), 18.0), 49)
    after = Episodes(CountingSource(), 18.0)
    after.load_state_dict(before.state_dict())
    assert not caplog.text
    after._add(Episode(18.0, 10, 50, 5.0))
    assert "The first 50 episodes already average 18" in caplog.text


def test_an_episode_that_ended_before_the_run_began_took_no_time():
    assert Episodes(CountingSource({}), 18.0, owns_process=False).seconds_at(0.0) == 0.0


def test_a_run_that_does_not_own_its_process_has_its_own_time():
    begun = since_process_start()
    episodes = Episodes(CountingSource({}), 18.0, owns_process=False)
    assert 0.0 <= episodes.seconds <= since_process_start() - begun
    episodes.load_state_dict(episodes.state_dict() | {"seconds": 1000.0})
    assert 1000.0 <= episodes.seconds <= 1000.0 + since_process_start() - begun
    assert Episodes(CountingSource({}), 18.0).seconds >= begun


def test_a_stop_reward_below_the_milestone_solves_the_game():
    episodes, fired = run({step: step / 10 for step in range(1, 250)}, 249, stop_reward=10.0)
    assert first_step_of("BOUND_REWARD_REACHED", fired) == 150  # the mean of 5.1 to 15.0 is the first above 10
    assert set(episodes.reached) == {"10.0", "17.0"}


def test_without_bounds_nothing_is_solved():
    episodes, fired = run(dict.fromkeys(range(1, 150), 21.0), 149, stop_reward=None, milestone=None)
    assert episodes.reached == {}
    assert "BOUND_REWARD_REACHED" not in {event for _, event in fired}


def test_fewer_than_a_hundred_episodes_never_solve_the_game():
    episodes, fired = run(dict.fromkeys(range(1, 100), 21.0), 99)
    assert episodes.reached == {}
    assert "BOUND_REWARD_REACHED" not in {event for _, event in fired}


def test_the_best_mean_is_over_at_least_ten_episodes():
    returns = {1: 21.0} | dict.fromkeys(range(2, 13), -21.0) | {13: 0.0}
    episodes, fired = run(returns, 13)
    assert [step for step, event in fired if event == "BEST_REWARD_REACHED"] == [10, 13]
    assert episodes.best_mean == pytest.approx((21 - 21 * 11 + 0) / 13)


def test_the_best_mean_of_a_hundred_episodes_replaces_that_of_fewer():
    returns = {step: -21.0 if 12 < step <= 100 else 21.0 for step in range(1, 400)}
    episodes, fired = run(returns, 114)
    assert [step for step, event in fired if event == "BEST_REWARD_REACHED"] == [10, 100, 113, 114]
    assert episodes.best_mean == pytest.approx((21 * 14 - 21 * 86) / 100)


def test_the_smoothed_return_equals_that_of_ptan():
    returns = {1: 10.0, 2: 0.0, 3: -4.0}
    episodes, _ = run(returns, 3)
    source = CountingSource(returns)

    def pop_rewards_steps():
        return [(episode.total, episode.length) for episode in source.pop_episodes()]

    source.pop_rewards_steps = pop_rewards_steps  # type: ignore[attr-defined]
    engine = Engine(lambda engine, batch: None)
    EndOfEpisodeHandler(source).attach(engine)
    engine.run(source.batches(), max_iters=3, epoch_length=3)
    assert episodes.smoothed == pytest.approx(engine.state.metrics["avg_reward"])


def test_the_counts_continue_after_a_resume():
    before, _ = run({1: 1.0, 2: 3.0}, 2)
    after = Episodes(CountingSource(), 18.0)
    after.load_state_dict(before.state_dict())
    assert (after.count, list(after.returns), after.best_mean) == (2, [1.0, 3.0], before.best_mean)
    assert after.seconds > before.seconds - 1


def test_episodes_csv_has_a_row_for_each_episode(tmp_path):
    run({3: -21.0, 5: 2.5}, 5, path=tmp_path / "episodes.csv")
    with (tmp_path / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["episode"], row["step"], row["length"], row["return"], row["video"]) for row in rows] == [
        ("1", "3", "10", "-21", ""),
        ("2", "5", "10", "2.5", ""),
    ]
