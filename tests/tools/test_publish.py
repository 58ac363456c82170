"""tools/publish.py, and --init with the model that it makes."""

import errno
import json
import re
import runpy
from pathlib import Path

import pytest
import torch

from lib.run import checkpoint_reading
from lib.run.folder import read_params, write_json
from running import BASELINE, PROJECT, SHOWN, SMALL_DQN, SMALL_PPO, contents, folder, resuming

pytestmark = pytest.mark.slow

PUBLISH, EVALUATE = Path("tools/publish.py"), Path("tools/evaluate.py")
PPO, ACTORS = (Path("distributed", f"{name}.py") for name in ("01_ppo", "03_ppo_actors"))
PARALLEL = Path("chapter09/03_parallel.py")
VECTORS = ("--env-id", "fakes:Chain-v0")
SMALL = {BASELINE: SMALL_DQN, PARALLEL: SMALL_DQN, PPO: SMALL_PPO}


def first_weights(run, network="net"):
    """Return the weights in the first of a run's checkpoints, without PPO's value head, which follows the returns."""
    net = checkpoint_reading.load(min((run / "checkpoints").glob("step-*.pt")))[network]
    return {name: value for name, value in net.items() if name.endswith("weight") and not name.startswith("value")}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def model(answer, original_run, tmp_path):
    options = (*SHOWN, "--seed", 7, "--episodes", 10)
    answer(PUBLISH, original_run, tmp_path / "models/well shown", *options)
    return tmp_path / "models/well shown"


def test_a_model_holds_the_best_network_and_a_card(answer, model, original_run):
    [published] = (model / "checkpoints").glob("*.pt")
    [best] = (original_run / "checkpoints").glob("best-*.pt")
    weights, expected = checkpoint_reading.load(published)["net"], checkpoint_reading.load(best)["net"]
    assert equal(weights, expected)
    evaluation = json.loads((model / "evaluation.json").read_text())
    assert (evaluation["episodes"], len(evaluation["returns"])) == (10, 10)
    card = (model / "README.md").read_text()
    assert f"**{evaluation['mean']:.2f}**" in card
    assert f"| {int(best.stem.removeprefix('best-')):,} |" in card
    assert "    tools/play.py 'path/to/well shown' --env-id fakes:Shown-v0\n" in card
    assert "--runs-dir" not in card + (model / "params.json").read_text()
    again = model.parent / "again.json"
    assert "    tools/evaluate.py 'path/to/well shown' --env-id fakes:Shown-v0 --seed 7 --episodes 10\n" in card
    answer(EVALUATE, model, *SHOWN, "--episodes", 10, "--seed", 7, "--quiet", "--output", again)
    assert json.loads(again.read_text())["returns"] == evaluation["returns"]


