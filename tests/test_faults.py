"""Run folders of somebody else, whose modules are not imported unless the user names them."""

import sys

import pytest

from finished_runs import edit_params
from running import PROJECT

EVALUATE, PLAY = (PROJECT / f"tools/{name}.py" for name in ("evaluate", "play"))
PPO = PROJECT / "distributed/01_ppo.py"
EVIL = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"


@pytest.fixture
def evil_run(trained_run, monkeypatch):
    """Run whose params.json names the module evil, which lies in the run folder. It is the current folder."""
    (trained_run / "evil.py").write_text(EVIL)
    edit_params(trained_run, lambda params: params["hyperparameters"].update(env_name="evil:Nothing-v0"))
    monkeypatch.chdir(trained_run)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return trained_run


@pytest.mark.parametrize(("script", "options"), [(EVALUATE, ()), (PLAY, ("--record",)), (PPO, ("--resume",))])
def test_a_module_that_only_the_run_names_is_not_imported(refused, evil_run, script, options):
    assert "importing evil runs its code. If you trust it, add --env-id evil:Nothing-v0" in refused(
        script, *options, evil_run
    )
    assert "plays evil:Nothing-v0, not fakes:Chain-v0" in refused(
        script, *options, evil_run, "--env-id", "fakes:Chain-v0"
    )
    assert not (evil_run / "imported").exists()


def test_a_module_that_the_user_names_is_imported(refused, evil_run):
    assert "cannot make the environment" in refused(EVALUATE, evil_run, "--env-id", "evil:Nothing-v0")
    assert (evil_run / "imported").exists()


def test_the_current_folder_comes_after_what_is_installed(refused, evil_run, monkeypatch):
    monkeypatch.delitem(sys.modules, "mailbox", raising=False)  # a module of Python that nothing here imports
    (evil_run / "evil.py").rename(evil_run / "mailbox.py")
    refused(PPO, "--env-id", "mailbox:Nothing-v0", "--runs-dir", evil_run / "runs")
    assert "mailbox" in sys.modules
    assert not (evil_run / "imported").exists()
