"""tools/evaluate.py on a short run."""

import json
import re
from pathlib import Path

import pytest

from running import SHOWN, assignments, folder, result_of, trusting

pytestmark = pytest.mark.slow

EVALUATE = Path("tools/evaluate.py")
PPO = Path("distributed/01_ppo.py")


def test_evaluate_prints_a_line_and_writes_all_returns(answer, trained_run):
    output = answer(EVALUATE, trained_run, *SHOWN, "--episodes", 20, "--seed", 3)
    printed = re.search(r"Evaluation: mean return (-?\d\.\d\d), .* 20 episodes", output)
    metrics = json.loads((trained_run / "evaluation.json").read_text())
    assert float(printed[1]) == pytest.approx(metrics["mean"], abs=0.005)
    assert metrics["mean"] == pytest.approx(sum(metrics["returns"]) / 20)
    assert (metrics["episodes"], len(metrics["returns"]), set(metrics["lengths"])) == (20, 20, {6})
    [best] = (trained_run / "checkpoints").glob("best-*.pt")
    assert (metrics["checkpoint"], metrics["step"]) == (best.name, int(best.stem.removeprefix("best-")))
    (trained_run / "episodes.csv").unlink()  # as in a published model, whose evaluation is not overwritten
    (trained_run / "evaluation.json").write_text("{}")
    answer(EVALUATE, trained_run, *SHOWN, "--episodes", 1)
    assert (trained_run / "evaluation.json").read_text() == "{}"


def test_greedy_play_that_is_below_training_is_reported_and_sampled_play_is_not_stuck(answer, tmp_path):
    small = assignments("envs=4", "rollout=64", "minibatch=256", "epochs=1", "stop_reward=7")
    output = answer(PPO, "--env-id", "fakes:Alternating-v0", *small, "--quiet", "--runs-dir", tmp_path)
    path = folder(tmp_path)
    below = r"Greedy play is clearly below training: mean return 0\.00 instead of \S+ Try \S+ \S*tools/evaluate\.py "
    advice = rf"{below}\S*{path.name} .*--checkpoint last --sample$"
    assert re.search(advice, output, re.MULTILINE)
    assert result_of(path)["evaluation"]["below_training"]
    options = (path, *trusting(path), "--episodes", 20)
    assert re.search(advice, answer(EVALUATE, *options, "--checkpoint", "last"), re.MULTILINE)
    output = answer(EVALUATE, *options, "--sample", "--output", tmp_path / "sampled.json")
    assert "clearly below" not in output
    assert 7 < json.loads((tmp_path / "sampled.json").read_text())["mean"] < 12


def test_a_game_that_allows_one_instance_is_evaluated_in_it(answer, refused, tmp_path):
    small = ("--env-id", "fakes:Alone-v0", *assignments("envs=1", "rollout=32", "minibatch=32", "max_steps=64"))
    start = (PPO, *small, "--quiet", "--runs-dir", tmp_path)
    assert "evaluation cannot make an environment of its own" in refused(*start, "--evaluate-every", 32)
    answer(*start)
    path = folder(tmp_path)
    assert result_of(path)["evaluation"]["episodes"] == 20
    assert "over 3 episodes" in answer(EVALUATE, path, *trusting(path), "--episodes", 3)
