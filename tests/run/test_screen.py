"""What a person sees while a run trains: in terminals of 80 and 200 columns, in a dumb one, and in a file."""

import logging
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.experience.episodes import Episode
from lib.run import screen as screen_module
from lib.run.episodes import Episodes
from lib.run.goal_progress import GoalProgress
from lib.run.screen import Screen
from lib.system import progress
from running import ENVIRONMENT, PROJECT, assignments, folder, run
from terminal import run_in_terminal

PPO = PROJECT / "distributed/01_ppo.py"
UNREACHABLE = assignments("envs=4", "rollout=16", "minibatch=32", "stop_reward=5")


def train_until(seen, tmp_path, columns, env_id="fakes:Chain-v0", term="xterm"):
    """Train on a short game, until `seen` is true for the last line of the screen. Then type Ctrl-C."""
    options = ("--env-id", env_id, *UNREACHABLE, "--runs-dir", tmp_path)
    return run_in_terminal(PPO, options, columns, ENVIRONMENT | {"TERM": term}, PROJECT, interrupt=seen)


def seven_bars():
    bars = set()

    def seen(line):
        if "steps/s" in line:
            bars.add(line)
        return len(bars) == 7

    return seen


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, pytest.param(200, marks=pytest.mark.long)])
def test_the_bar_shows_the_way_to_the_goal_and_lines_come_at_most_once_a_second(tmp_path, columns):
    seen = train_until(seven_bars(), tmp_path, columns)
    assert seen.code == 130
    bars = [re.fullmatch(r" *(\d+)%\|(.+)\| (mean of .*)", bar) for bar in seen.bars]
    full = [bar for bar in bars if bar and "steps/s" in bar[3]]
    assert len(full) >= 7
    for bar in full:
        assert len(bar[0]) <= columns
        assert len(bar[2]) >= 10
        mean = r"mean of \d+: \d\.\d\d" if columns == 80 else r"mean of the last \d+ episodes \d\.\d\d"
        assert re.fullmatch(
            rf"{mean}, goal 5, [1-9][\d,]* steps/s, (elapsed )?0:\d\d:\d\d(, .* left( to the limit)?)?", bar[3]
        ), bar[3]
    [left] = [line for line in seen.lines if "%|" in line]
    assert "^" in left  # the bar of the moment when Ctrl-C was typed
    summaries = [line for line in seen.lines if line.startswith("Episode")]
    assert 1 < len(summaries) <= seen.seconds + 2  # the first and the last come at once
    pattern = r"Episodes \d+ to \d+: count=\d+, best=1, mean=-?\d\.\d{2,}, elapsed=0:\d\d:\d\d"
    assert all(re.fullmatch(pattern, line) for line in summaries[:-1])
    assert not any("emulator" in line or ", 0 learner" in line for line in seen.lines)


@pytest.mark.slow
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(tmp_path):
    seen = train_until(lambda line: "since the last line" in line, tmp_path, 200, term="dumb")
    text = "\n".join(seen.lines)
    assert not seen.bars
    assert len(re.findall(r"^Step [\d,]+: mean of the last \d+ episodes", text, re.M)) == 1
    assert len(re.findall(r"^Episode", text, re.M)) <= 2
    assert not re.search(r"\x1b|\r[^\n]", seen.raw)


@pytest.mark.slow
def test_ctrl_c_says_that_the_run_stops_and_ends_with_three_commands_that_work(tmp_path):
    seen = train_until(lambda line: "goal 5" in line, tmp_path, 300, env_id="fakes:Shown-v0")
    assert seen.code == 130
    text = "\n".join(seen.lines)
    assert "Stopping after this update" in text
    path = folder(tmp_path)
    assert (path / "curve.png").exists()
    assert "curve.png" in text
    commands = [line.partition("  # ")[0] for line in seen.lines if "  # " in line]
    assert len(commands) == 3
    play, report, go_on = commands
    for command in (f"{play} --record", report, f"{go_on} --time-limit 1"):
        script, *options = shlex.split(command)
        process = run(Path(script), *options, cwd=PROJECT)
        assert process.returncode == 0, (command, process.stderr)


