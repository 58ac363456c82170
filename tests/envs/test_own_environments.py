"""User-defined environments with action masks in every script."""

import pytest

from running import DQNS, PPOS, PROJECT, assignments, folder

SHORT = ("--seed", 1, "--quiet", "--stop-after")
DQN = assignments("replay_initial=60", "replay_size=400", "batch_size=4")
PPO = assignments("envs=4", "rollout=8", "minibatch=16")


# One for each way of choosing actions. `make test-long` runs the others.
SOME = ("08_dqn_rainbow", "01_baseline", "03_parallel", "03_ppo_actors")


def short_options(script):
    is_ppo = script.parent.name == "distributed"
    small = (*PPO, *SHORT, 96) if is_ppo else (*DQN, *SHORT, 108)
    extra = {"03_parallel": ("--replay-ratio", 4), "07_pong_in_minutes": ("--envs", 6)}.get(script.stem, ())
    return *small, *extra


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=[] if script.stem in SOME else pytest.mark.long) for script in DQNS + PPOS],
)
def test_every_script_runs_on_own_environments_and_never_takes_an_invalid_action(script, answer, tmp_path):
    """fakes.Shape raises an error if an action is not allowed."""
    environment = ("--env-id", f"fakes:{'Codes-info' if script.stem == '03_ppo_actors' else 'Board-method'}-v0")
    answer(script, *environment, *short_options(script), "--runs-dir", tmp_path)
    assert len((folder(tmp_path) / "episodes.csv").read_text().splitlines()) > 10
    answer(PROJECT / "tools/evaluate.py", folder(tmp_path), *environment, "--episodes", 2, "--epsilon", 0.5)