def test_a_card_says_how_many_games_reached_the_limit(answer, original_run, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.run.episode_player.MAX_STEPS", 2)
    answer(PUBLISH, original_run, tmp_path / "model", *SHOWN, "--episodes", 3)
    assert "3 of these games were cut at" in (tmp_path / "model/README.md").read_text()


def test_the_card_of_a_resumed_run_has_no_limit_of_a_session(answer, trained_run, tmp_path):
    params = read_params(trained_run)
    [first] = params["sessions"]
    assert "--stop-after" in first["argv"]
    first["argv"] += ["--cuda", "--set", "gamma=0.9", "--device=cpu", "--device", "cpu"]
    second = first | {"machine": first["machine"] | {"device": "Some GPU"}}
    write_json(trained_run / "params.json", params | {"sessions": [first, second]})
    answer(PUBLISH, trained_run, tmp_path / "model", *SHOWN, "--episodes", 1)
    [trained_by] = [line for line in (tmp_path / "model/README.md").read_text().splitlines() if "trained by" in line]
    assert not [option for option in ("--stop-after", "--cuda", "--device") if option in trained_by]
    assert "--set gamma=0.9`" in trained_by
    assert trained_by.endswith("` in 2 sessions, on CPU and Some GPU |")


def test_only_a_model_is_replaced(answer, refused, model, original_run):
    answer(PUBLISH, original_run, model, *SHOWN, "--episodes", 2)
    assert json.loads((model / "evaluation.json").read_text())["episodes"] == 2
    (model / "thesis.txt").write_text("mine")
    assert f"{model} holds thesis.txt, which would be lost" in refused(PUBLISH, original_run, model, *SHOWN)
    assert (model / "thesis.txt").exists()


def test_the_users_own_checkpoints_and_readme_are_not_replaced(refused, model, original_run, tmp_path):
    (model / "checkpoints/thesis.ckpt").touch()
    message = refused(PUBLISH, original_run, model, *SHOWN)
    assert f"{model} holds checkpoints/thesis.ckpt, which would be lost" in message
    (tmp_path / "share").mkdir()
    (tmp_path / "share/README.md").write_text("mine")
    assert "holds README.md, which would be lost" in refused(PUBLISH, original_run, tmp_path / "share", *SHOWN)


def test_a_model_is_not_published_over_itself(refused, model):
    before = contents(model)
    message = refused(PUBLISH, model, model.parent / "." / model.name, *SHOWN, "--episodes", 1)
    assert "is the folder to publish; give another one" in message
    assert contents(model) == before


def test_a_model_that_cannot_be_written_is_refused_before_it_plays(refused, original_run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert "is not a writable folder" in refused(PUBLISH, original_run, tmp_path / "file" / "model")
    monkeypatch.chdir(tmp_path)
    assert "is or holds the current folder" in refused(PUBLISH, original_run, ".")
    assert "/ is or holds the current folder" in refused(PUBLISH, original_run, "/")


def test_a_model_with_a_link_is_not_replaced(refused, model, original_run, tmp_path):
    (model / "checkpoints").rename(tmp_path / "elsewhere")
    (model / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert "checkpoints is a symbolic link" in refused(PUBLISH, original_run, model, *SHOWN, "--episodes", 1)
    assert list((tmp_path / "elsewhere").glob("*.pt"))


def test_a_model_of_the_newest_checkpoint_has_no_more_than_one_of_the_best(ends, model, trained_run):
    sizes = {}
    for which in ("best", "last"):
        assert ends(PUBLISH, trained_run, model, *SHOWN, "--episodes", 1, "--checkpoint", which)[0] == 0
        [file] = (model / "checkpoints").glob("*.pt")
        sizes[which] = file.stat().st_size
        assert set(checkpoint_reading.load(file)) == {"net", "iteration"}
    assert sizes["last"] == sizes["best"]


@pytest.mark.parametrize("full_at", ["best-000001280.pt", "params.json", "README.md"])
def test_a_full_disk_leaves_the_old_model(ends, model, trained_run, monkeypatch, full_at):
    before = contents(model)
    replace = Path.replace

    def fail(temporary, target):
        if target.name == full_at:
            raise OSError(errno.ENOSPC, "No space left on device", str(temporary))
        replace(temporary, target)

    monkeypatch.setattr(Path, "replace", fail)
    code, _, errors = ends(PUBLISH, trained_run, model, *SHOWN, "--episodes", 1, "--checkpoint", "last")
    assert code == 1
    assert re.search(rf"No space left on device: .*/{full_at}\. .*make room", errors)
    assert contents(model) == before
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.parametrize("script", [BASELINE, pytest.param(PARALLEL, marks=pytest.mark.long), PPO], ids=str)
def test_a_run_starts_with_the_weights_of_another(ends, tmp_path, script):
    # The learning rate is too small to change a weight, so the first checkpoint has the first weights.
    options = (*VECTORS, *SMALL[script], "--set", "learning_rate=1e-30", "--stop-after", 256, "--quiet")
    assert ends(script, *options, "--runs-dir", tmp_path / "a", "--seed", 1)[0] == 0
    first = folder(tmp_path / "a")
    for name, seed, extra in (("b", 2, ()), ("c", 2, ("--init", first))):
        assert ends(script, *options, "--runs-dir", tmp_path / name, "--seed", seed, *extra)[0] == 0
    networks = {name: first_weights(folder(tmp_path / name)) for name in "abc"}
    assert equal(networks["c"], networks["a"])
    assert not equal(networks["b"], networks["a"])
    if script == BASELINE:
        assert equal(first_weights(folder(tmp_path / "c"), "target"), networks["a"])
    assert "-init" in folder(tmp_path / "c").name


@pytest.mark.long
def test_a_run_stopped_in_its_warm_up_still_starts_with_those_weights(ends, tmp_path):
    options = (*VECTORS, *SMALL_DQN, "--set", "learning_rate=1e-30", "--quiet")
    assert ends(BASELINE, *options, "--stop-after", 640, "--runs-dir", tmp_path / "a")[0] == 0
    again = ("--seed", 2, "--init", folder(tmp_path / "a"), "--runs-dir", tmp_path / "b")
    assert ends(BASELINE, *options, *again, "--stop-after", 640)[0] == 0
    stopped = folder(tmp_path / "b")
    for file in (*(stopped / "checkpoints").glob("*"), stopped / "result.json", stopped / "episodes.csv"):
        file.unlink()
    assert ends(BASELINE, *resuming(stopped), "--stop-after", 640, "--quiet")[0] == 0
    assert equal(first_weights(stopped), first_weights(folder(tmp_path / "a")))


def test_a_command_on_a_card_keeps_the_first_weights_and_the_config_without_private_folders():
    argv = [
        "/home/me/04.py",
        "--init",
        "models/pong",
        "--config=/home/me/x.json",
        "--init",
        "/home/me/runs/2026-11-20T1200-pong-02_n_envs=3",
        "--set",
        "gamma=0.9",
        "--runs-dir",
        "/home/me/runs",
        "--quiet",
    ]
    publish = runpy.run_path(str(PROJECT / PUBLISH))
    assert publish["without"](publish["PRIVATE"], argv) == [
        "04.py",
        "--init",
        "models/pong",
        "--config=x.json",
        "--init",
        "2026-11-20T1200-pong-02_n_envs=3",
        "--set",
        "gamma=0.9",
        "--quiet",
    ]


def test_a_model_without_a_network_is_refused_in_one_line(refused, model, tmp_path):
    [best] = (model / "checkpoints").glob("best-*.pt")
    content = torch.load(best, weights_only=True)
    content["network"] = content.pop("net")
    torch.save(content, best)
    shown = ("--env-id", "fakes:Shown-v0", "--init", model, "--runs-dir", tmp_path / "runs")
    assert "has no network; it was probably saved by another version" in refused(PPO, *shown)


def test_a_model_that_does_not_fit_is_refused_in_one_line(refused, model, original_run, tmp_path):
    new = ("--runs-dir", tmp_path / "runs")
    assert "was trained on fakes:Shown-v0, not on PongNoFrameskip-v4; give --env-id fakes:Shown-v0, or" in refused(
        PPO, "--init", model, *new
    )
    assert "start 01_ppo.py with --env-id fakes:Shown-v0, or give" in refused(BASELINE, "--init", model, *new)
    before = contents(model)
    for script in (PPO, BASELINE):
        assert f"Start a new run from its network with --init '{model}'" in refused(script, *resuming(model))
    assert contents(model) == before
    shown = ("--env-id", "fakes:Shown-v0", "--init", model, *new)
    assert "does not fit this script's network" in refused(BASELINE, *shown)
    with_options = read_params(model)
    with_options["hyperparameters"]["env_name"] = "fakes:Shown-v0?stack=2"
    write_json(model / "params.json", with_options)
    assert "does not fit this script's network" in refused(BASELINE, *shown)  # so its id is accepted
    assert "a resumed run has its own weights" in refused(PPO, *resuming(original_run), "--init", model)
    assert "there is no run" in refused(PPO, *shown[:2], "--init", tmp_path / "nothing", *new)
    [network] = (model / "checkpoints").glob("*.pt")
    assert f"{network} is a file, so give the folder of its run, {model}" in refused(PPO, *shown[:2], "--init", network)
    freeway = ("--env-id", "FreewayNoFrameskip-v4", "--init", "models/pong", *new)
    assert "start 03_ppo_actors.py with --game pong and no --env-id, or give a model of" in refused(PPO, *freeway)
    data = bytearray(network.read_bytes())
    data[len(data) // 2] ^= 1
    network.write_bytes(data)
    assert f"{network} is damaged" in refused(PPO, *shown, *SMALL[PPO], code=1)
    assert not (tmp_path / "runs").exists()
