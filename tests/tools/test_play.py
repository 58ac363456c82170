"""The tools, as a person would use them on a finished run."""

import json
import os
import re
import runpy
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest

from lib.errors import UsageError
from lib.run import provenance, run_folder
from running import ENVIRONMENT, PROJECT, assignments, folder, run, run_by_itself

PLAY, EVALUATE, DOCTOR, COMPARE = (Path(f"tools/{name}.py") for name in ("play", "evaluate", "doctor", "compare"))
WITHOUT_DISPLAY = {name: value for name, value in ENVIRONMENT.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
SMALL = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=640")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 01_ppo on a small game that can be looked at."""
    runs_dir = tmp_path_factory.mktemp("trained")
    options = ("--env-id", "fakes:Shown-v0", *SMALL, "--stop-after", 1280, "--quiet", "--runs-dir", runs_dir)
    process = run(Path("distributed/01_ppo.py"), *options)
    assert process.returncode == 0, process.stderr
    return folder(runs_dir)


def test_evaluate_tells_a_line_and_writes_all_of_it(trained):
    process = run(EVALUATE, trained, "--episodes", 40, "--seed", 3)
    assert process.returncode == 0, process.stderr
    said = re.search(r"Evaluation: mean return (-?\d\.\d\d), .*, -1 to -?1, over 40 episodes", process.stdout)
    found = json.loads((trained / "evaluation.json").read_text())
    assert float(said[1]) == pytest.approx(found["mean"], abs=0.005)
    assert found["mean"] == pytest.approx(sum(found["returns"]) / 40)
    assert (found["episodes"], len(found["returns"]), set(found["lengths"])) == (40, 40, {6})
    [best] = (trained / "checkpoints").glob("best-*.pt")
    assert (found["checkpoint"], found["step"]) == (best.name, int(best.stem.removeprefix("best-")))
    assert not list(trained.glob("videos/*"))


@pytest.mark.parametrize("place", ["nowhere/found.json", "."])
def test_what_cannot_be_written_is_refused_before_an_episode_is_played(refused, monkeypatch, trained, tmp_path, place):
    monkeypatch.setattr("lib.run.evaluation.evaluate", fail)
    said = refused(EVALUATE, trained, "--output", tmp_path / place)
    assert f"{tmp_path / place} cannot be written; give a file in a folder that is there" in said


def evaluated(answer, trained, tmp_path, *options):
    answer(EVALUATE, trained, "--episodes", 30, "--quiet", "--output", tmp_path / "found.json", *options)
    return json.loads((tmp_path / "found.json").read_text())


def test_a_seed_decides_what_is_played_and_epsilon_how(answer, trained, tmp_path):
    one, same, other = (evaluated(answer, trained, tmp_path, "--seed", seed) for seed in (1, 1, 2))
    assert one == same
    assert one["returns"] != other["returns"]
    random = evaluated(answer, trained, tmp_path, "--epsilon", 1.0, "--episodes", 300)
    assert random["mean"] == pytest.approx(-0.7, abs=0.15)  # Catch without looking


def test_without_a_display_play_records_videos_that_say_what_became_of_the_episode(trained):
    import cv2

    process = run(PLAY, trained, "--record", "--episodes", 2, "--scores", "--checkpoint", "last", env=WITHOUT_DISPLAY)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    said = re.findall(r"Episode (\d): return (-?1), 6 steps\n(.*)", process.stdout)
    assert [number for number, _, _ in said] == ["1", "2"]
    for number, total, path in said:
        assert Path(path) == trained / "videos" / f"play-1280-episode-{number}-return-{total}.webm"
        video = cv2.VideoCapture(path)
        assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 7  # six steps, and what was there before the first
        assert video.get(cv2.CAP_PROP_FPS) == 10
        _, picture = video.read()
        blue, green, red = picture[100, 3]
        assert abs(int(blue) - 40) < 12  # of the raw screen, which the observations do not have
        assert max(int(green), int(red)) < 12
        assert picture.shape[1] == 560 + 220
    assert not list(trained.glob("videos/*.part.webm"))


def test_in_a_window_nothing_is_written(answer, monkeypatch, trained):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    before = set(trained.rglob("*"))
    assert re.match(r"Episode 1: return -?1, 6 steps\n$", answer(PLAY, trained, "--scores"))
    assert set(trained.rglob("*")) == before


def test_without_pygame_there_is_no_window(refused, monkeypatch, trained):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert "a window needs pygame, which is not installed; pip install pygame" in refused(PLAY, trained)


def test_a_display_that_does_not_answer(refused, monkeypatch, trained):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    assert "no window can be opened: " in refused(PLAY, trained)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is no display here"),
        (("--checkpoint", "77"), "has no checkpoint '77'; give best, last, or one of the steps"),
        (("--epsilon", "2"), "2 is not between 0 and 1"),
    ],
)
def test_wrong_use_of_play(refused, monkeypatch, trained, options, message):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert message in refused(PLAY, trained, *options)


def test_a_run_of_another_version_names_its_commit(refused, trained, tmp_path):
    path = tmp_path / "old"
    shutil.copytree(trained, path)
    params = run_folder.read_params(path)
    params["hyperparameters"]["env_name"] = "fakes:Chain-v0"  # whose states this network does not take
    params["sessions"][-1]["commit"] = "abc123+"
    (path / "params.json").write_text(json.dumps(params))
    said = refused(EVALUATE, path)
    assert "was made by another version of this project, commit abc123, " in said
    assert said.endswith("To use it: git checkout abc123\n")
    params["sessions"][-1]["commit"] = provenance.commit()
    (path / "params.json").write_text(json.dumps(params))
    said = refused(EVALUATE, path)
    assert "does not fit fakes:Chain-v0 as it is now: " in said
    assert "size mismatch" in said


