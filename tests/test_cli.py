import errno
import os

import pytest

from lib import cli


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "No space left on device: a/b. Files that were saved before are kept. To go on, make room; "),
        (
            errno.ENOENT,
            "No such file or directory: a/b. Files that were saved before are kept. If this file or its folder ",
        ),
    ],
)
def test_an_error_of_the_system_prints_one_line_that_says_what_is_kept(capsys, number, message):
    with pytest.raises(SystemExit) as end, cli.exit_codes():
        raise OSError(number, os.strerror(number), "a/b")
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_train_function_that_returns_nothing_ends_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["01_own.py"])
    with pytest.raises(SystemExit) as end:
        cli.main(lambda params, args: None, cli.parser("Own."), "01_own")
    assert end.value.code == 2
    assert (
        capsys.readouterr().err
        == "error: train of 01_own.py returned nothing; it has to end with `return engine.run(...)`\n"
    )
