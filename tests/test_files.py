import os

import pytest

from lib.system import files


def test_a_file_is_written_as_a_whole_in_the_place_of_the_one_before(tmp_path):
    path = tmp_path / "result.json"
    for text in ("one", "zwölf\n"):
        files.write(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_if_the_disk_refuses_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    files.write(path, "one")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, "two")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
