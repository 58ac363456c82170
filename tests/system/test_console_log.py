import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lib.system.console_log import FaultTolerantStream, quoted
from running import BASELINE, ENVIRONMENT, PROJECT, SMALL_DQN, folder, result_of, start_program


def test_after_the_reader_of_a_pipe_is_gone_everything_is_discarded():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        stream = FaultTolerantStream(pipe)
        for _ in range(2):
            assert stream.write("a line\n") == 7
            stream.flush()
        assert os.readlink(f"/proc/self/fd/{writing}") == os.devnull


def test_a_closed_stream_is_left_alone():
    closed = io.StringIO()
    closed.close()
    stream = FaultTolerantStream(closed)
    stream.write("a line\n")
    stream.flush()
    stream.write("another\n")


def test_characters_that_the_encoding_lacks_become_escapes():
    buffer = io.BytesIO()
    stream = FaultTolerantStream(io.TextIOWrapper(buffer, "ascii"))
    stream.write("runs/Übung\n")
    stream.flush()
    assert buffer.getvalue() == rb"runs/\xdcbung" + b"\n"


RUN = (sys.executable, PROJECT / BASELINE, "--env-id", "fakes:Chain-v0", *SMALL_DQN, "--stop-after", "250")


@pytest.mark.slow
@pytest.mark.parametrize(
    "console",
    [
        pytest.param(">&- 2>&- <&-", marks=pytest.mark.long),
        pytest.param(">/dev/full 2>/dev/full", marks=pytest.mark.long),
    ],
)
def test_a_run_ends_with_its_result_whatever_becomes_of_the_console(tmp_path, console):
    words = " ".join(map(str, (*RUN, "--runs-dir", tmp_path)))
    command = f"({words}; echo code $? >{tmp_path}.code) {console}"
    subprocess.run(["bash", "-c", command], env=ENVIRONMENT, timeout=120, check=False, capture_output=True)
    assert Path(f"{tmp_path}.code").read_text() == "code 0\n"
    assert result_of(folder(tmp_path))["stopped"] == "step limit"


WITH_CONSOLE = """
import os, runpy, subprocess, sys
{console}
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
INTO_HEAD = """
head = subprocess.Popen(["head", "-1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
for stream in (1, 2):
    os.dup2(head.stdin.fileno(), stream)
head.stdin.close()
"""


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_any_longer_ends_with_its_result(tmp_path):
    program = WITH_CONSOLE.format(console=INTO_HEAD)
    process = start_program(program, tmp_path, *RUN[1:], "--runs-dir", tmp_path / "runs")
    process.communicate()
    assert process.returncode == 0
    assert result_of(folder(tmp_path / "runs"))["stopped"] == "step limit"


@pytest.mark.slow
def test_a_folder_whose_name_the_console_cannot_show(tmp_path):
    runs_dir = tmp_path / "Übung"
    program = WITH_CONSOLE.format(console='sys.stdout.reconfigure(encoding="ascii", errors="strict")')
    process = start_program(program, tmp_path, *RUN[1:], "--quiet", "--runs-dir", runs_dir)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert re.search(r"Run folder: .*\\xdcbung", output)
    assert result_of(folder(runs_dir))["stopped"] == "step limit"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("word", ["--resume", "two words", "l\xe4ufe 1", "\u6e38's \\x41 $HOME", "a\nb"])
def test_a_shell_reads_a_printed_word_whatever_the_console_can_show(monkeypatch, encoding, word):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    printed = quoted(word).encode(encoding).decode(encoding)
    shell = subprocess.run(["bash", "-c", f"printf %s {printed}"], capture_output=True, check=True)
    assert shell.stdout.decode() == word