def test_an_environment_that_cannot_be_shown(refused, trained, tmp_path):
    path = tmp_path / "blind"
    shutil.copytree(trained, path)
    params = run_folder.read_params(path)
    params["hyperparameters"]["env_name"] = "fakes:Catch-v0"
    (path / "params.json").write_text(json.dumps(params))
    assert "fakes:Catch-v0 cannot be shown: its render_modes are []" in refused(PLAY, path, "--record")


def test_a_missing_encoder_is_named(refused, monkeypatch, trained):
    monkeypatch.setattr("lib.run.video_file.CODEC", "none")
    assert "it has no none encoder" in refused(PLAY, trained, "--record")


def test_runs_are_compared_by_what_differs_and_how_far_they_came(answer, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "other")
    params = run_folder.read_params(trained)
    params["hyperparameters"]["learning_rate"] = 1.25e-7
    (tmp_path / "other" / "params.json").write_text(json.dumps(params))
    (tmp_path / "other" / "result.json").unlink()  # as if it was killed
    rows = [f"{number},{6 * number},6,{number % 2},{number}.5," for number in range(1, 201)]
    (tmp_path / "other" / "episodes.csv").write_text("episode,step,length,return,seconds,video\n" + "\n".join(rows))
    said = answer(COMPARE, trained, tmp_path / "other", "--csv", tmp_path / "table.csv")
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines()[1:]}
    assert lines["learning_rate"][1] == "1.25e-07"
    assert "gamma" not in lines
    assert lines["steps"] == ["1280", "1200"]
    assert lines["episodes"][1] == "200"
    assert (lines["mean"][1], lines["minutes"][1]) == ("0.50", "3.34")
    assert lines["ended"] == ["step", "limit", "no", "result"]
    assert pd.read_csv(tmp_path / "table.csv")["run"].tolist() == [trained.name, "other"]


def test_the_doctor_finds_this_machine_fit(answer, tmp_path):
    said = answer(DOCTOR, "--runs-dir", tmp_path, code=0)
    assert re.search(r"^ok       PongNoFrameskip-v4 runs, by ale-py ", said, re.M)
    assert re.search(r"^(ok|note)  +disk: \d+ MB/s", said, re.M)
    assert re.search(r"^ok       emulator: [\d,]+ agent steps/s", said, re.M)
    assert re.search(r"^ok       learner: \d+ updates/s", said, re.M)
    assert said.endswith("This machine is fit for training.\n")
    assert "problem" not in said
    assert list(tmp_path.iterdir()) == []


def asked(monkeypatch, capsys, *options):
    """What the doctor says where something has to be changed."""
    monkeypatch.setattr(sys, "argv", ["doctor.py", "--quick", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PROJECT / DOCTOR), run_name="__main__")
    assert ended.value.code == 1
    return capsys.readouterr().out


def fail(env_id):
    raise UsageError("no ROM")


def sick(monkeypatch, how):
    version = metadata.version
    if how == "missing":
        monkeypatch.setattr(metadata, "version", lambda name: version("nowhere" if name == "ptan" else name))
    elif how == "old":
        monkeypatch.setattr(metadata, "version", lambda name: "0.4.0" if name == "pytorch-ignite" else version(name))
    elif how == "rom":
        monkeypatch.setattr("lib.envs.single_env.make_env", fail)
    elif how == "memory":
        monkeypatch.setattr("lib.system.memory.free", lambda: 10**9)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", r"problem  ptan is not installed\n         -> make clean"),
        ("old", r"problem  pytorch-ignite 0\.4\.0\n         -> >=0\.5\.5 is asked for"),
        ("rom", r"problem  PongNoFrameskip-v4 does not run: no ROM\n         -> ale-py brings"),
        (
            "memory",
            r"problem  memory: 1\.0 GB free, 1\.5 GB for pong's replay\n         -> take --set replay_size=5\d{4}",
        ),
    ],
)
def test_the_doctor_names_what_keeps_a_run_from_working(monkeypatch, capsys, tmp_path, how, message):
    sick(monkeypatch, how)
    said = asked(monkeypatch, capsys, "--runs-dir", str(tmp_path))
    assert re.search(f"^{message}", said, re.M), said
    assert said.endswith("To be changed first: 1\n")


@pytest.mark.parametrize("package", ["ale_py", "torch", "ptan"])
def test_the_doctor_is_well_enough_to_say_what_is_missing(tmp_path, package):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module named {package}')")
    paths = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    process = run_by_itself(DOCTOR, "--quick", env=ENVIRONMENT | {"PYTHONPATH": paths})
    assert process.returncode == 1
    assert process.stderr == ""
    assert (
        f"problem  the packages cannot be imported: No module named {package}\n         -> make clean" in process.stdout
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda:77"], r"problem  cuda:77 asks for a GPU, and PyTorch"),
        (["--runs-dir", "/dev/null"], r"problem  /dev/null cannot be written: File exists"),
        (["--runs-dir", "/proc/self"], r"problem  /proc/self cannot be written: No such file or directory"),
    ],
)
def test_the_doctor_finds_a_gpu_that_is_not_there_and_a_folder_that_cannot_be(monkeypatch, capsys, options, message):
    said = asked(monkeypatch, capsys, *options)
    assert message in said
    assert said.endswith("To be changed first: 1\n")


@pytest.mark.parametrize("tool", sorted(path.relative_to(PROJECT) for path in PROJECT.glob("tools/*.py")), ids=str)
def test_every_tool_shows_an_example_in_its_help(answer, tool):
    assert f"    ./{tool.name} " in answer(tool, "--help", code=0)
    assert os.access(PROJECT / tool, os.X_OK)
