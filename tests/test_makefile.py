"""Targets of the Makefile, without an installation."""

import subprocess
import sys
from pathlib import Path

import pytest

from running import ENVIRONMENT, PROJECT

# With this Python's packages in place of .venv, so that nothing is installed.
MAKE = ("make", "--silent", "--assume-old=.venv/.ready", f"BIN={Path(sys.executable).parent}")


def make(*words, cwd=PROJECT):
    return subprocess.run((*MAKE, *words), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_make_train_says_where_tensorboard_listens(tmp_path):
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh
case "$*" in
  *tensorboard.main*) echo "TensorBoard 2.21.0 at http://127.0.0.1:6007/ (Press CTRL+C to quit)" >&2; exec sleep 60 ;;
  *) echo "usage: $*"; sleep 3 ;;
esac
""")
    python.chmod(0o755)
    process = make("train", "ARGS=--help", f"BIN={tmp_path}")
    assert "Starting; importing PyTorch takes some seconds ...\n" in process.stdout
    assert "\nusage: distributed/03_ppo_actors.py --help\n" in process.stdout
    assert "\nTensorBoard: http://127.0.0.1:6007/\n" in process.stdout


def copy_makefile(target):
    for name in ("Makefile", "requirements.lock", "setup.cfg", "pyproject.toml"):
        (target / name).write_text((PROJECT / name).read_text())


@pytest.mark.parametrize("python", ["#!/bin/sh\necho '(3, 9)'", "#!/nowhere/python"])
def test_an_environment_of_another_python_is_not_installed_into(tmp_path, python):
    copy_makefile(tmp_path)
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(python)
    own.chmod(0o755)
    words = ("make", "install", f"PYTHON={sys.executable}")
    process = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    assert ".venv has another Python than" in process.stderr
    assert "run make clean first" in process.stderr
    assert "-m venv" not in process.stdout


def test_make_play_shows_the_last_run_or_else_the_published_model(tmp_path):
    copy_makefile(tmp_path)
    assert 'tools/play.py "models/pong"' in make("--dry-run", "play", cwd=tmp_path).stdout
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "runs/first/params.json").touch()
    assert 'tools/play.py "last"' in make("--dry-run", "play", cwd=tmp_path).stdout
