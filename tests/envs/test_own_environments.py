"""User-defined environments in every script, and modules that cannot be imported."""

import pytest

from running import PROJECT, assignments, folder

SCRIPTS = sorted(
    path.relative_to(PROJECT) for name in ("chapter0*", "distributed") for path in PROJECT.glob(f"{name}/[0-9]*.py")
)
SHORT = ("--seed", 1, "--quiet", "--stop-after")
DQN = assignments("replay_initial=60", "replay_size=400", "batch_size=4")
PPO = assignments("envs=4", "rollout=8", "minibatch=16")


# One for each way of choosing actions. `make test-long` runs the others.
SOME = ("08_dqn_rainbow", "01_baseline", "03_parallel", "07_pong_in_minutes", "01_ppo", "02_ppo_fast", "03_ppo_actors")


def short_run(script, env_id):
    is_ppo = script.parent.name == "distributed"
    small = (*PPO, *SHORT, 96) if is_ppo else (*DQN, *SHORT, 108)
    extra = {"03_parallel": ("--replay-ratio", 4), "07_pong_in_minutes": ("--envs", 6)}.get(script.stem, ())
    return "--env-id", env_id, *small, *extra


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "env_id"),
    [
        pytest.param(script, "Board-method-v0", marks=[] if script.stem in SOME else pytest.mark.long)
        for script in SCRIPTS
    ]
    + [(script, "Codes-info-v0") for script in SCRIPTS[-4::2]],
)
def test_every_script_runs_on_own_environments_and_never_takes_an_invalid_action(script, env_id, answer, tmp_path):
    """fakes.Shape raises an error if an action is not allowed."""
    answer(script, *short_run(script, f"fakes:{env_id}"), "--runs-dir", tmp_path, code=0)
    episodes = (folder(tmp_path) / "episodes.csv").read_text().splitlines()
    assert len(episodes) > 10
    answer(
        PROJECT / "tools/evaluate.py",
        folder(tmp_path),
        "--env-id",
        f"fakes:{env_id}",
        "--episodes",
        2,
        "--epsilon",
        0.5,
    )


def test_a_module_that_is_missing_is_refused(refused, tmp_path, monkeypatch):
    script = SCRIPTS[0]
    monkeypatch.chdir(tmp_path)
    message = refused(script, "--env-id", "no_such_module:Chain-v0", "--runs-dir", tmp_path / "runs")
    reason = "No module named 'no_such_module'. It has to be installed"
    assert f"the module 'no_such_module' of 'no_such_module:Chain-v0' fails to import: {reason}" in message
