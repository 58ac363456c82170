"""JSON files of a run folder."""

import hashlib
import json
import os
import re

import pytest

from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import run_folder, run_json
from lib.run.options import RunOptions


def test_control_characters_are_written_as_escapes(tmp_path):
    run_json.write_json(tmp_path / "result.json", {"a": ["\x1b[31m", r"\u001b"]})
    assert run_json.read_json(tmp_path / "result.json", {}) == {"a": [r"\x1b[31m", r"\u001b"]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [('{"a": "\\u001b[31m"}', "control characters"), ('{"a": 1}' + 2000 * " ", "it is larger than")],
)
def test_a_json_file_that_is_too_large_or_acts_on_a_terminal_is_refused(tmp_path, monkeypatch, content, problem):
    monkeypatch.setattr(run_json, "LARGEST_JSON", 1000)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UsageError, match=problem):
        run_json.read_json(tmp_path / "result.json", {})


@pytest.mark.parametrize(
    ("content", "reason"),
    [({"a": 10**400}, "10000000000000000000... is too large"), ({"a": ["\ud800"]}, "surrogates not allowed")],
)
def test_numbers_and_texts_that_nothing_can_use_are_refused(tmp_path, content, reason):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(content | {"sha256": hashlib.sha256(json.dumps(content).encode()).hexdigest()}))
    with pytest.raises(UsageError, match=re.escape(f"{file} cannot be read: ") + f".*{re.escape(reason)}"):
        run_json.read_json(file, {})


def test_bytes_that_are_not_utf_8_are_written_as_a_question_mark(tmp_path):
    run_json.write_json(tmp_path / "params.json", {"argv": [os.fsdecode(b"--init=\xff")]})
    assert run_json.read_json(tmp_path / "params.json", {}) == {"argv": ["--init=?"]}


def test_a_run_of_a_newer_version_is_refused_by_its_format_before_its_content(tmp_path):
    run = run_folder.Run("01_baseline", HYPERPARAMS["pong"], RunOptions(runs_dir=tmp_path))
    params = run_json.read_params(run.path)
    assert params["format"] == run_json.FORMAT
    params["hyperparameters"] = []
    for unknown in (run_json.FORMAT + 1, "2027-01", None):
        run_json.write_json(run.path / "params.json", params | {"format": unknown})
        message = f"params.json was written by a newer version of this project: its format is {unknown!r}"
        with pytest.raises(UsageError, match=message):
            run_json.read_params(run.path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    run = run_folder.Run("01_baseline", HYPERPARAMS["pong"], RunOptions(runs_dir=tmp_path))
    run.write_json("result.json", {"a": 1})
    with pytest.raises(TypeError):
        run.write_json("result.json", {("no", "key"): 1})  # type: ignore[dict-item]
    assert run_json.read_json(run.path / "result.json", {}) == {"a": 1}
    assert not [path for path in os.listdir(run.path) if path.endswith(".tmp")]
