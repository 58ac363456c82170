"""What a person sees while a run trains, on a terminal and in a file, and the commands to copy at its end."""

import io
import logging
import math
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from finished_runs import make_run
from lib.experience.interface import Episode
from lib.run import console
from lib.run.arguments import RunOptions
from lib.run.console import Screen, log_next_steps, seconds_to_rise
from lib.run.episodes import Episodes
from lib.run.speed import Mark
from lib.run.stopping import NOT_FINITE, STEPS
from running import SMALL_PPO
from sources import CountingSource


class Watched:
    """A Screen, its output, and a clock that stands still while no episode is played."""

    def __init__(self, monkeypatch, caplog, terminal, **options):
        caplog.set_level(logging.INFO, "lib")
        self.now = 1000.0
        caplog.clear()
        self.log = caplog
        monkeypatch.setattr(console, "bar_stream", lambda: terminal)
        monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.source = CountingSource()
        self.episodes = Episodes(self.source, options.pop("goal", 18.0))
        monkeypatch.setattr(console, "since_process_start", lambda: 50.0)
        speed = SimpleNamespace(recent=2000.0, training=Mark(50_000, 40.0), learning_since=0.0)
        usual = {"warm_up": 0, "step_limit": 1_000_000, "time_limit": None}
        self.screen = Screen(self.episodes, speed, **usual | options)
        self.screen._start_training()

    @property
    def lines(self):
        return self.log.messages

    def play(self, returns, every=1.0):
        """Let an episode of ten steps with each of these returns end every `every` seconds."""
        for total in returns:
            self.now += every
            self.source.steps_done += 10
            self.episodes._add(Episode(float(total), 10, self.source.steps_done, self.now))
            self.screen._episode_completed()
            self.screen._iteration_completed()
        return self


@pytest.fixture
def watched(monkeypatch, caplog):
    return lambda terminal=None, **options: Watched(monkeypatch, caplog, terminal, **options)


def test_a_terminal_shows_a_bar_with_goal_speed_and_time_left(watched):
    terminal = io.StringIO()
    watched(terminal).play(np.arange(-40, 200) / 20)
    # The mean of the first ten returns is -1.775, that of the last 100 is 7.475. It rises by 0.05 a second.
    last = terminal.getvalue().rpartition("\r")[2]
    pattern = r" 47%\|.+\| mean of 100: 7\.47, goal 18, 2,000 steps/s, \d+:\d\d:\d\d, ~0:04:00 left *"
    assert re.fullmatch(pattern, last), last


def test_a_file_has_the_books_line_for_slow_episodes_and_at_most_a_kilobyte_a_minute_for_short_ones(watched):
    slow = watched().play([-21.0] * 30, every=20.0).lines
    lines = [line for line in slow if line.startswith("Episode ")]
    assert len(lines) == 30
    assert re.fullmatch(r"Episode 1: reward=-21, steps=10, speed=2000\.0 f/s, elapsed=\d+:\d\d:\d\d", lines[0])
    assert re.fullmatch(r"Step 20, mean of 2: -21\.00, goal 18, 2,000 steps/s, .*\.", slow[2])
    short = watched().play([-21.0] * 12_000, every=0.05).lines
    assert 60 < len(short) < 90
    assert len("\n".join(short)) <= 10 * 1024


def test_the_time_left_is_extrapolated_only_along_a_trend():
    def seconds(returns, missing):
        return seconds_to_rise([Episode(total, 10, 0, 2.0 * n) for n, total in enumerate(returns)], missing)

    noise = np.random.default_rng(1).normal(size=100)
    assert seconds(np.arange(100) / 4 + noise, 10.0) == pytest.approx(80.0, rel=0.1)
    for returns, missing in ((np.arange(100) / 4, 1000.0), (noise, 10.0), ([5.0] * 100, 10.0), (np.arange(19.0), 10.0)):
        assert seconds(returns, missing) == math.inf


@pytest.mark.slow
def test_the_printed_commands_work(answer, tmp_path):
    options = ("--env-id", "fakes:Numbers-v0", *SMALL_PPO, "--stop-after", 320, "--runs-dir", tmp_path / "l\xe4ufe 1")
    output = answer(Path("distributed/01_ppo.py"), *options)
    commands = [line.partition("  # ")[0] for line in output.splitlines() if "  # " in line]
    assert len(commands) == 3
    play, report, go_on = commands
    for command in (f"{play} --record", report, f"{go_on} --stop-after 640"):
        _, script, *words = shlex.split(command)
        answer(Path(script), *words)


def test_a_run_goes_on_with_what_it_does_not_record_unless_it_is_complete_or_has_diverged(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "lib")
    monkeypatch.setattr(sys, "argv", ["03_ppo_actors.py"])
    path = make_run(tmp_path / "run")
    knobs = {"engine": "ray", "address": "10.0.0.1:6379"}

    def commands(owns_process=True, steps=300, stopped=STEPS, saved=True):
        options = RunOptions(knobs=knobs, owns_process=owns_process, record_every=5, stop_after=400)
        params = SimpleNamespace(env_name="fakes:Catch-v0", max_steps=1000)
        episodes = SimpleNamespace(count=1, steps=steps, solved=None)
        caplog.clear()
        log_next_steps(path, params, options, episodes, stopped, saved)
        return {purpose: command for command, _, purpose in (line.partition("  # ") for line in caplog.messages)}

    given = "--record-every 5 --address 10.0.0.1:6379"
    words = commands()["continue the run"].partition("--env-id fakes:Catch-v0 ")[2]
    assert words == f"{given} --stop-after 400"
    assert commands(steps=400)["continue the run"].endswith(given)
    usual = ["watch it play", "create a report"]
    assert list(commands(owns_process=False)) == list(commands(stopped=NOT_FINITE)) == usual
    assert list(commands(steps=1000)) == [*usual, "play 100 episodes"]
    assert list(commands(saved=False)) == ["create a report"]
    monkeypatch.setattr(console, "DEFAULT_RUNS_DIR", tmp_path)
    assert "--resume last " in commands()["continue the run"]
    make_run(tmp_path / "newer")
    assert f"--resume {console.shown(path)} " in commands()["continue the run"]
