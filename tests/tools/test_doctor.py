"""tools/doctor.py: findings on a healthy machine, and on machines with one problem."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from lib.errors import UsageError

DOCTOR = Path("tools/doctor.py")


def test_a_healthy_machine_is_suitable(answer):
    output = answer(DOCTOR)
    assert re.search(r"^ok       PongNoFrameskip-v4 runs$", output, re.M)
    assert re.search(r"^ok       torch \d", output, re.M)
    assert re.search(r"^ok       \d+\.\d GB of memory free$", output, re.M)
    assert "problem" not in output


def without_ptan(monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version("nowhere" if name == "ptan" else name))


def with_old_ignite(monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.4.0" if name == "pytorch-ignite" else version(name))


def without_roms(monkeypatch):
    def refuse(env_id):
        raise UsageError("no ROM")

    monkeypatch.setattr("lib.envs.single_env.make_env", refuse)


@pytest.mark.parametrize(
    ("make_sick", "finding"),
    [
        (without_ptan, r"problem  ptan is not installed: make clean"),
        (with_old_ignite, r"problem  pytorch-ignite 0\.4\.0, and >=0\.5\.5\S* is needed: make clean"),
        (without_roms, r"problem  PongNoFrameskip-v4 .*: no ROM; pip install"),
    ],
)
def test_a_problem_is_reported_with_its_remedy(ends, monkeypatch, make_sick, finding):
    make_sick(monkeypatch)
    code, output, _ = ends(DOCTOR)
    assert code == 1
    assert re.search(f"^{finding}", output, re.M), output
    assert output.endswith(": 1\n")  # the number of problems