class Clock:
    """A clock that stands still until it is set forward."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Source:
    """An experience source with finished episodes to collect."""

    def __init__(self):
        self.steps_done = 0
        self.episodes = []
        self.on_step = lambda steps: None

    def pop_episodes(self):
        episodes, self.episodes = self.episodes, []
        return episodes


@pytest.fixture
def redirected(monkeypatch, caplog):
    """A Screen without a terminal, with a clock that tests set forward."""
    clock = Clock()
    time = SimpleNamespace(monotonic=clock.monotonic)
    monkeypatch.setattr(progress, "time", time)
    monkeypatch.setattr(screen_module, "time", time)
    caplog.set_level(logging.INFO, "lib")
    source = Source()
    episodes = Episodes(source, 18.0)
    speed = SimpleNamespace(recent=2000.0, with_pauses=1000.0, learning_since=0.0, warm_up_speed=1.0)
    screen = Screen(source, episodes, speed, 0, GoalProgress(episodes), 1_000_000, False, None, every_episode=False)
    screen._start_training()

    def play(seconds, every):
        """Let `seconds` pass, in which an episode ends every `every` seconds."""
        end = clock.now + seconds
        while clock.now < end:
            clock.now += every
            source.steps_done += 10
            episodes._add(Episode(-21.0, 10, source.steps_done, clock.now, None))
            screen._episode_completed()
            screen._iteration_completed()

    return SimpleNamespace(play=play, screen=screen, lines=lambda: caplog.messages)


def test_a_redirected_log_of_a_short_game_has_at_most_a_kilobyte_a_minute(redirected):
    redirected.play(600, every=0.05)
    text = "\n".join(redirected.lines())
    assert 19 <= len(redirected.lines()) <= 23
    assert len(text) <= 10 * 1024
    assert re.search(r"since the last line: count=60\d, best=-21, mean=-21\.00", text)
    assert "left" not in text  # there is no trend


def test_an_estimate_says_whether_it_is_for_the_goal_or_for_a_limit(redirected):
    redirected.screen.always_shows_limit = True
    redirected.play(60, every=1.0)
    assert re.search(r"goal 18, .*, about 17 min left to the limit", redirected.lines()[-1])  # at 1,000 steps/s
    redirected.screen.goal_progress = None
    redirected.play(60, every=1.0)
    assert re.search(r", about \d+ min left(;|$)", redirected.lines()[-1])


@pytest.mark.parametrize(("columns", "shown"), [(80, "limit in ~"), (60, "goal 18"), (40, "mean of 100: -21.00")])
def test_a_bar_with_a_limit_is_not_cut_off(redirected, columns, shown):
    redirected.screen.always_shows_limit = True
    redirected.play(150, every=1.0)
    fitting = [text for text in redirected.screen._texts(True) if len(text) <= columns - progress.MIN_BAR]
    assert shown in fitting[0]


def test_no_time_is_left_at_the_limit(redirected):
    redirected.screen.always_shows_limit = True
    redirected.screen.step_limit = 100
    redirected.play(60, every=1.0)
    assert "left" not in redirected.lines()[-1]


def test_a_limit_before_the_goal_is_shown_once_the_time_to_the_goal_is_known(redirected, monkeypatch):
    redirected.play(60, every=1.0)
    assert "left" not in redirected.lines()[-1]
    for seconds, text in ((300.0, "about 5 min left"), (9000.0, "about 17 min left to the limit")):
        monkeypatch.setattr(GoalProgress, "seconds_left", seconds)
        redirected.play(60, every=1.0)
        assert re.search(rf"{text}(;|$)", redirected.lines()[-1])


def test_slow_steps_are_not_shown_as_none(redirected):
    redirected.screen.speed.recent = 0.04
    redirected.play(60, every=1.0)
    assert ", 0.04 steps/s" in redirected.lines()[-1]


def test_lines_go_on_in_a_file_while_a_terminal_shows_the_bar(redirected, monkeypatch):
    monkeypatch.setattr(screen_module, "is_terminal", lambda stream: False)
    monkeypatch.setattr(screen_module, "bar_stream", lambda: sys.stderr)
    screen = redirected.screen
    screen.lines = screen_module.EpisodeLines(screen.episodes, screen.speed, every_episode=False)
    screen._close()
    redirected.play(100, every=1.0)
    assert 9 <= sum(line.startswith("Episodes ") for line in redirected.lines()) <= 11


def test_each_slow_episode_has_the_books_line_in_a_file(redirected):
    redirected.play(600, every=20.0)
    lines = [line for line in redirected.lines() if line.startswith("Episode ")]
    assert len(lines) == 30
    assert re.fullmatch(r"Episode 1: reward=-21, steps=10, speed=2000\.0 f/s, elapsed=\d+:\d\d:\d\d", lines[0])


def test_episodes_since_the_last_line_are_not_lost_at_the_end(redirected):
    redirected.play(35, every=0.05)
    redirected.play(3, every=0.05)
    redirected.screen._end()
    counts = [int(count) for line in redirected.lines() for count in re.findall(r"count=(\d+)", line)]
    single = sum(line.startswith("Episode ") for line in redirected.lines())
    assert sum(counts) + single == redirected.screen.episodes.count
