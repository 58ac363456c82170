"""The commands that a run prints at its end."""

import io
import subprocess
import sys

import pytest

from lib.run.next_steps import quoted


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("word", ["--resume", "two words", "l\xe4ufe 1", "\u6e38's \\x41 $HOME", "a\nb"])
def test_a_shell_reads_a_printed_word_whatever_the_console_can_show(monkeypatch, encoding, word):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    printed = quoted(word).encode(encoding).decode(encoding)
    shell = subprocess.run(["bash", "-c", f"printf %s {printed}"], capture_output=True, check=True)
    assert shell.stdout.decode() == word
