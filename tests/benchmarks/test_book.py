"""The book's scripts on its own lib and on this project's."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import book
from running import run

SCRIPT = """
import sys
import gymnasium
from ignite.contrib.handlers import tensorboard_logger
from ignite.engine import Engine
from lib import common

assert gymnasium.spec("PongNoFrameskip-v4")
assert sys.argv[1:] == ["--own"]
assert not hasattr(common, "BOOK")
Engine(lambda engine, batch: None).run(range(400))
"""


@pytest.mark.slow
def test_a_script_is_timed_with_either_lib(monkeypatch, tmp_path):
    def forked(words, cwd, **_):
        return run(Path(words[1]), *words[2:], cwd=Path(cwd))

    monkeypatch.setattr(book, "subprocess", SimpleNamespace(run=forked))
    (tmp_path / "Chapter08" / "lib").mkdir(parents=True)
    (tmp_path / "Chapter08" / "lib" / "__init__.py").touch()
    (tmp_path / "Chapter08" / "lib" / "common.py").write_text("BOOK = True")
    (tmp_path / "Chapter08" / "script.py").write_text(SCRIPT)
    assert book.timed(tmp_path, "Chapter08/script.py --own", book.OWN) > 0
    with pytest.raises(SystemExit, match=r"script.py --own failed with the lib of the book:\n(.|\n)*BOOK"):
        book.timed(tmp_path, "Chapter08/script.py --own", book.BOOK)


def test_a_folder_without_the_books_scripts_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"has no Chapter08/01_dqn_basic\.py; give the folder of a git clone of https"):
        book.measure(tmp_path, 1, go_on=False)


def test_the_ratio_is_ours_to_the_books_round_by_round():
    rows = [
        (number, lib, speed) for number in (0, 1) for lib, speed in (("the book", 10), ("this project", 10 + number))
    ]
    frame = pd.DataFrame(rows, columns=["round", "lib", "updates_per_second"]).assign(script="a.py --envs 3")
    assert book.table(frame).endswith(
        "| `a.py --envs 3` | 10.0 (10.0 to 10.0) | 10.5 (10.0 to 11.0) | 1.05 (1.00 to 1.10) |"
    )
