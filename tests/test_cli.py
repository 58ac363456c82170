import errno
import os

import pytest

from lib import cli


def test_an_error_of_the_system_prints_one_line_that_says_what_is_kept(capsys):
    with pytest.raises(SystemExit) as end, cli.exit_codes():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b")
    assert end.value.code == 1
    message = "error: No space left on device: a/b. Files that were saved before are kept. To go on, make room; "
    assert capsys.readouterr().err.startswith(message)
