"""tools/doctor.py: findings on a healthy machine, and on machines with one problem."""

import re
from importlib import metadata
from pathlib import Path

DOCTOR = Path("tools/doctor.py")


def test_a_healthy_machine_is_suitable(answer):
    output = answer(DOCTOR)
    assert re.search(r"^ok       PongNoFrameskip-v4 runs$", output, re.M)
    assert re.search(r"^ok       torch \d", output, re.M)
    assert re.search(r"^ok       \d+\.\d GB of memory free$", output, re.M)
    assert "problem" not in output


def test_a_problem_is_reported_with_its_remedy(ends, monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.4.0" if name == "pytorch-ignite" else version(name))
    code, output, _ = ends(DOCTOR)
    assert code == 1
    assert re.search(r"^problem  pytorch-ignite 0\.4\.0, and >=0\.5\.5\S* is needed: make clean", output, re.M)
    assert output.endswith(": 1\n")  # the number of problems
