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
