import re
import shutil
import subprocess

import pytest

from lib.run import provenance
from lib.system import files


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_marked_if_the_code_differs_from_it_but_not_if_documents_or_results_do(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(files, "PROJECT", tmp_path)
    git("init")
    others = ("README.md", "docs/page.md", "models/pong/card.md", "benchmarks/results/figures.csv")
    for name in ("lib/run/code.py", *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert provenance.commit() == head
    (tmp_path / "docs" / "page.md").write_text("new")
    (tmp_path / "README.md").write_text("new")
    (tmp_path / "models" / "pong" / "card.md").write_text("new")
    (tmp_path / "benchmarks" / "results" / "figures.csv").unlink()
    assert provenance.commit() == head
    (tmp_path / "mine.py").write_text("a reader's own script")
    assert provenance.commit() == head
    (tmp_path / "lib" / ".#code.py").symlink_to("me@machine")  # by Emacs, for a file with unsaved changes
    assert provenance.commit() == head
    (tmp_path / "lib" / "run" / "code.py").write_text("new")
    first = provenance.commit()
    assert re.fullmatch(rf"{head}\+[0-9a-f]{{8}}", first)
    (tmp_path / "lib" / "run" / "other.py").write_text("old")
    second = provenance.commit()
    (tmp_path / "lib" / "run" / "other.py").write_text("new")
    assert len({first, second, provenance.commit()}) == 3  # each state of the code has its own mark
    monkeypatch.setattr(files, "PROJECT", tmp_path / "lib")
    assert provenance.commit() is None  # the commit is that of a repository around it
