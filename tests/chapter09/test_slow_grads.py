"""00_slow_grads records graphs that 01_baseline does not."""

import runpy

import pytest
import torch

from lib import cli, common, dqn_model
from lib.run.arguments import resolve
from running import PROJECT


class _Enough(Exception):
    pass


@pytest.mark.parametrize(("script", "recorded"), [("01_baseline", False), ("00_slow_grads", True)])
def test_only_00_slow_grads_records_a_graph_while_acting(monkeypatch, tmp_path, script, recorded):
    module = runpy.run_path(str(PROJECT / "chapter09" / f"{script}.py"))
    options = ["--env-id", "fakes:Chain-v0", "--set", "replay_initial=40", "--runs-dir", str(tmp_path), "--quiet"]
    params, args = resolve(cli.parser(""), options, script)
    forward, acting = dqn_model.DQN.forward, []

    def watched(net, states):
        values = forward(net, states)
        acting.append(values.requires_grad)
        if len(acting) == 10:
            raise _Enough
        return values

    monkeypatch.setattr(dqn_model.DQN, "forward", watched)
    monkeypatch.setattr(common, "setup_ignite", lambda *args, **options: None)
    with pytest.raises(_Enough):
        module["train"](params, args)
    assert acting == [recorded] * 10
    assert torch.is_grad_enabled()
