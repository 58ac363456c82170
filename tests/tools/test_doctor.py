"""tools/doctor.py: findings on a healthy machine, and on machines with one problem."""

import importlib.util
import os
import re
import runpy
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.errors import UsageError
from running import BASELINE, ENVIRONMENT, PROJECT, full_disk, run_by_itself

DOCTOR = Path("tools/doctor.py")


@pytest.fixture
def examine(monkeypatch, capsys, tmp_path):
    """Run the doctor with options where memory and disk are large; return its exit code and its output."""
    monkeypatch.setattr("lib.system.memory.free", lambda: 10**12)
    monkeypatch.setattr("psutil.disk_usage", lambda path: SimpleNamespace(free=10**12))

    def run(*options):
        spec = importlib.util.spec_from_file_location("doctor", PROJECT / DOCTOR)
        doctor = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(doctor)
        doctor.SECONDS, doctor.DISK_TEST_MEGABYTES = 0.2, 4  # type: ignore[attr-defined]
        monkeypatch.setattr(sys, "argv", ["doctor.py", "--runs-dir", str(tmp_path), *options])
        return doctor.main(), capsys.readouterr().out

    return run


@pytest.mark.slow
def test_a_healthy_machine_is_fit(examine, tmp_path):
    code, output = examine()
    assert code == 0, output
    assert re.search(r"^ok       PongNoFrameskip-v4 ", output, re.M)
    assert re.search(r"^(ok|note)  +disk: \d+ MB/s", output, re.M)
    assert re.search(r"^ok       emulator: [\d,]+ agent steps/s", output, re.M)
    assert re.search(r"^ok       learner: \d+ updates/s", output, re.M)
    assert "problem" not in output
    assert list(tmp_path.iterdir()) == []


def no_rom(env_id):
    raise UsageError("no ROM")


def without_ptan(monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version("nowhere" if name == "ptan" else name))


def with_old_ignite(monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.4.0" if name == "pytorch-ignite" else version(name))


def without_roms(monkeypatch):
    monkeypatch.setattr("lib.envs.single_env.make_env", no_rom)


def with_little_memory(monkeypatch):
    monkeypatch.setattr("lib.system.memory.free", lambda: 10**9)


@pytest.mark.parametrize(
    ("make_sick", "finding"),
    [
        (without_ptan, r"problem  ptan is not installed\n +-> make clean"),
        (with_old_ignite, r"problem  pytorch-ignite 0\.4\.0\n +-> version >=0\.5\.5"),
        (without_roms, r"problem  PongNoFrameskip-v4 .*: no ROM\n +-> .*pip install"),
        (with_little_memory, r"problem  memory: 1\.0 GB free, 1\.5 GB for pong.*\n +-> use --set replay_size=5\d{4}"),
    ],
)
def test_a_problem_is_reported_with_its_remedy(examine, monkeypatch, make_sick, finding):
    make_sick(monkeypatch)
    code, output = examine("--quick")
    assert code == 1
    assert re.search(f"^{finding}", output, re.M), output
    assert output.endswith(": 1\n")  # the number of problems


def test_the_advice_for_a_small_memory_is_accepted_by_the_scripts(examine, monkeypatch, refused):
    monkeypatch.setattr("lib.system.memory.free", lambda: 5 * 10**8)
    _, output = examine("--quick", "--game", "breakout")
    words = re.search(r"-> use (--set replay_size=\d+ --set replay_initial=\d+)\n", output)[1].split()
    assert "replay_initial" not in refused(BASELINE, "--game", "breakout", *words, "--stop-after", 0)


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        (["--device", "cuda:77"], "problem  cuda:77 asks for a GPU"),
        (["--runs-dir", "/dev/null"], "problem  /dev/null cannot be written: File exists"),
        (["--runs-dir", "/proc/self"], "problem  /proc/self cannot be written: No such file or directory"),
    ],
)
def test_an_option_that_does_not_fit_the_machine_is_a_problem(examine, options, finding):
    code, output = examine("--quick", *options)
    assert code == 1
    assert finding in output
    assert output.endswith(": 1\n")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["ale_py", pytest.param("ptan", marks=pytest.mark.long)])
def test_a_package_that_cannot_be_imported_is_reported(tmp_path, package):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module named {package}')")
    paths = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    process = run_by_itself(DOCTOR, "--quick", env=ENVIRONMENT | {"PYTHONPATH": paths})
    assert (process.returncode, process.stderr) == (1, "")
    assert re.search(rf"^problem .*No module named {package}\n +-> make clean", process.stdout, re.M)


def test_a_full_disk_is_a_problem(tmp_path):
    measure_disk = runpy.run_path(str(PROJECT / DOCTOR))["measure_disk"]
    with full_disk(100_000):
        level, text, advice = measure_disk(tmp_path)
    assert level == "problem"
    assert text == f"disk: 64 MB cannot be written to {tmp_path}: File too large"
    assert advice.startswith("allow larger files")
