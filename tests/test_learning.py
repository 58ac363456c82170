"""Training on Pong for more than an hour. Runs only with `pytest -m learning`."""

import csv
import subprocess
import sys

import pytest

from running import PROJECT


@pytest.mark.learning
def test_the_mean_return_of_the_baseline_rises_on_pong(tmp_path):
    script = PROJECT / "chapter09" / "01_baseline.py"
    options = ["--seed", "2", "--stop-after", "250000", "--runs-dir", str(tmp_path)]
    subprocess.run([sys.executable, script, *options], check=True)
    [episodes] = tmp_path.glob("*/episodes.csv")
    with episodes.open(newline="") as file:
        returns = [float(row["return"]) for row in csv.DictReader(file)]
    means = [sum(returns[end - 100 : end]) / 100 for end in (len(returns) - 50, len(returns))]
    assert means[1] > max(-19.0, means[0])
