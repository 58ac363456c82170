"""Fixtures for the tests of benchmarks/."""

import pytest

import lab


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Folder in place of benchmarks/results."""
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    return tmp_path
