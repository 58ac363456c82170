"""The programs of docs/pieces.md run as they are printed, except that they make few updates."""

import re

import pytest
import torch

from running import PROJECT

PROGRAMS = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "pieces.md").read_text(), re.S)
MOST_LINES = 25  # without blank ones


@pytest.mark.parametrize("program", PROGRAMS, ids=["PPO", "DQN"])
def test_a_program_of_the_page_learns_and_saves_its_network(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sum(bool(line) for line in program.splitlines()) <= MOST_LINES
    short, replaced = re.subn(r"(, updates = .*,) [\d_]+$", r"\1 3", program, flags=re.M)
    assert replaced == 1
    scope = {}
    exec(compile(short, "docs/pieces.md", "exec"), scope)
    assert capsys.readouterr().out
    [file] = tmp_path.iterdir()
    saved = torch.load(file, weights_only=True)
    torch.testing.assert_close(saved, dict(scope["net"].state_dict()))
