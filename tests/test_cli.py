import contextlib
import errno
import os

import pytest

from lib import cli


def test_a_script_that_returns_no_state_is_told_what_to_return(monkeypatch):
    monkeypatch.setattr("sys.argv", ["own.py"])
    monkeypatch.setattr(cli, "exit_codes", contextlib.nullcontext)
    monkeypatch.setattr(cli, "prepare", lambda seed: None)
    with pytest.raises(TypeError, match=r"train returned None; its last line has to be: return engine\.run"):
        cli.main(lambda params, args: None, cli.parser("Summary."), "own")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            "No space left on device: a/b. Files that were saved before are kept. To go on, make room; then",
        ),
        (errno.EIO, "Input/output error: a/b. Files that were saved before are kept"),
        (errno.ENOENT, "No such file or directory: a/b. If it or its folder was deleted or moved, put it back"),
    ],
)
def test_an_error_of_the_system_prints_one_line_that_says_what_is_kept(capsys, number, message):
    with pytest.raises(SystemExit) as end, cli.exit_codes():
        raise OSError(number, os.strerror(number), "a/b")
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")
