"""Fixtures for the tests of benchmarks/."""

import pytest

import results
from results import Job, Place


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Empty folder in place of benchmarks/results; the fixture is a function that adds a measurement."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    stamp = {"processor": "AMD EPYC", "cores": 2, "device": "cpu", "torch_threads": 2}
    monkeypatch.setitem(results.HERE, "m", {"machine": stamp, "versions": {"torch": "2.13.0+cpu", "ale-py": "0.12.1"}})

    def add(experiment, variant, seed=1, settings="s", commit="one", curves=None, **figures):
        results.add(Job(experiment, variant, seed, settings, Place(commit, "m")), figures, curves)

    return add
