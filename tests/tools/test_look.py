"""tools/look.py: what it prints about a game."""

import re
from pathlib import Path

import pytest

LOOK = Path("tools/look.py")


@pytest.fixture
def look(answer):
    """Function (*options) that returns what the tool prints, by the first word of each line."""
    return lambda *options: dict(line.split(maxsplit=1) for line in answer(LOOK, *options).splitlines())


def test_look_prints_spaces_rewards_lengths_and_returns(look):
    seen = look("fakes:Board-v0", "--episodes", 40)
    assert seen["states"] == "board, (1, 9, 8) float32"
    assert seen["actions"].startswith("5: ")
    rewards = dict(part.rstrip("%)").split(" (") for part in seen["rewards"].split(", "))
    assert set(rewards) == {"0", "1"}
    assert 10 < float(rewards["1"]) < 30  # one of five actions earns 1
    assert (seen["length"], seen["legal"]) == ("mean 5 steps, 5 to 5", "100% of the actions, on average")
    mean, error = re.fullmatch(r"mean (\S+) ± (\S+), \d to \d", seen["return"]).groups()
    assert 0.5 < float(mean) < 1.5
    assert 0.05 < float(error) < 0.3
    assert look("fakes:Vector-info-v0", "--episodes", 10)["legal"].startswith("80%")  # an illegal one would raise
    assert look("fakes:Chain-v0", "--env-arg", "length=4", "--episodes", 1)["states"] == "vector, (4,) float32"
    assert re.fullmatch(r"-\S+ to -\S+, quartiles( -\S+){3}", look("Pendulum-v1", "--episodes", 1)["rewards"])


def test_the_return_of_an_episode_that_is_cut_counts_unclipped_rewards(look, monkeypatch):
    monkeypatch.setattr("lib.run.episode_player.MAX_STEPS", 150)
    seen = look("SpaceInvadersNoFrameskip-v4", "--episodes", 1)
    assert seen["cut"].startswith("1 of 1 episodes, at 150 steps")
    share = float(seen["rewards"].split("1 (")[1].split("%")[0]) / 100
    assert float(seen["return"].split()[1].rstrip(",")) >= 5 * 150 * share > 0  # the worst alien is worth 5 points
